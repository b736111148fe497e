"""Depth-first search over canonical placements, and the question that it answers."""
