"""Memory planning passes for TVM."""

from tvm_ext import transform

__all__ = ["transform"]
