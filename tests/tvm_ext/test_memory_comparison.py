# SPDX-License-Identifier: Apache-2.0
"""Activation memory as data: against the text of the IR, and a count of what is live."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest
import tvm
from allocated import AllocatedMemory, allocated_memory
from numbers_of import numbers, ours
from sweeps import sample
from tvm import relax
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import op
from tvm.target import Target

import tvm_ext
from passes.ir import declared_bounds
from passes.planning import planner_names
from target_hw import MemoryHierarchy, with_memory
from tvm_ext import lowering, workloads
from tvm_ext.report import Ask, MemoryView
from tvm_ext.report.readers.tensor_memories import read_network
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


def memory_of(mod, planners, target="llvm", fuse=False) -> MemoryView:
    (memory,) = (m for m in memories_of(mod, planners, target, fuse))
    return memory


def memories_of(mod, planners, target="llvm", fuse=False) -> list[MemoryView]:
    holds = "tensors, fused" if fuse else "tensors, not fused"
    return [m for m in tvm_ext.compare(mod, planners, target=target).memories if m.holds == holds]


def bytes_of(memory: MemoryView) -> dict[str, int]:
    return {one.planner: one.plan.peak for one in memory.plans}


def check_network(mod: tvm.IRModule, target: str, alignment: int, fuse: bool) -> None:
    memory = memory_of(mod, planner_names(), target, fuse)
    lowered = lowering.capture_relax(as_built(mod), target, fuse=fuse)
    stock = relax.transform.StaticPlanBlockMemory()(lowered)
    taken, (no_reuse, by_stock, bound) = bytes_of(memory), numbers(memory)
    of_stock = storages_in_text(stock)
    assert of_stock <= by_stock < of_stock + alignment * len(memory.problem.buffers)
    live = live_peak(lowered["forward"], alignment)
    assert live - alignment < bound <= live  # the buffer at the top is not padded
    assert taken["rec_tbl"] <= no_reuse
    assert taken["bump"] <= no_reuse < taken["bump"] + alignment
    assert taken["best"] == bound <= by_stock


# ------------------------------------------------------------------------------------- storages


@pytest.mark.parametrize("target", ["llvm", "cuda"])
def test_operators_may_be_lowered_before(small: tvm.IRModule, target: str):
    """What is lowered once serves all that is read of a program, down to its names."""
    known = lowering.known_target(target)
    once = lowering.legalized(small, known)
    for fuse in (True, False):
        direct = lowering.capture_relax(small, known, fuse=fuse)
        twice = lowering.capture_relax(once, known, fuse=fuse)
        assert direct.script() == twice.script()
    kernels, again = (lowering.split(mod, target=known) for mod in (small, once))
    assert [*kernels] == [*again]
    for name, func in kernels.items():
        tvm.ir.assert_structural_equal(func, again[name], map_free_vars=True)


def test_the_larger_side_of_a_branch_counts():
    func = tvm.script.from_source(BRANCHES, check_well_formed=False)
    # 100, and 20 of one side: the other has 15 and one of unknown size. One tensor of 6 bytes
    # on either side, and one of unknown size.
    assert allocated_memory(func) == AllocatedMemory(120, 2, 6, (("m", 1),))


# -------------------------------------------------------------------------------------- planners


ALIGNMENTS = {"llvm": 64, "sophgo/bm1684x-llvm": 4096, "cuda": 64}
CASES = [(target, fuse) for target in ALIGNMENTS for fuse in (True, False)]


@pytest.mark.parametrize("case", sample(CASES, *CASES[:3]))
def test_a_small_network(small: tvm.IRModule, case: tuple[str, bool]):
    target, fuse = case
    check_network(small, target, ALIGNMENTS[target], fuse)


def test_a_plan_takes_what_the_pass_allocates(small: tvm.IRModule):
    """The peak that is shown is the storage that the pass writes into the IR."""
    memory = memory_of(small, planner_names())
    lowered = lowering.capture_relax(as_built(small), "llvm", fuse=False)
    assert {one.planner for one in ours(memory)} == set(planner_names())
    for one in ours(memory):
        planned = GMEMAllocate(one.planner, target="llvm")(lowered)
        allocated = allocated_memory(planned["forward"])
        assert storages_in_text(planned) == allocated.nbytes
        if one.planner == "best":  # What is returned may hold other tensors before.
            assert allocated.nbytes + allocated.left_bytes <= one.plan.peak + 4 * 48 * 4
        else:
            assert allocated.nbytes == one.plan.peak


def test_only_the_planners_that_are_named_are_asked(small: tvm.IRModule):
    memory = memory_of(small, ["first_fit", "best"])
    assert [one.planner for one in memory.plans] == ["stock", "first_fit", "best"]
    assert {one.proven for one in ours(memory)} == {"lowest peak"}
    with pytest.raises(KeyError):
        memory.plan_of("bump")


def test_plans_above_the_capacity_say_so(small: tvm.IRModule):
    twin = Target("sophgo/bm1684x-llvm")
    free = memory_of(small, ["bump", "best"], twin)
    found = read_network(small, twin, Ask(), fuse=False)
    weights = found.functions[0].layout.weights.size
    # Weights count too. One byte less than `bump` needs, and far more than `best` does.
    capacity = weights + bytes_of(free)["bump"] - 1
    hierarchy = MemoryHierarchy.from_target(twin)
    scope = replace(hierarchy["global"], capacity=capacity)
    target = with_memory(twin, hierarchy.with_scope(scope))
    memory = memory_of(small, ["bump", "best"], target)
    assert {one.planner: one.plan.fits for one in ours(memory)} == {"best": True, "bump": False}
    tight = replace(scope, capacity=weights + free.bound - 1)
    with pytest.raises(ValueError, match="function 'forward'"):
        tvm_ext.compare(small, target=with_memory(twin, hierarchy.with_scope(tight)))


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
    assert [m.owner for m in memories_of(tvm.script.from_source(source), "best")] == ["twice"]


def test_a_budget_may_be_a_number_and_must_be_a_budget(small: tvm.IRModule):
    (given, *_) = tvm_ext.compare(small, "best", budget=100).memories
    assert given.plan_of("best").plan.peak >= given.bound
    for wrong in ("much", 1.5):
        with pytest.raises(ValueError, match="a budget must be a Budget or a number"):
            tvm_ext.compare(small, budget=wrong)


@pytest.mark.parametrize("name", sample([*workloads.NETWORKS], "squeezenet"))
def test_one_network_one_planner_one_number(name: str):
    """What the map draws is what the table counts, of TVM's plan, of ours and of what is built."""
    mod = workloads.model(name)
    compared, shown = tvm_ext.compare(mod, "best"), tvm_ext.memory_map(mod, ("stock", "best"))
    fused = [view for view in compared.memories if view.holds.startswith("tensors, fused")]
    assert [v.name for v in fused] == [v.name for v in shown.memories]
    for one, other in zip(fused, shown.memories, strict=True):
        assert bytes_of(one) == bytes_of(other)
        assert one.bound == other.bound
        assert {*one.problem.index} == {*other.problem.index}
    built = GMEMAllocate(target="llvm")(lowering.capture_relax(as_built(mod), "llvm"))
    for view in (view for view in fused if not view.unit):
        plans, func = bytes_of(view), built[view.owner]
        taken = plans.get("as built", plans["best"])
        # A tensor that is returned has a storage, too, or the bytes of others before.
        most = bytes_of_type(func.ret_ty, declared_bounds(func))
        assert allocated_memory(func).nbytes <= taken + most


