# SPDX-License-Identifier: Apache-2.0
"""What each reuse level costs each Ascend kernel, by simulation.

    python benchmarks/ascend.py [--tiles N] [--global-rate N] [--kernel NAME] [--size SIZE]
        [--detail]

Every kernel of `tvm_ext.workloads.ascend` in every size is planned for the 910B in six ways:
without sharing (as if memory had no end), with no buffer below level 2, with none below level 1,
at level 0 (the lowest peak, pipelines ignored), and as the two searches of `AscendPlanMemory` do.
Each plan is run through the simulator of `passes.simulation`. A ratio is a makespan over that
without sharing; a dash stands where no plan fits. Sizes called "between" are the kernel's first
size with a larger tile: level 2 is not enough for them. With ``--detail`` each plan has a line.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import test_libraries  # noqa: F401 - lets the next ones be found
from level_limit import plan_at_level
from tvm.target import Target

from passes.ascend.analysis.kernel_problems import CoreKernel
from passes.ascend.kernel import AscendOptions
from passes.ascend.planning.planner import plan_levels
from passes.planning import Budget, Plan, Problem, check, lower_bound, solve
from passes.simulation import Cause, Simulation, simulate
from target_hw import Machine
from tvm_ext.workloads.ascend import CHIP, SIZES, AscendKernel, ascend_kernel, ascend_kernels

BUDGET = Budget(nodes=200_000)
WORKSPACE = "global.workspace"

BETWEEN: tuple[tuple[str, dict[str, int]], ...] = (
    ("vector_add", {"tile": 10240}),
    ("gelu", {"tile": 14336}),
)

PLANNERS: dict[str, Callable[[Problem], Plan]] = {
    "level 2": lambda problem: plan_at_level(problem, 2, BUDGET),
    "level 1": lambda problem: plan_at_level(problem, 1, BUDGET),
    "level 0": lambda problem: plan_at_level(problem, 0, BUDGET),
    "mirror": lambda problem: plan_levels(problem, BUDGET, search="mirror"),
    "search": lambda problem: plan_levels(problem, BUDGET, search="search"),
}


def planned(kernel: CoreKernel, planner: Callable[[Problem], Plan]) -> list[tuple[Problem, Plan]]:
    """Return every problem of a kernel with its plan; the workspace shares nothing."""
    placed = []
    for problem in kernel.problems:
        plan = solve(problem, "bump") if problem.memory.name == WORKSPACE else planner(problem)
        if plan.fits:
            check(problem, plan)
        placed.append((problem, plan))
    return placed


def fullest(placed: Sequence[tuple[Problem, Plan]]) -> str:
    """Name the memory of which the largest part is taken, with that part."""
    parts = [
        (plan.peak / problem.capacity, problem.memory.name.removeprefix("local."))
        for problem, plan in placed
        if problem.capacity
    ]
    part, name = max(parts)
    return f"{name} {100 * part:.0f}%"


def idle(found: Simulation) -> str:
    """Name the share of the makespan for which each pipe is idle."""
    shares = (f"{time.pipe} {100 * time.idle / found.makespan:.0f}" for time in found.pipes)
    return ", ".join(shares)


def bench(ascend: AscendKernel, size: str, detail: bool, machine: Machine) -> None:
    """Print one kernel in one size."""
    name = ascend.name
    kernel = AscendOptions().read(ascend.lower(f"{CHIP}-llvm")[name])
    free = simulate(kernel.program, planned(kernel, lambda p: solve(p, "bump")), machine)
    lives = [lower_bound(p) / p.capacity for p in kernel.problems if p.capacity]
    cells = [f"{name:<16}", f"{size:<8}", f"{100 * max(lives):>5.0f}%", f"{free.makespan:>9,}"]
    lines = []
    for label, planner in PLANNERS.items():
        start = time.process_time()
        placed = planned(kernel, planner)
        seconds = time.process_time() - start
        found = simulate(kernel.program, placed, machine)
        if not all(plan.fits for _, plan in placed):
            cells.append(f"{'-':>8}")
            continue
        ratio = found.makespan / free.makespan
        cells.append(f"{ratio:>8.3f}")
        penalty = sum(plan.penalty for _, plan in placed)
        lines.append(
            f"    {label:<8} {fullest(placed):<9} penalty {penalty:>5}  "
            f"{found.makespan:>9,} cycles {ratio:.3f}  waits for reuse "
            f"{found.waited(Cause.REUSE):>7,}  idle %: {idle(found)}  ({seconds:.2f} s)"
        )
    print(*cells, flush=True)
    if detail:
        print(f"    free {'':>23} {free.makespan:>9,} cycles        idle %: {idle(free)}")
        print(*lines, sep="\n", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tiles", type=int, help="iterations of the tile loops; default: few")
    parser.add_argument(
        "--global-rate", type=int, help="bytes a cycle to and from global memory; default: 44"
    )
    parser.add_argument("--kernel", choices=ascend_kernels(), help="only this one")
    parser.add_argument("--size", choices=(*SIZES, "between"), help="only this one")
    parser.add_argument("--detail", action="store_true", help="print a line for each plan")
    arguments = parser.parse_args()
    machine = Machine.from_target(Target(CHIP))
    if arguments.global_rate:
        for pipe in ("MTE2", "MTE3", "FIX"):
            machine = machine.with_pipe(replace(machine[pipe], rate=arguments.global_rate))
    print(f"{'kernel':<16} {'size':<8} {'live':>6} {'cycles':>9}", end=" ")
    print(*(f"{label:>8}" for label in PLANNERS))
    tiles = {} if arguments.tiles is None else {"tiles": arguments.tiles}
    for name in [arguments.kernel] if arguments.kernel else ascend_kernels():
        for size in [arguments.size] if arguments.size else (*SIZES, "between"):
            if size == "between":
                chosen = [parameters for other, parameters in BETWEEN if other == name]
                kernels = [ascend_kernel(name, "fits", **tiles, **p) for p in chosen]
            else:
                kernels = [ascend_kernel(name, size, **tiles)]
            for kernel in kernels:
                bench(kernel, size, arguments.detail, machine)


if __name__ == "__main__":
    main()
