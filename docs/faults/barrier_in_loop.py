# SPDX-License-Identifier: Apache-2.0
"""TVM: a barrier in a loop that may not run."""

import tvm
from tvm.script import tirx as T


@T.prim_func(s_tir=True)
def main(n: T.Buffer((1,), "int32"), x: T.Buffer((64,), "float32"), y: T.Buffer((64,), "float32")):
    tx = T.launch_thread("threadIdx.x", 64)
    s = T.alloc_buffer((64,), "float32", scope="shared")
    s[tx] = x[tx]
    for i in range(n[0]):
        T.tvm_storage_sync("shared")
    y[tx] = s[63 - tx]


placed = tvm.s_tir.transform.ThreadSync("shared")(tvm.IRModule({"main": main}))
print("wrong" if placed.script().count("tvm_storage_sync") == 1 else "mended")
