# SPDX-License-Identifier: Apache-2.0
"""Planners to run on the suite: ours, and those of others where they are installed.

A planner takes an instance, its file and seconds, on one thread, and answers with offsets by buffer
name, the memory of each where there are several, and whether it says that nothing is better. None
is the answer to what it does not know, such as costs of sharing; an answer may lack offsets where
it found none in time.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import combinations, islice
from math import lcm
from pathlib import Path

from check import Instance, Row, live_bytes, meet
from other_planners import OTHERS

from passes.planning import Budget, MemoriesProblem, Problem, solve
from passes.planning.documents import read_document
from passes.planning.files import read_memories_problem, read_problem
from target_hw.memory import MemoryScope
from tvm_ext import planner_names

NODES = 1 << 60
OMNIMALLOC, MINIMALLOC = "OMNIMALLOC_PYTHON", "MINIMALLOC_BINARY"
"""Variables that name a Python that has OmniMalloc, and MiniMalloc's program."""
MOST_PAIRS = 3000  # Pairs that meet, up to which HiGHS is asked: each takes a 0/1 variable


@dataclass
class Answer:
    """What a planner found."""

    seconds: float
    offsets: dict[str, list[int]] = field(default_factory=dict)
    proven: bool = False
    memory: dict[str, str] = field(default_factory=dict)
    bound: int = 0


Planner = Callable[[Instance, Path, float], Answer | None]


def problem_of(given: Instance, path: Path) -> Problem | MemoriesProblem:
    """Read an instance as a user's command does."""
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8", newline="") as stream:
        if ".json" in path.name:
            return read_document(stream.read(), path.name)
        if len(given.memories) == 1:
            memory = MemoryScope("global", given.memories[""], given.alignment)
            return read_problem(stream, path.name, memory)
        scopes = [MemoryScope(f"global.{name}", size) for name, size in given.memories.items()]
        words = {name: scope.name for name, scope in zip(given.memories, scopes, strict=True)}
        return read_memories_problem(stream, path.name, scopes, words)


def ours(planner: str) -> Planner:
    def run(given: Instance, path: Path, limit: float) -> Answer | None:
        problem = problem_of(given, path)
        budget, begin = Budget(NODES, limit), time.perf_counter()
        if isinstance(problem, MemoriesProblem):
            if planner != "best":
                return None
            plan = solve(problem, budget=budget)
            seconds = time.perf_counter() - begin
            memory = {name: where.split(".")[1] for name, where in plan.memory.items()}
            offsets = {name: list(at) for name, at in plan.offsets.items()}
            proven = plan.status.value == "optimal"
            return Answer(seconds, offsets, proven, memory, plan.bound[0])
        own = OTHERS.get(planner)
        found = own(problem, budget) if own else solve(problem, planner, budget)
        seconds = time.perf_counter() - begin
        offsets = {name: list(at) for name, at in found.offsets.items()}
        return Answer(seconds, offsets, found.status.value in ("optimal", "infeasible"))

    return run


def whole_units(given: Instance) -> int:
    """Return the alignment of all buffers if it is one; 0 if they differ."""
    alignments = {lcm(row.alignment, given.alignment) for row in given.rows}
    return alignments.pop() if len(alignments) == 1 else 0


def is_known(given: Instance) -> bool:
    """Whether an instance is one of buffers with a life each in one memory, and no more."""
    simple = all(len(r.lives) == 1 and r.slots == 1 and r.pinned is None for r in given.rows)
    pairs = given.in_place or given.separations or given.penalties or given.reserved
    return simple and not pairs and len(given.memories) == 1 and whole_units(given) > 0


