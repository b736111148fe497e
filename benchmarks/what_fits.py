# SPDX-License-Identifier: Apache-2.0
"""What kernels for an Ascend core give up where they do not fit, and what that costs.

    python benchmarks/what_fits.py [--kernel NAME] [--attention]

Every kernel of `tvm_ext.workloads.ascend`, in every size, is given less of the memory in which it
is tightest than all its slots need: some percent of the least bytes at level 2, at which no pipe
waits for what another one uses. Five ways to fit are held against each other, all planned and
simulated in the same run:

- mirror: the original's planner, which gives up no slots: it fits or it does not;
- search: our planner, which gives up none either;
- largest: the double buffers of the most bytes lose their slots first, one after the other until a
  plan of our planner fits, as triton-ascend does (pull request 1458);
- brute: of all sets of double buffers that lose their slots, the plans of our planner, and of them
  the one of the fewest simulated cycles; where there are more than 1,024 sets, a dash;
- ours: ``AscendPlanMemory(degrade=True)``.

The numbers are makespans over that of the kernel as it would be if memory had no end. A dash stands
where nothing that was planned fits. With ``--attention`` flash attention is run instead, on the
chip as it is, with tiles that grow beyond what fits.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import test_libraries  # noqa: F401 - lets the next ones be found
from level_limit import at_level
from tvm.target import Target
from tvm.tirx import PrimFunc

from passes.ascend.analysis.kernel_problems import CoreKernel
from passes.ascend.kernel import (
    WORKSPACE,
    AscendOptions,
    level_planner,
    memory_requests,
    plan_cost,
    simulated_cost,
)
from passes.ascend.planning.fewer_slots import MemoryRequest, Placed, choose
from passes.planning import Budget, Plan, Problem, check, lower_bound, solve
from target_hw import MemoryHierarchy
from tvm_ext.workloads.ascend import CHIP, SIZES, ascend_kernel, ascend_kernels

PERCENT = (95, 85, 75, 65, 55, 45)
MOST_SETS = 1024
ATTENTION = (
    {"queries": 128, "keys": 128, "depth": 128, "rows": 64},
    {"queries": 128, "keys": 192, "depth": 128, "rows": 32},
    {"queries": 128, "keys": 192, "depth": 128, "rows": 64},
    {"queries": 128, "keys": 208, "depth": 128, "rows": 64},
    {"queries": 128, "keys": 224, "depth": 128, "rows": 64},
    {"queries": 128, "keys": 256, "depth": 128, "rows": 32},
    {"queries": 128, "keys": 256, "depth": 128, "rows": 64},
    {"queries": 192, "keys": 128, "depth": 128, "rows": 64},
)
WAYS = ("mirror", "search", "largest", "brute", "ours")
PLANNER = level_planner(AscendOptions())


@dataclass(frozen=True)
class Row:
    """One kernel in one capacity: cycles by way, and what ours did."""

    name: str
    scope: str
    capacity: int
    free: int
    cycles: dict[str, int | None]
    sets: int
    gave_up: tuple[str, ...]
    simulated: int
    seconds: float

    def text(self) -> str:
        """One line."""
        cells = [self.name, self.scope.removeprefix("local."), f"{self.capacity:,}"]
        cells += [f"{self.free:,}"]
        cells += [
            "-" if self.cycles[way] is None else f"{(self.cycles[way] or 0) / self.free:.3f}"
            for way in WAYS
        ]
        cells += [str(self.sets), str(self.simulated), f"{self.seconds:.1f}"]
        cells += [", ".join(self.gave_up) or "-"]
        widths = (40, 4, 9, 10, 7, 7, 7, 7, 7, 5, 6, 6, 0)
        return " ".join(
            cell.ljust(width) if at in (0, 12) else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )


HEAD = ("kernel", "in", "bytes", "free", *WAYS, "sets", "plans", "s", "given up by ours")


class Case:
    """A kernel with one memory of some capacity; the others are as the chip has them."""

    def __init__(self, func: PrimFunc, scope: str, capacity: int, memory: MemoryHierarchy) -> None:
        scopes = [
            replace(one, capacity=capacity, reserved=()) if one.name == scope else one
            for one in memory
        ]
        self.memory = MemoryHierarchy(tuple(scopes))
        self.func, self.scope, self.capacity = func, scope, capacity
        self.kernel: CoreKernel = AscendOptions(memory=self.memory).read(func)
        local = [one.name for one in self.memory if one.name != WORKSPACE]
        self.requests = memory_requests(self.kernel, local)
        self.simulated = 0
        cost_model = simulated_cost(self.kernel)
        assert cost_model is not None, "the chip's target describes its pipelines"
        self._cost_model = cost_model
        self._plans: dict[tuple[str, tuple[str, ...]], tuple[Problem, Plan]] = {}

    def cost(self, placed: Sequence[Placed]) -> int:
        """Simulate, and count."""
        self.simulated += 1
        return self._cost_model(placed)

    def free(self) -> int:
        """Cycles with nothing shared."""
        return self._cost_model([])

    def mirror(self) -> int | None:
        """Cycles under the original's plan, if it fits."""
        try:
            options = AscendOptions(search="mirror", memory=self.memory)
            return plan_cost(self.func, options).makespan
        except ValueError:
            return None

    def single(self, request: MemoryRequest, names: tuple[str, ...]) -> Placed:
        """Plan one memory with some buffers single."""
        key = request.problem.memory.name, names
        if key not in self._plans:
            problem = request.with_slots(dict.fromkeys(names, 1))
            plan = PLANNER(problem, Budget())
            if plan.fits:
                check(problem, plan)
            self._plans[key] = problem, plan
        return self._plans[key]

    def fewest(self, request: MemoryRequest, most: int | None = None) -> Placed | None:
        """Plan one memory with the largest buffers single, as few of them as make a plan fit."""
        for count in range(len(request.order[:most]) + 1):
            placed = self.single(request, request.order[:count])
            if placed[1].fits:
                return placed
        return None

    def largest(self, most: int | None = None) -> int | None:
        """Return the cycles with the largest buffers single, as few of them as fit."""
        placed = [self.fewest(request, most) for request in self.requests]
        fitting = [one for one in placed if one is not None]
        if len(fitting) < len(placed):
            return None
        return self._cost_model(fitting)

    def brute(self) -> int | None:
        """Try all sets in the tight memory, with the others as in `largest`; return cycles."""
        others = [
            self.fewest(one) for one in self.requests if one.problem.memory.name != self.scope
        ]
        fitting = [one for one in others if one is not None]
        if len(fitting) < len(others):
            return None
        order = self.tight().order
        sets = (names for count in range(len(order) + 1) for names in combinations(order, count))
        placed = [self.single(self.tight(), names) for names in sets]
        return min(
            (self._cost_model([*fitting, one]) for one in placed if one[1].fits),
            default=None,
        )

    def tight(self) -> MemoryRequest:
        """Return the memory that is short."""
        return next(one for one in self.requests if one.problem.memory.name == self.scope)

    def ours(self) -> tuple[int | None, tuple[str, ...]]:
        """Cycles that the search finds, and what it gives up."""
        found = choose(self.requests, PLANNER, self.cost)
        chosen = [choice for choice in found if choice is not None]
        if len(chosen) < len(found):
            return None, ()
        placed = [(choice.problem, choice.plan) for choice in chosen]
        for problem, plan in placed:
            check(problem, plan)
        gave_up = tuple(name for choice in chosen for name, _ in choice.slots)
        return self._cost_model(placed), gave_up

    def row(self, name: str) -> Row:
        """All ways."""
        start = time.process_time()
        ours, gave_up = self.ours()
        seconds = time.process_time() - start
        sets = 1 << len(self.tight().order)
        cycles = {
            "mirror": self.mirror(),
            "search": self.largest(0),
            "largest": self.largest(),
            "brute": self.brute() if sets <= MOST_SETS else None,
            "ours": ours,
        }
        did = gave_up, self.simulated, seconds
        return Row(name, self.scope, self.capacity, self.free(), cycles, sets, *did)


