# SPDX-License-Identifier: Apache-2.0
"""OrderForMemory on Relax modules: what moves, what stays, what is saved, and the same results."""

from __future__ import annotations

import logging
from random import Random

import numpy as np
import pytest
import tvm
from hypothesis import reject
from relax_programs import inputs_of, parse, relax_sources
from relax_runs import KEPT, build, run
from sweeps import swept
from tvm import relax
from tvm.ir.transform import Sequential

import tvm_ext
from passes.gmem.options import GMEMOptions
from passes.gmem.relax_functions import plan_gmem
from passes.order.analysis.effects import runs_before
from passes.order.analysis.kept_bytes import LOWERING, blocks_of
from passes.order.function_order import with_block_orders
from tvm_ext.relax_passes import relax_stages
from tvm_ext.transform import GMEMAllocate, OrderForMemory

TARGET = tvm.target.Target("llvm")

# `early` is made long before it is read: a kilobyte that lives through the larger ones.
LATE_READ = """
@R.function
def main(x: R.Tensor((256,), "float32"), w: R.Tensor((256,), "float32")):
    with R.dataflow():
        early = R.negative(w)
        wide = R.tile(x, (4,))
        wider = R.exp(wide)
        narrow = R.sum(R.reshape(wider, (4, 256)), axis=[0])
        r = R.add(narrow, early)
        R.output(r)
    return r
"""


def fused(mod: tvm.IRModule, fuse: bool = False) -> tvm.IRModule:
    """Return a module as the pass is given it."""
    with TARGET:
        return Sequential(relax_stages(TARGET, fuse=fuse).first)(mod)


def ordered(mod: tvm.IRModule, **options: object) -> tvm.IRModule:
    with TARGET:
        return OrderForMemory(**options)(mod)


def planned_bytes(mod: tvm.IRModule) -> dict[str, int]:
    """Return for each function the bytes that the best plan of one storage has."""
    plans = plan_gmem(LOWERING(mod), options=GMEMOptions(target=TARGET))
    return {plan.memory.name: tvm_ext.solve(plan.problem).peak for plan in plans}


def names(mod: tvm.IRModule, function: str = "main") -> list[str]:
    return [str(b.var.name) for block in blocks_of(mod[function]) for b in block.bindings]


def test_what_is_made_early_is_made_where_it_is_read():
    given_mod = fused(parse(LATE_READ))
    copy = tvm.IRModule(dict(given_mod.functions))
    found = ordered(given_mod)
    tvm.ir.assert_structural_equal(given_mod, copy)
    relax.analysis.well_formed(found)
    assert names(found).index("early") == names(found).index("r") - 1
    assert sorted(names(found)) == sorted(names(given_mod))
    for before, after in zip(blocks_of(given_mod["main"]), blocks_of(found["main"]), strict=True):
        old = {binding.var.__chandle__(): binding for binding in before.bindings}
        assert all(old[b.var.__chandle__()].same_as(b) for b in after.bindings)
    (before,), (after,) = planned_bytes(given_mod).values(), planned_bytes(found).values()
    assert before - after == 1024
    assert ordered(found).same_as(found)


# At 4096 bytes each number takes as much as a wide tensor, so other bindings are worth moving.
MANY_NUMBERS = """
@R.function
def main(x: R.Tensor((256,), "float32"), w: R.Tensor((256,), "float32")):
    with R.dataflow():
        wide = R.tile(x, (4,))
        u1 = R.sum(wide)
        u2 = R.max(wide)
        u3 = R.min(wide)
        u4 = R.mean(wide)
        wider = R.exp(wide)
        narrow = R.sum(R.reshape(wider, (4, 256)), axis=[0])
        left = R.multiply(R.add(R.add(u1, u2), R.add(u3, u4)), narrow)
        other = R.tile(w, (4,))
        another = R.exp(other)
        t1 = R.sum(another)
        t2 = R.max(another)
        t3 = R.min(another)
        r = R.multiply(left, R.add(t1, R.add(t2, t3)))
        R.output(r)
    return r
"""


def test_the_pipeline_orders_for_the_memory_that_it_plans(caplog):
    given_mod, options = parse(MANY_NUMBERS), {"alignment": 4096}
    with caplog.at_level(logging.INFO, "tvm_ext.OrderForMemory"):
        tvm_ext.relax_pipeline(TARGET, order=True, fuse=False, **options)(given_mod)
    assert "from 24576 to 20480 bytes at once, no order has less" in caplog.text
    peaks = []
    for mod in (fused(given_mod), ordered(fused(given_mod)), ordered(fused(given_mod), **options)):
        (plan,) = plan_gmem(LOWERING(mod), options=GMEMOptions(target=TARGET, **options))
        peaks.append(plan.plan.peak)
    assert peaks == [20484, 20484, 16388]


# Planned by `rec_tbl`, the order that needs least by `best` takes more than the written one.
OF_ONE_PLANNER = """
@R.function
def main(x: R.Tensor((8,), "float32"), w: R.Tensor((8,), "float32")):
    with R.dataflow():
        wide = R.tile(x, (8,))
        one = R.exp(w)
        tiled = R.tile(w, (4,))
        other = R.sum(R.reshape(tiled, (4, 8)), axis=[0])
        wider = R.tile(wide, (2,))
        third = R.add(R.sum(R.reshape(wide, (8, 8)), axis=[0]), x)
        last = R.add(wider, wider)
        s1 = R.sum(one)
        s2 = R.sum(other)
        s3 = R.sum(third)
        s4 = R.sum(last)
        r = R.add(R.add(R.add(s1, s2), s3), s4)
        R.output(r)
    return r
"""


