"""LayerGroup: layers cut into slices that stay in local memory."""
