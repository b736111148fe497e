# SPDX-License-Identifier: Apache-2.0
"""TVM: shared memory is reused while a copy to it is in flight."""

import tvm
import tvm_ffi
from tvm.script import tirx as T


@T.prim_func(s_tir=True)
def main(x: T.Buffer((64,), "float32", layout=None), o: T.Buffer((64,), "float32", layout=None)):
    T.launch_thread("blockIdx.x", 1)
    tx = T.launch_thread("threadIdx.x", 64)
    ahead = T.alloc_buffer((64,), "float32", scope="shared", layout=None)
    staged = T.alloc_buffer((64,), "float32", scope="shared", layout=None)
    T.evaluate(T.call_intrin("float32", "tirx.s_tir.cp_async_raw", ahead.data, tx, x.data, tx, 4))
    T.evaluate(T.call_intrin("int32", "tirx.ptx.cp_async_commit_group"))
    staged[tx] = x[tx]
    T.tvm_storage_sync("shared")
    o[tx] = staged[63 - tx]
    T.evaluate(T.call_intrin("int32", "tirx.ptx.cp_async_wait_group", 0))


planned = tvm.tirx.transform.StorageRewrite()(tvm.IRModule({"main": main}))
allocated = []
tvm_ffi.structural_walk(planned["main"].body, (tvm.tirx.AllocBuffer, allocated.append))
print("wrong" if len(allocated) == 1 else "mended")
