# SPDX-License-Identifier: Apache-2.0
"""The tensors of a module's Relax functions over several memories, which its target describes.

All functions are one problem (`passes.planning.memories`), one after the other; a tensor of a
caller lives while others run, too. Weights live all the time, and the last memory holds them first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

from passes.gmem.options import GMEMOptions
from passes.gmem.planning.pool import Piece
from passes.ir import unique_name
from passes.planning import (
    Buffer,
    LiveRange,
    MemoriesPlan,
    MemoriesProblem,
    Traffic,
    check,
    join_ranges,
    solve,
)
from passes.planning.memories import does_not_fit_in_memories
from passes.relax import RelaxMemory
from target_hw.memory import MemoryScope


@dataclass(frozen=True)
class _Entry:
    """A tensor or a weight to place."""

    kind: str  # ``tensors`` or ``weights``
    name: str  # In its function
    buffer: Buffer  # In the problem of the module
    traffic: Traffic


@dataclass(frozen=True, eq=False)
class OverMemories:
    """The tensors that one function has in each memory."""

    problem: MemoriesProblem  # Of the whole module
    plan: MemoriesPlan  # Of that problem; verified, and within the capacities
    entries: tuple[_Entry, ...]

    def pieces(self) -> tuple[Piece, ...]:
        """Return one storage for each memory that holds some of the tensors, from its start on."""
        found = []
        for scope in self.problem.memories:
            there = [(e, at) for e, at in self._in(scope.name) if e.kind == "tensors"]
            if there:
                size = max(at + entry.buffer.size for entry, at in there)
                found.append(Piece(size, {entry.name: at for entry, at in there}, scope.name))
        return tuple(found)

    def to_plain(self) -> dict[str, Any]:
        """Return maps, lists, strings and integers for the function's attribute.

        Offsets are from the start of a memory. ``peak`` and ``moved`` are those of the module.
        """
        memories = []
        for scope in self.problem.memories:
            plain: dict[str, Any] = {"name": scope.name, "peak": self.plan.peaks[scope.name]}
            plain |= {"moved": self.plan.moved[scope.name], "tensors": [], "weights": []}
            for entry, at in self._in(scope.name):
                placed = {"name": entry.name, "offset": at, "bytes": entry.buffer.size}
                plain[entry.kind].append(placed)
            memories.append(plain)
        return {"memories": memories, "status": self.plan.status.value}

    def _in(self, memory: str) -> list[tuple[_Entry, int]]:
        plan = self.plan
        there = (e for e in self.entries if plan.memory[e.buffer.name] == memory)
        return [(entry, plan.offsets[entry.buffer.name][0]) for entry in there]


def plan_over_memories(
    read: Sequence[RelaxMemory],
    callers: Mapping[str, frozenset[str]],
    memories: Sequence[MemoryScope],
    options: GMEMOptions,
) -> dict[str, OverMemories]:
    """Place each function's tensors of constant size on the main device; the fastest memory first.

    ValueError says which tensors lack how many bytes in each memory.
    """
    problem, inside = memories_problem(read, callers, memories, options)
    plan = solve(problem, budget=options.budget)
    if not plan.fits:
        raise ValueError(does_not_fit_in_memories(problem, plan))
    check(problem, plan)
    return {name: OverMemories(problem, plan, tuple(own)) for name, own in inside.items()}


def memories_problem(
    read: Sequence[RelaxMemory],
    callers: Mapping[str, frozenset[str]],
    memories: Sequence[MemoryScope],
    options: GMEMOptions,
) -> tuple[MemoriesProblem, dict[str, list[_Entry]]]:
    """Return the problem of some functions, one after the other, and the entries of each.

    `callers` has for each function all that may be waiting for it to return.
    """
    alignment, several = options.gmem().offset_alignment, len(read) > 1
    ends = list(accumulate(len(memory.bindings) + 1 for memory in read))
    windows = {m.name: span for m, span in zip(read, pairwise((0, *ends)), strict=True)}
    taken: set[str] = set()  # Variables of Relax may share a name.
    of_data: dict[object, Buffer] = {}
    inside: dict[str, list[_Entry]] = {}
    for memory in read:
        called = [windows[name] for name, found in callers.items() if memory.name in found]
        prefix = f"{memory.name}: " if several else ""
        named = partial(_unique, prefix, taken)
        own = list(_tensors(memory, windows[memory.name][0], called, named))
        if options.weights:
            own += _weights(memory, ends[-1], of_data, memories[-1].name, named)
        inside[memory.name] = own
    entries = {entry.buffer.name: entry for own in inside.values() for entry in own}
    problem = MemoriesProblem(
        tuple(replace(entry.buffer, alignment=alignment) for entry in entries.values()),
        tuple(memories),
        {name: entry.traffic for name, entry in entries.items()},
        "the module" if several else f"function {read[0].name!r}",
    )
    return problem, inside


def _unique(prefix: str, taken: set[str], name: str) -> str:
    return unique_name(prefix + name, taken, "_")


def _tensors(
    memory: RelaxMemory, begin: int, inside: Sequence[LiveRange], named: Callable[[str], str]
) -> Iterator[_Entry]:
    """Yield a function's tensors, live at positions of the module; its callees run `inside`."""
    for buffer in memory.main.problem.buffers:
        live = [(begin + first, begin + last) for first, last in buffer.live]
        touches = tuple(begin + touch for touch in memory.main.uses[buffer.name].touched_at)
        moved = replace(buffer, name=named(buffer.name), live=join_ranges([*live, *inside]))
        yield _Entry("tensors", buffer.name, moved, Traffic(touches=touches))


def _weights(
    memory: RelaxMemory,
    end: int,
    of_data: dict[object, Buffer],
    stored_in: str,
    named: Callable[[str], str],
) -> Iterator[_Entry]:
    """Yield a function's weights, which are read once a call; equal data has one place."""
    for number, weight in enumerate(memory.weights):
        key = (memory.name, number) if weight.data is None else weight.data
        if key not in of_data:
            of_data[key] = Buffer(named(f"weight {weight.name}"), weight.size, ((0, end),))
        traffic = Traffic(uses=1, stored_in=stored_in)
        yield _Entry("weights", weight.name, of_data[key], traffic)
