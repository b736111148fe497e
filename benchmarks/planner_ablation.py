# SPDX-License-Identifier: Apache-2.0
"""What each part of the planners wins: one part off at a time, on the public instances.

``python benchmarks/planner_ablation.py [FOLDER]``; the folder is by default ``../shared/data``. A
part stays that wins 1 % of penalty or 3 % of bytes on two problems, or proofs, or that an argument
needs.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from kernel_format import kernel_problems  # noqa: E402

from passes.planning import Problem, solve  # noqa: E402
from passes.planning.files.csv_format import read_problem  # noqa: E402
from target_hw.memory import MemoryScope  # noqa: E402

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
        ("passes.planning.bound", "_heaviest_clique", lambda problem, unit: 0),
    ),
    "limits of costs": ((f"{PLANNERS}.best", "_below_limits", lambda b, t: None),),
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


def instances(folder: Path) -> dict[str, list[Problem]]:
    """Return the problems of each group of instances."""
    groups: dict[str, list[Problem]] = {"minimalloc": [], "models": [], "ascend": []}
    for path in sorted((folder / "minimalloc").glob("*.1048576.csv")):
        with path.open(newline="") as stream:
            memory = MemoryScope("global", CAPACITY)
            groups["minimalloc"].append(read_problem(stream, path.name, memory))
    for name in ("G_1", "resnet50"):
        with gzip.open(folder / "models" / f"{name}.csv.gz", "rt", newline="") as stream:
            groups["models"].append(read_problem(stream, name, MemoryScope("global")))
    with gzip.open(folder / "ascend_kernels" / "soft.jsonl.gz", "rt") as stream:
        groups["ascend"] += [p for line in stream for p in kernel_problems(json.loads(line))]
    return groups


def main() -> None:
    """Print a line for each part and group: penalties, bytes, proofs and time of a processor."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT.parent / "shared" / "data")
    groups = instances(parser.parse_args().folder)
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
