# SPDX-License-Identifier: Apache-2.0
"""Wrong options and wrong input: one clear error, when the pass is made or names the function."""

from __future__ import annotations

import logging

import pytest
import tvm
from tvm import tirx
from tvm.script import tirx as T
from tvm.target import Target

from passes.planning import Budget
from target_hw.memory import MemoryHierarchy, MemoryScope
from tvm_ext.transform import AscendPlanMemory, PlanAddresses, StorageRewrite

UB = MemoryHierarchy((MemoryScope("local.UB", 4096, 32),))
PASSES = {
    "PlanAddresses": PlanAddresses,
    "AscendPlanMemory": AscendPlanMemory,
    "StorageRewrite": StorageRewrite,
}


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("PlanAddresses", {"memory": {"local.UB": 1024}}, "memory must be a MemoryHierarchy"),
        ("PlanAddresses", {"memory": "local.UB"}, "memory must be a MemoryHierarchy"),
        ("PlanAddresses", {"upper_bounds": ["n"]}, "upper_bounds must map names to integers"),
        ("PlanAddresses", {"upper_bounds": {"n": 0}}, "upper bound of 'n' must be a positive"),
        ("PlanAddresses", {"detect_inplace": "yes"}, "detect_inplace must be True or False"),
        ("PlanAddresses", {"budget": -5}, "nodes must not be negative"),
        ("PlanAddresses", {"budget": "much"}, "budget must be a Budget or a number"),
        ("PlanAddresses", {"target": 5}, "target has to be a string"),
        ("AscendPlanMemory", {"budget": -5}, "nodes must not be negative"),
        ("AscendPlanMemory", {"cross_loop": "no"}, "cross_loop must be True or False"),
        ("AscendPlanMemory", {"strategy": "smallest"}, "strategy must be one of default"),
        ("StorageRewrite", {"detect_inplace": "yes"}, "detect_inplace must be True or False"),
        ("StorageRewrite", {"sound": 1}, "sound must be True or False"),
    ],
)
def test_a_wrong_option_is_an_error_at_once(name: str, options: dict, message: str):
    with pytest.raises(ValueError, match=f"^{name}: .*{message}"):
        PASSES[name](**options)


@T.prim_func(s_tir=True)
def chain(x: T.Buffer((64,), "float32"), y: T.Buffer((64,), "float32")):
    a = T.alloc_buffer((64,), "float32", scope="local.UB")
    for i in range(64):
        with T.sblock("load"):
            at = T.axis.spatial(64, i)
            a[at] = x[at]
    for i in range(64):
        with T.sblock("store"):
            at = T.axis.spatial(64, i)
            y[at] = a[at]


@T.prim_func
def flat(x: T.Buffer((64,), "float32", layout=None), y: T.Buffer((64,), "float32", layout=None)):
    a = T.alloc_buffer((64,), "float32", scope="local.UB", layout=None)
    for i in range(64):
        a[i] = x[i]
    for i in range(64):
        y[i] = a[i]


@pytest.mark.parametrize("name", PASSES)
def test_blocks_are_to_be_lowered_first(name: str):
    mod = tvm.IRModule({"main": chain})
    with pytest.raises(ValueError, match=f"^{name}: function 'main': it has blocks; lower it"):
        PASSES[name]()(mod)


def test_a_number_is_a_budget():
    mod = tvm.IRModule({"main": flat})
    made = [PlanAddresses("best", budget=b)(mod).script() for b in (1000, Budget(nodes=1000))]
    assert made[0] == made[1]


@pytest.mark.parametrize("slots", [257, 10_000, 10**9])
@pytest.mark.parametrize("name", ["PlanAddresses", "AscendPlanMemory"])
def test_too_many_slots_are_refused_at_once(name: str, slots: int):
    loop = tirx.Var("t", "int32")
    statements = list(flat.body.seq)
    statements[0] = tirx.AllocBuffer(statements[0].buffer, {"multi_buffer": slots})
    body = tirx.For(
        loop, tirx.const(0), tirx.const(4), tirx.ForKind.SERIAL, tirx.SeqStmt(statements)
    )
    func = flat.with_body(body).with_attr("target", Target("ascend/910b-llvm"))
    match = f"function 'main': buffer 'a' in local.UB: multi_buffer asks for {slots} slots"
    with pytest.raises(ValueError, match=match):
        PASSES[name]()(tvm.IRModule({"main": func}))


def test_a_planner_that_returns_nothing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("passes.addresses.transform.solve", lambda *_args, **_options: None)
    with pytest.raises(ValueError, match="the planner returned None, which is no Plan"):
        PlanAddresses()(tvm.IRModule({"main": flat}))


def test_described_memory_without_an_address_is_a_warning(caplog: pytest.LogCaptureFixture):
    size = tirx.Var("n", "int32")
    a = tirx.decl_buffer([size], "float32", "a", scope="local.UB", layout=None)
    i = tirx.Var("i", "int32")
    store = tirx.BufferStore(a, tirx.const(1.0, "float32"), [i])
    loop = tirx.For(i, tirx.const(0), size, tirx.ForKind.SERIAL, store)
    func = tirx.PrimFunc([size], tirx.SeqStmt([tirx.AllocBuffer(a), loop]))
    mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    with caplog.at_level(logging.WARNING, "tvm_ext.PlanAddresses"):
        PlanAddresses(memory=UB)(mod)
        assert any("'a' in local.UB: its size is symbolic" in line for line in caplog.messages)
        caplog.clear()
        PlanAddresses(memory=UB, form="arena")(mod)
        PlanAddresses()(mod)
    assert not caplog.messages
