# SPDX-License-Identifier: Apache-2.0
"""The skyline heuristic: blocks are put on the lowest free place."""
