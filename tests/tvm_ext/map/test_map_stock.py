# SPDX-License-Identifier: Apache-2.0
"""TVM's own plans on a map: what the stock passes leave, read a second time from their text."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import tvm
from program_text import program_source
from tvm import relax
from written_networks import WRITTEN

import tvm_ext
from passes.planning import Buffer, Plan, Problem, Status
from target_hw.memory import MemoryScope
from tvm_ext.lowering import capture_relax, known_target
from tvm_ext.report import MemoryView, PlannedProblem, Report
from tvm_ext.report.memory_view import stock_plan
from tvm_ext.weights import as_built

BOTH = ("best", "stock")

KERNEL = program_source("""
def scale(a: 64, out: 64):
    x: global 64
    y: global 48
    z: global 64
    x[i] = a[i] for i in range(64)
    y[i] = x[63 - i] for i in range(48)
    z[i] = y[i % 48] for i in range(64)
    out[i] = z[63 - i] for i in range(64)
""")


def test_a_network_has_the_storages_of_the_stock_pass(network):
    (scope,) = network.memories
    first, second = scope.plans
    assert [first.planner, second.planner] == ["stock", "best"]
    assert first.label == "stock (StaticPlanBlockMemory)"
    lowered = capture_relax(as_built(WRITTEN["resnet18"].build()), known_target("llvm"))
    text = relax.transform.StaticPlanBlockMemory()(lowered)["forward"].script()
    storages = dict(re.findall(r"(\w+): R.Any = R.memory.alloc_storage\(R.shape\(\[(\d+)\]", text))
    assert first.plan.peak == sum(map(int, storages.values())) > second.plan.peak
    in_storage = dict(re.findall(r"(\w+): R.Tensor.* = R.memory.alloc_tensor\((\w+),", text))
    # The text has names that Python could have.
    name_of = {re.sub(r"\W", "_", name): name for name in scope.problem.index}
    assert sorted(in_storage) == sorted(name_of)
    offsets: dict[str, set[int]] = {}
    for line, storage in in_storage.items():
        offsets.setdefault(storage, set()).add(first.plan.offsets[name_of[line]][0])
    # All tensors of a storage begin where it begins, and no two storages at the same byte.
    assert {len(found) for found in offsets.values()} == {1}
    begins = sorted((begin, int(storages[name])) for name, (begin,) in offsets.items())
    assert [begin for begin, _ in begins] == [
        sum(size for _, size in begins[:at]) for at in range(len(begins))
    ]
    assert first.remark == "TVM's allocations, one after another"


@pytest.mark.parametrize(("scope", "size"), [("global", 448), ("local.UB", 448)])
def test_a_kernel_has_the_allocations_of_the_stock_pass(scope, size):
    func = tvm.script.from_source(KERNEL.replace("global", scope))
    (found,) = tvm_ext.memory_map(func, planners=BOTH).memories
    stock = found.plans[0]
    rewritten = tvm.tirx.transform.StorageRewrite()(tvm.IRModule({"scale": func}))["scale"]
    elements = re.findall(r"T.alloc_buffer\(\((\d+),\)", rewritten.script())
    assert stock.plan.peak == 4 * sum(map(int, elements)) == size
    assert stock.label == "stock (StorageRewrite)"
    # One dimension of the same type: what dies first gives its bytes to what comes last.
    assert stock.plan.offsets["x"] == stock.plan.offsets["z"] != stock.plan.offsets["y"]


def test_the_peak_of_whole_allocations_is_no_position():
    problem = Problem(
        (Buffer("a", 8, ((0, 2),)), Buffer("b", 4, ((2, 3),))), MemoryScope("global"), name="p"
    )
    plan = stock_plan(problem, [(8, {"a": 0}), (4, {"b": 0})], "Pass", "f")
    assert (plan.peak, plan.offsets) == (12, {"a": (0,), "b": (8,)})
    assert PlannedProblem("stock", problem, plan).remark == "TVM's allocations, one after another"
    small = replace(problem, memory=MemoryScope("global", 8))
    assert PlannedProblem("stock", small, plan).remark == "TVM's allocations, one after another"
    overlapping = Problem((*problem.buffers, Buffer("c", 4, ((1, 3),))), MemoryScope("global"))
    plan = stock_plan(overlapping, [(8, {"a": 0, "b": 0, "c": 4})], "Pass", "f")
    said = PlannedProblem("stock", overlapping, plan).remark
    assert said.startswith("TVM's allocations, one after another; 'a'")
    assert "'c'" in said
    assert "Violation" not in said


def test_the_peak_of_a_runtimes_own_offsets_is_where_a_buffer_reaches_it():
    """A runtime that lays buffers out itself leaves no allocations: its peak has a position."""
    live = {"high": ((0, 1),), "one": ((1, 2),), "two": ((1, 2),)}
    buffers = tuple(Buffer(name, 8, at) for name, at in live.items())
    problem = Problem(buffers, MemoryScope("global.arena"), name="p")
    plan = Plan({"high": (16,), "one": (0,), "two": (8,)}, 24, 0, "greedy", Status.FEASIBLE)
    for has_offsets, place, said in (
        (True, 0, ""),
        (False, 1, "TVM's allocations, one after another"),
    ):
        placed = PlannedProblem("stock", problem, plan, has_offsets=has_offsets)
        assert placed.peak().places == (place,)
        (memory,) = Report("p", (MemoryView("main", (placed,)),)).data()["memories"]
        assert memory["plans"][0]["remark"] == said


def test_what_has_no_stock_plan_says_so():
    problem = Problem((Buffer("a", 8, ((0, 2),), slots=2),), MemoryScope("local.UB"), name="p")
    with pytest.raises(ValueError, match=r"function 'f': buffer 'a' in local.UB has 2 slots"):
        stock_plan(problem, [(8, {"a": 0})], "StorageRewrite", "f")
    with pytest.raises(
        ValueError, match="p: buffers without a program of TVM have no plan 'stock'"
    ):
        tvm_ext.memory_map(problem, planners=BOTH)
    with pytest.raises(ValueError, match="no groups of layers"):
        tvm_ext.memory_map(
            WRITTEN["resnet18"].build(), "stock", view="groups", target="sophgo/bm1684x"
        )
