"""``python -m tvm_ext compare --planners``: all planners side by side."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path

from tvm_ext.comparison.many_programs import (
    TABLE,
    Failure,
    Outcome,
    compare_many,
    compare_planners,
    programs_in,
)
from tvm_ext.comparison.planner_tables import Table, summary, tables
from tvm_ext.named_planners import EVERY, known_planner


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options to the parser of ``compare``."""
    parser.add_argument(
        "--planners",
        metavar="NAMES",
        help="show instead what each planner makes of each memory: names with commas between, "
        "module:function for one of your own, or 'all' for those that are made for each memory",
    )
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
    """Refuse options that only ``--planners`` gives a meaning.

    Raises
    ------
    ValueError
        When there is one.
    """
    for option in ("markdown", "jobs"):
        if getattr(arguments, option):
            raise ValueError(f"--{option} needs --planners")
    what = arguments.program
    if Path(what).is_dir():
        raise ValueError(f"{what}: is a directory; add --planners all to compare on what is in it")
    if Path(what).suffix == TABLE:
        raise ValueError(f"{what}: is a table of buffers; add --planners all to compare on it")


def run(arguments: argparse.Namespace) -> int:
    """Run the command; return 0, or 2 if a program of a folder could not be compared.

    Raises
    ------
    ValueError
        On bad input.
    """
    if arguments.fail_on_difference:
        raise ValueError("--fail-on-difference compares passes, and --planners planners: drop one")
    if arguments.jobs is not None and arguments.jobs < 1:
        raise ValueError(f"--jobs must be at least 1, and is {arguments.jobs}")
    planners = [name.strip() for name in arguments.planners.split(",")]
    for name in planners:
        if name != EVERY:
            known_planner(name)
    outcomes = _outcomes(arguments, planners)
    failures = [outcome for outcome in outcomes if isinstance(outcome, Failure)]
    if arguments.json is not None:
        arguments.json.write_text(_to_json(outcomes) + "\n", encoding="utf-8")
    print("\n\n".join("\n".join(lines) for lines in _sections(outcomes, arguments.markdown)))
    for failure in failures:
        print(f"tvm_ext: error: {failure.program}: {failure.reason}", file=sys.stderr)
    return 2 if failures else 0


def _outcomes(arguments: argparse.Namespace, planners: list[str]) -> list[Outcome]:
    path = Path(arguments.program)
    if not path.is_dir():
        return [compare_planners(arguments.program, planners, target=arguments.target)]
    programs = programs_in(path)
    with _executor(arguments.jobs) as executor, _progress(len(programs)) as progress:
        return compare_many(
            programs, planners, target=arguments.target, executor=executor, progress=progress
        )


@contextmanager
def _executor(jobs: int | None) -> Iterator[Executor | None]:
    if jobs is None or jobs == 1:
        yield None
        return
    # New processes: a copy of one in which TVM has started threads may hang.
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as executor:
        yield executor


@contextmanager
def _progress(total: int) -> Iterator[Callable[[int], object]]:
    def show(count: int) -> None:
        print(f"\r{count} of {total} programs", end="", file=sys.stderr, flush=True)

    if not sys.stderr.isatty():
        yield lambda count: None
        return
    yield show
    print("\r\033[K", end="", file=sys.stderr)


def _sections(outcomes: list[Outcome], markdown: bool) -> Iterator[list[str]]:
    def lines(table: Table) -> list[str]:
        return table.markdown() if markdown else table.text()

    done = [outcome for outcome in outcomes if not isinstance(outcome, Failure)]
    for comparison in done:
        if len(outcomes) > 1:
            yield [f"## {comparison.program}" if markdown else f"== {comparison.program}"]
        for table in tables(comparison):
            yield lines(table)
        if not comparison.scopes:
            yield [f"{comparison.program}: there is nothing to plan"]
    if len(done) > 1:
        yield lines(summary(done))


def _to_json(outcomes: list[Outcome]) -> str:
    if len(outcomes) == 1:
        return json.dumps(asdict(outcomes[0]), indent=2)
    return json.dumps({"programs": [asdict(outcome) for outcome in outcomes]}, indent=2)
