# SPDX-License-Identifier: Apache-2.0
"""Allocations that stand in front of loops and branches, and where they mean the same."""

from __future__ import annotations

from textwrap import indent
from typing import Any

import numpy as np
import pytest
import tvm
from address_programs import program_inputs, random_program
from address_replay import Replay
from address_runs import identity, memory_after, poisoned
from hypothesis import strategies as st
from program_text import program
from sweeps import swept
from tvm import tirx
from tvm.tirx import AllocBuffer, For, IfThenElse, SeqStmt, While

from passes.addresses.transform import plan_addresses
from passes.prim_func.problems import ProblemOptions
from passes.prim_func.sink_allocations import sink_allocations
from tvm_ext.transform import FORMS, PlanAddresses


def in_loop(write: str) -> tirx.PrimFunc:
    """Return a program whose loop writes a buffer in some way, and then reads all of it."""
    return program(f"""
def main(x: 64 int32, y: 64 int32):
    a: local.UB 16 int32
    for k in range(3):
{indent(write, " " * 8)}
        y[i] = a[i] + y[i] for i in range(16)
""")


WRITES_ALL = {
    "straight": "a[j] = x[j + k] for j in range(16)",
    "backward": "a[15 - j] = x[j + k] for j in range(16)",
    "two digits": "a[i * 4 + j] = x[i + k] for i, j in T.grid(4, 4)",
    "digits exchanged": "a[j * 2 + i] = x[i + k] for i, j in T.grid(2, 8)",
    "from one": "a[j - 1] = x[j + k] for j in range(1, 17)",
    "one digit backward": "a[12 - i * 4 + j] = x[i + k] for i, j in T.grid(4, 4)",
    "by vectors": "a[T.Ramp(j * 4, 1, 4)] = x[T.Ramp(j * 4, 1, 4)] for j in range(4)",
    "a digit of one value": "a[i * 7 + j] = x[j + k] for i, j in T.grid(1, 16)",
}

WRITES_LESS = {
    "half": "a[j] = x[j + k] for j in range(8)",
    "every other": "a[j * 2] = x[j + k] for j in range(8)",
    "twice the same": "a[j // 2] = x[j + k] for j in range(16)",
    "wrapped": "a[j % 8] = x[j + k] for j in range(16)",
    "never": "a[j] = x[j + k] for i, j in T.grid(0, 16)",
    "from four": "a[j + 4] = x[j + k] for j in range(16)",
    "from the round": "a[j + k] = x[j] for j in range(16)",
    "a vector with gaps": "a[T.Ramp(j, 5, 4)] = x[T.Ramp(j, 1, 4)] for j in range(1)",
    "by the round": "a[k * 4 + j] = x[j + k] for j in range(4)",
    "turned by the round": "a[(j + k) % 16] = x[j + k] for j in range(16)",
    "overlapping digits": "a[i * 3 + j] = x[i + k] for i, j in T.grid(4, 4)",
    "reads what it writes": "a[j] = a[j] + 1 for j in range(16)",
    "in a branch": "if k < 2:\n    a[j] = x[j + k] for j in range(16)",
}


def alloc_depths(func: tirx.PrimFunc) -> dict[str, int]:
    """Return how many loops are around each allocation."""
    found: dict[str, int] = {}

    def walk(op: Any, depth: int) -> None:
        if isinstance(op, AllocBuffer):
            found[op.buffer.name] = depth
        for part in op.seq if isinstance(op, SeqStmt) else ():
            walk(part, depth)
        for name in ("body", "then_case", "else_case"):
            part = getattr(op, name, None)
            if part is not None:
                walk(part, depth + isinstance(op, For))

    walk(func.body, 0)
    return found


@pytest.mark.parametrize("name", WRITES_ALL)
def test_what_a_round_writes_anew_is_allocated_in_it(name: str):
    func = in_loop(WRITES_ALL[name])
    assert alloc_depths(sink_allocations(func)) == {"a": 1}


@pytest.mark.parametrize("name", WRITES_LESS)
def test_what_a_round_may_find_stays_in_front(name: str):
    func = in_loop(WRITES_LESS[name])
    assert sink_allocations(func).same_as(func)


