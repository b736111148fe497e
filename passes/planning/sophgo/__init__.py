"""tpu-mlir's planning of global memory."""
