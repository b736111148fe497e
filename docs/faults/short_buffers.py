# SPDX-License-Identifier: Apache-2.0
"""TVM: buffers that are cut too short."""

import tvm
from tvm.script import tirx as T


@T.prim_func(s_tir=True)
def reversed(X: T.Buffer((8,), "float32"), Y: T.Buffer((8,), "float32")):
    with T.sblock("root"):
        A = T.sblock_alloc_buffer((8,), "float32")
        A[T.Ramp(7, -1, 8)] = X[T.Ramp(0, 1, 8)]
        Y[T.Ramp(0, 1, 8)] = A[T.Ramp(7, -1, 8)]


@T.prim_func(s_tir=True)
def copied(X: T.Buffer((8,), "float32"), Y: T.Buffer((8,), "float32")):
    with T.sblock("root"):
        A = T.sblock_alloc_buffer((8,), "float32")
        T.evaluate(T.call_extern("int32", "memcpy", T.address_of(A[0]), T.address_of(X[0]), 32))
        T.evaluate(T.call_extern("int32", "memcpy", T.address_of(Y[0]), T.address_of(A[0]), 32))


mod = tvm.IRModule({"reversed": reversed, "copied": copied})
mod = tvm.s_tir.transform.ConvertBlocksToOpaque()(mod)
mod = tvm.s_tir.transform.CompactBufferAllocation()(mod)
buffers = [mod[name].body.block.alloc_buffers[0] for name in ("reversed", "copied")]
print("mended" if [int(buffer.ty.shape[0]) for buffer in buffers] == [8, 8] else "wrong")
