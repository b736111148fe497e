# SPDX-License-Identifier: Apache-2.0
"""Plans as the Relax virtual machine allocates memory: in one piece, or in several."""
