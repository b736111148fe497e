"""Writing a plan into TVM IR. Nothing here decides."""
