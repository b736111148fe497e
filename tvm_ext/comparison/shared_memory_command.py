# SPDX-License-Identifier: Apache-2.0
"""``tvm-ext compare --shared-memory``: shared memory of GPU kernels under TVM's passes and ours."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from tvm import s_tir, tirx
from tvm.ir import IRModule
from tvm.ir.transform import Pass, PassContext, Sequential
from tvm.tirx import PrimFunc

from passes.shared_memory import SCOPES, allocated_bytes
from tvm_ext import transform
from tvm_ext.commands.command_options import sizes_of
from tvm_ext.comparison import Report
from tvm_ext.lowering import check_lowered, up_to_shared_memory
from tvm_ext.reading.programs import load_program
from tvm_ext.text import Table

_Way = tuple[Callable[[], Pass], Callable[[], Pass], Mapping[str, Any]]
"""The passes in the places of `StorageRewrite` and of the merge, and the pass configuration."""

_APART = partial(transform.StorageRewrite, shared_apart=True)
_MERGE = s_tir.transform.MergeSharedMemoryAllocations
_WAYS: Mapping[str, _Way] = {
    "default": (tirx.transform.StorageRewrite, _MERGE, {}),
    "merged": (tirx.transform.StorageRewrite, _MERGE, {"tirx.merge_static_smem": True}),
    "ours": (_APART, partial(transform.PlanSharedMemory, barriers="existing"), {}),
    "insert": (_APART, partial(transform.PlanSharedMemory, barriers="insert"), {}),
}


def run(args: argparse.Namespace) -> Report:
    """Plan each kernel in each way; the status is 1 if ours takes more than TVM's default."""
    program = load_program(args.program, args.target, sizes_of(args))
    # By function: bytes of the kernel that takes most, by way.
    found: dict[str, dict[str, int | None]] = {}
    for name, func in program.functions.items():
        check_lowered(name, func)
        taken = {way: _taken(func, chosen) for way, chosen in _WAYS.items()}
        if any(taken.values()):
            found[name] = taken
    plain = [{"function": name, "taken": taken} for name, taken in found.items()]
    if not found:
        return Report(plain, ["no kernel allocates shared memory"])
    rows = [("function", *_WAYS)]
    above = 0
    for name, taken in found.items():
        cells = ("fails" if size is None else f"{size:,}" for size in taken.values())
        rows.append((name, *cells))
        default, ours = taken["default"], taken["ours"]
        above += default is not None and ours is not None and ours > default
    note = f"{len(found)} functions; ours takes more than TVM's default in {above}"
    return Report(plain, Table("bytes of shared memory", rows, [note]).text(), 1 if above else 0)


def _taken(func: PrimFunc, way: _Way) -> int | None:
    """Return the bytes of the kernel that takes most; None where a pass fails."""
    rewrite, merge, config = way
    passes = [rewrite(), up_to_shared_memory(), merge()]
    with PassContext(config=dict(config)):
        try:
            planned = Sequential(passes)(IRModule({"main": func}))["main"]
        except RuntimeError:  # An internal error of TVM.
            return None
    by_scope = (allocated_bytes(planned, scope) for scope in SCOPES)
    return max(map(sum, zip(*by_scope, strict=True)), default=0)
