"""Groups of layers as kernels that run slice by slice in local memory."""
