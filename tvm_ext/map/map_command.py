# SPDX-License-Identifier: Apache-2.0
"""``tvm-ext map``: the memory of a program as a page or a picture."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace

from passes.planning import Budget, MemoriesPlan, MemoriesProblem, Plan, Problem, Status
from tvm_ext.commands import command_options as common
from tvm_ext.commands.plan_command import planned_memories, report
from tvm_ext.map.memory_map import BufferNote, MemoryMap, ScopeMap, check_suffix, write_map
from tvm_ext.map.source import memory_map_of
from tvm_ext.planned.placements import MapOptions, PlannedProblem
from tvm_ext.reading.programs import problems_of
from tvm_ext.text import format_bytes

_MOST_LEFT = 5
"""So many buffers are named that are not planned."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's description and arguments to a parser or subparser."""
    parser.description = (
        "Plan the memories of a program and show them: as a page with the map beside the program's "
        "lines, or as a picture."
    )
    parser.epilog = (
        "Exit status: 0 when every plan fits, 1 when one does not, 2 on bad input. A .py file is "
        "run, as Python runs it: give only files that you trust."
    )
    parser.add_argument(
        "program",
        metavar="WORKLOAD | ascend:KERNEL[:SIZE] | FILE",
        help=f"{common.PROGRAM}, or a table of buffers (.csv)",
    )
    parser.add_argument(
        "-o",
        "--output",
        required=True,
        metavar="OUT",
        help="what to write, by its ending: .html a page for a browser; .svg, .png or .pdf a "
        "picture",
    )
    parser.add_argument("--target", metavar="T", help=f"lower the program for {common.TARGET}")
    common.add_planners(
        parser,
        "show the plans of these side by side, 'stock' being TVM's own; by default best, and for "
        "Ascend kernels three_level",
    )
    for option, what in (
        ("scopes", "show these memories only, such as local.UB"),
        ("functions", "show these functions only; by default the Relax functions, if any"),
    ):
        parser.add_argument(f"--{option}", default="", metavar="NAME[,NAME...]", help=what)
    for option, what in (
        ("layer-group", "a network: show its groups of layers in the target's local memory"),
        ("order", "a network: show it in the order in which the least memory is live"),
        ("shared-memory", "GPU kernels: show their shared memory, epoch by epoch between barriers"),
    ):
        parser.add_argument(f"--{option}", action="store_true", help=f"of {what}")
    common.add_sizes(parser)
    common.add_memories(parser)
    common.add_limits(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command; return 0 if every plan fits, 1 if one does not."""
    common.check_memories(args)
    check_suffix(args.output)
    common.check_writable(args.program, args.output)
    shown, lines, fits = _planned(args) if args.memories is None else _spread(args)
    with common.naming(args.output):
        write_map(shown, args.output)
    print("\n".join([*lines, f"{shown.title}: written to {args.output}"]))
    return 0 if fits else 1


def _planned(args: argparse.Namespace) -> tuple[MemoryMap, list[str], bool]:
    """Plan each memory; say what it takes, what is not planned, and how long functions run."""
    names = (() if args.planners is None else args.planners, args.scopes, args.functions)
    ways = {way: getattr(args, way) for way in ("layer_group", "order", "shared_memory")}
    shown = memory_map_of(
        args.program,
        target=args.target,
        capacity=args.capacity,
        alignment=args.alignment,
        options=MapOptions(*names, budget=common.budget_of(args), **ways),
        sizes=common.sizes_of(args),
    )
    lines: list[str] = []
    for scope in shown.scopes:
        capacity = scope.problem.capacity
        there = "" if capacity is None else f" of {format_bytes(capacity)}"
        for placement in scope.placements:
            takes = f"{placement.label} needs {format_bytes(placement.plan.peak)}{there}"
            bound = f"lower bound {format_bytes(scope.bound)}, {placement.verdict}"
            lines.append(f"{scope.function} {scope.name}: {takes}, {bound}")
            lines += [f"  {line}" for line in scope.explain(placement).splitlines()]
        lines += [f"  {scope.form}"] if scope.form else []
    more = len(shown.left) - _MOST_LEFT
    left = [*shown.left[:_MOST_LEFT], *([f"{more} more"] if more > 0 else [])]
    lines += [f"not planned: {line}" for line in left]
    for run in shown.runs:
        lines.append(f"{run.function}: {run.planner} takes {run.simulation.makespan:,} cycles")
    return shown, lines, all(p.plan.fits for scope in shown.scopes for p in scope.placements)


def _spread(args: argparse.Namespace) -> tuple[MemoryMap, list[str], bool]:
    """Spread buffers over several memories; say what moves and what each memory holds."""
    memories = common.read_memories(args.memories)
    lines: list[str] = []
    scopes: list[ScopeMap] = []
    fits = True
    for problem in problems_of(args.program, memories, args.target, common.sizes_of(args)):
        plan = planned_memories(problem, Budget(1 << 60, args.time_limit), args.moves)
        fits &= plan.fits
        lines += [f"{problem.name}: {line}" for line in report(problem, plan, [*memories])]
        scopes += memories_maps(problem, plan, [*memories])
    return MemoryMap(args.program, tuple(scopes)), lines, fits


def memories_maps(
    problem: MemoriesProblem, plan: MemoriesPlan, words: Sequence[str]
) -> Iterator[ScopeMap]:
    """Yield what lies in each memory, called by `words`: buffers for good, and stays of others."""
    called = {m.name: word for m, word in zip(problem.memories, words, strict=True)}
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
            fits = memory.capacity is None or peak <= memory.capacity
            status = Status.FEASIBLE if fits else Status.NOT_FOUND
            filled = Problem(tuple(box for _, box in boxes), memory, name=memory.name)
            written = Plan(offsets, peak, 0, plan.planner, status)
            placed = PlannedProblem(plan.planner, filled, written)
            yield ScopeMap(problem.name, (placed,), notes=notes)
