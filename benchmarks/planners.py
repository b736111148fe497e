"""All planners side by side, on public instances, real models, NPU kernels and random sets.

    python benchmarks/planners.py [--data FOLDER] [--sets minimalloc,models,...] [--planners a,b]

A line a problem and planner: the peak, its ratio to the lower bound, the penalty, the seconds, the
status. Times include all that a planner needs, conflicts and compilation too. A summary follows
each set, with the planner that won how many problems.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import os
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from passes.planning import (
    Budget,
    Buffer,
    Plan,
    Problem,
    check,
    lower_bound,
    planners,
    solve,
)
from passes.planning.csv_format import read_problem
from passes.planning.kernel_format import kernel_problems
from passes.planning.portfolio import rank
from target_hw.memory import MemoryScope

DATA = os.environ.get("TVM_EXT_DATA", str(Path(__file__).parents[1] / ".." / "shared" / "data"))
NODES = 1 << 60
RANDOM_SIZES = (100, 1000, 10_000, 100_000)


@dataclass(frozen=True)
class Case:
    """One problem; `best_known` is the least penalty that anybody reached, None if nobody did."""

    problem: Problem
    best_known: int | None = 0


def read_table(path: Path, capacity: int | None = None) -> Problem:
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8", newline="") as stream:
        return read_problem(stream, path.name, MemoryScope("global", capacity))


def minimalloc(data: Path) -> Iterator[Case]:
    """Yield each instance twice: below its capacity, and minimised."""
    for path in sorted((data / "minimalloc").glob("*.csv")):
        capacity = int(path.name.split(".")[1])
        yield Case(replace(read_table(path, capacity), name=f"{path.name} fit"))
        yield Case(replace(read_table(path), name=f"{path.name} minimise"))


def models(data: Path) -> Iterator[Case]:
    for path in sorted((data / "models").glob("*.csv.gz")):
        yield Case(read_table(path))


def ascend(data: Path) -> Iterator[Case]:
    with gzip.open(data / "ascend_kernels" / "soft.jsonl.gz", "rt", encoding="utf-8") as stream:
        for line in stream:
            kernel = json.loads(line)
            problems = kernel_problems(kernel)
            for at, problem in enumerate(problems):
                known = kernel["best_known_cost"]  # of all memories: counted with the first
                yield Case(problem, known if at == 0 or known is None else 0)


def random_sets(data: Path) -> Iterator[Case]:
    """Yield sets with some twenty buffers live at once: exponential lives, then heavy-tailed."""
    for count in RANDOM_SIZES:
        for kind in ("exponential", "heavy"):
            yield Case(random_problem(count, kind))


def random_problem(count: int, kind: str, seed: int = 0) -> Problem:
    rng = random.Random(f"{count} {kind} {seed}")
    classes = [64 * round(1.5**step) for step in range(24)]
    buffers = []
    for index in range(count):
        begin = rng.randrange(10 * count)
        if kind == "exponential":
            size, life = int(2 ** rng.uniform(4, 16)), rng.expovariate(1 / 200)
        else:
            size, life = rng.choice(classes), min(10.0 * count, 60 * rng.paretovariate(1.2))
        buffers.append(Buffer(str(index), size, ((begin, begin + 1 + int(life)),)))
    return Problem(tuple(buffers), name=f"{kind} {count}")


SETS: dict[str, Callable[[Path], Iterator[Case]]] = {
    "minimalloc": minimalloc,
    "models": models,
    "ascend": ascend,
    "random": random_sets,
}


@dataclass
class Tally:
    """What one planner did on a set."""

    ratios: list[float]
    penalty: int = 0
    seconds: float = 0.0
    cpu: float = 0.0
    fits: int = 0
    optimal: int = 0


def run_set(
    name: str, cases: Iterator[Case], names: list[str], seconds: float, quiet: bool
) -> None:
    print(f"== {name}")
    tallies: dict[str, Tally] = defaultdict(lambda: Tally([]))
    wins: Counter[str] = Counter()
    known = 0
    for case in cases:
        known += case.best_known or 0
        plans = {}
        for planner in names:
            plans[planner] = measured(case.problem, planner, seconds, tallies[planner], quiet)
            if case.best_known is not None:
                tallies[planner].penalty += plans[planner].penalty
        wins[min(names, key=lambda planner: rank(case.problem, plans[planner]))] += 1
    print(f"-- {name}: planner, fits, optimal, peak / lower bound (geometric mean), penalty, time")
    for planner in names:
        tally = tallies[planner]
        mean = math.exp(sum(map(math.log, tally.ratios)) / len(tally.ratios))
        print(
            f"   {planner:14}{tally.fits:5}{tally.optimal:5} of {len(tally.ratios):<5}{mean:9.4f}"
            f"{tally.penalty:8}{tally.seconds:10.2f} s {tally.cpu:9.2f} s CPU"
            f"   first with the best plan: {wins[planner]}"
        )
    if known:
        print(f"   best known penalty, where any plan is known to fit: {known}")


def measured(problem: Problem, planner: str, seconds: float, tally: Tally, quiet: bool) -> Plan:
    start, cpu = time.perf_counter(), time.process_time()
    plan = solve(problem, planner, Budget(NODES, seconds))
    elapsed, cpu = time.perf_counter() - start, time.process_time() - cpu
    if plan.fits:
        check(problem, plan)
    bound = lower_bound(problem)
    ratio = plan.peak / bound if bound else 1.0
    tally.ratios.append(ratio)
    tally.seconds += elapsed
    tally.cpu += cpu
    tally.fits += plan.fits
    tally.optimal += plan.status.value == "optimal"
    if not quiet:
        print(
            f"{problem.name[-44:]:44} {planner:13}{plan.peak:12}{ratio:9.4f}{plan.penalty:6}"
            f"{elapsed:9.3f} s  {plan.status.value}",
            flush=True,
        )
    return plan


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data", type=Path, default=Path(DATA))
    parser.add_argument("--sets", default=",".join(SETS), help="default: %(default)s")
    every = ",".join(planner.name for planner in planners())
    parser.add_argument("--planners", default=every, help="default: %(default)s")
    parser.add_argument("--time-limit", type=float, default=10.0, help="seconds a plan")
    parser.add_argument("--quiet", action="store_true", help="only the summaries")
    arguments = parser.parse_args()
    for name in arguments.sets.split(","):
        if name != "random" and not arguments.data.is_dir():
            print(f"== {name}: skipped, there is no folder {arguments.data}")
            continue
        run_set(
            name,
            SETS[name](arguments.data),
            arguments.planners.split(","),
            arguments.time_limit,
            arguments.quiet,
        )


if __name__ == "__main__":
    main()
