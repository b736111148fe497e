# SPDX-License-Identifier: Apache-2.0
"""Two searches for reuse levels side by side: the mirrored first fit, and the engine's.

Random tight sets after the account of AscendNPU-IR's planner: lives of about 8 % of the timeline,
sizes in steps of 32 bytes up to 2 KB, one buffer in five double-buffered, four loops, two buffers
in seven used by transfers and one by the scalar unit. Tightness is the capacity over the most bytes
live at once. Both searches have the same budget, and every plan that fits is verified. Where the
mirrored search gave up or ran out of nodes, that is what is counted, even if the plain first fit
without levels that it then returns happens to fit.

    python benchmarks/three_level.py --counts 16,32,64,128 --sets 20
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections import Counter
from dataclasses import dataclass, field, replace

from passes.ascend.planning.entries import entries_of
from passes.ascend.planning.levels import with_level_penalties
from passes.ascend.planning.mirror import mirror
from passes.planning import (
    Budget,
    Buffer,
    PipelineUse,
    Plan,
    Problem,
    Status,
    check,
    live_bytes,
    solve,
)
from passes.planning.planner import BudgetTracker
from target_hw.memory import MemoryScope

TIGHTNESS = (1.0, 1.05, 1.15, 1.3, 1.6)
LIFE = 0.08
TICKS_A_BUFFER = 4
RUNS = (4, 16, 64, 256)
UNIT = 32
PLANNERS = ("three_level_mirror", "three_level")


def random_set(count: int, tightness: float, seed: int) -> Problem:
    """Return a set of `count` buffers with the penalties of their levels."""
    rng = random.Random(f"{count} {seed}")
    ticks = TICKS_A_BUFFER * count
    buffers = []
    for index in range(count):
        first = rng.randrange(ticks)
        last = min(ticks - 1, first + round(rng.uniform(0.5, 1.5) * LIFE * ticks))
        kind, loop = rng.randrange(7), rng.randrange(len(RUNS))
        use = PipelineUse(dma=kind < 2, scalar=kind == 2, loop=loop, runs=RUNS[loop])
        slots = 2 if rng.random() < 0.2 else 1
        size = UNIT * rng.randint(1, 64)
        buffers.append(Buffer(f"b{index}", size, ((first, last + 1),), slots=slots, use=use))
    problem = Problem(tuple(buffers), name=f"{count} buffers, {tightness:.2f}, seed {seed}")
    most = max(nbytes for _, nbytes in live_bytes(problem))
    capacity = int(most * tightness) // UNIT * UNIT
    return with_level_penalties(
        replace(problem, memory=MemoryScope("local.UB", capacity, alignment=UNIT))
    )


@dataclass
class Tally:
    """What one planner did on the sets of one row."""

    outcomes: Counter[str] = field(default_factory=Counter)
    nodes: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    plans: list[Plan] = field(default_factory=list)


def outcome_of(problem: Problem, plan: Plan, budget: Budget, name: str) -> str:
    if name == "three_level_mirror" and plan.nodes:
        tracker = BudgetTracker(budget)
        if not mirror(problem, entries_of(problem), tracker).fits:
            return "cap" if tracker.left == 0 else "gave up"
    if plan.fits:
        return "solved"
    if plan.status is Status.INFEASIBLE:
        return "infeasible"
    return "cap" if plan.nodes >= budget.nodes else "gave up"


def run_row(count: int, tightness: float, sets: int, budget: Budget) -> None:
    tallies = {name: Tally() for name in PLANNERS}
    for seed in range(sets):
        problem = random_set(count, tightness, seed)
        for name, tally in tallies.items():
            start, cpu = time.perf_counter(), time.process_time()
            plan = solve(problem, name, budget)
            tally.seconds.append(time.perf_counter() - start)
            tally.cpu.append(time.process_time() - cpu)
            if plan.fits:
                check(problem, plan)
            tally.outcomes[outcome_of(problem, plan, budget, name)] += 1
            tally.nodes.append(plan.nodes)
            tally.plans.append(plan)
    pairs = list(zip(*(tally.plans for tally in tallies.values()), strict=True))
    both = [[plan.penalty for plan in pair] for pair in pairs if all(p.fits for p in pair)]
    for at, (name, tally) in enumerate(tallies.items()):
        shown = " ".join(
            f"{tally.outcomes[kind]:4}" for kind in ("solved", "gave up", "cap", "infeasible")
        )
        mean = f"{statistics.mean(costs[at] for costs in both):10.1f}" if both else f"{'-':>10}"
        print(
            f"{count:7} {tightness:9.2f}  {name:18} {shown}  {statistics.median(tally.nodes):9.0f}"
            f" {statistics.median(tally.seconds):8.2f} {max(tally.seconds):8.2f}"
            f" {statistics.median(tally.cpu):8.2f} {mean}",
            flush=True,
        )
    if both and sum(costs[0] for costs in both):
        ratio = sum(costs[1] for costs in both) / sum(costs[0] for costs in both)
        print(f"{'':17}  cost of {PLANNERS[1]} over {PLANNERS[0]}: {ratio:.3f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--counts", default="16,32,64,128", help="default: %(default)s")
    every = ",".join(f"{tightness:.2f}" for tightness in TIGHTNESS)
    parser.add_argument("--tightness", default=every, help="default: %(default)s")
    parser.add_argument("--sets", type=int, default=20, help="default: %(default)s")
    parser.add_argument("--nodes", type=int, default=20_000, help="default: %(default)s")
    arguments = parser.parse_args()
    print(
        f"{'buffers':7} {'tightness':9}  {'planner':18} sol. gave  cap inf.  {'nodes':>9}"
        f" {'median s':>8} {'worst s':>8} {'CPU s':>8} {'mean cost':>10}"
    )
    for count in map(int, arguments.counts.split(",")):
        for tightness in map(float, arguments.tightness.split(",")):
            run_row(count, tightness, arguments.sets, Budget(arguments.nodes))


if __name__ == "__main__":
    main()
