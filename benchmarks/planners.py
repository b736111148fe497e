"""All planners side by side: public instances, models, NPU kernels, random sets, the corpus.

    python benchmarks/planners.py [--data FOLDER] [--sets minimalloc,models,...] [--planners a,b]

A line a problem and planner: the peak, its ratio to the lower bound, the penalty, the seconds, the
status. Times include all that a planner needs, conflicts and compilation too. A summary follows
each set, with the planner that won how many problems. How planners grow with the buffers, up to a
million, is measured with `--sets growth --planners skyline,first_fit,best`.

The corpus is that of the tests: a problem for each function, attach point and scope. It
is also held against what TVM's own StorageRewrite allocates for the same allocations: those of
constant size above zero that no code generator keeps in registers, by the rule of
`ProblemOptions`. Memory in a loop or a thread counts once. On both sides bytes are counted in
whole units of the alignment, as each allocation takes them: every one of the stock pass's, and the
peak of every plan.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import os
import random
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from passes.planning import (
    Budget,
    Buffer,
    Plan,
    Problem,
    check,
    lower_bound,
    planner_names,
    solve,
)
from passes.planning.engine.ranking import rank
from passes.planning.files.csv_format import read_problem
from passes.planning.files.kernel_format import kernel_problems
from target_hw.memory import MemoryScope
from target_hw.storage_scope import parse_storage_scope

DATA = os.environ.get("TVM_EXT_DATA", str(Path(__file__).parents[1] / ".." / "shared" / "data"))
TESTS = Path(__file__).parents[1] / "tests"
NODES = 1 << 60
RANDOM_SIZES = (100, 1000, 10_000, 100_000)
GROWTH_SIZES = (1000, 3000, 10_000, 30_000, 100_000, 300_000, 1_000_000)
GROWTH_SHARES = (0.01, 0.1, 0.3)
"""What share of all buffers is live at once, about."""
REGISTER_BYTES = 4
"""Untagged allocations up to here become registers: neither side plans them."""
ONE_TYPE_TARGETS = ("vulkan", "webgpu")
"""Targets where StorageRewrite shares between equal types only."""


@dataclass(frozen=True, eq=False)
class Function:
    """A function of the corpus; `stock` is the bytes that the stock pass allocates, by scope."""

    name: str
    target: str
    stock: Mapping[str, int]
    stock_shares: bool


@dataclass(frozen=True)
class Case:
    """One problem; `best_known` is the least penalty that anybody reached, None if nobody did."""

    problem: Problem
    best_known: int | None = 0
    function: Function | None = None


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


def growth(data: Path) -> Iterator[Case]:
    """Yield tables of growing size, sparse and dense: sizes from 16 B to 64 KiB, log-uniform."""
    for count in GROWTH_SIZES:
        for share in GROWTH_SHARES:
            yield Case(growth_problem(count, share))


def growth_problem(count: int, share: float, seed: int = 0) -> Problem:
    rng = random.Random(f"{count} {share} {seed}")
    positions = 10 * count
    buffers = []
    for index in range(count):
        begin, life = rng.randrange(positions), rng.expovariate(1 / (share * positions))
        size = int(2 ** rng.uniform(4, 16))
        end = begin + 1 + min(positions, int(life))
        buffers.append(Buffer(str(index), size, ((begin, end),)))
    return Problem(tuple(buffers), name=f"{count:,} buffers, {share:.0%} live at once")


def corpus(data: Path) -> Iterator[Case]:
    # Here, because a planner's time includes the import of TVM where it needs that.
    import tvm

    from passes.analysis.tir.problems import ProblemOptions, find_problems

    sys.path.insert(0, str(TESTS))
    from corpus import iterate

    stock = tvm.tirx.transform.StorageRewrite()
    for entry in iterate():
        ((_, func),) = entry.mod.functions.items()
        found = find_problems(func, ProblemOptions(addressed=False)).problems
        units = {one.problem.memory.name: one.problem.memory.alignment for one in found}
        with tvm.transform.PassContext(config=dict(entry.config)):
            allocated = allocated_bytes(stock(entry.mod), units)
        shares = not entry.config.get("tirx.merge_static_smem", False)
        function = Function(entry.name, entry.target, allocated, shares)
        for one in found:
            name = f"{entry.name} {one.problem.name}"
            yield Case(replace(one.problem, name=name), function=function)


def allocated_bytes(mod: Any, units: Mapping[str, int]) -> dict[str, int]:
    """Return what a module allocates in the scopes of `units`, in whole units of so many bytes."""
    import tvm_ffi
    from tvm.tirx import AllocBuffer, IntImm

    total = dict.fromkeys(units, 0)

    def add(op: Any) -> None:
        ty = op.buffer.ty
        scope, extents = parse_storage_scope(str(ty.storage_scope)), list(ty.shape)
        if str(scope) not in total or not all(isinstance(extent, IntImm) for extent in extents):
            return
        count, dtype = math.prod(int(extent.value) for extent in extents), ty.dtype.dtype
        size = -(-count * dtype.bits * dtype.lanes // 8)
        is_register = scope.is_register_like or size <= REGISTER_BYTES
        if size <= 0 or (not scope.tag and is_register):
            return
        total[str(scope)] += rounded(size, units[str(scope)])

    for func in mod.functions.values():
        tvm_ffi.structural_walk(func.body, (AllocBuffer, add))
    return total


def rounded(size: int, unit: int) -> int:
    return -(-size // unit) * unit


SETS: dict[str, Callable[[Path], Iterator[Case]]] = {
    "minimalloc": minimalloc,
    "models": models,
    "ascend": ascend,
    "random": random_sets,
    "growth": growth,
    "corpus": corpus,
}
WITHOUT_DATA = ("random", "growth", "corpus")
ON_REQUEST = ("growth",)
"""Sets that take too long to be run unless asked for."""


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
            self.nbytes[planner][memory.name] += rounded(plan.peak, memory.alignment)
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
    parser.add_argument("--sets", default=usual, help="default: %(default)s; also: growth")
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
