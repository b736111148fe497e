# SPDX-License-Identifier: Apache-2.0
"""TVM: a reduction across threads in an unrolled loop."""

import tvm
from tvm import tirx
from tvm.script import tirx as T
from tvm.target import Target


@T.prim_func(s_tir=True)
def main(X: T.Buffer((2, 32), "float32"), Y: T.Buffer((2,), "float32")):
    for bx in T.thread_binding(1, thread="blockIdx.x"):
        for row in T.unroll(2):
            for tx in T.thread_binding(32, thread="threadIdx.x"):
                with T.sblock("sum"):
                    i = T.axis.spatial(2, row)
                    k = T.axis.reduce(32, tx)
                    with T.init():
                        Y[i] = T.float32(0)
                    Y[i] = Y[i] + X[i, k]


target = Target({"kind": "opencl", "max_num_threads": 256}, host="llvm")
lower, _, _ = tirx.get_tir_pipeline("default")
try:
    lower(tirx.transform.BindTarget(target)(tvm.IRModule({"main": main})))
    print("mended")
except tvm.error.InternalError:
    print("wrong")