nested = program("""
def nested(x: 64 int32, y: 64 int32):
    inner, branch, one_time: local.UB 4 int32
    slots = T.alloc_buffer((4,), "int32", scope="local.UB", annotations={"multi_buffer": 2})
    pinned = T.alloc_buffer((4,), "int32", scope="local.UB", allocated_addr=512)
    viewed: local.UB 4 int32
    view = T.decl_buffer((16,), "int8", data=viewed.data, scope="local.UB")
    if x[0] > 0:  # No loop is around, so it does not matter what is read.
        one_time[0] = 1
        y[0] = one_time[0]
    for k in range(4):
        for m in range(2):
            inner[i] = x[i + k + m] for i in range(4)
            y[i + k * 4] = y[i + k * 4] + inner[3 - i] for i in range(4)
        if k > 1:
            branch[i] = x[i] for i in range(4)
            y[i + k * 4] = y[i + k * 4] - branch[3 - i] for i in range(4)
        slots[i] = x[i] for i in range(4)
        pinned[i] = slots[3 - i] for i in range(4)
        viewed[i] = pinned[3 - i] for i in range(4)
        y[16 + i] = y[16 + i] + T.Cast("int32", view[i]) for i in range(16)
""")


def test_an_allocation_goes_as_far_in_as_it_may():
    before = nested.script()
    sunk = sink_allocations(nested)
    assert alloc_depths(sunk) == {
        "inner": 2,
        "branch": 1,
        "one_time": 0,
        "slots": 0,
        "pinned": 0,
        "viewed": 0,
    }
    assert nested.script() == before


kept_pointer = program("""
def kept_pointer(x: 64 int32, y: 64 int32):
    a: local.UB 4 int32
    slot: T.let = T.tvm_stack_alloca("array", 1)
    for k in range(4):
        a[i] = x[i + k] for i in range(4)
        T.evaluate(T.tvm_struct_set(slot, 0, 1, a.data))
        y[k] = a[0]
""")


kept_number = program("""
def kept_number(x: 64 int32, y: 64 int64):
    a: local.UB 4 int32
    for k in range(4):
        a[i] = x[i + k] for i in range(4)
        y[k] = T.reinterpret("int64", a.data)
""")


counted_twice = program("""
def counted_twice(x: 64 int32, y: 512 int32):
    # The index wraps, so that only half of `a` is written.
    a: local.UB 512 int32
    for k in range(4):
        a[i * T.uint8(16) + j] = x[k] for i, j in T.grid(T.uint8(32), T.uint8(16))
        y[k] = a[0]
""")


@pytest.mark.parametrize("func", [kept_pointer, kept_number, counted_twice])
def test_memory_stays_where_a_later_iteration_may_find_it_again(func: tirx.PrimFunc):
    assert sink_allocations(func).same_as(func)


def hoisted(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a function with all allocations of serial loops and branches in front."""
    taken: list[AllocBuffer] = []

    def take(op: Any) -> Any:
        if isinstance(op, AllocBuffer):
            taken.append(AllocBuffer(op.buffer))
            return None
        if isinstance(op, SeqStmt):
            kept = [part for part in map(take, op.seq) if part is not None]
            return SeqStmt(kept) if len(kept) > 1 else kept[0]
        if isinstance(op, For) and op.kind == tirx.ForKind.SERIAL:
            return For(op.loop_var, op.min, op.extent, op.kind, take(op.body), step=op.step)
        if isinstance(op, While):
            return While(op.condition, take(op.body))
        if isinstance(op, IfThenElse):
            other = None if op.else_case is None else take(op.else_case)
            return IfThenElse(op.condition, take(op.then_case), other)
        return op

    body = take(func.body)
    return func.with_body(SeqStmt([*taken, body])) if taken else func


def replayed(func: tirx.PrimFunc, planner: str) -> list[np.ndarray]:
    """Run a function under a plan step by step, and return its arrays afterwards.

    The replay refuses to read what was not written since the allocation.
    """
    arrays = program_inputs(0)
    Replay(func, plan_addresses(func, planner, ProblemOptions(addressed=False)))(arrays)
    return arrays


@swept(3, 3000, st.integers(0, 1 << 32))
def test_random_programs_compute_the_same_with_all_allocations_in_front(seed: int):
    func = hoisted(random_program(seed)["main"])
    sunk = replayed(sink_allocations(func), "first_fit")
    np.testing.assert_equal(sunk, replayed(func, "bump"))


@pytest.mark.parametrize("seed", range(3))
def test_compiled_programs_compute_the_same(seed: int):
    mod = tvm.IRModule({"main": hoisted(random_program(seed)["main"])})
    expected = memory_after(mod, identity())
    for form in FORMS:
        assert memory_after(mod, poisoned(PlanAddresses("first_fit", form))) == expected, form


def test_random_programs_have_allocations_to_move():
    moved = 0
    for seed in range(20):
        func = hoisted(random_program(seed)["main"])
        before, after = alloc_depths(func), alloc_depths(sink_allocations(func))
        moved += sum(after[name] > before[name] for name in before)
    assert moved > 20
