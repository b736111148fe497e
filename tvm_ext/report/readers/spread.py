# SPDX-License-Identifier: Apache-2.0
"""Buffers spread over several memories: what lies in each, what moves, and other ways to choose."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from passes.planning import (
    Budget,
    MemoriesPlan,
    MemoriesProblem,
    Plan,
    Problem,
    Status,
    check,
    solve,
)
from passes.planning.memories import does_not_fit_in_memories
from tvm_ext.report.banked_greedy import greedy
from tvm_ext.report.memory_view import BufferNote, Fault, MemoryView, PlannedProblem, written
from tvm_ext.report.report import Finding
from tvm_ext.text import Table

SECONDS = 10.0  # Time for each plan, where no limit is given

Way = tuple[str, dict[str, int] | None, str]
"""A way to choose memories: a name, the bytes moved by word, and what is proven. None is a way
without a place for all."""


def planned_memories(problem: MemoriesProblem, budget: Budget, moves: bool) -> MemoriesPlan:
    """Solve a problem of several memories; a plan that fits is verified."""
    plan = solve(problem, budget=budget, moves=moves)
    if plan.fits:
        check(problem, plan)
    return plan


def spread(
    problem: MemoriesProblem, words: Sequence[str], budget: Budget, moves: bool
) -> tuple[MemoriesPlan, Iterator[Finding]]:
    """Return a plan, and what there is to say of it: what each memory holds, and what moves.

    Memories are called by `words`, the fastest first.
    """
    plan = planned_memories(problem, budget, moves)
    return plan, _findings(problem, plan, words)


def _findings(
    problem: MemoriesProblem, plan: MemoriesPlan, words: Sequence[str]
) -> Iterator[Finding]:
    called = {m.name: word for m, word in zip(problem.memories, words, strict=True)}
    yield from _views(problem, plan, called)
    if not plan.fits:
        yield Fault(f"{problem.name}: {does_not_fit_in_memories(problem, plan, called)}")
        return
    moved, count = problem.objective(plan.moved), len(problem.buffers)
    for at, word in enumerate(reversed(words[1:])):
        is_least = moved[: at + 1] == plan.bound[: at + 1]
        proof = "least (proven)" if is_least else "a better plan may exist"
        yield (
            f"{problem.name}: {count} buffers: {moved[at]} bytes move over {word}, lower bound "
            f"{plan.bound[at]}, {proof}"
        )
    if moved[-1]:
        yield f"{problem.name}: {moved[-1]} bytes move over {words[0]}"
    for memory in problem.memories:
        inside = sum(scope == memory.name for scope in plan.memory.values())
        room = "" if memory.capacity is None else f" of {memory.capacity}"
        peak = f"peak {plan.peaks[memory.name]}{room} bytes"
        yield f"{problem.name}: {called[memory.name]}: {inside} buffers, {peak}"
    if plan.stays:
        copies = f"{len(plan.copies)} copies of {sum(copy.size for copy in plan.copies)} bytes"
        yield f"{problem.name}: {len(plan.stays)} buffers move, in {copies}"


def plain(problem: MemoriesProblem, plan: MemoriesPlan, words: Sequence[str]) -> dict[str, object]:
    """Return a plan as plain data, with memories called by `words`."""
    called = {m.name: word for m, word in zip(problem.memories, words, strict=True)}
    return {
        "problem": problem.name,
        "moved": {called[name]: nbytes for name, nbytes in plan.moved.items()},
        "bound": dict(zip(reversed(list(words)), plan.bound, strict=True)),
        "status": plan.status.value,
        "peaks": {called[name]: peak for name, peak in plan.peaks.items()},
        "memory": {name: called[scope] for name, scope in plan.memory.items()},
        "offsets": {name: list(offsets) for name, offsets in plan.offsets.items()},
        "stays": {
            name: [[called[stay.memory], stay.offsets[0], *stay.live] for stay in stays]
            for name, stays in plan.stays.items()
        },
        "copies": [
            [c.buffer, called[c.source], called[c.target], c.size, c.begin, c.end]
            for c in plan.copies
        ],
    }


def _views(
    problem: MemoriesProblem, plan: MemoriesPlan, called: Mapping[str, str]
) -> Iterator[MemoryView]:
    """Yield what lies in each memory: buffers for good, and stays of others."""
    for memory in problem.memories:
        offsets = {}
        boxes = []
        for buffer in problem.buffers:
            if plan.memory[buffer.name] == memory.name:
                boxes.append((buffer.name, buffer))
                offsets[buffer.name] = plan.offsets[buffer.name]
            for stay in plan.stays.get(buffer.name, ()):
                if stay.memory == memory.name:
                    name = f"{buffer.name}, in [{stay.live[0]}, {stay.live[1]})"
                    box = replace(buffer, name=name, live=(stay.live,), pinned=None)
                    boxes.append((buffer.name, box))
                    offsets[name] = stay.offsets
        notes = {}
        for moved, box in boxes:
            copies = (
                f"copied from {called[c.source]} to {called[c.target]} in [{c.begin}, {c.end})"
                for c in plan.copies
                if c.buffer == moved and box.live[0][0] <= c.begin and c.end <= box.live[-1][1]
            )
            notes[box.name] = BufferNote(what="; ".join(copies))
        if boxes:
            peak = plan.peaks[memory.name]
            filled = Problem(tuple(box for _, box in boxes), memory, name=memory.name)
            fits = memory.capacity is None or peak <= memory.capacity
            status = Status.FEASIBLE if fits else Status.NOT_FOUND
            own = Plan(offsets, peak, 0, plan.planner, status)
            placed = PlannedProblem(plan.planner, filled, own)
            yield MemoryView(problem.name, (placed,), written(notes=notes))


# ----------------------------------------------------------------------------- other ways to choose


def ways(problem: MemoriesProblem, words: Sequence[str]) -> Table:
    """Return a table of ways to choose memories, with the bytes that move in each."""
    found = list(_ways(problem, words))
    ours = next((moved for name, moved, _ in found if name == "ours"), None)
    best = ours[words[-1]] if ours else 0
    rows = [("chosen", *(f"bytes over {word}" for word in words[1:]), "of ours", "")]
    for name, moved, note in found:
        if moved is None:
            rows.append((name, *[""] * len(words), note or "no place for all"))
        else:
            ratio = f"{moved[words[-1]] / best:.2f}" if best else ""
            rows.append((name, *(f"{moved[word]:,}" for word in words[1:]), ratio, note))
    return Table(f"{problem}", rows, left=(0, len(words) + 1))


def _ways(problem: MemoriesProblem, words: Sequence[str]) -> Iterator[Way]:
    def moved(chosen: Mapping[str, int]) -> dict[str, int]:
        counted = dict.fromkeys(words, 0)
        for buffer in problem.buffers:
            counted[words[chosen[buffer.name]]] += problem.cost(buffer, chosen[buffer.name])
        return counted

    slowest = {b.name: max(problem.allowed(b)) for b in problem.buffers}
    yield "all in the slowest", moved(slowest), ""
    rule = greedy(problem)
    by_rule = {n: problem.memory_index[memory] for n, (memory, _) in (rule or {}).items()}
    yield "greedy, as ExecuTorch", None if rule is None else moved(by_rule), ""
    for name, moves in (("ours", False), ("ours, tensors move", True)):
        plan = planned_memories(problem, Budget(1 << 60, SECONDS), moves)
        note, ours = "does not fit", None
        if plan.fits:
            ours = {w: plan.moved[m.name] for w, m in zip(words, problem.memories, strict=True)}
            note = "least (proven)" if plan.status is Status.OPTIMAL else plan.status.value
            note += f", {len(plan.copies)} copies" if plan.copies else ""
        yield name, ours, note
        bound = dict(zip(words, reversed(plan.bound), strict=True))
        yield f"  no plan is below{', moves' * moves}", bound, ""