def needed(problem: Problem) -> int:
    """Return the least bytes of a plan with all slots at level 2."""
    endless = replace(problem, memory=replace(problem.memory, capacity=None))
    return solve(at_level(endless, 2), "best").peak


def tightest(kernel: CoreKernel) -> Problem:
    """Return the problem that takes most of its memory, of those with slots to lose."""
    limited = [problem for problem in kernel.problems if problem.capacity]
    several = [problem for problem in limited if any(b.slots > 1 for b in problem.buffers)]
    return max(several or limited, key=lambda p: lower_bound(p) / (p.capacity or 1))


def shrunk(arguments: argparse.Namespace) -> Iterator[Row]:
    memory = MemoryHierarchy.from_target(Target(f"{CHIP}-llvm"))
    for name in [arguments.kernel] if arguments.kernel else ascend_kernels():
        for size in SIZES:
            func = ascend_kernel(name, size).lower(f"{CHIP}-llvm")[name]
            problem = tightest(AscendOptions(memory=memory).read(func))
            whole, unit = needed(problem), problem.memory.alignment
            # What overflows in another memory, too, has as much there as it needs.
            roomy = roomy_but(memory, problem)
            for percent in PERCENT:
                capacity = whole * percent // 100 // unit * unit
                case = Case(func, problem.memory.name, capacity, roomy)
                yield case.row(f"{name}, {size}, {percent}%")


