# SPDX-License-Identifier: Apache-2.0
"""What the kernels of groups are made of: their size, and the functions that they share."""

from __future__ import annotations

from functools import cache

import pytest
import tvm
from fixed_groups import LANES, allocations, chip, everything, grouped
from operator_modules import arrays, check_same, kernels, lowered, module, run
from test_group_kernels import chain
from tvm import relax, s_tir

from passes.ir.structural import structural_visit
from passes.layer_group.analysis.read_network import read_networks
from passes.layer_group.planning.cut import Cut
from passes.layer_group.planning.layer_groups import plan_layer_groups
from passes.layer_group.planning.spans import AxisPart, Spans
from passes.layer_group.rewrite.slice_values import SliceValues, number

OP = relax.op
STATEMENT = tvm.tirx.Stmt


def statements(function):
    """Return how many statements a kernel has, those inside of others too."""
    found = []

    def on_statement(statement, visitor):
        found.append(statement)
        visitor.default_visit(statement)

    structural_visit(function.body, [(STATEMENT, on_statement)])
    return len(found)


@cache
def the_chain():
    return lowered(chain(height=61))


@cache
def blocks(count):
    """Return a row of equal residual blocks."""

    def body(emit, x, *weights):
        for w, v in zip(weights[::2], weights[1::2], strict=True):
            y = emit(OP.nn.relu(emit(OP.nn.conv2d(x, w))))
            x = emit(OP.add(x, emit(OP.nn.conv2d(y, v))))
        return x

    return lowered(module([(1, 4, 12, 6), *[(8, 4, 1, 1), (4, 8, 1, 1)] * count], body))


@pytest.mark.parametrize("form", ["address", "arena"])
def test_more_slices_are_no_more_statements(form):
    mod = the_chain()
    sizes = []
    for h in (3, 5, 9, 13):
        new, _ = grouped(mod, {everything(mod): Cut(h=h, keep_rows=True)}, form=form)
        sizes.append(sum(statements(f) for f in kernels(new).values()))
    assert len(set(sizes)) == 1


def test_equal_blocks_share_their_functions():
    called = []
    for count in (2, 5):
        mod = blocks(count)
        new, _ = grouped(mod, {everything(mod): Cut(h=3)})
        called.append({name for name in kernels(new) if name != "group_0"})
    assert called[0] == called[1], "three more blocks call what is there"
    args = arrays(mod)
    check_same(run(new, args), run(mod, args))


def test_equal_groups_share_their_kernel():
    mod = blocks(4)
    at = everything(mod)
    each = len(at) // 4
    cuts = {at[begin : begin + each]: Cut(h=3) for begin in range(0, len(at), each)}
    new, _ = grouped(mod, cuts)
    assert [name for name in kernels(new) if "group" in name] == ["group_0"]
    args = arrays(mod)
    check_same(run(new, args), run(mod, args))


def test_a_backend_gets_whole_kernels():
    mod = blocks(2)
    new, _ = grouped(mod, {everything(mod): Cut(h=3)}, form="address")
    assert list(kernels(new)) == ["group_0"]


def test_a_kernel_that_others_may_call_stays():
    mod = tvm.IRModule(dict(blocks(1).functions.items()))
    relu = mod.get_global_var("relu")
    mod.update_func(relu, mod[relu].with_attr("global_symbol", "relu"))
    new, _ = grouped(mod, {everything(mod): Cut(h=3)})
    assert "relu" in kernels(new)


def test_one_slice_passes_without_a_loop_over_turns():
    mod = blocks(2)
    new, _ = grouped(mod, {everything(mod): Cut()})
    text = kernels(new)["group_0"].script()
    assert "turn" not in text
    assert "for " not in text


def test_the_arena_is_whole_behind_what_tvm_compacts():
    mod = the_chain()
    new, (planned,) = grouped(mod, {everything(mod): Cut()})
    functions = {v: f for v, f in new.functions.items() if isinstance(f, tvm.tirx.PrimFunc)}
    for passes in (
        s_tir.transform.PlanAndUpdateBufferAllocationLocation(),
        s_tir.transform.ConvertBlocksToOpaque(),
        s_tir.transform.CompactBufferAllocation(),
    ):
        functions = passes(tvm.IRModule(functions)).functions
    (kernel,) = (f for v, f in functions.items() if v.name_hint == "group_0")
    (arena,) = allocations(kernel)
    assert int(arena.ty.shape[0]) == planned.plan.peak * LANES


def test_numbers_beyond_int32_are_refused():
    slices = SliceValues(Cut(h=2), number(0))
    slices.count(AxisPart("h", Spans.of([(0, 1), (0, 2**31 - 1)])))
    with pytest.raises(ValueError, match="beyond int32"):
        slices.count(AxisPart("h", Spans.of([(0, 1), (0, 2**31)])))


def drawn(reads_both):
    """Return a network with two packed functions between its layers, which may share a state."""

    def body(emit, x):
        first = emit(OP.nn.relu(x))
        draws = [
            emit(OP.call_dps_packed("test.draw", [of], relax.TensorType((1, 2, 8, 4), "float32")))
            for of in (first, x)
        ]
        return [emit(OP.add(first, draws[1] if reads_both else first)), *draws]

    return lowered(module([(1, 2, 8, 4)], body))


def test_what_may_have_a_state_keeps_its_order():
    mod = drawn(reads_both=False)
    (new, _) = grouped(mod, {(0, 3): Cut(h=2)})
    (block,) = new["main"].body.blocks
    calls = [binding.var.name for binding in block.bindings if "draw" in str(binding.value)]
    assert calls == [b.var.name for b in mod["main"].body.blocks[0].bindings if "draw" in str(b)]


def test_what_has_to_run_between_two_draws_is_no_group():
    (block,) = read_networks(drawn(reads_both=True))
    found = plan_layer_groups(block.network, chip(), search="tail_to_head")
    assert found.groups == ()
    assert "layers that run between" in " ".join(found.left.values())
