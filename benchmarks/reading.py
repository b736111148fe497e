# SPDX-License-Identifier: Apache-2.0
"""Seconds that it takes to read kernels of many statements, and to verify a plan of each.

    python benchmarks/reading.py [statements ...]

By default 10,000 and 50,000 statements. ``straight`` stands in no loop, ``loop`` in one, and
``one`` reads and writes one buffer alone, for `PlanAddresses`; ``threads`` has a barrier after
every eighth statement, for `PlanSharedMemory`; ``tiles`` is a loop of copies and sums over tiles,
for `AscendPlanMemory`. ``times`` is the time over that of the line above, of fewer statements.
The plans share nothing, in memory without end.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import test_libraries  # noqa: F401 - lets the next ones be found
from program_parts import loop, sequence
from tvm import tirx
from tvm.ir import PrimType
from tvm.tirx import AllocBuffer, BufferLoad, BufferStore, Var

from passes.ascend.kernel import AscendOptions
from passes.planning import Problem, solve, verify
from passes.prim_func import find_problems
from passes.shared_memory.analysis.kernel_memory import find_shared_memory
from passes.shared_memory.planning.epochs import shared_memory_problem
from target_hw.memory import MemoryScope
from tvm_ext.lowering import known_target

Read = tuple[list[Problem], float]
"""Problems, and the seconds that it took to read them off a kernel."""

ELEMENTS, STORES = 64, 8  # Of a buffer, and statements for each


def buffer(name: str, elements: int = ELEMENTS, scope: str = "global") -> Any:
    return tirx.decl_buffer([elements], "float32", name, scope=scope, layout=None)


def number(name: str) -> Any:
    return Var(name, PrimType("int32"))


def function(given: Any, body: Any) -> tirx.PrimFunc:
    return tirx.PrimFunc([given], body).with_attr("global_symbol", "main")


def chain(count: int, given: Any, scope: str, at: Callable[[int], Any], end: list[Any]) -> Any:
    """Return statements that write one buffer after the other from the four before it."""
    rng, body, known = random.Random(0), [], [given]
    for made in range(count // STORES):
        new = buffer(f"b{made}", scope=scope)
        stores = range(STORES - 1 - len(end))
        body += [AllocBuffer(new)]
        body += [
            BufferStore(new, BufferLoad(rng.choice(known[-4:]), [at(n)]), [at(n)]) for n in stores
        ]
        body += end
        known.append(new)
    return sequence([*body, BufferStore(given, BufferLoad(known[-1], [at(0)]), [at(0)])])


def straight(count: int) -> Read:
    given = buffer("given")
    return addresses(function(given, chain(count, given, "global", tirx.const, [])))


def in_loop(count: int) -> Read:
    given = buffer("given")
    body = loop(number("t"), 8, chain(count, given, "global", tirx.const, []))
    return addresses(function(given, body))


def one(count: int) -> Read:
    given, own = buffer("given"), buffer("own")
    places = [(given if at < ELEMENTS else own, [at % ELEMENTS]) for at in range(count)]
    body = [BufferStore(own, BufferLoad(source, at), at) for source, at in places]
    body = [AllocBuffer(own), *body, BufferStore(given, BufferLoad(own, [0]), [0])]
    return addresses(function(given, loop(number("t"), 8, sequence(body))))


def threads(count: int) -> Read:
    given, thread = buffer("given"), number("tx")
    barrier = tirx.Evaluate(tirx.call_intrin("int32", "tirx.tvm_storage_sync", "shared"))
    body = chain(count, given, "shared", lambda _: thread, [barrier])
    axis = tirx.IterVar(None, thread, 1, "threadIdx.x")
    func = function(given, tirx.AttrStmt(axis, "thread_extent", ELEMENTS, body))
    started = time.process_time()
    (memory,) = find_shared_memory(func)
    problem = shared_memory_problem(memory.kernels["shared"], MemoryScope("shared"))
    return timed(started, [problem])


def tiles(count: int) -> Read:
    """Read a loop over tiles: an allocation, a loop and its statement are three statements."""
    rng, given, turn, body, known = random.Random(0), buffer("given"), number("t"), [], []
    for made in range(count // 3):
        new, at = buffer(f"b{made}", scope="local.UB"), number("i")
        loads = [BufferLoad(each, [at]) for each in rng.sample(known[-4:], min(2, len(known)))]
        is_copy = len(loads) < 2 or rng.random() < 0.25
        value = BufferLoad(given, [at]) if is_copy else loads[0] + loads[1]
        body += [AllocBuffer(new), loop(at, ELEMENTS, BufferStore(new, value, [at]))]
        known.append(new)
    last = number("i")
    body.append(loop(last, ELEMENTS, BufferStore(given, BufferLoad(known[-1], [last]), [last])))
    func = function(given, loop(turn, 8, sequence(body)))
    func = func.with_attr("target", known_target("ascend/910b-llvm"))
    started = time.process_time()
    return timed(started, list(AscendOptions().read(func).problems))


def addresses(func: tirx.PrimFunc) -> Read:
    started = time.process_time()
    return timed(started, [attached.problem for attached in find_problems(func).problems])


def timed(started: float, problems: list[Problem]) -> Read:
    return problems, time.process_time() - started


KERNELS = {"straight": straight, "loop": in_loop, "one": one, "threads": threads, "tiles": tiles}


def main() -> None:
    counts = sorted(map(int, sys.argv[1:])) or [10_000, 50_000]
    print(
        f"{'kernel':10}{'statements':>12}{'buffers':>10}{'read s':>9}{'times':>7}{'verify s':>10}"
    )
    for name, kernel in KERNELS.items():
        before = 0.0
        for count in counts:
            problems, seconds = kernel(count)
            endless = [replace(p, memory=replace(p.memory, capacity=None)) for p in problems]
            plans = [solve(problem, "bump") for problem in endless]
            started = time.process_time()
            assert not any(map(verify, endless, plans))
            checked = time.process_time() - started
            times = f"{seconds / before:.1f}" if before else ""
            buffers = sum(len(problem.buffers) for problem in problems)
            print(
                f"{name:10}{count:12,}{buffers:10,}{seconds:9.2f}{times:>7}{checked:10.2f}",
                flush=True,
            )
            before = seconds


if __name__ == "__main__":
    main()
