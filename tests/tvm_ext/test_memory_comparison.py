# SPDX-License-Identifier: Apache-2.0
"""Activation memory as data: against the text of the IR, and a count of what is live."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest
import tvm
from tvm import relax
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import op
from tvm.target import Target

from passes.gmem.options import RUNTIME_ALIGNMENT
from passes.planning import planner_names
from target_hw import MemoryHierarchy, with_memory
from tvm_ext import lowering, workloads
from tvm_ext.comparison.memory_comparison import (
    AllocatedMemory,
    activation_memory,
    allocated_memory,
)
from tvm_ext.planned.placements import MapOptions
from tvm_ext.transform import GMEMAllocate
from tvm_ext.weights import as_built

ALLOC_TENSOR = tvm.ir.Op.get("relax.builtin.alloc_tensor")

BRANCHES = """
@R.function
def main(c: R.Tensor((), "bool"), n: R.Shape(["m"])):
    m = T.int64()
    a: R.Any = R.memory.alloc_storage(R.shape([100]), 0, R.str("global"), R.dtype("uint8"))
    if c:
        b: R.Any = R.memory.alloc_storage(R.shape([10]), 0, R.str("global"), R.dtype("uint8"))
        b2: R.Any = R.memory.alloc_storage(R.shape([10]), 0, R.str("global"), R.dtype("uint8"))
        y: R.Tensor((3,), "float16") = R.builtin.alloc_tensor(
            R.shape([3]), R.dtype("float16"), 0, R.str("global"))
    else:
        d: R.Any = R.memory.alloc_storage(R.shape([15]), 0, R.str("global"), R.dtype("uint8"))
        e: R.Any = R.memory.alloc_storage(R.shape([m]), 0, R.str("global"), R.dtype("uint8"))
        y: R.Tensor((3,), "float16") = R.builtin.alloc_tensor(
            R.shape([3]), R.dtype("float16"), 0, R.str("global"))
    z: R.Tensor((m,), "float32") = R.builtin.alloc_tensor(
        R.shape([m]), R.dtype("float32"), 0, R.str("global"))
    return (y, z)
