# SPDX-License-Identifier: Apache-2.0
"""``tvm-ext compare --planners``: all planners side by side."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path

from tvm_ext.command_options import add_planners, write_json
from tvm_ext.comparison.planner_results import render_planners, summary
from tvm_ext.comparison.planners import (
    Failure,
    Outcome,
    compare_many,
    compare_planners,
    programs_in,
)
from tvm_ext.comparison.progress_line import progress_line
from tvm_ext.named_planners import compared_planners
from tvm_ext.programs import TABLE


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options to the parser of ``compare``."""
    add_planners(parser, "show instead what each planner makes of each memory")
    parser.add_argument(
        "--markdown", action="store_true", help="with --planners: print tables in Markdown"
    )
    parser.add_argument(
        "--jobs",
        type=int,
        metavar="N",
        help="with --planners and a folder: compare so many files at a time",
    )


def check_unused(arguments: argparse.Namespace) -> None:
    """Raise ValueError on a program that only ``--planners`` can compare on."""
    what = arguments.program
    if Path(what).is_dir():
        raise ValueError(f"{what}: is a directory; add --planners all to compare on what is in it")
    if Path(what).suffix == TABLE:
        raise ValueError(f"{what}: is a table of buffers; add --planners all to compare on it")


def run(arguments: argparse.Namespace) -> int:
    """Run the command; return 0, or 2 if a program of a folder could not be compared."""
    if arguments.fail_on_difference:
        raise ValueError("--fail-on-difference compares passes, and --planners planners: drop one")
    if arguments.jobs is not None and arguments.jobs < 1:
        raise ValueError(f"--jobs must be at least 1, and is {arguments.jobs}")
    outcomes = _outcomes(arguments, compared_planners(arguments.planners))
    failures = [outcome for outcome in outcomes if isinstance(outcome, Failure)]
    plain = [asdict(outcome) for outcome in outcomes]
    write_json(arguments.json, plain[0] if len(plain) == 1 else {"programs": plain})
    print("\n\n".join(_sections(outcomes, arguments.markdown)))
    for failure in failures:
        named = failure.reason.startswith(failure.program)
        reason = failure.reason if named else f"{failure.program}: {failure.reason}"
        print(f"{arguments.prog}: error: {reason}", file=sys.stderr)
    return 2 if failures else 0


def _outcomes(arguments: argparse.Namespace, planners: Sequence[str]) -> list[Outcome]:
    path = Path(arguments.program)
    if not path.is_dir():
        return [compare_planners(arguments.program, planners, target=arguments.target)]
    programs = programs_in(path)
    jobs = arguments.jobs or 1
    # New processes: a copy of one in which TVM has started threads may hang.
    spawned = ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) if jobs > 1 else None
    with spawned or nullcontext() as executor, progress_line("programs") as show:
        return compare_many(
            programs,
            planners,
            target=arguments.target,
            executor=executor,
            progress=lambda count: show(count, len(programs)),
        )


def _sections(outcomes: list[Outcome], markdown: bool) -> Iterator[str]:
    done = [outcome for outcome in outcomes if not isinstance(outcome, Failure)]
    for comparison in done:
        if len(outcomes) > 1:
            yield f"## {comparison.program}" if markdown else f"== {comparison.program}"
        yield render_planners(comparison, markdown=markdown)
    if len(done) > 1:
        table = summary(done)
        yield "\n".join(table.markdown() if markdown else table.text())