def padded(row: Row, unit: int) -> int:
    return -(-row.size // unit) * unit


_OMNIMALLOC = """
import json, sys, time
import omnimalloc as om
from omnimalloc.allocators import OmniAllocator, SupermallocAllocator
limit, rows = json.load(sys.stdin)
times = [[t[0] if len(t) == 1 else tuple(t) for t in row[2:]] for row in rows]
given = tuple(om.Allocation(id=r[0], size=r[1], start=a, end=b) for r, (a, b) in zip(rows, times))
begin, proven = time.perf_counter(), False
if isinstance(given[0].start, tuple):
    placed = OmniAllocator().allocate(given)
else:
    result = SupermallocAllocator(timeout=limit, num_threads=1).solve(given)
    placed, proven = result.allocations, result.proved_optimal
seconds = time.perf_counter() - begin
json.dump([seconds, {a.id: [a.offset] for a in placed}, proven], sys.stdout)
"""


def omnimalloc(given: Instance, path: Path, limit: float) -> Answer | None:
    """Ask its exact search; of several clocks, which that refuses, its portfolio."""
    if not is_known(given):
        return None
    unit = whole_units(given)
    rows = [[row.name, padded(row, unit), *row.lives[0]] for row in given.rows if row.size]
    command = [os.environ[OMNIMALLOC], "-c", _OMNIMALLOC]
    try:
        text = json.dumps([limit, rows])
        done = subprocess.run(
            command, input=text, capture_output=True, text=True, check=True, timeout=6 * limit + 60
        )
    except subprocess.TimeoutExpired:
        return Answer(6 * limit + 60)
    seconds, offsets, proven = json.loads(done.stdout)
    offsets |= {row.name: [0] for row in given.rows if not row.size}
    # Sizes that are padded prove nothing of the last one.
    proven = proven and all(row.size % unit == 0 for row in given.rows)
    return Answer(seconds, offsets, proven)


def minimalloc(given: Instance, path: Path, limit: float) -> Answer | None:
    """Ask for a plan within the bytes that are live at once, and then for the lowest it finds."""
    if not is_known(given) or any(len(row.lives[0][0]) > 1 for row in given.rows):
        return None
    unit = whole_units(given)
    rows = [row for row in given.rows if row.size]
    lines = (
        f"{n},{r.lives[0][0][0]},{r.lives[0][1][0]},{padded(r, unit)}" for n, r in enumerate(rows)
    )
    bound = live_bytes(Instance([Row(r.name, padded(r, unit), r.lives) for r in rows], {"": None}))
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        table, placed = Path(folder) / "given.csv", Path(folder) / "placed.csv"
        table.write_text("\n".join(("id,lower,upper,size", *lines)) + "\n")
        most = sum(padded(row, unit) for row in rows)
        for capacity, more in ((bound, []), (most, ["--minimize_capacity"])):
            files = [f"--input={table}", f"--output={placed}", f"--capacity={capacity}"]
            command = [os.environ[MINIMALLOC], *files, f"--timeout={limit}s", *more]
            try:
                subprocess.run(command, capture_output=True, check=False, timeout=2 * limit)
            except subprocess.TimeoutExpired:
                continue
            found = placed.read_text().splitlines()[1:] if placed.is_file() else []
            if found:
                offsets = {r.name: [0] for r in given.rows}
                for line in found:
                    cells = line.split(",")
                    offsets[rows[int(cells[0])].name] = [int(cells[-1])]
                seconds = time.perf_counter() - begin
                is_whole = all(row.size % unit == 0 for row in rows)
                return Answer(seconds, offsets, proven=not more and is_whole)
    return Answer(time.perf_counter() - begin)


def highs(given: Instance, path: Path, limit: float) -> Answer | None:
    """Ask a 0/1 program: of each two that meet, which lies below; offsets in whole units."""
    import highspy

    if not is_known(given):
        return None
    unit, rows = whole_units(given), [row for row in given.rows if row.size]
    sizes, count = [padded(row, unit) // unit for row in rows], len(rows)
    together = (pair for pair in combinations(range(count), 2) if meet(*(rows[b] for b in pair)))
    pairs = list(islice(together, MOST_PAIRS + 1))
    if len(pairs) > MOST_PAIRS:
        return None
    begin, most = time.perf_counter(), sum(sizes)
    model = highspy.Highs()
    for option, value in (("output_flag", False), ("threads", 1), ("time_limit", limit)):
        model.setOptionValue(option, value)
    peak = model.addVariable(live_bytes(given) // unit, most, obj=1)
    at = [model.addVariable(0, most) for _ in rows]
    above = [model.addBinary() for _ in pairs]  # Whether the second lies above the first
    for b in range(count):
        model.addConstr(peak - at[b] >= sizes[b])
    for is_above, (a, b) in zip(above, pairs, strict=True):
        model.addConstr(at[b] - at[a] - most * is_above >= sizes[a] - most)
        model.addConstr(at[a] - at[b] + most * is_above >= sizes[b])
    model.run()
    solution = model.getSolution()
    if not solution.value_valid:
        return Answer(time.perf_counter() - begin)
    # The program's tolerances are not ours: its order of each pair decides, and offsets follow.
    values = list(solution.col_value)
    orders = [(a, b) if values[count + 1 + n] > 0.5 else (b, a) for n, (a, b) in enumerate(pairs)]
    found = stacked(sizes, orders, values[1 : count + 1])
    offsets = {row.name: [0] for row in given.rows}
    offsets |= {row.name: [unit * found[b]] for b, row in enumerate(rows)}
    proven = model.getModelStatus() == highspy.HighsModelStatus.kOptimal
    proven = proven and all(row.size % unit == 0 for row in rows)
    return Answer(time.perf_counter() - begin, offsets, proven)


def stacked(sizes: list[int], below: list[tuple[int, int]], given: list[float]) -> list[int]:
    """Return the lowest offsets at which each lies above those that are to be below it."""
    under: dict[int, list[int]] = {}
    for low, high in below:
        under.setdefault(high, []).append(low)
    at = [0] * len(sizes)
    for each in sorted(range(len(sizes)), key=lambda b: (round(given[b], 3), b)):
        at[each] = max((at[low] + sizes[low] for low in under.get(each, ())), default=0)
    return at


PLANNERS: dict[str, Planner] = {
    **{name: ours(name) for name in planner_names()},
    "OmniMalloc": omnimalloc,
    "MiniMalloc": minimalloc,
    "HiGHS": highs,
    "first fit by size": ours("first_fit_by_size"),
    "hill climb": ours("hill_climb"),
}


def missing() -> dict[str, str]:
    """Return which planners cannot be run, and what is missing."""
    found = {}
    if not shutil.which(os.environ.get(OMNIMALLOC, "")):
        found["OmniMalloc"] = f"{OMNIMALLOC} names no Python that has omnimalloc 1.0.0"
    if not shutil.which(os.environ.get(MINIMALLOC, "")):
        found["MiniMalloc"] = f"{MINIMALLOC} names no program"
    if find_spec("highspy") is None:
        found["HiGHS"] = "highspy is not installed"
    return found
