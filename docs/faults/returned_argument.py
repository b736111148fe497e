# SPDX-License-Identifier: Apache-2.0
"""TVM: a packed function returns its argument, and the storage of that is given to another."""

import numpy as np
import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R


@tvm.register_global_func("faults.same", override=True)
def same(tensor):
    return tensor


@I.ir_module
class Module:
    @R.function(pure=False)
    def main(x: R.Tensor((4,), "float32")):
        one = R.exp(x)
        kept = R.call_packed("faults.same", one, ty_args=R.Tensor((4,), "float32"))
        other = R.negative(x)
        return R.add(kept, other)


x = np.arange(4, dtype="float32")
machine = relax.VirtualMachine(tvm.compile(Module, "llvm"), tvm.cpu())
result = machine["main"](tvm.runtime.tensor(x)).numpy()
print("mended" if np.allclose(result, np.exp(x) - x) else "wrong")