def test_the_pipeline_orders_for_the_planner_that_it_asks():
    given_mod, options = parse(OF_ONE_PLANNER), GMEMOptions(target=TARGET)

    def peak(mod: tvm.IRModule) -> int:
        (plan,) = plan_gmem(LOWERING(mod), "rec_tbl", options)
        return plan.plan.peak

    written = fused(given_mod)
    assert peak(ordered(written)) > peak(written) >= peak(ordered(written, planner="rec_tbl"))
    pipeline = tvm_ext.relax_pipeline(TARGET, "rec_tbl", order=True, fuse=False)
    built = pipeline(given_mod)["main"].attrs["tvm_ext.gmem"]["storages"]
    assert sum(int(one["bytes"]) for one in built) <= peak(written)
    plain, shown = (
        [
            one.plan.peak
            for memory in tvm_ext.compare(given_mod, "rec_tbl", target=TARGET, view=view).memories
            for one in memory.plans
            if memory.holds.startswith("tensors") and one.planner == "rec_tbl"
        ]
        for view in ("", "order")
    )
    assert shown[0] < plain[0]
    assert shown[1] == plain[1] == peak(written)
    with pytest.raises(ValueError, match="unknown planner 'rec_table'"):
        OrderForMemory(planner="rec_table")


def test_a_module_without_dataflow_is_returned_as_it_is():
    lowered = LOWERING(fused(parse(LATE_READ)))
    assert ordered(lowered).same_as(lowered)


# Random modules


def dataflow(source: str) -> tvm.IRModule:
    return fused(relax.transform.ConvertToDataflow(min_size=2)(parse(source)))


def check_random(source: str) -> tuple[tvm.IRModule, tvm.IRModule]:
    """Hold that bindings stay in their blocks, and that no function is planned higher."""
    given_mod = dataflow(source)
    try:
        LOWERING(given_mod)
    except tvm.error.InternalError:
        # TVM asks whether a kernel in a dataflow block is a reshape, and fails on one without a
        # block of its own.
        reject()
    found = ordered(given_mod)
    relax.analysis.well_formed(found)
    for variable in given_mod.get_global_vars():
        if isinstance(given_mod[variable], relax.Function):
            name = str(variable.name_hint)
            for before, after in zip(
                blocks_of(given_mod[name]), blocks_of(found[name]), strict=True
            ):
                ours = {binding.var.__chandle__() for binding in after.bindings}
                assert ours == {binding.var.__chandle__() for binding in before.bindings}
    before, after = planned_bytes(given_mod), planned_bytes(found)
    assert all(after[name] <= before[name] for name in before)
    return given_mod, found


def shuffled(mod: tvm.IRModule, random: Random) -> tvm.IRModule:
    """Return a module with each block in a random one of the orders that are allowed."""
    for variable in mod.get_global_vars():
        if not isinstance(mod[variable], relax.Function):
            continue
        orders = {}
        for block in blocks_of(mod[variable]):
            before, order = runs_before(mod, block.bindings), []
            while len(order) < len(before):
                rest = [one for one in range(len(before)) if one not in order]
                order.append(random.choice([o for o in rest if set(before[o]) <= set(order)]))
            orders[block.block.__chandle__()] = tuple(order)
        mod = with_block_orders(mod, variable, orders)
    return mod


@swept(2, 300, relax_sources())
def test_random_modules_compute_the_same(source: str):
    """Run the written order, the one that is found, and any other that is allowed."""
    given_mod, found = check_random(source)
    others = [found, shuffled(given_mod, Random(0))]
    machines = [build(LOWERING(mod), GMEMAllocate()) for mod in (given_mod, *others)]
    for ways in ((1, 0), (0, 1)):
        arrays = inputs_of(*ways)
        KEPT.clear()
        expected, *results = (run(machine, "main", arrays) for machine in machines)
        for ours in results:
            np.testing.assert_equal(ours, expected)
        count = len(KEPT) // len(machines)
        for at, (_, copy) in enumerate(KEPT):
            np.testing.assert_array_equal(copy, KEPT[at % count][1])


# Bad input


def test_the_pipeline_names_a_wrong_option():
    for order, message in (({"speed": 1}, "has no option 'speed'"), ("yes", "must be True, False")):
        with pytest.raises(ValueError, match=f"order.*{message}"):
            tvm_ext.relax_pipeline("llvm", order=order)


def test_a_bound_that_nothing_has_is_an_error():
    with pytest.raises(ValueError, match="OrderForMemory: the upper bound of 'n'"):
        ordered(fused(parse(LATE_READ)), upper_bounds={"n": 4})


def test_blocks_with_nothing_to_order_stay():
    x = relax.Var("x", relax.TensorType((4,), "float32"))
    one, other, third = (relax.Var(name, x.ty) for name in ("one", "other", "third"))
    for blocks in (
        [relax.DataflowBlock([])],
        [relax.DataflowBlock([relax.VarBinding(one, x), relax.VarBinding(third, one)])],
        # Names of each other, which no program can have.
        [relax.DataflowBlock([relax.VarBinding(one, other), relax.VarBinding(other, one)])],
    ):
        body = relax.SeqExpr(blocks, x)
        func = relax.Function([x], body, x.ty).with_attr("global_symbol", "main")
        mod = tvm.IRModule({"main": func})
        assert ordered(mod).same_as(mod)
