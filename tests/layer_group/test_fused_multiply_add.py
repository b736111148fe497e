# SPDX-License-Identifier: Apache-2.0
"""A CPU that computes a product and a sum in one instruction rounds once, and not twice."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from operator_modules import arrays, call, module
from tvm import relax
from tvm.target import Target
from tvm.target.codegen import llvm_cpu_has_features, llvm_get_system_cpu

from tvm_ext.layer_group_report import layer_groups
from tvm_ext.relax_passes import relax_pipeline

HERE = Target({"kind": "llvm", "mcpu": llvm_get_system_cpu()})


@pytest.mark.skipif(not llvm_cpu_has_features("fma", HERE), reason="the CPU has none")
def test_a_product_is_rounded_before_it_is_added():
    def body(emit, x, s, b, w):
        y = emit(relax.op.reshape(emit(relax.op.multiply(x, s)), (1, 64, 4, 8)))
        return emit(relax.op.matmul(emit(relax.op.add(y, b)), w))

    mod = module([(1, 64, 32), (1, 64, 32), (1, 64, 4, 8), (8, 8)], body, inputs=3)
    twin = dict(Target("sophgo/cv181x-llvm").export())
    twin.pop("tag", None)
    target = Target({**twin, "mcpu": "haswell"})
    assert layer_groups(mod, target).groups
    args = arrays(mod)
    plain, grouped = (
        tvm.compile(mod, target, relax_pipeline=relax_pipeline(target, layer_group=groups))
        for groups in (False, True)
    )
    theirs, ours = (call(relax.VirtualMachine(b, tvm.cpu()), args) for b in (plain, grouped))
    np.testing.assert_array_equal(ours[0], theirs[0])
