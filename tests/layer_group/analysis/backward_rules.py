# SPDX-License-Identifier: Apache-2.0
"""BackwardH of tpu-mlir's LayerGroup, from the attributes of operators: an oracle.

Written from the formulas of its interface files, in (index, size) of slices as they have it. The
rules share nothing with the package, which reads the same off lowered kernels.
"""

from __future__ import annotations


def clip(index: int, size: int, length: int, *, last: bool = False) -> tuple[int, int]:
    """Cut a slice to its tensor; the last one reaches the end, as tpu-mlir has it."""
    end = index + size
    index = max(index, 0)
    if end > length or last:
        end = length
    return index, end - index


def conv(out, length, *, kernel, stride, pad, dilation=1, last=False):
    """Return the input's slice for a slice of a convolution's output."""
    index, size = out
    extent = (kernel - 1) * dilation + 1
    return clip(index * stride - pad, (size - 1) * stride + max(extent, stride), length, last=last)


def pool(out, length, *, kernel, stride, pad, last=False):
    """Return the input's slice for a slice of a pooling's output."""
    index, size = out
    return clip(index * stride - pad, (size - 1) * stride + kernel, length, last=last)


def deconv(out, length, *, kernel, stride, pad, dilation=1, last=False):
    """Return the input's slice for a slice of a transposed convolution's output."""
    index, size = out
    extent = (kernel - 1) * dilation + 1
    border = extent - pad - 1
    first = max(0, -((border - index) // stride))
    end = min(length - 1, (index + size + extent - 2 - border) // stride)
    return clip(first, end - first + 1, length, last=last)
