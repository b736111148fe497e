# SPDX-License-Identifier: Apache-2.0
"""The Ascend kernels, each built and lowered once: to parse one takes longer than to plan it."""

from __future__ import annotations

from functools import cache

import numpy as np
import tvm
import tvm_ffi
from address_runs import build
from tvm import tirx

from tvm_ext import workloads

TWIN = "ascend/910b-llvm"


@cache
def made(name: str, size: workloads.ascend.Size, **parameters: int) -> workloads.AscendKernel:
    return workloads.ascend_kernel(name, size, **parameters)


@cache
def lowered(name: str, size: workloads.ascend.Size, **parameters: int) -> tvm.IRModule:
    return made(name, size, **parameters).lower()


def runs(
    name: str,
    size: workloads.ascend.Size,
    plan: tvm.transform.Pass,
    seed: int = 0,
    **parameters: int,
) -> None:
    """Build with a plan, run, and compare with numpy."""
    kernel = made(name, size, **parameters)
    inputs = kernel.inputs(seed)
    output = tvm.runtime.tensor(kernel.output())
    build(kernel.mod, plan, TWIN)[name](*map(tvm.runtime.tensor, inputs), output)
    expected = kernel.reference(*inputs).astype("float64")
    error = np.abs(output.numpy().astype("float64") - expected).max()
    # Not `>`: the output is NaN where nothing was written.
    assert error <= kernel.tolerance * np.abs(expected).max(), error


def asking_for(func: tirx.PrimFunc, slots: dict[str, int]) -> tirx.PrimFunc:
    """Return a kernel as its author would change it by hand: slots by the names of its buffers."""

    def change(op: tirx.AllocBuffer, _mutator):
        name = op.buffer.name
        if name not in slots:
            return op
        return tirx.AllocBuffer(op.buffer, {**dict(op.annotations), "multi_buffer": slots[name]})

    return func.with_body(tvm_ffi.structural_mutate(func.body, (tirx.AllocBuffer, change)))
