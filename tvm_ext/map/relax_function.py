# SPDX-License-Identifier: Apache-2.0
"""The tensors of a Relax function beside its bindings."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from tvm import relax
from tvm.ir import IRModule
from tvm.target import Target
from tvm_ffi import structural_walk

from passes.ir import printed
from passes.relax import RETURNED, bindings_of
from tvm_ext.map.model import BufferNote, Listing, ScopeMap, Shown
from tvm_ext.planned.options import MapOptions
from tvm_ext.planned.relax_function import PlannedNetwork, plan_network
from tvm_ext.tensor_names import operator_of


def relax_maps(mod: IRModule, target: Target, options: MapOptions) -> Iterator[Shown]:
    """Yield the memories of each Relax function, and a line for each tensor left to the runtime.

    There is a memory for the tensors of constant size, and one for each product of symbolic
    dimensions that others are multiples of. In another order than the written one, the notes say
    what moved. Raises ValueError as `plan_network` does.
    """
    for network in plan_network(mod, target, options):
        found = network.found
        for left in found.memory.left:
            returned = "the function returns it, so its caller owns the memory"
            reason = f": {returned if left.reason == RETURNED else left.reason}"
            yield f"{network.name}: {left.name}{reason}"
        if network.has_tensors:
            listing, notes = _read(network)
            form = f"{found.form}; a call copies {found.copied:,} bytes"
            for unit, group, placements in network.tensors:
                if group.problem.buffers:
                    yield ScopeMap(network.name, placements, listing, notes, form=form, unit=unit)


def _read(network: PlannedNetwork) -> tuple[Listing, dict[str, BufferNote]]:
    """Print a function, and find what makes each buffer, and the lines that name it."""
    memory = network.found.memory
    bindings = list(bindings_of(memory.func.body))
    lines, printed_at = printed(memory.func, bindings)
    buffer_of = dict(memory.buffer_of)
    moved = frozenset(network.order.moved if network.order is not None else ())
    tensors = {name: of for group in memory.groups for name, of in group.tensors.items()}
    allocated: dict[str, int] = {}
    made_by: dict[str, str] = {}
    reads: defaultdict[str, dict[int, None]] = defaultdict(dict)
    writes: defaultdict[str, dict[int, None]] = defaultdict(dict)
    line, line_of = 0, []
    for binding in bindings:
        line = max(line, *printed_at.get(binding.__chandle__(), (line,)))
        line_of.append(line)
        own = buffer_of.get(binding.var.__chandle__())
        if own is not None:
            allocated.setdefault(own, line)
            continue
        named = _named(binding.value, buffer_of)
        if isinstance(binding.value, relax.Call):
            for name in named:
                made_by.setdefault(name, operator_of(binding.value))
                (reads if name in writes else writes)[name][line] = None
        elif named and not isinstance(binding.value, relax.If):
            buffer_of[binding.var.__chandle__()] = named[0]  # Another name of the same tensor.
    notes = {}
    for name in (b.name for group in memory.groups for b in group.problem.buffers):
        what = f"made by {made_by[name]}" if name in made_by else ""
        what += "" if moved.isdisjoint(tensors.get(name, ())) else ", moved"
        places = (allocated.get(name), tuple(reads[name]), tuple(writes[name]))
        notes[name] = BufferNote("", what, *places)
    return Listing(lines, tuple(line_of), network.name), notes


def _named(value: Any, buffer_of: Mapping[int, str]) -> list[str]:
    """Return the buffers that an expression names, each once."""
    variables: list[Any] = []
    named = value.cond if isinstance(value, relax.If) else value
    structural_walk(named, ((relax.Var, variables.append),))
    names = (buffer_of.get(variable.__chandle__()) for variable in variables)
    return list(dict.fromkeys(name for name in names if name is not None))
