# SPDX-License-Identifier: Apache-2.0
"""Copies that run by themselves: what they read and write stays until they are waited for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from address_programs import LENGTH
from address_replay import OverwrittenError
from copying_programs import CopyingReplay, call, copying_program, copying_programs
from hypothesis import given, note, settings
from hypothesis import strategies as st
from program_parts import loop
from program_text import program
from tvm import tirx
from tvm.ir import Call, GlobalVar, Op, PointerType, PrimType
from tvm.tirx import AllocBuffer, BufferLoad, BufferStore, Evaluate, Let, SeqStmt, Var

from passes.addresses.transform import PlanAddresses, plan_addresses
from passes.ir import operators
from passes.prim_func import memory_uses
from passes.prim_func.problems import ProblemOptions
from passes.storage_rewrite.transform import StorageRewrite

OPTIONS = {addressed: ProblemOptions(addressed=addressed) for addressed in (True, False)}


def replay(mod: tvm.IRModule, addressed: bool) -> None:
    arrays = [np.ones(LENGTH, "int32"), np.ones(LENGTH, "int8"), np.zeros(2 * LENGTH, "int64")]
    plan = plan_addresses(mod["main"], "first_fit", OPTIONS[addressed])
    CopyingReplay(mod["main"], plan)(arrays)


@given(mod=copying_programs(), addressed=st.booleans())
@settings(max_examples=6)
def test_no_copy_is_overtaken(mod: tvm.IRModule, addressed: bool):
    note(mod.script())
    replay(mod, addressed)


@pytest.mark.slow
def test_no_copy_is_overtaken_in_many_programs():
    for seed in range(600):
        replay(copying_program(seed), addressed=bool(seed % 2))


def is_overtaken(seeds: range) -> bool:
    for seed in seeds:
        try:
            replay(copying_program(seed), addressed=False)
        except OverwrittenError:
            return True
    return False


@pytest.mark.parametrize(
    ("name", "broken", "seeds"),
    [
        ("is_done_on_return", lambda call, lasting: True, range(60, 80)),
        ("ASYNCHRONOUS_SCOPES", (), range(20, 40)),
    ],
)
def test_the_programs_show_a_rule_that_is_left_out(
    name: str, broken: Any, seeds: range, monkeypatch
):
    assert not is_overtaken(seeds[-2:])
    monkeypatch.setattr(memory_uses, name, broken)
    assert is_overtaken(seeds)


def test_the_table_names_operators_that_exist():
    assert set(map(str, Op.list_op_names())) >= operators._SYNCHRONOUS


def test_most_asynchronous_operators_are_told_by_what_is_not_said():
    names = [str(name) for name in Op.list_op_names() if str(name).startswith("tirx.")]
    marks = ("async", "_nbi", "dma_", "wgmma", "tcgen05", "mbarrier", "fabric", "bulk")
    lasting = [name for name in names if not operators.is_synchronous(name)]
    assert [name for name in names if any(mark in name for mark in marks)] == [
        name for name in lasting if any(mark in name for mark in marks)
    ]


copied = program("""
def copied(x: 16, y: 16):
    a = T.alloc_buffer((16,), "float32")
    b = T.alloc_buffer((16,), "float32")
    c = T.alloc_buffer((16,), "float32")
    a[i] = x[i] for i in range(16)
    with T.attr(0, "async_scope", 1):
        b[i] = a[i] for i in range(16)
    c[i] = x[15 - i] for i in range(16)
    y[i] = c[i] for i in range(16)
    with T.attr(0, "async_wait_queue_scope", 0):
        y[i] = y[i] + b[i] for i in range(16)
""")


def test_an_address_in_a_variable_is_given_to_the_copy():
    x, a, b, c = (tirx.decl_buffer([16], "float32", name, layout=None) for name in "xabc")
    i, at = Var("i", PrimType("int32")), Var("at", PrimType("int64"))
    copy = call("tirx.dma_copy", b.data, at, 64)
    body = [
        *map(AllocBuffer, (a, b, c)),
        loop(i, 16, BufferStore(a, BufferLoad(x, [i]), [i])),
        Evaluate(Let(at, tirx.reinterpret("int64", a.data), copy)),
        loop(i, 16, BufferStore(c, BufferLoad(x, [15 - i]), [i])),
        Evaluate(call("tirx.dma_wait", 0)),
        loop(i, 16, BufferStore(x, BufferLoad(b, [i]) + BufferLoad(c, [i]), [i])),
    ]
    plan = plan_addresses(tirx.PrimFunc([x], SeqStmt(body)))
    assert plan.scopes[0].plan.peak == 3 * 64


def started(how: str, a: Any, b: Any) -> Any:
    """Return what starts a copy from `a` to `b`."""
    if how == "operator":
        return call("tirx.dma_copy", b.data, a.data, 64)
    if how == "function":
        return Call(GlobalVar("start"), [a.data, b.data], ret_ty="void")
    return tirx.call_extern("int32", "start", a.data, b.data)


@pytest.mark.parametrize("how", ["operator", "function", "name of a function"])
def test_a_copy_that_is_started_elsewhere_goes_on(how: str):
    x, a, b, c = (tirx.decl_buffer([16], "float32", name, layout=None) for name in "xabc")
    i = Var("i", PrimType("int32"))
    body = [
        *map(AllocBuffer, (a, b, c)),
        loop(i, 16, BufferStore(a, BufferLoad(x, [i]), [i])),
        Evaluate(started(how, a, b)),
        loop(i, 16, BufferStore(c, BufferLoad(x, [15 - i]), [i])),
        Evaluate(call("tirx.dma_wait", 0)),
        loop(i, 16, BufferStore(x, BufferLoad(b, [i]) + BufferLoad(c, [i]), [i])),
    ]
    source, target = (Var(name, PointerType(PrimType("float32"))) for name in ("source", "target"))
    ours = call("tirx.dma_copy", target, source, 64)
    start = tirx.PrimFunc([source, target], Evaluate(ours)).with_attr("global_symbol", "start")
    main = tirx.PrimFunc([x], SeqStmt(body)).with_attr("global_symbol", "main")
    planned = PlanAddresses()(tvm.IRModule({"main": main, "start": start}))["main"]
    allocations: list[Any] = []
    tvm_ffi.structural_walk(planned.body, (AllocBuffer, allocations.append))
    places = {op.buffer.name: list(map(int, op.buffer.ty.allocated_addr)) for op in allocations}
    assert places["a"] != places["c"]
    assert len(places) == 3


def num_allocations(mod: tvm.IRModule) -> int:
    return str(mod.script()).count("T.alloc_buffer")


def test_sound_storage_rewrite_leaves_copied_memory_alone():
    mod = tvm.IRModule({"main": copied})
    assert num_allocations(StorageRewrite()(mod)) == 2
    assert num_allocations(StorageRewrite(sound=True)(mod)) == 3
