# SPDX-License-Identifier: Apache-2.0
"""Texts of functions: one whose three buffers take 768 bytes, two of them 512; a network."""

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

COPY = """
@T.prim_func(s_tir=True)
def copy(a: T.Buffer((4,), "float32"), b: T.Buffer((4,), "float32")):
    for i in range(4):
        b[i] = a[i]
"""

IMPORTS = "from tvm.script import ir as I, relax as R, tirx as T\n"

NETWORK = """
@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor((4, 8), "float32"), w: R.Tensor((8, 8), "float32")):
        with R.dataflow():
            conv1 = R.matmul(x, w)
            act1 = R.nn.relu(conv1)
            conv2 = R.matmul(act1, w)
            halves = R.split(conv2, 2, axis=1)
            total = R.concat((halves[1], halves[0]), axis=1)
            scores = R.nn.softmax(total)
            lv7 = R.exp(R.matmul(scores, w))
            R.output(lv7)
        return lv7
"""
