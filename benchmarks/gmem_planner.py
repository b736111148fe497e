# SPDX-License-Identifier: Apache-2.0
"""How `rec_tbl` grows with the graph, and how its peak compares.

    python benchmarks/gmem_planner.py [--ops 1000,4000,100000] [--planners a,b] [--kinds a,b]

For each kind of graph and each number of ops: the CPU seconds of

- the table as the original keeps it, a list that is scanned for every operand and result (up to
  `--most-naive` ops: it takes quadratic time, or worse),
- planners, `rec_tbl` among them (up to `--most-others` ops, and `bump`, `rec_tbl` and
  `storage_rewrite` for any number),

and the ratio of each peak to the lower bound, which counts live bytes. Growth is how many times
longer than for the smaller graph before, over how many times more ops: 1 is linear. Offsets are
multiples of 64 bytes, and so are sizes. Every plan is verified. Where a graph has no reshape, the
table's offsets are those of `rec_tbl`; where it has, the table counts each name for itself.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from tvm_ext import Budget, Buffer, MemoryScope, Problem, check, lower_bound, solve

UNIT = 64
ANY_SIZE = ("bump", "rec_tbl", "storage_rewrite")
T = TypeVar("T")


class Op(NamedTuple):
    """A step of a graph: operands, result, bytes; the result may be the operand's other name."""

    operands: tuple[str, ...]
    result: str
    size: int
    is_reshape: bool


class _Builder:
    """Appends ops to a graph."""

    def __init__(self) -> None:
        self.ops: list[Op] = []

    def add(self, size: int, *operands: str, is_reshape: bool = False) -> str:
        name = f"v{len(self.ops)}"
        self.ops.append(Op(operands, name, size * UNIT, is_reshape))
        return name


def problem_of(ops: list[Op]) -> Problem:
    """Return the graph's tensors: each lives to its last reader, one without a reader where made.

    A tensor and its reshapes are one buffer. The last result lives to the end.
    """
    root: dict[str, str] = {}
    end: dict[str, int] = {}
    for position, op in enumerate(ops):
        root[op.result] = root[op.operands[0]] if op.is_reshape else op.result
        for name in (*op.operands, op.result):
            end[root[name]] = position + 1
    end[root[ops[-1].result]] = len(ops) + 1
    buffers = tuple(
        Buffer(op.result, op.size, ((position, end[op.result]),))
        for position, op in enumerate(ops)
        if not op.is_reshape
    )
    return Problem(buffers, MemoryScope("global", alignment=UNIT))


