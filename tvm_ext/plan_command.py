"""``python -m tvm_ext plan``: place the buffers of a CSV file."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from passes.planning import Budget, Plan, Problem, check, lower_bound, planner_names, solve
from passes.planning.files.csv_format import read_problem, write_plan
from passes.planning.overflow import does_not_fit
from target_hw.memory import MemoryScope
from tvm_ext.byte_sizes import parse_bytes
from tvm_ext.named_planners import known_planner

FITS, DOES_NOT_FIT = 0, 1
UNLIMITED_NODES = 1 << 60
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
        "--input",
        required=True,
        metavar="F.csv",
        help="columns id,lower,upper,size[,alignment]: a buffer is live on [lower, upper), and its "
        "offset is a multiple of its alignment, any number of bytes; an offset, such as this "
        "command writes, is not read",
    )
    parser.add_argument(
        "--capacity",
        type=_bytes,
        metavar="BYTES",
        help="what must not be exceeded (default: none)",
    )
    names = ", ".join(planner_names())
    parser.add_argument(
        "--planner",
        default="best",
        metavar="NAME",
        help=f"one of: {names}; or module:function for one of your own (default: best)",
    )
    parser.add_argument(
        "--alignment",
        type=_bytes,
        default=1,
        metavar="BYTES",
        help="of every offset, a power of two (default: 1)",
    )
    parser.add_argument(
        "--time-limit",
        type=float,
        default=10.0,
        metavar="SECONDS",
        help="for all from reading to writing; what is read is read, planned once, checked and "
        "written all the same, and a line says how long that took (default: 10)",
    )
    parser.add_argument("--output", metavar="F.csv", help="where to write the offsets")


def run(arguments: argparse.Namespace) -> int:
    """Run the command; return 0 if the plan fits, 1 if not.

    Raises
    ------
    OSError
        When a file cannot be read or written.
    ValueError
        On bad input.
    """
    if arguments.output is not None and _is_same_file(arguments.input, arguments.output):
        raise ValueError(f"--output would overwrite the input, {arguments.input}")
    limit = Budget(seconds=arguments.time_limit).seconds or 0.0
    start = time.monotonic()
    planner = known_planner(arguments.planner)
    memory = MemoryScope("global", arguments.capacity, arguments.alignment)
    with open(arguments.input, encoding="utf-8-sig", newline="") as stream:
        problem = read_problem(stream, arguments.input, memory)
    read = time.monotonic()
    left = limit - (read - start) * (1 + CHECKING)
    plan = solve(problem, planner, Budget(UNLIMITED_NODES, max(0.0, left)))
    planned = time.monotonic()
    if plan.fits:
        check(problem, plan)
        if arguments.output is not None:
            with open(arguments.output, "w", encoding="utf-8", newline="") as stream:
                write_plan(stream, problem, plan)
    _report(problem, plan)
    end = time.monotonic()
    if end - start > limit:
        print(
            f"took {end - start:.1f} s, above the limit of {limit:g} s: {read - start:.1f} s to "
            f"read, {planned - read:.1f} s to plan, {end - planned:.1f} s to check and write",
            file=sys.stderr,
        )
    return FITS if plan.fits else DOES_NOT_FIT


def _bytes(text: str) -> int:
    try:
        return parse_bytes(text)
    except ValueError as error:
        # With this type, argparse shows the message and not only the text that it is about.
        raise argparse.ArgumentTypeError(str(error)) from error


def _is_same_file(first: str, second: str) -> bool:
    return Path(first).exists() and Path(second).exists() and Path(first).samefile(second)


def _report(problem: Problem, plan: Plan) -> None:
    bound = lower_bound(problem)
    ratio = plan.peak / bound if bound else 1.0
    if not plan.fits:
        print(f"does not fit: {does_not_fit(problem, plan)}")
    print(
        f"{len(problem.buffers)} buffers by {plan.planner}: peak {plan.peak} bytes, lower bound "
        f"{bound} bytes, ratio {ratio:.4f}, {plan.status.value}"
    )
