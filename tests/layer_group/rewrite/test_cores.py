# SPDX-License-Identifier: Apache-2.0
"""Groups whose slices several cores share: each core has all that it needs, and pays for it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fixed_groups import chip, everything, grouped
from networks import Builder, Window
from operator_modules import arrays, check_same, lowered, module, run
from replay import check_replay
from test_group_kernels import chain
from test_local_memory import MACHINE
from test_replay import plan
from tvm import relax
from tvm.target import Target
from tvm.tirx import EQ, BufferStore, IfThenElse
from written_networks import WRITTEN

from passes.ir.structural import structural_visit
from passes.layer_group.planning.cut import Cut
from passes.layer_group.planning.layer_groups import plan_layer_groups
from passes.layer_group.planning.loops import Parts, part_loops
from passes.layer_group.planning.network import Kind, NetworkIndex
from passes.layer_group.planning.planned_group import Chip, plan_group
from passes.layer_group.planning.slicing import slice_group
from target_hw import with_memory
from target_hw.memory import MemoryHierarchy
from tvm_ext.report.readers.groups import layer_groups

OP = relax.op


def network(batch: int = 1, rows: int = 24):
    b = Builder("network", 16)
    b.tensor("in0", batch, 16, rows, 20)
    b.conv("in0", "t1", 32, 3, 1, 1)
    b.same("relu", "t2", "t1")
    b.pool("t2", "t3", 3, 2, 1)
    b.conv("t3", "t4", 16, 3, 1, 1)
    return b.network("t4")


def group_of(net):
    return NetworkIndex(net).group(0, len(net.layers) - 1)


CUTS = [Cut(h=6, cores=2), Cut(h=6, cores=3), Cut(h=2, cores=2), Cut(n=2, h=3, cores=2)]
CUTS += [Cut(h=4, w=2, cores=2), Cut(h=6, part_bytes=1024, cores=2)]


@pytest.mark.parametrize("keep", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize("cut", CUTS)
def test_each_core_has_what_its_slices_need(cut, keep):
    group = group_of(network(batch=cut.counts["n"]))
    cut = replace(cut, keep_rows=keep)
    planned = plan_group(group, cut, chip(256))
    one = plan_group(group, replace(cut, cores=1), chip(256))
    replay = check_replay(planned)
    assert replay.moved == planned.cost.moved
    for name, elements in replay.computed.items():
        assert elements == planned.slices.tensors[name].made_elements
        # Other rows are made twice at most where one core's slices end.
        assert elements >= one.slices.tensors[name].made_elements
    # Weights are loaded by each core, and the rows that its first slice needs.
    if not planned.slices.loops:
        weights = sum(t.bytes for t in map(group.tensor, group.loaded) if t.kind is Kind.WEIGHT)
        again = planned.cost.moved - one.cost.moved - (cut.cores - 1) * weights
        assert again >= 0
        assert (again > 0) == (keep and cut.counts["n"] == 1 and cut.counts["w"] == 1)
    assert planned.cost.cycles < one.cost.cycles or cut.part_bytes or not planned.steps.pipelined


def test_a_core_that_counts_on_rows_of_another_is_seen_by_the_replay():
    planned = plan_group(group_of(network()), Cut(h=6, keep_rows=True), chip(256))
    shared = replace(planned.cut, cores=2)
    with pytest.raises(AssertionError, match="needs"):
        check_replay(replace(planned, slices=replace(planned.slices, cut=shared)))


def test_only_equal_shares_of_the_outermost_cut_axis_are_taken():
    for of in ({"h": 6, "cores": 4}, {"cores": 2}, {"n": 3, "h": 4, "cores": 2}):
        with pytest.raises(ValueError, match="equally many"):
            Cut(**of)
    assert Cut(n=2, h=4, w=3, cores=2).runs == {"n": 1, "d": 1, "w": 3, "h": 4}
    assert Cut(h=4, w=3, cores=3).runs == {"n": 1, "d": 1, "w": 1, "h": 4}


def test_cores_share_where_that_costs_less():
    # It is computing that takes long.
    lanes = replace(chip().machine["TIU"], rate=32)
    slow = replace(chip(64), machine=chip().machine.with_pipe(lanes))
    facts = (*slow.memory.facts, ("cores", 2))
    two = replace(slow, memory=replace(slow.memory, facts=facts))
    for rows in (24, 25):
        found, before = (
            plan_layer_groups(network(rows=rows), c, halo="cheapest") for c in (two, slow)
        )
        assert found.after.price < before.after.price
        assert found.after.moved <= found.before.moved
        assert found.after.cycles < 0.8 * before.after.cycles
        assert any(group.cut.cores == 2 for group in found.groups)
        for group in found.groups:
            check_replay(group)


def test_cores_share_columns_and_take_more_slices_where_their_own_rows_find_no_room():
    # In slices for one core, there is no room for what a second one makes of rows that both need.
    builder = Builder()
    image = builder.tensor("image", 1, 8, 16, 96)
    for number in range(3):
        image = builder.conv(image, f"conv{number}", 8, 3, padding=1)
    net = builder.network(image)
    for capacity in (1000, 2200):
        tiny = replace(chip(64).memory, capacity=capacity)
        machine = MACHINE.with_pipe(replace(MACHINE["TIU"], rate=32))
        two = Chip(replace(tiny, facts=(*tiny.facts, ("cores", 2))), machine, "first_fit")
        (one,) = plan_layer_groups(net, replace(two, memory=tiny), halo="cheapest").groups
        (group,) = plan_layer_groups(net, two, halo="cheapest").groups
        assert group.cut.cores == 2
        assert group.cut.steps >= one.cut.steps
        check_replay(group)


@pytest.mark.parametrize(
    "cut", [Cut(h=6, keep_rows=True, cores=2), Cut(h=4, part_bytes=64, cores=2)]
)
def test_a_group_on_cores_gives_the_same(cut):
    mod = lowered(chain(height=24))
    found = grouped(mod, {everything(mod): cut})
    assert found is not None
    (planned,) = found[1]
    check_replay(planned)
    args = arrays(mod)
    check_same(run(found[0], args), run(mod, args))


def norm(emit, x):
    return emit(OP.nn.softmax(x))


def feed_forward(emit, x, other, w, v):
    """Each core makes all of the first layer, which is a result of the group, too."""
    y = norm(emit, x)
    z = emit(OP.nn.silu(emit(OP.matmul(y, w))))
    return [y, z, emit(OP.multiply(z, emit(OP.add(emit(OP.matmul(y, v)), other))))]


def heads(emit, x, w, v):
    """Channels that become heads, and what each of them has; the other matrix is a second run."""
    y = emit(OP.reshape(emit(OP.matmul(x, w)), (1, 6, 4, 24)))
    return [emit(OP.permute_dims(y, [0, 2, 1, 3])), emit(OP.nn.relu(emit(OP.matmul(x, v))))]


def images(emit, x, other, w, depthwise):
    y = emit(OP.nn.relu(emit(OP.nn.conv2d(emit(OP.nn.relu(x)), w, padding=(1, 1)))))
    return emit(OP.add(emit(OP.nn.conv2d(y, depthwise, padding=(1, 1), groups=40)), other))


def added_up(emit, x, w):
    """No core has all that is added up, so each of them makes what is before."""
    y = emit(OP.matmul(x, w))
    return [emit(OP.sum(y, axis=[2], keepdims=True)), emit(OP.exp(y))]


BY_CHANNELS = {
    "added_up": (added_up, [(1, 6, 4), (4, 24)], 1, 1),
    "feed_forward": (feed_forward, [(1, 6, 24), (1, 6, 80), (24, 80), (24, 80)], 2, 5),
    "heads": (heads, [(1, 6, 24), (24, 96), (24, 33)], 1, 5),
    "images": (images, [(1, 5, 9, 6), (1, 40, 9, 6), (40, 5, 3, 3), (40, 1, 3, 3)], 2, 4),
}
"""What makes a network, its shapes, how many are inputs, and how many layers cores share."""


def by_channels(cores=2, **cut):
    return Cut(part_bytes=1, cores=cores, by_channels=True, **cut)


@pytest.mark.parametrize("name", BY_CHANNELS)
def test_cores_share_channels(name):
    body, shapes, inputs, count = BY_CHANNELS[name]
    mod = lowered(module(shapes, body, inputs=inputs))
    args = arrays(mod)
    expected = run(mod, args)
    for cut in (by_channels(), by_channels(h=2)) if name == "images" else (by_channels(),):
        found = grouped(mod, {everything(mod): cut})
        assert found is not None
        new, (planned,) = found
        assert len(planned.slices.loops) == count
        moved = check_replay(planned).moved
        assert moved == planned.cost.moved
        check_same(run(new, args), expected)


def test_what_each_core_makes_is_stored_by_the_first_one():
    body, shapes, inputs, _ = BY_CHANNELS["feed_forward"]
    mod = lowered(module(shapes, body, inputs=inputs))
    found = grouped(mod, {everything(mod): by_channels()}, form="address")
    assert found is not None
    (kernel,) = (f for v, f in found[0].functions.items() if "group_0" in str(v.name_hint))
    of_one_core = []

    def on_if(branch, visitor):
        if isinstance(branch.condition, EQ) and branch.condition.a.name == "core":
            of_one_core.append(branch)
        visitor.default_visit(branch)

    structural_visit(kernel.body, [(IfThenElse, on_if)])
    (store,) = of_one_core
    stored = []
    structural_visit(store.then_case, [(BufferStore, lambda node, _: stored.append(node.buffer))])
    assert [buffer.ty.storage_scope for buffer in stored] == ["global"]


def test_a_core_with_one_part_has_room_for_that_alone():
    for parts, held in (((32, 8), 16), ((32, 8, 2), 16), ((32, 16, 2), 16), ((40, 24, 2), 24)):
        assert Parts(0, *parts).held.spans.longest == held


def test_a_core_that_counts_on_channels_of_another_is_seen_by_the_replay():
    builder = Builder("two convolutions", 16, part_bits=0)
    builder.conv(builder.tensor("in0", 1, 16, 4, 4), "t1", 32, 1)
    group = group_of(builder.network(builder.conv("t1", "t2", 32, 1)))
    cut, lanes = by_channels(), chip().lanes
    loops = part_loops(group, lanes, 1, 2)
    check_replay(plan(slice_group(group, cut, loops=loops)))
    assert [*loops] == ["conv:t2"]  # Each core makes all that this reads.
    ((name, run_alone),) = part_loops(group.index.group(0, 0), lanes, 1, 2).items()
    forged = {name: replace(run_alone, stores={}), **loops}
    with pytest.raises(AssertionError, match="reads t1"):
        check_replay(plan(slice_group(group, cut, loops=forged)))


def test_a_core_makes_in_parts_only_what_no_other_one_reads():
    builder = Builder("two readers", 16, part_bits=0)
    builder.conv(builder.tensor("in0", 1, 16, 4, 4), "t1", 32, 1)
    builder.same("relu", "t2", "t1")
    group = group_of(builder.network("t2", builder.conv("t1", "t3", 32, 1)))
    assert [*part_loops(group, chip().lanes, 1, 2)] == ["conv:t3", "relu:t2"]


def test_what_parts_of_channels_need_more_of_is_no_part():
    builder = Builder("neighbours", 16, part_bits=0)
    n, h, w = map(Window, (0, 2, 3))
    near = (n, Window(1, first=-1, last=1), h, w)
    builder.same("relu", "t1", builder.tensor("in0", 1, 32, 4, 4))
    builder.add("near", "t2", (1, 32, 4, 4), [("t1", near)])
    runs = part_loops(group_of(builder.network("t2")), chip().lanes, 1)
    assert {name: [*run.moved, *run.between] for name, run in runs.items()} == {
        "near:t2": ["t2"],
        "relu:t1": ["in0"],
    }


def test_cores_share_channels_where_weights_are_most_of_what_is_moved():
    builder = Builder("dense", 16, part_bits=0)
    made = builder.tensor("in0", 1, 64, 4, 4)
    for number, channels in enumerate((256, 64)):
        made = builder.same("relu", f"r{number}", builder.conv(made, f"t{number}", channels, 1))
    lanes = replace(chip().machine["TIU"], rate=32)
    net, one = builder.network(made), replace(chip(16), machine=chip().machine.with_pipe(lanes))
    facts = (*one.memory.facts, ("cores", 2))
    two = replace(one, memory=replace(one.memory, facts=facts))
    found, before = (plan_layer_groups(net, c, halo="cheapest") for c in (two, one))
    assert found.after.price < before.after.price
    assert found.moved_least <= found.after.moved <= found.before.moved
    shared = [group for group in found.groups if group.cut.shared == "c"]
    assert shared
    for planned in shared:
        assert check_replay(planned).moved == planned.cost.moved
        for cut in (Cut(), Cut(h=2, cores=2), Cut(part_bytes=1024)):
            other = plan_group(planned.group, cut, two)
            assert other is None or other.cost.price > planned.cost.price


def test_a_transformer_layer_shares_channels_and_says_so():
    mod, chip = WRITTEN["llama_layer"].build(), Target("sophgo/bm1688")
    memory = MemoryHierarchy.from_target(chip)
    local = memory["local.LMEM"]
    alone = replace(local, facts=tuple(fact for fact in local.facts if fact[0] != "cores"))
    one = layer_groups(mod, with_memory(chip, memory.with_scope(alone)))
    report = layer_groups(mod, chip)
    assert "c" in {group.shared for group in report.groups}
    assert all((group.shared == "") == (group.cores == 1) for group in report.groups)
    assert report.moved_least <= report.moved_after <= report.moved_before
    # Each weight is loaded by one core, and by no more.
    assert report.moved_after < 1.2 * report.moved_least
    assert report.makespan_after < 0.7 * one.makespan_after
