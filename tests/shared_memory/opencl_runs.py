# SPDX-License-Identifier: Apache-2.0
"""Lowers functions for OpenCL, and runs their kernels: on a device, or in the replay."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import tirx
from tvm.target import Target

TARGET = Target({"kind": "opencl", "max_num_threads": 256}, host="llvm")

Within = Callable[[], AbstractContextManager[Any]]


def lowered(
    func: tirx.PrimFunc,
    within: Within = nullcontext,
    *,
    target: Target = TARGET,
    config: dict[str, Any] | None = None,
) -> tirx.PrimFunc:
    """Return the one kernel of a function, as it stands in front of the device's last passes."""
    mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    mod = tirx.transform.BindTarget(target)(mod)
    pipeline, _, _ = tirx.get_tir_pipeline("default")
    with target, tvm.transform.PassContext(config=config or {}), within():
        return pipeline(mod)["main_kernel"]


def shared_bytes(kernel: tirx.PrimFunc, scopes: Collection[str] = ("shared", "shared.dyn")) -> int:
    """Return the bytes of shared memory that a kernel allocates."""
    sizes: list[int] = []

    def note(op: tirx.AllocBuffer) -> None:
        ty = op.buffer.ty
        if str(ty.storage_scope) in scopes:
            dtype = ty.dtype.dtype
            sizes.append(int(ty.shape[0].value) * dtype.bits * dtype.lanes // 8)

    tvm_ffi.structural_walk(kernel.body, (tirx.AllocBuffer, note))
    return sum(sizes)


def source_of(kernel: tirx.PrimFunc, target: Target = TARGET) -> str:
    """Return a kernel in the target's own language."""
    _, _, finalize = tirx.get_tir_pipeline("default")
    mod = finalize()(tvm.IRModule({"main_kernel": kernel}))
    build = tvm.get_global_func(f"target.build.{target.kind.name}")
    return str(build(mod, target).inspect_source())


@cache
def _queue() -> tuple[Any, Any, Any]:
    opencl = pytest.importorskip("pyopencl", reason="there is no pyopencl")
    try:
        context = opencl.create_some_context(interactive=False)
    except opencl.Error as error:
        pytest.skip(f"there is no OpenCL device: {error}")
    return opencl, context, opencl.CommandQueue(context)


def run(kernel: tirx.PrimFunc, arguments: Mapping[str, Any], grid: Sequence[int]) -> None:
    """Run a kernel on a device, on arguments by name: numbers, and arrays, into which it writes.

    `grid` is the number of blocks along each axis that the kernel is launched on, in the order of
    its launch parameters; threads are as many as it says.
    """
    opencl, context, queue = _queue()
    # PoCL's optimisations compile some kernels wrongly, with no memory shared at all.
    program = opencl.Program(context, source_of(kernel)).build(["-cl-opt-disable"])
    flags = opencl.mem_flags.READ_WRITE | opencl.mem_flags.COPY_HOST_PTR
    given = [arguments[param.name.removesuffix("_ptr")] for param in kernel.params]
    device = [
        opencl.Buffer(context, flags, hostbuf=value) if isinstance(value, np.ndarray) else value
        for value in given
    ]
    axes = {tag: size for tag, size in extents(kernel).items() if tag.startswith("threadIdx")}
    blocks = dict(zip([t for t in extents(kernel) if t.startswith("blockIdx")], grid, strict=True))
    local = [axes.get(f"threadIdx.{axis}", 1) for axis in "xyz"]
    size = [blocks.get(f"blockIdx.{axis}", 1) * n for axis, n in zip("xyz", local, strict=True)]
    program.main_kernel(queue, size, local, *device)
    for value, memory in zip(given, device, strict=True):
        if isinstance(value, np.ndarray):
            opencl.enqueue_copy(queue, value, memory)
    queue.finish()


def extents(kernel: tirx.PrimFunc) -> dict[str, Any]:
    """Return the extents of the kernel's blocks and threads, by tag; None where not constant."""
    found: dict[str, Any] = {}

    def note(op: Any) -> None:
        if op.attr_key == "thread_extent":
            found.setdefault(str(op.node.thread_tag), getattr(op.value, "value", None))

    tvm_ffi.structural_walk(kernel.body, (tirx.AttrStmt, note), order="pre")
    return found
