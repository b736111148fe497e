"""The public passes, named as TVM names its own."""

from __future__ import annotations

from passes.storage_rewrite import StorageRewrite

__all__ = ["StorageRewrite"]
