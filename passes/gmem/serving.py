# SPDX-License-Identifier: Apache-2.0
"""What TVM's pool takes from the device for a whole module, as a server runs its functions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tvm import relax
from tvm.ir import GlobalVar, IRModule, StringImm
from tvm.tirx import Var

from passes.gmem.options import HOST_KINDS, GMEMOptions
from passes.gmem.planning.pool import blocks_in_turns, bytes_of_blocks, skipped_on_paths
from passes.gmem.relax_functions import FunctionPlan
from passes.gmem.storages import allocations_of
from passes.ir import UPPER_BOUND, unique_name
from passes.relax import RelaxMemory, UnknownSizeError, value_of

METADATA = "tvm_ext_memory"
"""The function that `GMEMAllocate` adds to a module with ``metadata=True``."""


@dataclass(frozen=True)
class ServedMemory:
    """What one pool takes when the functions of a module run in turns.

    They run in any order, however often, and the caller keeps the last result of each function
    until the function has made another one. Weights, and what the caller hands in, do not count.
    """

    nbytes: int | None
    """Bytes that the pool takes from the device; None where that is not known."""
    held: int = 0
    """Bytes of them for the results. Each further result that the caller keeps adds its own."""
    sizes: Mapping[str, int] = field(default_factory=dict)
    """The values of symbolic dimensions at which that is counted: their upper bounds. A result
    whose size changes from call to call takes memory anew for each number of pages."""
    functions: tuple[str, ...] = ()
    """The functions that run, sorted."""
    reason: str = ""
    """Why it is not known."""

    def __str__(self) -> str:
        """Say it in a line."""
        if self.nbytes is None:
            return f"what the pool takes for all functions is not known: {self.reason}"
        at = ", ".join(f"{name}={size}" for name, size in self.sizes.items())
        return (
            f"the pool takes {self.nbytes:,} bytes when {', '.join(self.functions)} run in turns"
            f"{f' at {at}' if at else ''}, {self.held:,} of them for the last result of each"
        )

    def to_plain(self) -> dict[str, Any]:
        """Return maps, lists, strings and integers that say the same."""
        plain = {"bytes": self.nbytes, "held": self.held, "sizes": dict(self.sizes)}
        return {**plain, "functions": list(self.functions), "reason": self.reason}


def served_memory(plans: Sequence[FunctionPlan], options: GMEMOptions) -> ServedMemory:
    """Count what the pool takes for the functions of a module, as `plan_gmem` plans them."""
    host = 0 if options.target_kind() in HOST_KINDS else None
    functions, sizes = tuple(plan.memory.name for plan in plans), dict[str, int]()
    calls = []
    for plan in plans:
        memory = plan.memory
        own = memory.func.attrs.get(UPPER_BOUND, {}) if memory.func.attrs else {}
        bounds = {**options.upper_bounds, **{str(name): int(most) for name, most in own.items()}}
        try:
            units = _units(memory, bounds)
        except UnknownSizeError as error:
            return ServedMemory(
                None, functions=functions, reason=f"function {memory.name!r}: {error}"
            )
        paths = skipped_on_paths(memory.branches)
        if paths is None or not memory.has_all_allocations or memory.keeps_storages:
            reason = (
                "CUDA graphs keep storages of their own"
                if memory.keeps_storages
                else "it has too many paths"
                if paths is None
                else "it calls another function, or allocates what is not known"
            )
            return ServedMemory(
                None, functions=functions, reason=f"function {memory.name!r}: {reason}"
            )
        sizes |= {name: bounds[name] for name in memory.variables if name in bounds}
        calls.append((list(allocations_of(memory, plan.placement, host)), units, paths))
    running, held = blocks_in_turns(calls)
    kept = bytes_of_blocks(held)
    return ServedMemory(
        bytes_of_blocks(running) + kept, kept, dict(sorted(sizes.items())), functions
    )


def _units(memory: RelaxMemory, bounds: Mapping[str, int]) -> tuple[int, ...]:
    """Return 1, and the unit of each group at the bounds."""

    def most(variable: Var) -> int:
        if str(variable.name) not in bounds:
            raise UnknownSizeError(f"dimension {str(variable.name)!r} has no upper bound")
        return bounds[str(variable.name)]

    units = (group.unit for group in memory.groups)
    return (1, *(1 if unit is None else value_of(unit, most) for unit in units))


def with_metadata(mod: IRModule, served: ServedMemory) -> IRModule:
    """Return a module with a function `METADATA`, which returns a text in JSON: `to_plain`."""
    taken = {str(variable.name_hint) for variable in mod.get_global_vars()}
    name = unique_name(METADATA, taken, "_")
    text = StringImm(json.dumps(served.to_plain()))
    func = relax.Function([], relax.SeqExpr([], text), relax.ObjectType())
    result = mod.clone()
    result[GlobalVar(name)] = func.with_attr("global_symbol", name)
    return result
