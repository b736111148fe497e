# SPDX-License-Identifier: Apache-2.0
"""What each part of the planners wins: one part off at a time, on the public instances.

``python benchmarks/planner_ablation.py [FOLDER]``; the folder is by default ``../shared/data``. A
part stays that wins 1 % of penalty or 3 % of bytes on two problems, or proofs, or that an argument
needs.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import test_libraries  # noqa: F401 - lets the next ones be found
from instances import DATA, ascend, read_table

from passes.planning import Problem, solve

PLANNERS = "passes.planning.planners"
CAPACITY = 1 << 20  # Bytes, of the MiniMalloc instances

Switch = tuple[str, str, Callable[..., Any]]  # A module, the name in it, and what stands there

PARTS: dict[str, tuple[Switch, ...]] = {
    "nothing": (),
    "exact search of costs": ((f"{PLANNERS}.best", "_exactly", lambda p, plan, tracker: plan),),
    "moves of buffers": (
        (f"{PLANNERS}.best", "_relocated", lambda p, plan, tracker, patience=0: plan),
    ),
    "more offsets than slots": (
        (f"{PLANNERS}.best", "_upgraded", lambda p, plan: None),
        (f"{PLANNERS}.best", "widenings", lambda p, most: None),
    ),
    "sets that may not share": (
        ("passes.planning.bound", "_bytes_apart", lambda problem, unit: 0),
    ),
}
"""What is switched off, by what it is called."""


@contextmanager
def without(part: str) -> Iterator[None]:
    """Plan without a part."""
    before = []
    for module, name, instead in PARTS[part]:
        loaded = import_module(module)
        before.append((loaded, name, getattr(loaded, name)))
        setattr(loaded, name, instead)
    try:
        yield
    finally:
        for loaded, name, value in before:
            setattr(loaded, name, value)


def problems_in(folder: Path) -> dict[str, list[Problem]]:
    """Return the problems of each group of instances."""
    tables = sorted((folder / "minimalloc").glob(f"*.{CAPACITY}.csv"))
    models = [folder / "models" / f"{name}.csv.gz" for name in ("G_1", "resnet50")]
    return {
        "minimalloc": [read_table(path, CAPACITY) for path in tables],
        "models": [read_table(path) for path in models],
        "ascend": [case.problem for case in ascend(folder)],
    }


def main() -> None:
    """Print a line for each part and group: penalties, bytes, proofs and time of a processor."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=Path(DATA))
    groups = problems_in(parser.parse_args().folder)
    for problem in groups["minimalloc"][:1] + groups["ascend"]:  # Compile the loops
        solve(problem)
    print("without                  instances    penalty          bytes  proven  seconds  worse")
    least: dict[str, list[tuple[int, int]]] = {}
    for part in PARTS:
        with without(part):
            for group, problems in groups.items():
                begin = os.times().user
                plans = [solve(problem) for problem in problems]
                seconds = os.times().user - begin
                found = [(plan.penalty, plan.peak) for plan in plans]
                base = least.setdefault(group, found)
                worse = sum(one > other for one, other in zip(found, base, strict=True))
                proven = sum(plan.status.value == "optimal" for plan in plans)
                print(
                    f"{part:24} {group:10} {sum(p for p, _ in found):9,} "
                    f"{sum(b for _, b in found):14,} {proven:7} {seconds:8.1f} {worse:6}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
