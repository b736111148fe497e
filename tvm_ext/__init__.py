"""Memory planning passes for TVM."""
