# SPDX-License-Identifier: Apache-2.0
"""Instructions of an Ascend kernel: their extent, their pipes, and operands in place."""
