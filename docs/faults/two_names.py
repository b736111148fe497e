# SPDX-License-Identifier: Apache-2.0
"""TVM: two names of one memory."""

import numpy as np
import tvm

mod = tvm.script.from_source("""
@I.ir_module
class M:
    @T.prim_func(private=True)
    def add(p: T.handle("float32", "global"), q: T.handle("float32", "global")):
        P = T.decl_buffer((4,), "float32", data=p)
        Q = T.decl_buffer((4,), "float32", data=q)
        for j in range(4):
            Q[j] = Q[j] + P[3 - j]

    @T.prim_func(s_tir=True)
    def main(a: T.Buffer((4,), "float32"), o: T.Buffer((4,), "float32")):
        T.func_attr({"global_symbol": "main"})
        x = T.alloc_buffer((4,), "float32")
        for i in range(4):
            x[i] = a[i] + T.float32(1)
        M.add(x.data, o.data)
        for i in range(4):
            x[i] = a[i] * T.float32(3)
        M.add(x.data, o.data)
""")
a, o = np.arange(4, dtype="float32"), tvm.runtime.tensor(np.zeros(4, "float32"))
with tvm.transform.PassContext(config={"tirx.disable_storage_rewrite": True}):
    tvm.tirx.build(mod, {"kind": "llvm", "opt-level": 3})["main"](tvm.runtime.tensor(a), o)
print("mended" if np.array_equal(o.numpy(), ((a + 1) + a * 3)[::-1]) else "wrong")
