"""The analyses of the mirrored `StorageRewrite`."""
