# SPDX-License-Identifier: Apache-2.0
"""Wrong options and wrong input: one clear error, when the pass is made or names the function."""

from __future__ import annotations

import logging

import pytest
import tvm
from program_text import program
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
        ("AscendPlanMemory", {"strategy": "smallest"}, "strategy must be one of default"),
        ("StorageRewrite", {"detect_inplace": "yes"}, "detect_inplace must be True or False"),
        ("StorageRewrite", {"sound": 1}, "sound must be True or False"),
    ],
)
def test_a_wrong_option_is_an_error_at_once(name: str, options: dict, message: str):
    with pytest.raises(ValueError, match=f"^{name}: .*{message}"):
        PASSES[name](**options)


flat = program("""
def main(x: 64, y: 64):
    a: local.UB 64
    a[i] = x[i] for i in range(64)
    y[i] = a[i] for i in range(64)
""")


@pytest.mark.parametrize("name", PASSES)
def test_blocks_are_to_be_lowered_first(name: str):
    func = program("""
    def main(y: 64):
        for i in range(64):
            with T.sblock("store"):
                at = T.axis.spatial(64, i)
                y[at] = T.float32(0)
    """)
    with pytest.raises(ValueError, match=f"^{name}: function 'main': it has blocks; lower it"):
        PASSES[name]()(tvm.IRModule({"main": func}))


def test_a_number_is_a_budget():
    mod = tvm.IRModule({"main": flat})
    made = [PlanAddresses("best", budget=b)(mod).script() for b in (1000, Budget(nodes=1000))]
    assert made[0] == made[1]


@pytest.mark.parametrize("slots", [257, 10_000, 10**9])
@pytest.mark.parametrize("name", ["PlanAddresses", "AscendPlanMemory"])
def test_too_many_slots_are_refused_at_once(name: str, slots: int):
    func = program(f"""
    def main(x: 64, y: 64):
        for t in range(4):
            slots = T.meta_var({{"multi_buffer": {slots}}})
            a = T.alloc_buffer((64,), "float32", scope="local.UB", annotations=slots)
            a[i] = x[i] for i in range(64)
            y[i] = a[i] for i in range(64)
    """)
    func = func.with_attr("target", Target("ascend/910b-llvm"))
    match = f"function 'main': buffer 'a' in local.UB: multi_buffer asks for {slots} slots"
    with pytest.raises(ValueError, match=match):
        PASSES[name]()(tvm.IRModule({"main": func}))


def test_a_planner_that_returns_nothing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("passes.addresses.transform.solve", lambda *_args, **_options: None)
    with pytest.raises(ValueError, match="the planner returned None, which is no Plan"):
        PlanAddresses()(tvm.IRModule({"main": flat}))


def test_described_memory_without_an_address_is_a_warning(caplog: pytest.LogCaptureFixture):
    func = program("""
    def main(n: T.int32):
        a = T.alloc_buffer((n,), "float32", scope="local.UB")
        a[i] = T.float32(1) for i in range(n)
    """)
    mod = tvm.IRModule({"main": func})
    with caplog.at_level(logging.WARNING, "tvm_ext.PlanAddresses"):
        PlanAddresses(memory=UB)(mod)
        assert any("'a' in local.UB: its size rests on n" in line for line in caplog.messages)
        caplog.clear()
        PlanAddresses(memory=UB, form="arena")(mod)
        PlanAddresses()(mod)
    assert not caplog.messages
