# SPDX-License-Identifier: Apache-2.0
"""A target with several memories for tensors: one storage in each, run on a CPU, bit for bit."""

import numpy as np
import pytest
import tvm
from llvm_level import at_level
from relax_programs import parse
from sweeps import sample
from tvm import relax
from tvm.target import Target

import tvm_ext
from passes.gmem import several_memories
from passes.gmem.options import GMEMOptions
from passes.gmem.relax_functions import plan_gmem
from passes.ir.operators import operator_name
from passes.ir.relax_operators import ALLOC_PLANNED_STORAGE
from passes.ir.structural import nodes_in
from passes.planning import solve
from target_hw.memory import MemoryHierarchy, MemoryScope
from tvm_ext.lowering import capture_relax

KIB = 1024
ATTRIBUTE = "tvm_ext.gmem"


def chip(*capacities, last=None):
    """A CPU that describes memories of falling speed; the last one is plain ``global``."""
    scopes = [
        MemoryScope(f"global.m{at}", capacity, bytes_per_cycle=64 >> at)
        for at, capacity in enumerate(capacities)
    ]
    scopes.append(MemoryScope("global", last, bytes_per_cycle=1))
    return tvm_ext.with_memory(Target("llvm"), MemoryHierarchy(tuple(scopes)))


TENSOR = 'R.Tensor((64, 64), "float32")'

RESIDUAL = f"""
@R.function
def main(x: {TENSOR}, w: {TENSOR}):
    R.func_attr({{"num_input": 1}})
    with R.dataflow():
        a = R.exp(x)
        b = R.matmul(a, w)
        c = R.matmul(b, w)
        d = R.matmul(c, a)
        e = R.add(d, a)
        R.output(e)
    return e
"""

CALLING = f"""
@R.function
def helper(x: {TENSOR}) -> {TENSOR}:
    a = R.exp(x)
    b = R.matmul(a, a)
    return R.matmul(b, x)

@R.function
def main(x: {TENSOR}) -> {TENSOR}:
    cls = Module
    a = R.exp(x)
    b = R.matmul(a, a)
    c = cls.helper(b)
    d = R.add(a, c)
    return R.add(d, b)
"""

RECURSIVE = f"""
@R.function
def main(x: {TENSOR}) -> {TENSOR}:
    cls = Module
    a = R.exp(x)
    b = R.matmul(a, a)
    return cls.main(b)
"""


def allocated(mod, target, **options):
    lowered = capture_relax(mod if isinstance(mod, tvm.IRModule) else parse(mod), target)
    with target:
        return tvm_ext.transform.GMEMAllocate(**options)(lowered)


def storages(func):
    """Return the bytes of each storage of a function, by scope."""
    found = {}
    for call in nodes_in(func.body, relax.Call):
        if operator_name(call.op) == ALLOC_PLANNED_STORAGE:
            assert str(call.args[2].value) not in found, "one storage for each memory"
            found[str(call.args[2].value)] = int(call.args[0].values[0])
    return found


def run(mod, target, *inputs, pipeline="default"):
    built = tvm.compile(mod, at_level(target), relax_pipeline=pipeline)
    machine = relax.VirtualMachine(built, tvm.cpu())
    given = [tvm.runtime.tensor(value) for value in inputs]
    machine["main"](*given)
    return machine["main"](*given).numpy()


def test_each_memory_has_one_storage_and_the_attribute_says_what_lies_where():
    func = allocated(RESIDUAL, chip(32 * KIB, 16 * KIB))["main"]
    found = storages(func)
    memories = {str(one["name"]): one for one in func.attrs[ATTRIBUTE]["memories"]}
    assert list(memories) == ["global.m0", "global.m1", "global"]
    assert set(found) == {name for name, one in memories.items() if len(one["tensors"])}
    assert len(found) > 1
    for name, nbytes in found.items():
        ends = [int(t["offset"]) + int(t["bytes"]) for t in memories[name]["tensors"]]
        assert max(ends) == nbytes
    assert found["global.m0"] <= 32 * KIB
    assert str(func.attrs[ATTRIBUTE]["status"]) == "optimal"


CAPACITIES = [(32 * KIB,), (16 * KIB, 16 * KIB), (64,)]


@pytest.mark.parametrize("capacities", sample(CAPACITIES, *CAPACITIES[1:]))
@pytest.mark.parametrize("source", [RESIDUAL, CALLING], ids=["residual", "calling"])
def test_a_cpu_runs_it_bit_for_bit(source, capacities):
    target, mod = chip(*capacities), parse(source)
    rng = np.random.default_rng(1)
    count = len(mod["main"].params)
    inputs = [rng.standard_normal((64, 64), dtype="float32") / 8 for _ in range(count)]
    pipeline = tvm_ext.relax_pipeline(target)
    ours = run(mod, target, *inputs, pipeline=pipeline)
    stock = run(mod, "llvm", *inputs)
    assert np.array_equal(ours, stock)


