# SPDX-License-Identifier: Apache-2.0
"""The measured tables of docs/planners.md, a set of instances each.

    python benchmarks/planners_page.py [--write] [--sets minimalloc,models,...] [--time-limit S]

Every planner of ours and those of `other_planners.py` plan the instances of `instances.py`, one
after the other. Each plan is verified, whether it fits or not. ``--write`` puts the tables of the
sets that were asked for between their comments in the page; those of other sets stay as they are.
What a planner compiles is compiled before. The whole takes some twenty minutes where nothing else
runs.

A planner is left out of a set that says nothing of it: see `without_capacity`,
`that_can_fit` and `in_time`.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from importlib import metadata
from pathlib import Path

import test_libraries  # noqa: F401 - lets the next ones be found
from instances import DATA, Case, ascend, growth, growth_problem, minimalloc, models, penalties
from marked_lines import with_lines
from other_planners import OTHERS
from planner_tables import TABLES, Run

from passes.planning import Budget, Problem, lower_bound, planner_names, solve, verify
from passes.planning.engine import compiled
from passes.planning.planners import canonical_loop
from passes.planning.planners import relocation_loop as relocate_loop
from tvm_ext import __version__

PAGE = Path(__file__).parents[1] / "docs" / "planners.md"
NODES = 1 << 60
GROWTH_COUNTS = (1000, 10_000, 100_000)
FOR_CAPACITIES = ("three_level", "three_level_mirror")
"""Planners that share nothing as long as everything fits."""
TOO_LARGE = ("bump", "rec_tbl", "storage_rewrite")
"""Planners that need far more bytes than first fit."""
LARGE = 10_000
SLOW = ("hill_climb", "first_fit_by_size")
"""Planners that are not asked to plan more than `LARGE` buffers: they look at all pairs."""


@dataclass(frozen=True)
class Set:
    """Instances, and who plans each of them."""

    cases: Callable[[Path], Iterator[Case]]
    planners: Callable[[Problem], list[str]]


def everybody(problem: Problem) -> list[str]:
    return [*planner_names(), *OTHERS]


def without_capacity(problem: Problem) -> list[str]:
    """Return who is asked where nothing says what fits: `bump` stands for some others."""
    return [name for name in everybody(problem) if name not in FOR_CAPACITIES]


def that_can_fit(problem: Problem) -> list[str]:
    """Return who is asked in first fit's own capacity."""
    return [name for name in everybody(problem) if name not in TOO_LARGE]


def in_time(problem: Problem) -> list[str]:
    """Return who is asked to plan a large table."""
    is_large = len(problem.buffers) > LARGE
    return [name for name in without_capacity(problem) if not (is_large and name in SLOW)]


def challenging(data: Path) -> Iterator[Case]:
    """Yield MiniMalloc's instances without the example of five buffers."""
    return (case for case in minimalloc(data) if not case.problem.name.startswith("input"))


def sets(largest: int) -> dict[str, Set]:
    """Return the sets by name; `largest` is the most buffers of a growing table."""
    counts = [count for count in GROWTH_COUNTS if count <= largest]
    return {
        "minimalloc": Set(challenging, everybody),
        "models": Set(models, without_capacity),
        "ascend": Set(ascend, everybody),
        "penalties": Set(penalties, that_can_fit),
        "growth": Set(partial(growth, counts=counts), in_time),
    }


def measured(case: Case, planner: str, limit: float) -> Run:
    """Plan one problem and verify the plan; ValueError if it is wrong."""
    problem = case.problem
    budget, others = Budget(NODES, limit), OTHERS.get(planner)
    start = time.perf_counter()
    plan = others(problem, budget) if others else solve(problem, planner, budget)
    seconds = time.perf_counter() - start
    wrong = [found for found in verify(problem, plan, None) if found.kind != "capacity"]
    if wrong:
        raise ValueError(f"{problem.name}: plan of {planner!r} is wrong: {wrong[0].message}")
    return Run(
        planner,
        problem.name,
        case.kernel,
        len(problem.buffers),
        case.best_known,
        case.certified,
        lower_bound(problem),
        plan.peak,
        plan.penalty,
        plan.fits,
        plan.status.value == "optimal",
        seconds,
    )


def run_set(
    cases: Iterator[Case], planners: Callable[[Problem], list[str]], limit: float
) -> list[Run]:
    """Return what every planner does with every case; print a line each."""
    runs = []
    for case in cases:
        for planner in planners(case.problem):
            run = measured(case, planner, limit)
            print(
                f"{run.case[-44:]:44} {planner:18} {run.ratio:9.4f}{run.penalty:7}"
                f"{run.seconds:9.2f} s",
                flush=True,
            )
            runs.append(run)
    return runs


def warm_up() -> None:
    """Compile or load all loops, and import all planners, so that nobody's time has that in it."""
    for loop in (canonical_loop, relocate_loop):
        compiled.loop(loop.advance)
    for name in planner_names():
        solve(growth_problem(10, 0.3), name)


def caption(limit: float) -> str:
    """Say when, with what and where the planners were measured."""
    day = datetime.now(timezone.utc).date().isoformat()
    return (
        f"Measured on {day} with tvm-ext {__version__}{commit()}, "
        f"TVM {metadata.version('apache-tvm')} and Python {platform.python_version()}, "
        f"on one of {os.cpu_count()} cores of {processor()}, with a limit of {limit:g} s a plan."
    )


def commit() -> str:
    """Return which commit the sources are, in brackets; nothing where they are no checkout."""
    command = ["git", "describe", "--always", "--dirty", "--exclude", "*"]
    try:
        done = subprocess.run(command, cwd=PAGE.parent, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return ""
    return f" ({done.stdout.strip()})" if done.returncode == 0 else ""


def processor() -> str:
    """Return the processor's name, of the machine's kind where that is not known."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, default=Path(DATA))
    parser.add_argument("--sets", default=",".join(TABLES), help="default: %(default)s")
    parser.add_argument("--time-limit", type=float, default=10.0, help="seconds a plan")
    parser.add_argument(
        "--largest", type=int, default=GROWTH_COUNTS[-1], help="most buffers of a growing table"
    )
    parser.add_argument("--write", action="store_true", help="put the tables into docs/planners.md")
    arguments = parser.parse_args()
    chosen = arguments.sets.split(",")
    for name in chosen:
        if name not in TABLES:
            parser.error(f"unknown set {name!r}; there are: {', '.join(TABLES)}")
    if not arguments.data.is_dir() and chosen != ["growth"]:
        parser.error(f"there is no folder {arguments.data}")
    said = caption(arguments.time_limit)
    warm_up()
    for name in chosen:
        print(f"== {name}", flush=True)
        begin, one = time.perf_counter(), sets(arguments.largest)[name]
        runs = run_set(one.cases(arguments.data), one.planners, arguments.time_limit)
        lines = [*TABLES[name](runs), "", said]
        print("\n".join(lines))
        print(f"-- {name}: {time.perf_counter() - begin:.0f} s with verification", flush=True)
        if arguments.write:
            page = PAGE.read_text(encoding="utf-8")
            PAGE.write_text(with_lines(page, name, lines), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
