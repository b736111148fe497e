# SPDX-License-Identifier: Apache-2.0
"""TVM: merged shared memory while a copy is in flight."""

import tvm
import tvm_ffi
from tvm.script import tirx as T


@T.prim_func(s_tir=True)
def main(x: T.Buffer((64,), "float32"), o: T.Buffer((64,), "float32")):
    T.launch_thread("blockIdx.x", 1)
    tx = T.launch_thread("threadIdx.x", 64)
    ahead = T.alloc_buffer((64,), "float32", scope="shared.dyn")
    staged = T.alloc_buffer((64,), "float32", scope="shared.dyn")
    T.evaluate(T.call_intrin("float32", "tirx.s_tir.cp_async_raw", ahead.data, tx, x.data, tx, 4))
    T.evaluate(T.call_intrin("int32", "tirx.ptx.cp_async_commit_group"))
    staged[tx] = x[tx]
    T.tvm_storage_sync("shared.dyn")
    o[tx] = staged[63 - tx]
    T.evaluate(T.call_intrin("int32", "tirx.ptx.cp_async_wait_group", 0))


merged = tvm.s_tir.transform.MergeSharedMemoryAllocations()(tvm.IRModule({"main": main}))
sizes = []
tvm_ffi.structural_walk(
    merged["main"].body, (tvm.tirx.AllocBuffer, lambda op: sizes.append(int(op.buffer.ty.shape[0])))
)
print("wrong" if sizes == [256] else "mended")  # Bytes; the two arrays take 512
