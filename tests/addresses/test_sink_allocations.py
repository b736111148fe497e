# SPDX-License-Identifier: Apache-2.0
"""Allocations that stand in front of loops and branches, and where they mean the same."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest
import tvm
from address_programs import LENGTH, ProgramBuilder
from address_replay import Replay
from address_runs import identity, memory_after, poisoned
from hypothesis import given, seed, settings
from hypothesis import strategies as st
from tvm import tirx
from tvm.script import tirx as T
from tvm.tirx import AllocBuffer, For, IfThenElse, SeqStmt, While

from passes.addresses.transform import plan_addresses
from passes.prim_func.problems import ProblemOptions
from passes.prim_func.sink_allocations import sink_allocations
from tvm_ext.transform import FORMS, PlanAddresses


def in_loop(write: Any, size: int = 16):
    """Return a program whose loop writes a buffer in some way, and then reads all of it."""
    a = tirx.decl_buffer([size], "int32", "a", scope="local.UB", layout=None)
    x = tirx.decl_buffer([64], "int32", "x", layout=None)
    y = tirx.decl_buffer([64], "int32", "y", layout=None)
    k, i = tirx.Var("k", "int32"), tirx.Var("i", "int32")
    load = tirx.BufferLoad
    read = tirx.BufferStore(y, load(a, [i]) + load(y, [i]), [i])
    body = [*write(a, x, k), For(i, tirx.const(0), tirx.const(size), tirx.ForKind.SERIAL, read)]
    loop = For(k, tirx.const(0), tirx.const(3), tirx.ForKind.SERIAL, SeqStmt(body))
    func = tirx.PrimFunc([x, y], SeqStmt([AllocBuffer(a), loop]))
    return func.with_attr("global_symbol", "main").with_attr("tirx.noalias", True)


def store(index: Any, extents: tuple[int, ...] = (16,), value: Any = None, first: int = 0):
    """Return what writes a buffer by a nest of loops around one store."""

    def write(a: Any, x: Any, k: Any) -> list[Any]:
        loops = [tirx.Var(f"j{n}", "int32") for n in range(len(extents))]
        at = index(*loops, k)
        stored = tirx.BufferLoad(x, [loops[0] + k]) if value is None else value(a, loops[0])
        op: Any = tirx.BufferStore(a, stored, [at])
        for var, extent in zip(reversed(loops), reversed(extents), strict=True):
            op = For(var, tirx.const(first), tirx.const(extent), tirx.ForKind.SERIAL, op)
        return [op]

    return write


def in_branch(write: Any):
    def conditional(a: Any, x: Any, k: Any) -> list[Any]:
        return [IfThenElse(k < 2, *write(a, x, k), None)]

    return conditional


WRITES_ALL = {
    "straight": store(lambda j, k: j),
    "backward": store(lambda j, k: 15 - j),
    "two digits": store(lambda i, j, k: i * 4 + j, (4, 4)),
    "digits exchanged": store(lambda i, j, k: j * 2 + i, (2, 8)),
    "from one": store(lambda j, k: j - 1, first=1),
    "one digit backward": store(lambda i, j, k: 12 - i * 4 + j, (4, 4)),
}

WRITES_LESS = {
    "half": store(lambda j, k: j, (8,)),
    "every other": store(lambda j, k: j * 2, (8,)),
    "twice the same": store(lambda j, k: j // 2),
    "wrapped": store(lambda j, k: j % 8),
    "by the round": store(lambda j, k: k * 4 + j, (4,)),
    "turned by the round": store(lambda j, k: (j + k) % 16),
    "overlapping digits": store(lambda i, j, k: i * 3 + j, (4, 4)),
    "reads what it writes": store(lambda j, k: j, value=lambda a, j: tirx.BufferLoad(a, [j]) + 1),
    "in a branch": in_branch(store(lambda j, k: j)),
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


@T.prim_func(s_tir=True)
def nested(x: T.Buffer((64,), "int32"), y: T.Buffer((64,), "int32")):
    inner = T.alloc_buffer((4,), "int32", scope="local.UB")
    branch = T.alloc_buffer((4,), "int32", scope="local.UB")
    one_time = T.alloc_buffer((4,), "int32", scope="local.UB")
    slots = T.alloc_buffer((4,), "int32", scope="local.UB", annotations={"multi_buffer": 2})
    pinned = T.alloc_buffer((4,), "int32", scope="local.UB", allocated_addr=512)
    viewed = T.alloc_buffer((4,), "int32", scope="local.UB")
    view = T.decl_buffer((16,), "int8", data=viewed.data, scope="local.UB")
    if x[0] > 0:  # No loop is around, so it does not matter what is read.
        one_time[0] = 1
        y[0] = one_time[0]
    for k in range(4):
        for m in range(2):
            for i in range(4):
                inner[i] = x[i + k + m]
            for i in range(4):
                y[i + k * 4] = y[i + k * 4] + inner[3 - i]
        if k > 1:
            for i in range(4):
                branch[i] = x[i]
            for i in range(4):
                y[i + k * 4] = y[i + k * 4] - branch[3 - i]
        for i in range(4):
            slots[i] = x[i]
        for i in range(4):
            pinned[i] = slots[3 - i]
        for i in range(4):
            viewed[i] = pinned[3 - i]
        for i in range(16):
            y[16 + i] = y[16 + i] + T.Cast("int32", view[i])


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


@T.prim_func(s_tir=True)
def kept_pointer(x: T.Buffer((64,), "int32"), y: T.Buffer((64,), "int32")):
    a = T.alloc_buffer((4,), "int32", scope="local.UB")
    slot: T.let = T.tvm_stack_alloca("array", 1)
    for k in range(4):
        for i in range(4):
            a[i] = x[i + k]
        T.evaluate(T.tvm_struct_set(slot, 0, 1, a.data))
        y[k] = a[0]


@T.prim_func(s_tir=True)
def kept_number(x: T.Buffer((64,), "int32"), y: T.Buffer((64,), "int64")):
    a = T.alloc_buffer((4,), "int32", scope="local.UB")
    for k in range(4):
        for i in range(4):
            a[i] = x[i + k]
        y[k] = T.reinterpret("int64", a.data)


@T.prim_func(s_tir=True)
def counted_twice(x: T.Buffer((64,), "int32"), y: T.Buffer((512,), "int32")):
    # The index wraps, so that only half of `a` is written.
    a = T.alloc_buffer((512,), "int32", scope="local.UB")
    for k in range(4):
        for i, j in T.grid(T.uint8(32), T.uint8(16)):
            a[i * T.uint8(16) + j] = x[k]
        y[k] = a[0]


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
    values = np.random.default_rng(0)
    arrays = [
        values.integers(-3, 3, LENGTH).astype("int32"),
        values.integers(-3, 3, LENGTH).astype("int8"),
        np.zeros(2 * LENGTH, "int64"),
    ]
    Replay(func, plan_addresses(func, planner, ProblemOptions(addressed=False)))(arrays)
    return arrays


def check_hoisted(program: int) -> None:
    func = hoisted(ProgramBuilder(Random(program)).build()["main"])
    for result, expected in zip(
        replayed(sink_allocations(func), "first_fit"), replayed(func, "bump"), strict=True
    ):
        np.testing.assert_array_equal(result, expected)


@seed(20)
@settings(max_examples=3)
@given(program=st.integers(0, 1 << 32))
def test_random_programs_compute_the_same_with_all_allocations_in_front(program: int):
    check_hoisted(program)


@pytest.mark.slow
@settings(max_examples=3000, deadline=None, print_blob=True)
@given(program=st.integers(0, 1 << 32))
def test_many_random_programs_compute_the_same(program: int):
    check_hoisted(program)


@pytest.mark.parametrize("program", range(3))
def test_compiled_programs_compute_the_same(program: int):
    func = hoisted(ProgramBuilder(Random(program)).build()["main"])
    mod = tvm.IRModule({"main": func})
    expected = memory_after(mod, identity())
    for form in FORMS:
        assert memory_after(mod, poisoned(PlanAddresses("first_fit", form))) == expected, form


def test_the_replay_sees_an_allocation_that_goes_too_far(monkeypatch: pytest.MonkeyPatch):
    func = in_loop(WRITES_LESS["half"])
    monkeypatch.setattr("passes.prim_func.loop_indices.LoopNest.takes_each", lambda *_: True)
    sunk = sink_allocations(func)
    assert alloc_depths(sunk) == {"a": 1}
    arrays = [np.zeros(64, "int32"), np.zeros(64, "int32")]
    with pytest.raises(AssertionError, match="is read before it is written"):
        Replay(sunk, plan_addresses(sunk))(arrays)


def test_random_programs_have_allocations_to_move():
    moved = 0
    for program in range(20):
        func = hoisted(ProgramBuilder(Random(program)).build()["main"])
        before, after = alloc_depths(func), alloc_depths(sink_allocations(func))
        moved += sum(after[name] > before[name] for name in before)
    assert moved > 20
