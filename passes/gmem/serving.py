# SPDX-License-Identifier: Apache-2.0
"""Device memory that TVM's pool takes for a whole module, as a server runs its functions."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from typing import Any

from passes.gmem.allocations import allocations_of, blocks_on_paths
from passes.gmem.options import GMEMOptions
from passes.gmem.planning.pool import Blocks, bytes_of_blocks, skipped_on_paths
from passes.gmem.relax_functions import FunctionPlan
from passes.ir import IRModule, declared_bounds, tir, unique_name
from passes.relax import UnknownSizeError, rx

METADATA = "tvm_ext_memory"
"""The function that `GMEMAllocate` adds to a module with ``metadata=True``."""


@dataclass(frozen=True)
class ServedMemory:
    """The bytes that one pool takes when the functions of a module run in turns.

    They run in any order, however often, and the caller keeps the last result of each function
    until the function has made another one. Weights, and what the caller hands in, do not count;
    a function that makes weights of others runs before, and only its temporaries count.
    """

    nbytes: int | None
    """Bytes that the pool takes from the device; None where that is not known."""
    held: int = 0
    """Bytes of them for the results. Each further result that the caller keeps adds its own."""
    temporaries: int = 0
    """Bytes that the pool would take if there were no results: what plans can differ in."""
    sizes: Mapping[str, int] = field(default_factory=dict)
    """The values of symbolic dimensions at which that is counted: their upper bounds."""
    functions: tuple[str, ...] = ()
    """The functions that run, sorted."""
    reason: str = ""
    """The reason why it is not known."""

    def __str__(self) -> str:
        """Say it in a line."""
        if self.nbytes is None:
            return f"what the pool takes for all functions is not known: {self.reason}"
        at = ", ".join(f"{name}={size}" for name, size in self.sizes.items())
        return (
            f"the pool takes {self.nbytes:,} bytes when {', '.join(self.functions)} run in turns"
            f"{f' at {at}' if at else ''}, {self.held:,} of them for the last result of each; "
            f"temporaries alone take {self.temporaries:,}"
        )

    def to_plain(self) -> dict[str, Any]:
        """Return maps, lists, strings and integers that say the same."""
        return {
            "bytes": self.nbytes,
            "held": self.held,
            "temporaries": self.temporaries,
            "sizes": dict(self.sizes),
            "functions": list(self.functions),
            "reason": self.reason,
        }


def served_memory(plans: Sequence[FunctionPlan], options: GMEMOptions) -> ServedMemory:
    """Count what the pool takes for the functions of a module, as `plan_gmem` plans them.

    Of each number of pages there are as many blocks as the function needs that needs the most of
    them, and those of all results.
    """
    functions = tuple(plan.memory.name for plan in plans if not plan.memory.transforms_weights)
    sizes = Counter[str]()
    running: Blocks = Counter()
    held: Blocks = Counter()
    temporaries: Blocks = Counter()
    for plan in plans:
        bounds = {**options.upper_bounds, **declared_bounds(plan.memory.func)}
        try:
            taken, results, rest = _blocks(plan, bounds, options)
        except UnknownSizeError as error:
            reason = f"function {plan.memory.name!r}: {error}"
            return ServedMemory(None, functions=functions, reason=reason)
        temporaries |= rest
        if plan.memory.transforms_weights:  # It runs once, and what it returns are weights.
            running |= rest
            continue
        running |= taken
        held += results
        sizes |= Counter({n: most for n, most in bounds.items() if n in plan.memory.variables})
    kept = bytes_of_blocks(held)
    at = dict(sorted(sizes.items()))
    taken_in_all = bytes_of_blocks(running) + kept
    return ServedMemory(taken_in_all, kept, bytes_of_blocks(temporaries), at, functions)


def _blocks(
    plan: FunctionPlan, bounds: Mapping[str, int], options: GMEMOptions
) -> tuple[Blocks, Blocks, Blocks]:
    """Return the most blocks of any path, of all, of results and of the rest.

    Raises UnknownSizeError where they are not known.
    """

    def most(variable: tir.Var) -> int:
        if str(variable.name) not in bounds:
            raise UnknownSizeError(f"dimension {str(variable.name)!r} has no upper bound")
        return bounds[str(variable.name)]

    memory = plan.memory
    if memory.keeps_storages:
        raise UnknownSizeError("CUDA graphs keep storages of their own")
    if not memory.has_all_allocations:
        raise UnknownSizeError("it calls another function, or allocates what is not known")
    if memory.may_be_kept:
        raise UnknownSizeError(memory.may_be_kept)
    if skipped_on_paths(memory.branches) is None:
        raise UnknownSizeError("it has too many paths")
    made = list(allocations_of(memory, plan.placement, options.host_device()))
    results, rest = ([one for one in made if one.returned is wanted] for wanted in (True, False))
    every = (reduce(or_, blocks_on_paths(memory, each, most)) for each in (made, results, rest))
    taken, held, others = every
    return taken, held, others


def with_metadata(mod: IRModule, served: ServedMemory) -> IRModule:
    """Return a module with a function `METADATA`, which returns a text in JSON: `to_plain`."""
    taken = {str(variable.name_hint) for variable in mod.get_global_vars()}
    name = unique_name(METADATA, taken, "_")
    builder = rx.BlockBuilder()
    with builder.function(name, []):
        builder.emit_func_output(tir.StringConstant(json.dumps(served.to_plain())))
    result = mod.clone()
    result.update(builder.finalize())
    return result
