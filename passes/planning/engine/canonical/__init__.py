# SPDX-License-Identifier: Apache-2.0
"""Depth-first search over canonical placements, and the question that it answers."""
