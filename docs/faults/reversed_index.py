# SPDX-License-Identifier: Apache-2.0
"""TVM: a constant less a loop variable, modulo a constant."""

import numpy as np
import tvm
from tvm.script import tirx as T


@T.prim_func
def main(X: T.Buffer((64,), "float32", layout=None), Y: T.Buffer((64,), "float32", layout=None)):
    for i in range(64):
        Y[i] = X[(67 - i) % 64]


x, y = np.arange(64, dtype="float32"), tvm.runtime.tensor(np.zeros(64, "float32"))
tvm.tirx.build(tvm.IRModule({"main": main}), "llvm")["main"](tvm.runtime.tensor(x), y)
right = x[(67 - np.arange(64)) % 64]
print("mended" if np.array_equal(y.numpy(), right) else "wrong")
