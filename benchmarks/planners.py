# SPDX-License-Identifier: Apache-2.0
"""All planners side by side: public instances, models, NPU kernels, random sets, the corpus.

    python benchmarks/planners.py [--data FOLDER] [--sets minimalloc,models,...] [--planners a,b]

A line a problem and planner: the peak, its ratio to the lower bound, the penalty, the seconds, the
status. Times include all that a planner needs, conflicts and compilation too. A summary follows
each set, with the planner that won how many problems. How planners grow with the buffers, up to a
million, is measured with `--sets growth --planners first_fit,best`. The sets are those of
`instances.py`.

The corpus is that of the tests: a problem for each function, attach point and scope. It
is also held against what TVM's own StorageRewrite allocates for the same allocations: those of
constant size above zero that no code generator keeps in registers, by the rule of
`ProblemOptions`. Memory in a loop or a thread counts once. On both sides bytes are counted in
whole units of the alignment, as each allocation takes them: every one of the stock pass's, and the
peak of every plan.
"""

from __future__ import annotations

import argparse
import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from instances import (
    DATA,
    ON_REQUEST,
    ONE_TYPE_TARGETS,
    SETS,
    WITHOUT_DATA,
    Case,
    Function,
)

from passes.planning.engine.coalesce import rank
from target_hw.memory import round_up
from tvm_ext import Budget, Plan, Problem, check, lower_bound, planner_names, solve

NODES = 1 << 60


@dataclass
class Tally:
    """What one planner did on a set."""

    ratios: list[float]
    penalty: int = 0
    seconds: float = 0.0
    cpu: float = 0.0
    fits: int = 0
    optimal: int = 0


@dataclass
class Outcome:
    """What the planners did with one function of the corpus: bytes by planner and scope."""

    nbytes: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    above_bound: set[str] = field(default_factory=set)

    def add(self, problem: Problem, plans: Mapping[str, Plan]) -> None:
        """Count the plans of one more problem of the function."""
        bound, memory = lower_bound(problem), problem.memory
        for planner, plan in plans.items():
            self.nbytes[planner][memory.name] += round_up(plan.peak, memory.alignment)
            if plan.peak > bound:
                self.above_bound.add(planner)


def run_set(
    name: str, cases: Iterator[Case], names: list[str], seconds: float, quiet: bool
) -> None:
    print(f"== {name}")
    tallies: dict[str, Tally] = defaultdict(lambda: Tally([]))
    wins: Counter[str] = Counter()
    known = 0
    functions: dict[Function, Outcome] = defaultdict(Outcome)
    for case in cases:
        known += case.best_known or 0
        plans = {}
        for planner in names:
            plans[planner] = measured(case.problem, planner, seconds, tallies[planner], quiet)
            if case.best_known is not None:
                tallies[planner].penalty += plans[planner].penalty
        wins[min(names, key=lambda planner: rank(case.problem, plans[planner]))] += 1
        if case.function is not None:
            functions[case.function].add(case.problem, plans)
    print(f"-- {name}: planner, fits, optimal, peak / lower bound (geometric mean), penalty, time")
    for planner in names:
        tally = tallies[planner]
        mean = math.exp(sum(map(math.log, tally.ratios)) / len(tally.ratios))
        print(
            f"   {planner:16}{tally.fits:5}{tally.optimal:5} of {len(tally.ratios):<5}{mean:9.4f}"
            f"{tally.penalty:8}{tally.seconds:10.2f} s {tally.cpu:9.2f} s CPU"
            f"   first with the best plan: {wins[planner]}"
        )
    if known:
        print(f"   best known penalty, where any plan is known to fit: {known}")
    if functions:
        compare_functions(functions, names)


def compare_functions(functions: Mapping[Function, Outcome], names: Sequence[str]) -> None:
    """Print how the planners do on whole functions, and against the stock pass."""
    stock = sum(sum(function.stock.values()) for function in functions)
    print(f"-- {len(functions)} functions: planner, at the lower bound, bytes, share of stock's")
    for planner in names:
        at_bound = sum(planner not in outcome.above_bound for outcome in functions.values())
        total = sum(outcome.nbytes[planner].total() for outcome in functions.values())
        share = f"{at_bound:5} {at_bound / len(functions):7.1%}"
        print(f"   {planner:16}{share}{total:14,}{total / stock:9.2%}")
    print(f"   {'stock pass':16}{'':13}{stock:14,}")
    groups: dict[str, Callable[[Function], bool]] = {
        "all": lambda _: True,
        "the stock pass shares, types may differ": lambda function: (
            function.stock_shares and function.target not in ONE_TYPE_TARGETS
        ),
        "the stock pass shares equal types only": lambda function: (
            function.stock_shares and function.target in ONE_TYPE_TARGETS
        ),
        "the stock pass leaves it to a later one": lambda function: not function.stock_shares,
    }
    for planner in names:
        if planner not in ("best", "storage_rewrite"):
            continue
        print(f"-- {planner} against the stock pass: functions, less, equal, more, bytes")
        for group, belongs in groups.items():
            chosen = {f: outcome.nbytes[planner] for f, outcome in functions.items() if belongs(f)}
            print_saved(group, chosen)
        for function, outcome in functions.items():
            for scope, nbytes in sorted(outcome.nbytes[planner].items()):
                if nbytes > function.stock[scope]:
                    print(f"   more: {function.name} {scope}: {nbytes}, {function.stock[scope]}")


def print_saved(group: str, chosen: Mapping[Function, Counter[str]]) -> None:
    less = equal = more = saved = 0
    for function, nbytes in chosen.items():
        is_more = any(nbytes[scope] > stock for scope, stock in function.stock.items())
        is_equal = nbytes == function.stock
        more, equal, less = more + is_more, equal + is_equal, less + (not is_more and not is_equal)
        saved += sum(function.stock.values()) - nbytes.total()
    print(f"   {group:40}{len(chosen):5}{less:5}{equal:5}{more:5}{saved:12,} saved")


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
    usual = ",".join(name for name in SETS if name not in ON_REQUEST)
    more = ", ".join(ON_REQUEST)
    parser.add_argument("--sets", default=usual, help=f"default: %(default)s; also: {more}")
    every = ",".join(planner_names())
    parser.add_argument("--planners", default=every, help="default: %(default)s")
    parser.add_argument("--time-limit", type=float, default=10.0, help="seconds a plan")
    parser.add_argument("--quiet", action="store_true", help="only the summaries")
    arguments = parser.parse_args()
    for name in arguments.sets.split(","):
        if name not in WITHOUT_DATA and not arguments.data.is_dir():
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
