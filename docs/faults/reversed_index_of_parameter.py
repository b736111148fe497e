# SPDX-License-Identifier: Apache-2.0
"""TVM: a constant less a loop variable, modulo a constant."""

import numpy as np
import tvm
from tvm.script import tirx as T


@T.prim_func(s_tir=True)
def main(part: T.int32, A: T.Buffer((6,), "int32"), B: T.Buffer((6, 2), "int32")):
    for i in range(T.int64(6)):
        for c in range(T.Cast("int64", part), T.Cast("int64", part) + T.int64(1)):
            B[i, c % T.int64(2)] = A[(c // T.int64(6) + (T.int64(5) - i)) % T.int64(6)]


a, b = np.arange(6, dtype="int32"), tvm.runtime.tensor(np.zeros((6, 2), "int32"))
tvm.tirx.build(tvm.IRModule({"main": main}), "llvm")["main"](0, tvm.runtime.tensor(a), b)
print("mended" if np.array_equal(b.numpy()[:, 0], a[::-1]) else "wrong")
