# SPDX-License-Identifier: Apache-2.0
"""``tvm-ext map --memories``: a map of each memory, in which a buffer that moves has several boxes.

A box is a buffer in the memory that holds it for good, or a stay in a faster one.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace

from passes.planning import Budget, MemoriesPlan, MemoriesProblem, Plan, Problem, Status
from tvm_ext.commands.command_options import check_writable, naming, read_memories
from tvm_ext.commands.plan_command import planned_memories, report
from tvm_ext.map.memory_map import BufferNote, MemoryMap, ScopeMap, check_suffix, write_map
from tvm_ext.planned.placements import PlannedProblem
from tvm_ext.reading.programs import problems_of


def run(args: argparse.Namespace) -> int:
    """Run ``map --memories``; return 0 if every plan fits, 1 if one does not."""
    check_suffix(args.output)
    check_writable(args.program, args.output)
    memories = read_memories(args.memories)
    lines: list[str] = []
    scopes: list[ScopeMap] = []
    fits = True
    for problem in problems_of(args.program, memories, args.target):
        plan = planned_memories(problem, Budget(1 << 60, args.time_limit), args.moves)
        fits &= plan.fits
        lines += [f"{problem.name}: {line}" for line in report(problem, plan, [*memories])]
        scopes += memories_maps(problem, plan, [*memories])
    with naming(args.output):
        write_map(MemoryMap(args.program, tuple(scopes)), args.output)
    print("\n".join([*lines, f"{args.program}: written to {args.output}"]))
    return 0 if fits else 1


def memories_maps(
    problem: MemoriesProblem, plan: MemoriesPlan, words: Sequence[str]
) -> Iterator[ScopeMap]:
    """Yield what lies in each memory that is not empty; `words` are what memories are called."""
    called = {m.name: word for m, word in zip(problem.memories, words, strict=True)}
    for memory in problem.memories:
        boxes, offsets, notes = [], {}, {}
        for buffer in problem.buffers:
            here = []
            if plan.memory[buffer.name] == memory.name:
                here.append((buffer, plan.offsets[buffer.name]))
            for stay in plan.stays.get(buffer.name, ()):
                if stay.memory == memory.name:
                    name = f"{buffer.name}, in [{stay.live[0]}, {stay.live[1]})"
                    here.append(
                        (replace(buffer, name=name, live=(stay.live,), pinned=None), stay.offsets)
                    )
            for box, places in here:
                begin, end = box.live[0][0], box.live[-1][1]
                copies = (
                    f"copied from {called[c.source]} to {called[c.target]} in [{c.begin}, {c.end})"
                    for c in plan.copies
                    if c.buffer == buffer.name and begin <= c.begin and c.end <= end
                )
                boxes.append(box)
                offsets[box.name] = places
                notes[box.name] = BufferNote(what="; ".join(copies))
        if boxes:
            peak = plan.peaks[memory.name]
            fits = memory.capacity is None or peak <= memory.capacity
            status = Status.FEASIBLE if fits else Status.NOT_FOUND
            placed = PlannedProblem(
                plan.planner,
                Problem(tuple(boxes), memory, name=memory.name),
                Plan(offsets, peak, 0, plan.planner, status),
            )
            yield ScopeMap(problem.name, (placed,), notes=notes)
