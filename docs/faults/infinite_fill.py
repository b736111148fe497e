# SPDX-License-Identifier: Apache-2.0
"""TVM: a tensor full of an infinity."""

import tvm
from tvm.script import ir as I
from tvm.script import relax as R


@I.ir_module
class Module:
    @R.function
    def main():
        mask: R.Tensor((4, 4), "float32") = R.full(
            R.shape([4, 4]), R.const(float("-inf"), "float32"), dtype="float32"
        )
        return mask


try:
    tvm.compile(Module, "llvm")
    print("mended")
except TypeError:  # argument of type 'PrimType' is not iterable
    print("wrong")
