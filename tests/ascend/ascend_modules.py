# SPDX-License-Identifier: Apache-2.0
"""Functions made into modules, planned by `AscendPlanMemory`: addresses, or why it refuses."""

from __future__ import annotations

from textwrap import indent

import address_runs
import pytest
import tvm
from program_text import program
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
    return {name: found for name, found in address_runs.addresses(mod).items() if found}


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
    moves = ["a[i] = x[i] for i in range(64)", "y[i] = a[i] for i in range(64)"]
    lines = [
        f'a = T.alloc_buffer(({size},), "float32", scope="{scope}", annotations={annotations})',
        *(reversed(moves) if reads_first else moves),
    ]
    if looped:
        lines = ["for _ in range(4):", *(f"    {line}" for line in lines)]
    return program(f"def main(x: 64, y: 64, n: T.int32):\n{indent(chr(10).join(lines), '    ')}")
