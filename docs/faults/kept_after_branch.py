# SPDX-License-Identifier: Apache-2.0
"""TVM: once a function has branched, it frees nothing until it ends."""

import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R


@I.ir_module
class Module:
    @R.function(pure=False)
    def main(x: R.Tensor((4,), "float32"), c: R.Tensor((), "bool")):
        if c:
            y = R.exp(x)
            y = R.reshape(y, R.shape([4]))
        else:
            y = x
        one = R.negative(y)
        other = R.sum(one)
        return R.exp(other)


names = ("LegalizeOps", "ToNonDataflow", "CallTIRRewrite", "KillAfterLastUse")
with tvm.target.Target("llvm"):
    lowered = tvm.transform.Sequential([getattr(relax.transform, name)() for name in names])(Module)
after = lowered["main"].script().partition("negative(")[2]
print("mended" if "kill_tensor" in after else "wrong")