def residual(count: int) -> list[Op]:
    """Return blocks of three steps and an addition; sizes halve now and then, and start anew."""
    graph, rng = _Builder(), random.Random(count)
    size = 4096
    last = graph.add(size)
    while len(graph.ops) < count:
        inner = graph.add(max(1, size // 4), last)
        inner = graph.add(max(1, size // 4), inner)
        last = graph.add(size, graph.add(size, inner), last)
        if rng.random() < 0.25:
            size = size // 2 if size > 64 else 4096
            last = graph.add(size, last)
    return graph.ops


def attention(count: int) -> list[Op]:
    """Return transformer layers with reshapes, their sequence lengths drawn from a few."""
    graph, rng = _Builder(), random.Random(count)
    tokens = 64
    last = graph.add(tokens * 8)
    while len(graph.ops) < count:
        heads = [
            graph.add(tokens * 8, graph.add(tokens * 8, last), is_reshape=True) for _ in range(3)
        ]
        scores = graph.add(tokens * tokens // 8, heads[0], heads[1])
        mixed = graph.add(tokens * 8, graph.add(tokens * tokens // 8, scores), heads[2])
        last = graph.add(tokens * 8, graph.add(tokens * 8, mixed, is_reshape=True), last)
        last = graph.add(tokens * 8, graph.add(tokens * 32, last), last)
        if rng.random() < 0.1:
            tokens = rng.choice([16, 32, 64, 128, 256])
            last = graph.add(tokens * 8, last)
    return graph.ops


def long_skips(count: int) -> list[Op]:
    """Return nested skips, the outermost over hundreds of ops: many values are alive at once."""
    graph, rng = _Builder(), random.Random(count)
    last = graph.add(1024)
    while len(graph.ops) < count:
        skips = []
        for _ in range(rng.randint(20, 200)):
            last = graph.add(rng.randint(1, 1024), last)
            skips.append(last)
        for skip in reversed(skips):
            last = graph.add(rng.randint(1, 1024), last, skip)
    return graph.ops


def scattered(count: int) -> list[Op]:
    """Return ops that read any two of the latest fifty values, sizes from a heavy tail."""
    graph, rng = _Builder(), random.Random(count)
    values: list[str] = []
    while len(graph.ops) < count:
        operands = rng.choices(values[-50:], k=2) if values else []
        values.append(graph.add(min(1 << 16, int(rng.paretovariate(0.8))), *operands))
    return graph.ops


KINDS: dict[str, Callable[[int], list[Op]]] = {
    "residual": residual,
    "attention": attention,
    "long skips": long_skips,
    "scattered": scattered,
}


def naive(ops: list[Op]) -> dict[str, int]:
    """Return the offsets that lists give that are scanned as the original scans its own.

    Every operand is looked up in the whole table twice, to count it down and to release it. A
    result without a reader is released by its own op, as the planner does.
    """
    uses = Counter(operand for op in ops for operand in op.operands)
    uses[ops[-1].result] += 1
    table: list[tuple[str, int, int, list[int]]] = []  # value, offset, bytes, [references]
    held: list[str] = []
    in_use: set[int] = set()
    offsets: dict[str, int] = {}
    end = 0

    def record(op: Op, offset: int) -> None:
        table.append((op.result, offset, op.size, [uses[op.result]]))
        held.append(op.result)
        in_use.add(offset)
        offsets[op.result] = offset

    for op in ops:
        for operand in op.operands:
            for name, _, _, references in table:
                if name == operand and references[0] >= 1:
                    references[0] -= 1
        if op.is_reshape:
            record(op, offsets[op.operands[0]])
            continue
        inputs = {offsets[operand] for operand in op.operands}
        for name, offset, size, references in table:
            if (
                name not in held
                and offset not in in_use
                and references[0] == 0
                and size >= op.size
                and offset not in inputs
            ):
                record(op, offset)
                break
        else:
            record(op, end)
            end += -(-op.size // UNIT) * UNIT
        for operand in (*op.operands, op.result):
            if operand in held:
                for name, offset, _, references in table:
                    if name == operand and references[0] == 0:
                        in_use.discard(offset)
                        held.remove(operand)
    return offsets


def timed(run: Callable[[], T]) -> tuple[T, float]:
    start = time.process_time()
    result = run()
    return result, time.process_time() - start


class Report:
    """Prints a line a measurement, and remembers the one of the smaller graph before."""

    def __init__(self) -> None:
        self._before: dict[str, tuple[int, float]] = {}

    def line(
        self, what: str, count: int, seconds: float, ratio: float | None, against: float | None
    ) -> None:
        """Print seconds, growth, peak / lower bound, and how many times the naive table takes."""
        growth = ""
        if what in self._before:
            ops, earlier = self._before[what]
            growth = f"{(seconds / max(earlier, 1e-6)) / (count / ops):.2f}"
        self._before[what] = count, seconds
        shown = "" if ratio is None else f"{ratio:.4f}"
        faster = "" if against is None else f"{against / max(seconds, 1e-6):.1f}x"
        print(
            f"   {what:26}{count:8}{seconds:10.3f} s{growth:>8}{shown:>10}{faster:>10}", flush=True
        )


def run_kind(kind: str, counts: list[int], arguments: argparse.Namespace) -> None:
    print(f"== {kind}: what, ops, CPU time, growth, peak / lower bound, against the naive table")
    report = Report()
    for count in counts:
        ops = KINDS[kind](count)
        problem = problem_of(ops)
        bound = lower_bound(problem)
        table: dict[str, int] = {}
        against: float | None = None
        if count <= arguments.most_naive:
            table, against = timed(lambda o=ops: naive(o))
            report.line("the original's table", count, against, None, None)
        for planner in arguments.planners.split(","):
            if count <= arguments.most_others or planner in ANY_SIZE:
                budget = Budget(seconds=arguments.time_limit)
                plan, seconds = timed(lambda p=problem, n=planner, b=budget: solve(p, n, b))
                check(problem, plan)
                is_rec_tbl = planner == "rec_tbl"
                offsets = {name: offset for name, (offset,) in plan.offsets.items()}
                comparable = is_rec_tbl and table and not any(op.is_reshape for op in ops)
                if comparable and table != offsets:
                    raise AssertionError(f"{kind} {count}: rec_tbl is not the original")
                ratio = plan.peak / bound
                report.line(planner, count, seconds, ratio, against if is_rec_tbl else None)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--ops", default="1000,4000,20000,100000", help="default: %(default)s")
    parser.add_argument("--kinds", default=",".join(KINDS), help="default: %(default)s")
    parser.add_argument(
        "--planners",
        default="rec_tbl,storage_rewrite,bump,first_fit,best",
        help="default: %(default)s",
    )
    parser.add_argument("--most-naive", type=int, default=4_000, help="default: %(default)s")
    parser.add_argument("--most-others", type=int, default=20_000, help="default: %(default)s")
    parser.add_argument("--time-limit", type=float, default=20.0, help="seconds a plan")
    arguments = parser.parse_args()
    counts = [int(count) for count in arguments.ops.split(",")]
    for kind in arguments.kinds.split(","):
        run_kind(kind, counts, arguments)


if __name__ == "__main__":
    main()
