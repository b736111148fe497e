"""AscendNPU-IR's planning by levels of reuse."""
