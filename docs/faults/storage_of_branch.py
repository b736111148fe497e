# SPDX-License-Identifier: Apache-2.0
"""TVM: a storage of one branch is used in the other."""

import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R


@I.ir_module
class Module:
    @R.function(pure=False)
    def main(x: R.Tensor((4, 8), "float32"), c: R.Tensor((), "bool")):
        if c:
            flat = R.reshape(x, R.shape([32]))
            out = R.reshape(R.add(flat, flat), R.shape([4, 8]))
        else:
            flat = R.reshape(x, R.shape([32]))
            out = R.reshape(R.negative(flat), R.shape([4, 8]))
        return out


names = ("LegalizeOps", "ToNonDataflow", "CallTIRRewrite", "StaticPlanBlockMemory")
with tvm.target.Target("llvm"):
    planned = tvm.transform.Sequential([getattr(relax.transform, name)() for name in names])(Module)
try:
    relax.analysis.well_formed(planned)
    print("mended")
except ValueError:  # Var storage is not defined
    print("wrong")
