# SPDX-License-Identifier: Apache-2.0
"""The allocations of a PrimFunc: problems read from it, and plans written into it."""
