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
from tvm_ext import transform
from tvm_ext.transform import PlanAddresses

UB = MemoryHierarchy((MemoryScope("local.UB", 4096, 32),))
LMEM = "sophgo/bm1684x-llvm"


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
        ("PlanAddresses", {"target": "llvm"}, "no memory"),
        ("PlanAddresses", {"target": "llvm", "memory": UB}, "not both"),
        ("PlanAddresses", {"form": "pool"}, "form must be one of address, arena, got 'pool'"),
        ("PlanAddresses", {"scopes": "local.UB"}, "scopes must be a sequence of names"),
        ("AscendPlanMemory", {"budget": -5}, "nodes must not be negative"),
        ("AscendPlanMemory", {"mode": "plan"}, "mode must be one of local-mem-plan, global-work-"),
        ("AscendPlanMemory", {"strategy": "smallest"}, "strategy must be one of default, largest-"),
        (
            "AscendPlanMemory",
            {"search": "three_level"},
            "search must be one of search, mirror",
        ),
        ("AscendPlanMemory", {"form": "text"}, "form must be one of address, arena, got 'text'"),
        (
            "GMEMAllocate",
            {"upper_bounds": {"n": 0}},
            "upper bound of 'n' must be a positive",
        ),
        ("GMEMAllocate", {"upper_bounds": ["n"]}, r"upper_bounds must map names .* \['n'\]"),
        ("GMEMAllocate", {"budget": "short"}, "a budget must be a Budget or a number"),
        *(("GMEMAllocate", {"alignment": a}, "alignment must") for a in (0, -64, 48, True, 64.0)),
        *(
            ("GMEMAllocate", {"base": at}, "base must be an address")
            for at in (-4096, 1.5, 1 << 62)
        ),
        ("LayerGroup", {"target": LMEM, "search": "luck"}, "search must be one of"),
        ("LayerGroup", {"target": LMEM, "halo": "lose"}, "halo must be one of"),
        ("LayerGroup", {"target": LMEM, "form": "cloud"}, "form must be one of"),
        *(
            ("LayerGroup", {"target": LMEM, "most_layers": n}, "most_layers must be a positive")
            for n in (0, "8", 1.5)
        ),
        ("LayerGroup", {"target": LMEM, "plan": "no such file"}, "the plan .* cannot be read"),
        ("OrderForMemory", {"budget": "much"}, "a budget must be"),
        ("OrderForMemory", {"upper_bounds": {"n": 0}}, "the upper bound of 'n'"),
        ("OrderForMemory", {"alignment": 48}, "alignment must be a power of two"),
        ("OrderForMemory", {"offsets": 1}, "offsets must be True, False or 'kernel'"),
        ("PlanSharedMemory", {"barriers": "some"}, "barriers must be one of existing, insert"),
        ("StorageRewrite", {"detect_inplace": "yes"}, "detect_inplace must be True or False"),
        ("StorageRewrite", {"sound": 1}, "sound must be True or False"),
    ],
)
def test_a_wrong_option_is_an_error_at_once(name: str, options: dict, message: str):
    with pytest.raises(ValueError, match=f"^{name}: .*{message}"):
        getattr(transform, name)(**options)


@pytest.mark.parametrize(
    "name", ["PlanAddresses", "GMEMAllocate", "LayerGroup", "PlanSharedMemory"]
)
def test_an_unknown_planner_is_refused_at_once(name: str):
    target = {"target": LMEM} if name == "LayerGroup" else {}
    with pytest.raises(ValueError, match="unknown planner 'magic'; there are: best"):
        getattr(transform, name)(planner="magic", **target)


FLAT = """
def main(x: 64, y: 64):
    a: local.UB 64
    a[i] = x[i] for i in range(64)
    y[i] = a[i] for i in range(64)
"""


@pytest.mark.parametrize("name", ["PlanAddresses", "AscendPlanMemory", "StorageRewrite"])
def test_blocks_are_to_be_lowered_first(name: str):
    func = program("""
    def main(y: 64):
        for i in range(64):
            with T.sblock("store"):
                at = T.axis.spatial(64, i)
                y[at] = T.float32(0)
    """)
    with pytest.raises(ValueError, match=f"^{name}: function 'main': it has blocks; lower it"):
        getattr(transform, name)()(tvm.IRModule({"main": func}))


def test_a_number_is_a_budget():
    mod = tvm.IRModule({"main": program(FLAT)})
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
        getattr(transform, name)()(tvm.IRModule({"main": func}))


def test_a_planner_that_returns_nothing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("passes.addresses.transform.solve", lambda *_args, **_options: None)
    with pytest.raises(ValueError, match="the planner returned None, which is no Plan"):
        PlanAddresses()(tvm.IRModule({"main": program(FLAT)}))


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
