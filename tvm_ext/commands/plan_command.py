# SPDX-License-Identifier: Apache-2.0
"""``tvm-ext plan``: place the buffers of a CSV or a JSON file."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import TextIO

from passes.planning import Budget, Problem, documents, does_not_fit, files
from target_hw.memory import MemoryScope
from tvm_ext import progress
from tvm_ext.commands import command_options as common
from tvm_ext.named_planners import known_planners, planners_for
from tvm_ext.report.memory_view import MemoryView, planned
from tvm_ext.report.readers.spread import plain, spread
from tvm_ext.report.report import Report, report_of

DOCUMENT = ".json"
"""The suffix of files that are no table."""
CHECKING = 2.0
"""Seconds to check and write a plan, at most, for each second that it took to read."""


def add_plan(parser: argparse.ArgumentParser) -> None:
    """Add the command's description, arguments and function to a parser or subparser."""
    parser.set_defaults(run=run)
    parser.description = (
        "Give each buffer of a file an offset, so that no two share bytes while both are live."
    )
    parser.epilog = (
        "Exit status: 0 when the plan fits, 1 when it does not (no file is written then), 2 on bad "
        "input. BYTES and sizes in the table may have a unit: 4096, 192KiB, 1.5MiB."
    )
    parser.add_argument(
        "table",
        metavar="FILE",
        help="columns id,lower,upper,size[,alignment][,apart]: a buffer is live on [lower, upper), "
        "each a position, or one on each of several clocks, as 3:0; its offset is a multiple of "
        "its alignment, any number of bytes; apart has the ids of others that it shares no byte "
        "with; with --memories also uses, touches, allowed, stored_in; what this command adds is "
        "passed over. Or a .json file, which can say more: see passes/planning/documents.py",
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
        "--keep-offsets",
        action="store_true",
        help="leave buffers where the column offset says, and place those whose field is empty",
    )
    parser.add_argument(
        "-o", "--output", metavar="OUT", help="write the offsets to this file too, in the same form"
    )
    common.add_json(parser)


_Planned = tuple[Report, list[str], dict[str, object], Callable[[TextIO], object]]
"""A report of a table, the lines that say it, more data, and what writes the offsets."""


def run(arguments: argparse.Namespace) -> int:
    """Run the command; return 0 if the plan fits, 1 if not."""
    common.check_writable(arguments.table, arguments.output, arguments.json)
    common.check_memories(arguments)
    common.budget_of(arguments)  # A wrong limit is an error before anything is read.
    progress.say("planning")  # It needs no TVM.
    limit: float = arguments.time_limit
    output = arguments.output
    clock = [time.monotonic()]

    def seconds_left() -> float:
        """Note that the table is read, and return what that leaves for the planners."""
        clock.append(time.monotonic())
        return max(0.0, limit - (clock[1] - clock[0]) * (1 + CHECKING))

    plan = _in_one_memory if arguments.memories is None else _in_memories
    with open(arguments.table, encoding="utf-8-sig", newline="") as stream:
        report, lines, data, write = plan(arguments, stream, seconds_left)
    clock.append(time.monotonic())
    if report.is_right and output is not None:
        with common.naming(output), open(output, "w", encoding="utf-8", newline="") as stream:
            write(stream)
    common.write_json(arguments.json, lambda: {**report.data(), **data})
    print(*lines, sep="\n")
    clock.append(time.monotonic())
    if clock[-1] - clock[0] > limit:
        reading, planning, writing = (later - before for before, later in pairwise(clock))
        print(
            f"took {clock[-1] - clock[0]:.1f} s, above the limit of {limit:g} s: {reading:.1f} s "
            f"to read, {planning:.1f} s to plan and check, {writing:.1f} s to write",
            file=sys.stderr,
        )
    return int(not report.is_right)


def _in_one_memory(
    arguments: argparse.Namespace, stream: TextIO, seconds_left: Callable[[], float]
) -> _Planned:
    planners = known_planners("best" if arguments.planners is None else arguments.planners)
    problem, write = _read(arguments, stream)
    names = planners_for(problem, planners)
    budget = Budget(1 << 60, seconds_left() / max(1, len(names)))
    found = tuple(planned(problem, name, budget) for name in names)
    best = min((one.plan for one in found), key=lambda p: (not p.fits, p.penalty, p.peak))
    lines = [] if best.fits else [f"does not fit: {does_not_fit(problem, best)}"]
    for one in found:
        ratio = one.plan.peak / one.bound if one.bound else 1.0
        lines.append(
            f"{len(problem.columns.names)} buffers by {one.label}: peak {one.plan.peak} bytes, "
            f"lower bound {one.bound} bytes, ratio {ratio:.4f}, "
            + (f"penalty {one.plan.penalty}, " if problem.penalties else "")
            + one.verdict
        )
    report = report_of(arguments.table, [MemoryView(arguments.table, found)])
    return report, lines, {}, partial(write, plan=best)


def _read(arguments: argparse.Namespace, stream: TextIO) -> tuple[Problem, Callable[..., None]]:
    """Return the problem that a file says, and what writes it with a plan."""
    kept, name = arguments.keep_offsets, arguments.table
    if name.endswith(DOCUMENT):
        text = stream.read()
        limits = {"capacity": arguments.capacity, "alignment": arguments.alignment}
        problem = documents.read_document(text, name, keep_offsets=kept, **limits)
        has_offsets = '"offsets"' in text
        write = partial(documents.write_document, given=text)
    else:
        memory = MemoryScope("global", arguments.capacity, arguments.alignment)
        problem = files.read_problem(stream, name, memory, keep_offsets=kept)
        text = ""
        if stream.seekable():
            stream.seek(0)
            text = stream.read() if problem.separations else stream.readline()
        elif problem.separations:
            raise ValueError(
                f"{name}: a table of several clocks or with apart must be a plain file"
            )
        has_offsets = files.OFFSET in text.partition("\n")[0].lower()
        write = partial(files.write_plan, problem=problem, given=text)
    if has_offsets and not kept:
        said = "the offsets of the table are passed over: --keep-offsets holds buffers there"
        print(said, file=sys.stderr)
    return problem, write


def _in_memories(
    arguments: argparse.Namespace, stream: TextIO, seconds_left: Callable[[], float]
) -> _Planned:
    if arguments.table.endswith(DOCUMENT):
        raise ValueError(f"{arguments.table}: several memories need a table (.csv)")
    memories = common.read_memories(arguments.memories)
    words = {word: scope.name for word, scope in memories.items()}
    problem = files.read_memories_problem(stream, arguments.table, [*memories.values()], words)
    budget = Budget(1 << 60, seconds_left())
    plan, found = spread(problem, [*memories], budget, arguments.moves)
    report = report_of(arguments.table, found)
    lines = [str(note).removeprefix(f"{problem.name}: ") for note in report.notes]
    stream.seek(0)
    if arguments.moves and "touches" not in stream.readline().lower():
        assumed = "all reads but the last are taken to follow the write"
        lines.append(f"the table has no column touches: {assumed}")
    write = partial(files.write_memories_plan, problem=problem, plan=plan, words=words)
    return report, lines, plain(problem, plan, [*memories]), write
