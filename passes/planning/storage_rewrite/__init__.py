"""The planning of the mirrored `StorageRewrite`."""
