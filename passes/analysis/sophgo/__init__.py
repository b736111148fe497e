"""The graph that a TIR function holds."""