"""


class Small(nn.Module):
    """A residual block on a vector, and a reshape that is read beside its operand."""

    def __init__(self) -> None:
        self.first = nn.Linear(48, 48)
        self.second = nn.Linear(48, 48, bias=False)

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        """Map (4, 48) to (48, 4)."""
        a = op.relu(self.first(x))
        b = op.reshape(a, (48, 4))
        c = op.reshape(self.second(a), (48, 4))
        return op.softmax(c + b * b)


@pytest.fixture(scope="module")
def small() -> tvm.IRModule:
    spec = {"forward": {"x": nn.spec.Tensor([4, 48], "float32")}}
    mod, _ = Small().export_tvm(spec=spec)
    return mod


def padded(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment


def storages_in_text(mod: tvm.IRModule) -> int:
    text = tvm.IRModule({"forward": mod["forward"]}).script()
    return sum(map(int, re.findall(r"alloc_storage\(R\.shape\(\[(\d+)\]\)", text)))


def live_peak(func: relax.Function, alignment: int) -> int:
    """Count what is live at each kernel of a function without branches, and give the most.

    What the function returns is not counted: its caller gets it.
    """
    (block,) = func.body.blocks
    sizes: dict[str, int] = {}
    owner: dict[str, str] = {}
    touched: dict[str, list[int]] = {}
    kernels = 0
    for binding in block.bindings:
        value, name = binding.value, str(binding.var.name)
        if isinstance(value, relax.Call) and value.op == ALLOC_TENSOR:
            shape = [int(extent) for extent in value.args[0].values]
            sizes[name] = math.prod(shape) * tvm.DataType(value.args[1].value).bits // 8
            owner[name] = name
        elif isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.GlobalVar):
            for argument in value.args:
                if isinstance(argument, relax.Var) and str(argument.name) in owner:
                    touched.setdefault(owner[str(argument.name)], []).append(kernels)
            kernels += 1
        else:  # another name: a variable, or a reshape of one
            source = value if isinstance(value, relax.Var) else value.args[0]
            if str(source.name) in owner:
                owner[name] = owner[str(source.name)]
    touched.pop(owner[str(func.body.body.name)])
    return max(
        sum(
            padded(sizes[name], alignment)
            for name, at in touched.items()
            if at[0] <= kernel <= at[-1]
        )
        for kernel in range(kernels)
    )


def check_network(mod: tvm.IRModule, target: str, alignment: int, fuse: bool) -> None:
    (memory,) = activation_memory(mod, target, fuse=fuse)
    lowered = lowering.capture_relax(as_built(mod), target, fuse=fuse)
    stock = relax.transform.StaticPlanBlockMemory()(lowered)
    assert memory.fused == fuse
    assert memory.stock.nbytes == storages_in_text(stock)
    live = live_peak(lowered["forward"], alignment)
    assert live - alignment < memory.lower_bound <= live  # the buffer at the top is not padded
    assert memory.bytes_of("rec_tbl") <= memory.no_reuse
    assert memory.bytes_of("bump") <= memory.no_reuse < memory.bytes_of("bump") + alignment
    assert memory.bytes_of("best") == memory.lower_bound
    # The stock pass pads nothing: against it, padding may lose what sharing wins.
    assert memory.bytes_of("best") <= memory.stock.nbytes or alignment > RUNTIME_ALIGNMENT
    assert memory.left == memory.stock.left == 1  # what is returned
    weights = lowered["forward"].params[int(lowered["forward"].attrs["num_input"]) :]
    assert memory.weights == len(weights)
    assert memory.weight_bytes == sum(padded(tensor_bytes(w), alignment) for w in weights)


def tensor_bytes(param: relax.Var) -> int:
    count = math.prod(int(extent) for extent in param.ty.shape)
    return count * param.ty.dtype.dtype.bits // 8


# ------------------------------------------------------------------------------------- storages


def test_the_larger_side_of_a_branch_counts():
    func = tvm.script.from_source(BRANCHES, check_well_formed=False)
    # 100, and 20 of one side: the other has 15 and one of unknown size. One tensor of 6 bytes
    # on either side, and one of unknown size.
    assert allocated_memory(func) == AllocatedMemory(120, 2, 6, (("m", 1),))


# -------------------------------------------------------------------------------------- planners


@pytest.mark.parametrize("fuse", [True, False])
@pytest.mark.parametrize(
    ("target", "alignment"), [("llvm", 64), ("sophgo/bm1684x-llvm", 4096), ("cuda", 64)]
)
def test_a_small_network(small: tvm.IRModule, target: str, alignment: int, fuse: bool):
    check_network(small, target, alignment, fuse)


def test_a_plan_takes_what_the_pass_allocates(small: tvm.IRModule):
    """The peak that is shown is the storage that the pass writes into the IR."""
    (memory,) = activation_memory(small, "llvm", fuse=False)
    lowered = lowering.capture_relax(as_built(small), "llvm", fuse=False)
    assert [plan.planner for plan in memory.plans] == list(planner_names())
    for plan in memory.plans:
        planned = GMEMAllocate(plan.planner, target="llvm")(lowered)
        allocated = allocated_memory(planned["forward"])
        assert storages_in_text(planned) == allocated.nbytes
        if plan.planner == "best":  # What is returned may hold other tensors before.
            assert allocated.nbytes + allocated.left_bytes <= plan.nbytes + 4 * 48 * 4
        else:
            assert allocated.nbytes == plan.nbytes


def test_only_the_planners_that_are_named_are_asked(small: tvm.IRModule):
    (memory,) = activation_memory(small, names=["first_fit", "best"])
    assert [plan.planner for plan in memory.plans] == ["best", "first_fit"]
    assert {plan.proven for plan in memory.plans} == {"lowest peak"}
    with pytest.raises(KeyError):
        memory.bytes_of("bump")


def test_plans_above_the_capacity_say_so(small: tvm.IRModule):
    twin = Target("sophgo/bm1684x-llvm")
    (free,) = activation_memory(small, twin, fuse=False)
    # Weights count too. One byte less than `bump` needs, and far more than `best` does.
    capacity = free.weight_bytes + free.bytes_of("bump") - 1
    hierarchy = MemoryHierarchy.from_target(twin)
    scope = replace(hierarchy["global"], capacity=capacity)
    (memory,) = activation_memory(
        small, with_memory(twin, hierarchy.with_scope(scope)), fuse=False, names=["bump", "best"]
    )
    assert {plan.planner: plan.fits for plan in memory.plans} == {"best": True, "bump": False}
    tight = replace(scope, capacity=free.weight_bytes + free.lower_bound - 1)
    with pytest.raises(ValueError, match="function 'forward'"):
        activation_memory(small, with_memory(twin, hierarchy.with_scope(tight)), fuse=False)


def test_functions_without_tensors_have_no_row(small: tvm.IRModule):
    source = """
@I.ir_module
class Module:
    @R.function
    def nothing(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
        return x
    @R.function
    def twice(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
        with R.dataflow():
            a = R.exp(x)
            b = R.tanh(a)
            R.output(b)
        return b
"""
    rows = activation_memory(tvm.script.from_source(source), fuse=False)
    assert [row.function for row in rows] == ["twice"]
    assert (rows[0].weights, rows[0].weight_bytes) == (0, 0)


def test_a_budget_may_be_a_number_and_must_be_a_budget():
    mod = workloads.model("squeezenet")
    (given,) = activation_memory(mod, names="best", budget=100)
    assert given.bytes_of("best") >= given.lower_bound
    for refused in (lambda: activation_memory(mod, budget="much"), lambda: MapOptions(budget=1.5)):
        with pytest.raises(ValueError, match="a budget must be a Budget or a number"):
            refused()
