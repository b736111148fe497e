# SPDX-License-Identifier: Apache-2.0
"""The tensors of a module's Relax functions over several memories, which its target describes.

All functions are one problem (`passes.planning.memories`): each has positions of its own, one
function behind the other, and a tensor of a function that calls others lives while they run, too.
Weights live all the time, and the last memory holds them before.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any

from passes.gmem.analysis.workspaces import workspaces
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
    """One thing to place."""

    kind: str  # ``tensors``, ``weights`` or ``workspaces``
    name: str  # In its function
    buffer: Buffer  # In the problem of the module
    traffic: Traffic
    data: int | None = None  # Tells the data of constants apart
    same_as: str | None = None  # The buffer of an earlier function with the same data


@dataclass(frozen=True, eq=False)
class OverMemories:
    """What one function has in each memory."""

    problem: MemoriesProblem  # Of the whole module
    plan: MemoriesPlan  # Of that problem; verified, and within the capacities
    entries: tuple[_Entry, ...]

    def pieces(self) -> tuple[Piece, ...]:
        """Return one storage for each memory that holds some of the tensors, from its start on."""
        found = []
        for scope in self.problem.memories:
            there = [e for e in self._in(scope.name) if e.kind == "tensors"]
            if there:
                offsets = {entry.name: self._offset(entry) for entry in there}
                size = max(offsets[entry.name] + entry.buffer.size for entry in there)
                found.append(Piece(size, offsets, scope.name))
        return tuple(found)

    def to_plain(self) -> dict[str, Any]:
        """Return maps, lists, strings and integers for the function's attribute.

        Offsets are from the start of a memory. ``peak`` and ``moved`` are those of the module.
        """
        memories = []
        for scope in self.problem.memories:
            kinds: dict[str, list[Any]] = {"tensors": [], "weights": [], "workspaces": []}
            for entry in self._in(scope.name):
                at = {"name": entry.name, "offset": self._offset(entry), "bytes": entry.buffer.size}
                kinds[entry.kind].append(at)
            totals = {"peak": self.plan.peaks[scope.name], "moved": self.plan.moved[scope.name]}
            memories.append({"name": scope.name, **totals, **kinds})
        return {"memories": memories, "status": self.plan.status.value}

    def _in(self, memory: str) -> list[_Entry]:
        return [e for e in self.entries if self.plan.memory[e.buffer.name] == memory]

    def _offset(self, entry: _Entry) -> int:
        return self.plan.offsets[entry.buffer.name][0]


def plan_over_memories(
    read: Sequence[RelaxMemory],
    callers: Mapping[str, frozenset[str]],
    memories: Sequence[MemoryScope],
    alignment: int,
    options: GMEMOptions,
) -> dict[str, OverMemories]:
    """Place each function's tensors of constant size on the main device; the fastest memory first.

    `callers` has for each function all that may be waiting for it to return. Offsets are multiples
    of `alignment` bytes, beside each memory's own alignment. ValueError says which tensors lack how
    much of which memories.
    """
    aligned = tuple(replace(m, alignment=math.lcm(m.alignment, alignment)) for m in memories)
    ends = list(accumulate(len(memory.bindings) + 1 for memory in read))
    windows = {m.name: span for m, span in zip(read, pairwise((0, *ends)), strict=True)}
    entries: list[_Entry] = []
    taken: set[str] = set()
    inside: dict[str, list[_Entry]] = {}
    for memory in read:
        called = [windows[name] for name, found in callers.items() if memory.name in found]
        own = list(_tensors(memory, windows[memory.name][0], called))
        if options.weights:
            own += _workspaces(memory, windows[memory.name][0], alignment)
            own += _weights(memory, ends[-1], entries, aligned[-1].name)
        inside[memory.name] = own = [_unique(entry, taken) for entry in own]
        entries += [entry for entry in own if entry.same_as is None]
    problem = MemoriesProblem(
        tuple(entry.buffer for entry in entries),
        aligned,
        {entry.buffer.name: entry.traffic for entry in entries},
        "its tensors" if len(read) > 1 else f"function {read[0].name!r}",
    )
    plan = solve(problem, budget=options.budget)
    if not plan.fits:
        raise ValueError(does_not_fit_in_memories(problem, plan))
    check(problem, plan)
    return {name: OverMemories(problem, plan, tuple(own)) for name, own in inside.items()}


def _unique(entry: _Entry, taken: set[str]) -> _Entry:
    """Return an entry whose buffer has a name of its own: variables of Relax may share one."""
    if entry.same_as is not None:
        return entry
    name = unique_name(entry.buffer.name, taken, "_")
    return replace(entry, buffer=replace(entry.buffer, name=name))


def _tensors(memory: RelaxMemory, begin: int, inside: Sequence[LiveRange]) -> Iterator[_Entry]:
    """Yield a function's tensors with positions of the module; `inside`, callees run."""
    for buffer in memory.main.problem.buffers:
        live = [(begin + first, begin + last) for first, last in buffer.live]
        touches = tuple(begin + touch for touch in memory.main.touched_at[buffer.name])
        name = f"{memory.name}: {buffer.name}"
        moved = replace(buffer, name=name, live=join_ranges([*live, *inside]))
        yield _Entry("tensors", buffer.name, moved, Traffic(touches=touches))


def _workspaces(memory: RelaxMemory, begin: int, alignment: int) -> Iterator[_Entry]:
    """Yield what each call of a kernel needs for itself: written and read once."""
    for found in workspaces(memory, alignment):
        ((first, end),) = found.live
        name = f"{memory.name}: workspace of {found.name}"
        buffer = replace(found, name=name, live=((begin + first, begin + end),))
        yield _Entry("workspaces", found.name, buffer, Traffic(uses=2))


def _weights(
    memory: RelaxMemory, end: int, before: Sequence[_Entry], stored_in: str
) -> Iterator[_Entry]:
    """Yield a function's weights, which are read once a call; equal data has one place."""
    of_data = {entry.data: entry.buffer for entry in before if entry.data is not None}
    for weight in memory.weights:
        same = None if weight.data is None else of_data.get(weight.data)
        name = f"{memory.name}: weight {weight.name}"
        buffer = same or Buffer(name, weight.size, ((0, end),))
        traffic = Traffic(uses=1, stored_in=stored_in)
        same_as = None if same is None else same.name
        yield _Entry("weights", weight.name, buffer, traffic, weight.data, same_as)
