# SPDX-License-Identifier: Apache-2.0
"""``tvm-ext plan``: place the buffers of a CSV file."""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import asdict, replace

from passes.planning import does_not_fit, lower_bound
from passes.planning.files import read_problem, write_plan
from target_hw.memory import MemoryScope
from tvm_ext.commands.command_options import (
    add_json,
    add_limits,
    add_planners,
    budget_of,
    check_writable,
    naming,
    write_json,
)
from tvm_ext.commands.memories_option import add_memories, check_no_memories, run_table
from tvm_ext.named_planners import known_planners, planners_for
from tvm_ext.planned.placements import planned, planned_memory

FITS, DOES_NOT_FIT = 0, 1
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
        "also uses, touches, allowed, stored_in; what this command writes is not read again",
    )
    add_memories(parser)
    add_planners(parser, "ask these; the best of their plans is written; by default best")
    add_limits(
        parser,
        "for all from reading to writing; what is read is read, planned once, checked and written "
        "all the same, and a line says how long that took (default: 10)",
        seconds=10.0,
    )
    parser.add_argument(
        "-o", "--output", metavar="OUT.csv", help="write the offsets to this file too"
    )
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the command; return 0 if the plan fits, 1 if not."""
    check_writable(arguments.table, arguments.output, arguments.json)
    if arguments.memories is not None:
        return run_table(arguments)
    check_no_memories(arguments)
    budget = budget_of(arguments)
    start = time.monotonic()
    planners = known_planners("best" if arguments.planners is None else arguments.planners)
    memory = MemoryScope("global", arguments.capacity, arguments.alignment)
    with open(arguments.table, encoding="utf-8-sig", newline="") as stream:
        problem = read_problem(stream, arguments.table, memory)
    read = time.monotonic()
    names = planners_for(problem, planners)
    left = max(0.0, arguments.time_limit - (read - start) * (1 + CHECKING))
    budget = replace(budget, seconds=left / max(1, len(names)))
    found = [planned(problem, name, budget) for name in names]
    checked = time.monotonic()
    best = min((one.plan for one in found), key=lambda plan: (not plan.fits, plan.peak))
    if best.fits and arguments.output is not None:
        with (
            naming(arguments.output),
            open(arguments.output, "w", encoding="utf-8", newline="") as stream,
        ):
            write_plan(stream, problem, best)
    data = {
        "table": arguments.table,
        "capacity": arguments.capacity,
        "lower_bound": lower_bound(problem),
        "plans": [asdict(planned_memory([one])) for one in found],
    }
    write_json(arguments.json, data)
    if not best.fits:
        print(f"does not fit: {does_not_fit(problem, best)}")
    for one in found:
        ratio = one.plan.peak / one.bound if one.bound else 1.0
        print(
            f"{len(problem.buffers)} buffers by {one.label}: peak {one.plan.peak} bytes, "
            f"lower bound {one.bound} bytes, ratio {ratio:.4f}, {one.verdict}"
        )
    end = time.monotonic()
    if end - start > arguments.time_limit:
        print(
            f"took {end - start:.1f} s, above the limit of {arguments.time_limit:g} s: "
            f"{read - start:.1f} s to read, {checked - read:.1f} s to plan and check, "
            f"{end - checked:.1f} s to write",
            file=sys.stderr,
        )
    return FITS if best.fits else DOES_NOT_FIT