def test_a_function_that_is_called_takes_no_bytes_of_its_caller():
    mod = allocated(CALLING, chip(32 * KIB))
    held = {}
    for name in ("main", "helper"):
        for memory in mod[name].attrs[ATTRIBUTE]["memories"]:
            for tensor in memory["tensors"]:
                begin = int(tensor["offset"])
                held.setdefault(str(memory["name"]), []).append(
                    (name, begin, begin + int(tensor["bytes"]))
                )
    for places in held.values():
        for one, begin, end in places:
            for other, low, high in places:
                assert one == other or end <= low or high <= begin


def test_no_tensor_waits_for_a_function_that_its_own_does_not_call():
    lines = "\n".join(f"    v{at + 1} = R.matmul(v{at}, v{at})" for at in range(5))
    source = f"@R.function\ndef main(v0: {TENSOR}):\n{lines}\n    return v5"
    assert storages(allocated(source, chip(32 * KIB))["main"]) == {"global.m0": 32 * KIB}


def test_a_function_that_calls_itself_has_no_places():
    scopes = (MemoryScope(f"global.m{at}", bytes_per_cycle=64 >> at) for at in range(2))
    target = tvm_ext.with_memory(Target("llvm"), MemoryHierarchy(tuple(scopes)))
    (found,) = plan_gmem(
        capture_relax(parse(RECURSIVE), target), options=GMEMOptions(target=target)
    )
    assert not found.problem.buffers
    reasons = {left.reason for left in found.memory.left}
    assert "its function may be called again while it runs" in reasons


def test_weights_have_places_beside_activations():
    func = allocated(RESIDUAL, chip(64 * KIB), weights=True)["main"]
    memories = func.attrs[ATTRIBUTE]["memories"]
    placed = [str(weight["name"]) for memory in memories for weight in memory["weights"]]
    assert placed == ["w"]
    assert not len(func.attrs[ATTRIBUTE]["weights"]["tensors"])


@pytest.mark.parametrize("weights", [False, True])
def test_no_weight_has_the_bytes_of_a_tensor(weights):
    attribute = allocated(RESIDUAL, chip(32 * KIB), weights=weights)["main"].attrs[ATTRIBUTE]
    (slowest,) = (one for one in attribute["memories"] if str(one["name"]) == "global")
    assert len(slowest["tensors"])
    of_tensors = [(int(t["offset"]), int(t["bytes"])) for t in slowest["tensors"]]
    of_weights = [(int(t["offset"]), int(t["bytes"])) for t in slowest["weights"]]
    of_weights += [(int(t["address"]), int(t["bytes"])) for t in attribute["weights"]["tensors"]]
    assert bool(of_weights) is weights
    for begin, size in of_weights:
        for other, other_size in of_tensors:
            assert begin + size <= other or other + other_size <= begin


def test_a_budget_of_placements_reaches_the_planner(monkeypatch: pytest.MonkeyPatch):
    budgets = []

    def noted(problem, planner="best", budget=None):
        budgets.append(budget)
        return solve(problem, planner, budget)

    monkeypatch.setattr(several_memories, "solve", noted)
    for budget in (None, 7, tvm_ext.Budget(7, seconds=2.0)):
        allocated(RESIDUAL, chip(32 * KIB), budget=budget)
    assert budgets == [None, tvm_ext.Budget(7), tvm_ext.Budget(7, 2.0)]


def test_what_does_not_fit_names_tensors_memories_and_what_would_help():
    with pytest.raises(ValueError, match="GMEMAllocate") as error:
        allocated(RESIDUAL, chip(16 * KIB, last=16 * KIB))
    text = str(error.value)
    assert "lacks" in text
    assert "it fits with" in text
    assert "bytes of 'global': planned" in text
    assert text.startswith("GMEMAllocate: function 'main' does not fit its memories")
    two = parse(RESIDUAL)
    again = relax.utils.copy_with_new_vars(two["main"])
    two["again"] = again.with_attr("global_symbol", "again")
    with pytest.raises(ValueError, match="the module does not fit its memories"):
        allocated(two, chip(16 * KIB, last=16 * KIB))


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"planner": "first_fit"}, "in one way, got the planner 'first_fit': leave it out"),
        ({"base": 4096}, "several memories have no region of weights"),
    ],
)
def test_options_of_one_memory_are_refused(option, message):
    with pytest.raises(ValueError, match=message):
        allocated(RESIDUAL, chip(16 * KIB), **option)


def test_one_memory_is_planned_as_before():
    target = tvm_ext.with_memory(Target("llvm"), MemoryHierarchy((MemoryScope("global"),)))
    assert "memories" not in allocated(RESIDUAL, target)["main"].attrs[ATTRIBUTE]
