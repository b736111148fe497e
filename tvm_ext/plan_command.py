"""``python -m tvm_ext plan``: place the buffers of a CSV file."""

from __future__ import annotations

import argparse

from passes.planning import Budget, Plan, Problem, check, lower_bound, planner_names, solve
from passes.planning.files.csv_format import read_problem, write_plan
from target_hw.memory import MemoryScope

FITS, DOES_NOT_FIT = 0, 1
UNLIMITED_NODES = 1 << 60


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's description and arguments to a parser or subparser."""
    parser.description = (
        "Give each buffer of a CSV file an offset, so that no two share bytes while both are live."
    )
    parser.epilog = "Exit status: 0 when the plan fits, 1 when it does not, 2 on bad input."
    parser.add_argument(
        "--input", required=True, metavar="F.csv", help="columns id,lower,upper,size[,alignment]"
    )
    parser.add_argument(
        "--capacity", type=int, metavar="BYTES", help="what must not be exceeded (default: none)"
    )
    parser.add_argument("--planner", default="best", help="one of: " + ", ".join(planner_names()))
    parser.add_argument(
        "--alignment", type=int, default=1, metavar="BYTES", help="of every offset (default: 1)"
    )
    parser.add_argument(
        "--time-limit", type=float, default=10.0, metavar="SECONDS", help="default: 10"
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
    memory = MemoryScope("global", arguments.capacity, arguments.alignment)
    with open(arguments.input, encoding="utf-8-sig", newline="") as stream:
        problem = read_problem(stream, arguments.input, memory)
    budget = Budget(UNLIMITED_NODES, arguments.time_limit)
    plan = solve(problem, arguments.planner, budget)
    if plan.fits:
        check(problem, plan)
    if arguments.output is not None:
        with open(arguments.output, "w", encoding="utf-8", newline="") as stream:
            write_plan(stream, problem, plan)
    _report(problem, plan)
    return FITS if plan.fits else DOES_NOT_FIT


def _report(problem: Problem, plan: Plan) -> None:
    bound = lower_bound(problem)
    ratio = plan.peak / bound if bound else 1.0
    if not plan.fits:
        print(f"does not fit: {plan.peak} bytes needed, {problem.capacity} bytes there")
    print(
        f"{len(problem.buffers)} buffers by {plan.planner}: peak {plan.peak} bytes, lower bound "
        f"{bound} bytes, ratio {ratio:.4f}, {plan.status.value}"
    )
