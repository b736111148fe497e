# SPDX-License-Identifier: Apache-2.0
"""Texts of functions: one whose three buffers take 768 bytes, two of them 512; a network."""

from program_text import program_source


def _lines(text: str) -> str:
    return f"\n{program_source(text)}\n"


CHAIN = _lines("""
def chain(a: 64, b: 64):
    x, y, z: global 64
    x[i] = a[64 - 1 - i] for i in range(64)
    y[i] = x[64 - 1 - i] for i in range(64)
    z[i] = y[64 - 1 - i] for i in range(64)
    b[i] = z[64 - 1 - i] for i in range(64)
""")

COPY = _lines("""
def copy(a: 4, b: 4):
    b[i] = a[i] for i in range(4)
""")

NOT_FLAT = _lines("""
def square(a: 8x8, b: 8x8):
    x: global 8x8
    x[i, j] = a[j, i] for i, j in T.grid(8, 8)
    b[i, j] = x[i, j] for i, j in T.grid(8, 8)
""")

ONLY_RELAX = """
@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
        return x
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