def roomy_but(memory: MemoryHierarchy, problem: Problem) -> MemoryHierarchy:
    """Return the memories of the chip, all but one and the workspace without end."""
    return MemoryHierarchy(
        tuple(
            one if one.name in (problem.memory.name, WORKSPACE) else replace(one, capacity=None)
            for one in memory
        )
    )


def attention() -> Iterator[Row]:
    memory = MemoryHierarchy.from_target(Target(f"{CHIP}-llvm"))
    for sizes in ATTENTION:
        made = ascend_kernel("flash_attention", "fits", **sizes)
        func = made.lower(f"{CHIP}-llvm")["flash_attention"]
        described = " ".join(f"{key[0]}{value}" for key, value in sizes.items())
        capacity = memory["local.UB"].capacity or 0
        yield Case(func, "local.UB", capacity, memory).row(f"flash_attention {described}")


def mean(ratios: Sequence[float]) -> str:
    if not ratios:
        return "none"
    geometric = math.exp(sum(map(math.log, ratios)) / len(ratios))
    return f"{len(ratios)}, ratio {geometric:.4f} in the geometric mean, {max(ratios):.3f} at most"


def summary(rows: Sequence[Row]) -> None:
    print()
    for way in WAYS:
        print(f"fits, {way}: {sum(row.cycles[way] is not None for row in rows)} of {len(rows)}")
    for way in WAYS[:-1]:
        both = [
            (row.cycles["ours"] or 0) / (row.cycles[way] or 1)
            for row in rows
            if row.cycles[way] is not None and row.cycles["ours"] is not None
        ]
        better, worse = sum(r < 1 for r in both), sum(r > 1 for r in both)
        print(f"ours / {way}: {mean(both)}; better {better}, worse {worse}")
    lost = [row.name for row in rows if row.cycles["ours"] is None and any(row.cycles.values())]
    print(f"fits in another way and not in ours: {', '.join(lost) or 'none'}")
    simulated, seconds = sum(row.simulated for row in rows), [row.seconds for row in rows]
    print(
        f"plans that ours simulated: {simulated}; s: {sum(seconds):.0f}, {max(seconds):.1f} at most"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kernel", choices=ascend_kernels(), help="only this one")
    parser.add_argument("--attention", action="store_true", help="tiles that are too large")
    arguments = parser.parse_args()
    rows = []
    print(" ".join(HEAD))
    for row in attention() if arguments.attention else shrunk(arguments):
        rows.append(row)
        print(row.text(), flush=True)
    summary(rows)


if __name__ == "__main__":
    main()
