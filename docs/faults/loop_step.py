# SPDX-License-Identifier: Apache-2.0
"""TVM: a loop's step that is not constant."""

import tvm
from tvm.script import tirx as T


@T.prim_func(s_tir=True)
def main(n: T.Buffer((1,), "int32"), Y: T.Buffer((64,), "float32")):
    for i in T.serial(0, 64, step=n[0]):
        Y[i] = T.float32(1)


try:
    tvm.tirx.build(tvm.IRModule({"main": main}), "llvm")
    print("mended")
except tvm.error.InternalError:
    print("wrong")
