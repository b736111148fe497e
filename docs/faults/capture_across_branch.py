# SPDX-License-Identifier: Apache-2.0
"""TVM: a kernel after a branch is captured before it."""

import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T


@I.ir_module
class Module:
    @T.prim_func(s_tir=True)
    def exp(x: T.Buffer((16,), "float32"), y: T.Buffer((16,), "float32")):
        for i in range(16):
            y[i] = T.exp(x[i])

    @R.function(pure=False)
    def main(x: R.Tensor((16,), "float32"), c: R.Tensor((), "bool")):
        both = R.memory.alloc_storage(R.shape([128]), 0, R.str("global"), R.dtype("uint8"))
        a: R.Tensor((16,), "float32") = R.memory.alloc_tensor(
            both, 0, R.shape([16]), R.dtype("float32"), 0
        )
        Module.exp(x, a)
        b: R.Tensor((16,), "float32") = R.memory.alloc_tensor(
            both, 64, R.shape([16]), R.dtype("float32"), 0
        )
        Module.exp(a, b)
        out: R.Tensor((16,), "float32") = R.builtin.alloc_tensor(
            R.shape([16]), R.dtype("float32"), 0, R.str("global")
        )
        if c:
            Module.exp(b, out)
            done = R.tuple()
        else:
            Module.exp(a, out)
            done = R.tuple()
        Module.exp(a, b)
        return out


with tvm.transform.PassContext(config={"relax.backend.use_cuda_graph": True}):
    rewritten = relax.transform.RewriteCUDAGraph()(Module)
captured = [var.name_hint for var in rewritten.get_global_vars() if "capture" in var.name_hint]
together = any(rewritten[name].script().count("exp(a, b)") == 2 for name in captured)
print("wrong" if together else "mended")
