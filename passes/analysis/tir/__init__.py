"""From a TIR function to planning problems."""
