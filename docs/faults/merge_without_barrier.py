# SPDX-License-Identifier: Apache-2.0
"""TVM: merged static shared memory without a barrier."""

import tvm
import tvm_ffi
from tvm.script import tirx as T


@T.prim_func(s_tir=True)
def main(a: T.Buffer((64,), "float32"), o: T.Buffer((64,), "float32")):
    T.launch_thread("blockIdx.x", 1)
    tx = T.launch_thread("threadIdx.x", 64)
    s0 = T.alloc_buffer((64,), "float32", scope="shared")
    s1 = T.alloc_buffer((64,), "float32", scope="shared")
    s0[tx] = a[tx]
    T.tvm_storage_sync("shared")
    s1[tx] = s0[63 - tx]
    T.tvm_storage_sync("shared")
    o[tx] = s1[63 - tx]


with tvm.transform.PassContext(config={"tirx.merge_static_smem": True}):
    merged = tvm.s_tir.transform.MergeSharedMemoryAllocations()(tvm.IRModule({"main": main}))

sizes = []
tvm_ffi.structural_walk(
    merged["main"].body, (tvm.tirx.AllocBuffer, lambda op: sizes.append(int(op.buffer.ty.shape[0])))
)
print("wrong" if sizes == [256] else "mended")  # Bytes; the two arrays take 512