def bytes_of_type(type_, bounds) -> int:
    """The bytes of a tensor or a tuple of them, at the upper bounds of symbolic dimensions."""
    if isinstance(type_, relax.TupleType):
        return sum(bytes_of_type(field, bounds) for field in type_.fields)
    extents = (bounds.get(str(extent)) or int(extent) for extent in type_.shape.values)
    return math.prod(extents) * type_.dtype.dtype.bits // 8


TWO_DEVICES = """
@I.ir_module
class Module:
    I.module_global_infos({"vdevice": [I.vdevice("llvm", 0), I.vdevice("opencl", 0)]})

    @R.function
    def main(
        x: R.Tensor((64, 64), "float32", "llvm:0"), y: R.Tensor(("n", 5), "float32", "opencl:0")
    ):
        a = R.exp(x)
        b = R.negative(a)
        c: R.Tensor((64, 64), "float32", "opencl:0") = R.to_vdevice(b, "opencl:0")
        d = R.multiply(c, c)
        e = R.exp(d)
        f = R.exp(y)
        g = R.negative(f)
        return (R.negative(e), R.negative(g))
"""


def test_each_device_has_its_memory():
    mod = tvm.script.from_source(TWO_DEVICES)
    views = [view for view in tvm_ext.compare(mod, "best").memories if "not fused" in view.holds]
    found = {view.holds: ({*view.plans[0].problem.index}, view.form) for view in views}
    elsewhere = ", on device 1 (opencl)"
    assert {holds: names for holds, (names, _) in found.items()} == {
        "tensors, not fused": {"a", "b"},
        f"tensors, not fused{elsewhere}": {"d", "e"},
        f"tensors, not fused, for each n (axis 0 of y){elsewhere}": {"f", "g"},
    }
    forms = {holds: form.partition(":")[0] for holds, (_, form) in found.items()}
    assert all((forms[h] == "whole slots") == h.endswith(elsewhere) for h in forms)


def test_what_is_built_for_an_unknown_number_is_shown():
    """A chip pads offsets, so whole slots take less there: more than the planner's own plan."""
    mod = tvm.script.from_source("""
@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor(("n", "m"), "float32")):
        a = R.exp(x)
        b = R.negative(x)
        c = R.concat((a, b), axis=0)
        d = R.exp(c)
        return R.sum(d, axis=[0])
""")
    target = Target("sophgo/bm1684x-llvm")
    view, *_ = (v for v in tvm_ext.compare(mod, "best", target=target).memories if v.unit)
    peaks = {one.planner: one.plan.peak for one in view.plans}
    assert (peaks["best"], peaks["as built"]) == (16, 20)
    planned = GMEMAllocate(target=target)(lowering.capture_relax(mod, target))
    assert dict(allocated_memory(planned["main"]).units)[view.unit] == 20
