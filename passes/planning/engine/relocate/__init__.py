"""Less penalty by moving buffers: a large neighbourhood search."""
