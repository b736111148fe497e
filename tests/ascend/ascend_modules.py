# SPDX-License-Identifier: Apache-2.0
"""Functions made into modules, planned by `AscendPlanMemory`: addresses, or why it refuses."""

from __future__ import annotations

import pytest
import tvm
import tvm_ffi
from tvm import tirx
from tvm.target import Target

from target_hw.memory import MemoryHierarchy, MemoryScope
from target_hw.target import with_memory
from tvm_ext import lowering
from tvm_ext.transform import AscendPlanMemory

TWIN = "ascend/910b-llvm"
SEARCHES = ("search", "mirror")
WORKSPACE = "global-work-space-plan"


def module(func: tirx.PrimFunc, target: str | Target = TWIN) -> tvm.IRModule:
    """Lower a function to where storage is planned."""
    return lowering.capture(tvm.IRModule({"main": func}), target)


def addresses(mod: tvm.IRModule) -> dict[str, tuple[int, ...]]:
    """Return the addresses of all allocations that have some, by name."""
    found = {}

    def note(op: tirx.AllocBuffer) -> None:
        if len(op.buffer.ty.allocated_addr):
            found[op.buffer.name] = tuple(int(a) for a in op.buffer.ty.allocated_addr)

    for func in mod.functions.values():
        tvm_ffi.structural_walk(func, (tirx.AllocBuffer, note))
    return found


def planned(func: tirx.PrimFunc, **options) -> dict[str, tuple[int, ...]]:
    """Return the addresses that the pass gives."""
    return addresses(AscendPlanMemory(**options)(module(func)))


def message(func: tirx.PrimFunc, **options) -> str:
    """Return what the pass says where it refuses a function."""
    with pytest.raises(ValueError, match="AscendPlanMemory: function 'main': ") as caught:
        AscendPlanMemory(**options)(module(func))
    return str(caught.value).removeprefix("AscendPlanMemory: function 'main': ")


def chip(**capacities: int) -> Target:
    """Return a twin of a chip with these bytes of on-chip memory."""
    scopes = [MemoryScope(f"local.{name}", size, 32) for name, size in capacities.items()]
    return with_memory("llvm", MemoryHierarchy(tuple(scopes)))


def uses_scope(scope: str, size=64, annotations=None, reads_first=False, looped=False):
    """Return a function with one buffer that is loaded and stored."""
    x, y = (tirx.decl_buffer([64], "float32", name, layout=None) for name in "xy")
    a = tirx.decl_buffer([size], "float32", "a", scope=scope, layout=None)

    def copy(to, source):
        i = tirx.Var("i", "int32")
        store = tirx.BufferStore(to, source[i], [i])
        return tirx.For(i, tirx.const(0), tirx.const(64), tirx.ForKind.SERIAL, store)

    moves = [copy(a, x), copy(y, a)]
    body = tirx.SeqStmt(
        [tirx.AllocBuffer(a, annotations), *(reversed(moves) if reads_first else moves)]
    )
    if looped:
        t = tirx.Var("t", "int32")
        body = tirx.For(t, tirx.const(0), tirx.const(4), tirx.ForKind.SERIAL, body)
    params = [x, y, *([size] if isinstance(size, tirx.Var) else [])]
    return tirx.PrimFunc(params, body).with_attr("global_symbol", "main")
