"""TVM's IR as our passes read it: walks, buffers and types."""
