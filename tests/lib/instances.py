# SPDX-License-Identifier: Apache-2.0
"""What planners are measured on: public instances, models, NPU kernels, random sets, the corpus.

The public ones are in a data folder, from `TVM_EXT_DATA` or ``../shared/data``; its READMEs name
their sources. The corpus is that of the tests: a problem for each function, attach point and
scope.
"""

from __future__ import annotations

import gzip
import json
import math
import os
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from passes.planning import Buffer, Problem
from passes.planning.files import read_problem
from target_hw.memory import MemoryScope
from target_hw.storage_scope import parse_storage_scope

DATA = os.environ.get("TVM_EXT_DATA", str(Path(__file__).parents[2] / ".." / "shared" / "data"))
TESTS = Path(__file__).parents[1]
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
    """One problem to plan.

    Parameters
    ----------
    problem : Problem
        The problem.
    best_known : int, optional
        The least penalty that anybody reached, None if nobody did.
    function : Function, optional
        The function of the corpus that it is from.
    kernel : str
        The NPU kernel that it is a memory of.
    certified : bool
        Whether `best_known` is proven to be the least that there is.
    """

    problem: Problem
    best_known: int | None = 0
    function: Function | None = None
    kernel: str = ""
    certified: bool = False


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
    return kernel_cases(data / "ascend_kernels" / "soft.jsonl.gz")


def penalties(data: Path) -> Iterator[Case]:
    """Yield MiniMalloc's instances with thousands of penalties, in first fit's capacity."""
    return kernel_cases(data / "reuse_penalties" / "minimalloc.jsonl.gz")


def kernel_cases(path: Path) -> Iterator[Case]:
    sys.path.insert(0, str(TESTS))
    from kernel_format import kernel_problems

    with gzip.open(path, "rt", encoding="utf-8") as stream:
        for line in stream:
            kernel = json.loads(line)
            problems = kernel_problems(kernel)
            for at, problem in enumerate(problems):
                known = kernel["best_known_cost"]  # of all memories: counted with the first
                known = known if at == 0 or known is None else 0
                yield Case(problem, known, None, kernel["name"], kernel["certified"])


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


def growth(data: Path, counts: Sequence[int] = GROWTH_SIZES) -> Iterator[Case]:
    """Yield tables of growing size, sparse and dense: sizes from 16 B to 64 KiB, log-uniform."""
    for count in counts:
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

    from passes.prim_func.problems import ProblemOptions, find_problems

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
    "penalties": penalties,
    "random": random_sets,
    "growth": growth,
    "corpus": corpus,
}
WITHOUT_DATA = ("random", "growth", "corpus")
ON_REQUEST = ("penalties", "growth")
"""Sets that take too long to be run unless asked for."""
