# SPDX-License-Identifier: Apache-2.0
"""Plans of global memory: rec_tbl, regions, and the allocations of a virtual machine."""
