# SPDX-License-Identifier: Apache-2.0
"""``tvm-ext plan``: place the buffers of a CSV file."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from itertools import pairwise
from typing import TextIO

from passes.planning import (
    Budget,
    MemoriesPlan,
    MemoriesProblem,
    check,
    does_not_fit,
    files,
    lower_bound,
    solve,
)
from passes.planning.memories import does_not_fit_in_memories
from target_hw.memory import MemoryScope
from tvm_ext.commands import command_options as common
from tvm_ext.named_planners import known_planners, planners_for
from tvm_ext.planned.placements import planned, planned_memory

CHECKING = 2.0
"""How long it takes to check and write a plan, at most, for each second that it took to read."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's description and arguments to a parser or subparser."""
    parser.description = (
        "Give each buffer of a CSV file an offset, so that no two share bytes while both are live."
    )
    parser.epilog = (
        "Exit status: 0 when the plan fits, 1 when it does not (no file is written then), 2 on bad "
        "input. BYTES may have a unit: 4096, 192KiB, 1.5MiB."
    )
    parser.add_argument(
        "table",
        metavar="FILE.csv",
        help="columns id,lower,upper,size[,alignment]: a buffer is live on [lower, upper), and its "
        "offset is a multiple of its alignment, any number of bytes; with --memories "
        "also uses, touches, allowed, stored_in; what this command adds is passed over",
    )
    common.add_memories(parser)
    common.add_planners(parser, "ask these; the best of their plans is written; by default best")
    common.add_limits(
        parser,
        "for all from reading to writing; what is read is read, planned once, checked and written "
        "all the same, and a line says how long that took (default: 10)",
        seconds=10.0,
    )
    parser.add_argument(
        "-o", "--output", metavar="OUT.csv", help="write the offsets to this file too"
    )
    common.add_json(parser)


_Planned = tuple[common.Report, Callable[[TextIO], object]]
"""What is said of a plan of a table, and what writes its offsets."""


def run(arguments: argparse.Namespace) -> int:
    """Run the command; return 0 if the plan fits, 1 if not."""
    common.check_writable(arguments.table, arguments.output, arguments.json)
    common.check_memories(arguments)
    common.budget_of(arguments)  # A wrong limit is an error before anything is read.
    limit: float = arguments.time_limit
    output = arguments.output
    clock = [time.monotonic()]

    def seconds_left() -> float:
        """Note that the table is read, and return what that leaves for the planners."""
        clock.append(time.monotonic())
        return max(0.0, limit - (clock[1] - clock[0]) * (1 + CHECKING))

    plan = _in_one_memory if arguments.memories is None else _in_memories
    with open(arguments.table, encoding="utf-8-sig", newline="") as stream:
        found, write = plan(arguments, stream, seconds_left)
    clock.append(time.monotonic())
    if found.status == 0 and output is not None:
        with common.naming(output), open(output, "w", encoding="utf-8", newline="") as stream:
            write(stream)
    common.write_json(arguments.json, found.data)
    print(*found.lines, sep="\n")
    clock.append(time.monotonic())
    if clock[-1] - clock[0] > limit:
        reading, planning, writing = (later - before for before, later in pairwise(clock))
        print(
            f"took {clock[-1] - clock[0]:.1f} s, above the limit of {limit:g} s: {reading:.1f} s "
            f"to read, {planning:.1f} s to plan and check, {writing:.1f} s to write",
            file=sys.stderr,
        )
    return found.status


def _in_one_memory(
    arguments: argparse.Namespace, stream: TextIO, seconds_left: Callable[[], float]
) -> _Planned:
    planners = known_planners("best" if arguments.planners is None else arguments.planners)
    memory = MemoryScope("global", arguments.capacity, arguments.alignment)
    problem = files.read_problem(stream, arguments.table, memory)
    names = planners_for(problem, planners)
    budget = Budget(1 << 60, seconds_left() / max(1, len(names)))
    found = [planned(problem, name, budget) for name in names]
    best = min((one.plan for one in found), key=lambda plan: (not plan.fits, plan.peak))
    plain = {
        "table": arguments.table,
        "capacity": arguments.capacity,
        "lower_bound": lower_bound(problem),
        "plans": [asdict(planned_memory([one])) for one in found],
    }
    lines = [] if best.fits else [f"does not fit: {does_not_fit(problem, best)}"]
    for one in found:
        ratio = one.plan.peak / one.bound if one.bound else 1.0
        lines.append(
            f"{len(problem.buffers)} buffers by {one.label}: peak {one.plan.peak} bytes, "
            f"lower bound {one.bound} bytes, ratio {ratio:.4f}, {one.verdict}"
        )
    write = partial(files.write_plan, problem=problem, plan=best)
    return common.Report(plain, lines, int(not best.fits)), write


def _in_memories(
    arguments: argparse.Namespace, stream: TextIO, seconds_left: Callable[[], float]
) -> _Planned:
    memories = common.read_memories(arguments.memories)
    words = {word: scope.name for word, scope in memories.items()}
    problem = files.read_memories_problem(stream, arguments.table, [*memories.values()], words)
    found = planned_memories(problem, Budget(1 << 60, seconds_left()), arguments.moves)
    lines = report(problem, found, [*words])
    stream.seek(0)
    if arguments.moves and "touches" not in stream.readline().lower():
        assumed = "all reads but the last are taken to follow the write"
        lines.append(f"the table has no column touches: {assumed}")
    write = partial(files.write_memories_plan, problem=problem, plan=found, words=words)
    return common.Report(_plain(problem, found, words), lines, int(not found.fits)), write


def planned_memories(problem: MemoriesProblem, budget: Budget, moves: bool) -> MemoriesPlan:
    """Solve a problem of several memories; a plan that fits is verified."""
    plan = solve(problem, budget=budget, moves=moves)
    if plan.fits:
        check(problem, plan)
    return plan


def _plain(
    problem: MemoriesProblem, plan: MemoriesPlan, words: dict[str, str]
) -> dict[str, object]:
    """Return a plan as plain data."""
    called = {scope: word for word, scope in words.items()}
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


def report(problem: MemoriesProblem, plan: MemoriesPlan, words: Sequence[str]) -> list[str]:
    """Return lines that say what moves, what is proven, and what each memory holds."""
    if not plan.fits:
        called = {m.name: word for m, word in zip(problem.memories, words, strict=True)}
        return [does_not_fit_in_memories(problem, plan, called)]
    moved, lines = problem.objective(plan.moved), []
    for at, word in enumerate(reversed(words[1:])):
        is_least = moved[: at + 1] == plan.bound[: at + 1]
        proof = "least (proven)" if is_least else "a better plan may exist"
        lines.append(
            f"{len(problem.buffers)} buffers: {moved[at]} bytes move over {word}, lower bound "
            f"{plan.bound[at]}, {proof}"
        )
    if moved[-1]:
        lines.append(f"{moved[-1]} bytes move over {words[0]}")
    for word, memory in zip(words, problem.memories, strict=True):
        count = sum(scope == memory.name for scope in plan.memory.values())
        room = "" if memory.capacity is None else f" of {memory.capacity}"
        lines.append(f"{word}: {count} buffers, peak {plan.peaks[memory.name]}{room} bytes")
    if plan.stays:
        copies, nbytes = len(plan.copies), sum(copy.size for copy in plan.copies)
        lines.append(f"{len(plan.stays)} buffers move, in {copies} copies of {nbytes} bytes")
    return lines
