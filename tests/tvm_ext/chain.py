# SPDX-License-Identifier: Apache-2.0
"""A function whose three buffers take 768 bytes, two of them at a time 512."""

CHAIN = """
@T.prim_func(s_tir=True)
def chain(a: T.Buffer((64,), "float32"), b: T.Buffer((64,), "float32")):
    x = T.alloc_buffer((64,), "float32")
    y = T.alloc_buffer((64,), "float32")
    z = T.alloc_buffer((64,), "float32")
    for i in range(64):
        x[i] = a[64 - 1 - i]
    for i in range(64):
        y[i] = x[64 - 1 - i]
    for i in range(64):
        z[i] = y[64 - 1 - i]
    for i in range(64):
        b[i] = z[64 - 1 - i]
"""
