# SPDX-License-Identifier: Apache-2.0
"""Results that lie where an operand lay: which may, what that saves, and that it is right."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import tvm
from fixed_groups import chip, everything, grouped
from llvm_level import at_level
from networks import Builder
from operator_modules import call, check_against_stock
from replay import check_replay
from tvm import relax
from tvm.script import relax as R

from passes.layer_group.analysis.read_network import read_networks
from passes.layer_group.planning.cut import Cut
from passes.layer_group.planning.layer_groups import plan_layer_groups
from passes.layer_group.planning.network import NetworkIndex
from passes.layer_group.planning.planned_group import plan_group

SHAPE = (1, 8, 12, 100)


def unlowered(make, *shapes):
    """Return a module of operators on two tensors."""
    builder = relax.BlockBuilder()
    x, y = (relax.Var(*p) for p in zip("xy", (R.Tensor(s, "float32") for s in shapes), strict=True))
    with builder.function("main", [x, y]):
        with builder.dataflow():
            result = builder.emit_output(make(builder.emit, x, y))
        builder.emit_func_output(result)
    return builder.get()


def lowered(make, shape=SHAPE):
    """Return a module of operators on two tensors, each a kernel of its own."""
    return relax.transform.LegalizeOps()(unlowered(make, shape, shape))


def elementwise(emit, x, y):
    a = emit(relax.op.nn.relu(x))
    b = emit(relax.op.add(a, y))
    c = emit(relax.op.nn.softmax(b, axis=-1))
    d = emit(relax.op.multiply(c, b))
    return emit(relax.op.exp(d))


def moving(emit, x, y):
    a = emit(relax.op.nn.max_pool2d(x, (3, 3), padding=(1, 1)))
    b = emit(relax.op.astype(a, "int32"))
    c = emit(relax.op.astype(b, "float32"))
    return emit(relax.op.matmul(c, relax.op.permute_dims(y, [0, 1, 3, 2])))


def test_a_kernel_says_in_whose_place_its_result_may_lie():
    def found(make):
        (block,) = read_networks(lowered(make))
        return {layer.operator: layer.in_place for layer in block.network.layers}

    assert found(elementwise) == {
        "relu": ("x",),
        "add": ("lv", "y"),
        "softmax": ("lv1",),  # The last stage that reads it is the first that stores its result.
        "multiply": ("lv2", "lv1"),
        "tir_exp": ("lv3",),
    }
    # A window, other types, sums: elements are read behind the store of others.
    assert not any(found(moving).values())


def pairs(planned):
    return [pair for _, pair in planned.local.in_place]


@pytest.mark.parametrize("cut", [Cut(h=3), pytest.param(Cut(), marks=pytest.mark.slow)])
def test_a_group_in_place_takes_less_and_gives_the_same(cut):
    mod = lowered(elementwise)
    kib = 1
    while (found := grouped(mod, {everything(mod): cut}, kib=kib)) is None:
        kib += 1
    after, (planned,) = found
    at = planned.plan.offsets
    assert any(at[operand] == at[result] for operand, result in pairs(planned))
    # The softmax's operand is read by the product, too.
    assert ("lv1", "lv2") not in pairs(planned)
    apart = replace(planned.local, in_place=())
    assert planned.local.most_live <= kib * 1024 < apart.most_live
    check_replay(planned)
    numbers = np.random.default_rng(0)
    arrays = [numbers.standard_normal(SHAPE).astype("float32") for _ in range(2)]
    results = [
        call(relax.VirtualMachine(tvm.compile(m, at_level("llvm")), tvm.cpu()), arrays, "main")
        for m in (mod, after)
    ]
    for theirs, ours in zip(*results, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_within_a_kernel_what_a_later_stage_reads_keeps_its_memory():
    """Two kernels of a convolution and four stages, of which the last two read earlier ones."""

    def stages(emit, x, y):
        for _ in range(2):
            a = emit(relax.op.nn.conv2d(x, y, padding=(1, 1)))
            b = emit(relax.op.exp(a))
            c = emit(relax.op.subtract(emit(relax.op.abs(b)), a))
            x = emit(relax.op.add(c, b))
        return x

    shapes = (1, 8, 16, 16), (8, 8, 3, 3)
    numbers = np.random.default_rng(0)
    arrays = [numbers.normal(scale=0.1, size=shape).astype("float32") for shape in shapes]
    target = at_level("sophgo/bm1684x-llvm")
    assert check_against_stock(unlowered(stages, *shapes), target, arrays) == 1


def group_of(b: Builder, *outputs: str):
    network = b.network(*outputs)
    return NetworkIndex(network).group(0, len(network.layers) - 1)


def chain() -> Builder:
    b = Builder(bits=32)
    b.tensor("in0", 1, 8, 12, 10)
    b.conv("in0", "t1", 8, 3, 1, 1)
    b.same("relu", "t2", "t1")
    b.conv("t2", "t3", 8, 3, 1, 1)
    return b


def test_an_operand_that_is_needed_longer_keeps_its_bytes():
    b = chain()
    planned = plan_group(group_of(b, "t3"), Cut(h=2), chip())
    assert pairs(planned) == [("t1", "t2")]
    # It is stored.
    assert pairs(plan_group(group_of(b, "t1", "t3"), Cut(h=2), chip())) == []
    # Its rows stay for the next slice, and those of the result do.
    assert pairs(plan_group(group_of(b, "t3"), Cut(h=2, keep_rows=True), chip())) == []
    # A later layer reads it.
    b.same("add", "t4", "t3", "t1")
    assert ("t1", "t2") not in pairs(plan_group(group_of(b, "t4"), Cut(h=2), chip()))
    # The result is a smaller part: other rows of the operand are needed elsewhere.
    b = chain()
    b.conv("t1", "t4", 8, 5, 1, 2)
    b.same("add", "t5", "t3", "t4")
    planned = plan_group(group_of(b, "t5"), Cut(h=2), chip())
    assert ("t1", "t2") not in pairs(planned)


def test_a_plan_that_frees_an_operand_too_early_is_seen_by_the_replay():
    planned = plan_group(group_of(chain(), "t3"), Cut(h=2), chip())
    offsets = {**planned.plan.offsets, "t2": planned.plan.offsets["t1"]}
    check_replay(replace(planned, plan=replace(planned.plan, offsets=offsets)))
    offsets["t3"] = offsets["t2"]  # A convolution reads rows behind those that it has stored.
    wrong = replace(planned, plan=replace(planned.plan, offsets=offsets))
    with pytest.raises(AssertionError, match="reads"):
        check_replay(wrong)


def test_fewer_slices_fit_where_results_lie_in_place():
    b = Builder(bits=32)
    b.tensor("in0", 1, 8, 60, 8)
    last = b.conv("in0", "wide", 32, 1, bias=False)
    for at in range(3):
        last = b.same("relu", f"t{at}", last)
    last = b.conv(last, "narrow", 8, 1, bias=False)
    network = b.network(last)
    apart = replace(network, layers=tuple(replace(x, in_place=()) for x in network.layers))

    def slices(network):
        group = NetworkIndex(network).group(0, len(network.layers) - 1)
        plans = (plan_group(group, Cut(h=count), chip(2)) for count in range(1, 61))
        return next(plan for plan in plans if plan is not None)

    planned = slices(network)
    check_replay(planned)
    assert planned.cut.counts["h"] < slices(apart).cut.counts["h"]
    # The search counts alike.
    (group,), (other,) = (plan_layer_groups(n, chip(2)).groups for n in (network, apart))
    assert group.cut.counts["h"] < other.cut.counts["h"]


def test_a_tensor_given_twice_is_in_place_once_or_not_at_all():
    def twice(emit, x, y):
        a = emit(relax.op.add(x, x))
        return emit(relax.op.matmul(a, emit(relax.op.matmul(y, y))))

    (block,) = read_networks(lowered(twice, (1, 8, 10, 10)))
    assert [x.in_place for x in block.network.layers] == [("x",), (), ()]
