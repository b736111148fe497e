# SPDX-License-Identifier: Apache-2.0
"""Barriers are added for what TVM's default pipeline saves, and for nothing else."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.s_tir import dlight
from tvm.target import Target

import tvm_ext

TARGETS = {
    "shuffles": {"kind": "cuda", "arch": "sm_80", "thread_warp_size": 32},
    "shared memory": {"kind": "opencl", "max_threads_per_block": 1024},
}
RULES = (
    dlight.gpu.Matmul(),
    dlight.gpu.GEMV(),
    dlight.gpu.Reduction(),
    dlight.gpu.GeneralReduction(),
    dlight.gpu.Fallback(),
)


def scheduled(operator, target):
    """Return the kernels that dlight makes of an operator, with their target."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4, 100, 7), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(builder.emit(operator(x)))
        builder.emit_func_output(result)
    passes = relax.transform
    with target:
        mod = tvm.transform.Sequential(
            [
                passes.LegalizeOps(),
                passes.AnnotateTIROpPattern(),
                passes.FuseOps(),
                passes.FuseTIR(),
                dlight.ApplyDefaultSchedule(*RULES),
            ]
        )(builder.get())
    kernels = {
        var: func.with_attr("global_symbol", var.name_hint)
        for var, func in mod.functions.items()
        if isinstance(func, tirx.PrimFunc)
    }
    return tirx.transform.BindTarget(target)(tvm.IRModule(kernels))


def bytes_and_barriers(mod, target, within):
    with target, within():
        mod = tirx.get_tir_pipeline("default")[0](mod)
    sizes, barriers = [], 0

    def note(op):
        ty = op.buffer.ty
        if str(ty.storage_scope).startswith("shared"):
            sizes.append(int(ty.shape[0]) * ty.dtype.dtype.itemsize)

    for func in mod.functions.values():
        if "tirx.kernel_launch_params" in func.attrs:
            tvm_ffi.structural_walk(func.body, (tirx.AllocBuffer, note))
            barriers += func.script().count("tvm_storage_sync")
    return sum(sizes), barriers


OPERATORS = {
    "variance": lambda x: relax.op.variance(x, axis=1),
    "softmax": lambda x: relax.op.nn.softmax(x, axis=1),
    "share of the sum": lambda x: relax.op.divide(x, relax.op.sum(x, axis=1, keepdims=True)),
}


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("target", TARGETS)
def test_no_barrier_is_added_below_what_tvm_takes(target: str, operator: str):
    chip = Target(TARGETS[target], host="llvm")
    mod = scheduled(OPERATORS[operator], chip)
    stock = bytes_and_barriers(mod, chip, nullcontext)
    ours = bytes_and_barriers(mod, chip, tvm_ext.use_plan_shared_memory)
    assert ours[0] <= stock[0]
    assert ours[1] <= stock[1]
