# SPDX-License-Identifier: Apache-2.0
# mypy: ignore-errors
# (TVMScript defines names in ways that a type checker does not follow.)
"""Parts of a kernel in TVMScript: its buffers, and loop nests that write one element by element."""

from __future__ import annotations

from tvm.script import tirx as T


def buffer(shape, dtype="float32", *, scope="local.UB", slots=None):
    """Allocate a buffer, with `slots` slots if they are given."""
    turns = None if slots is None else {"multi_buffer": slots}
    return T.alloc_buffer(shape, dtype, scope=scope, annotations=turns)


def buffers(count, *kind, **options):
    """Allocate some buffers that are alike."""
    return [buffer(*kind, **options) for _ in range(count)]


@T.inline
def each(dst, value):
    """Write each element, of its indices."""
    if len(dst.shape) == 1:
        for i in range(dst.shape[0]):
            dst[i] = value(i)
    else:
        for i, j in T.grid(dst.shape[0], dst.shape[1]):
            dst[i, j] = value(i, j)


@T.inline
def add_up(dst, columns, value):
    """Write a sum for each row."""
    for i, j in T.grid(dst.shape[0], columns):
        if j == 0:
            dst[i] = T.float32(0)
        dst[i] = dst[i] + value(i, j)


@T.inline
def multiply(dst, a, b, done):
    """Add a product of matrices to sums in float32, which begin at zero where none is `done`."""
    for i, x, j in T.grid(dst.shape[0], a.shape[1], dst.shape[1]):
        if done + x == 0:
            dst[i, j] = T.float32(0)
        dst[i, j] = dst[i, j] + T.Cast("float32", a[i, x]) * T.Cast("float32", b[x, j])
