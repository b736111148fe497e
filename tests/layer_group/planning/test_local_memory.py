# SPDX-License-Identifier: Apache-2.0
"""Time steps, lives and addresses: the source's worked example, and replays of groups."""

from __future__ import annotations

from dataclasses import replace

import pytest
from networks import Window, maps_of, worked_example
from replay import check_replay
from test_slicing import group_of

from passes.layer_group.planning.cost import group_cost, pipelined_cycles
from passes.layer_group.planning.cut import Cut
from passes.layer_group.planning.lanes import Lanes
from passes.layer_group.planning.local_memory import lane_bytes, of_time_steps
from passes.layer_group.planning.network import Kind, Layer, Network, NetworkIndex, Tensor
from passes.layer_group.planning.planned_group import Chip, PlannedGroup, place, plan_group
from passes.layer_group.planning.saved import SavedGroup, plan_saved
from passes.layer_group.planning.slicing import slice_group
from passes.layer_group.planning.time_steps import rebalance, time_steps
from passes.planning import check, solve, verify
from target_hw.machine import Machine, Pipe
from target_hw.memory import MemoryScope

FACTS = (("lanes", 8), ("eu_bytes", 16))
T8 = MemoryScope("local.LMEM", 65536, alignment=16, facts=FACTS)
HUGE = MemoryScope("local.LMEM", 1 << 24, alignment=16, facts=FACTS)
MACHINE = Machine((Pipe("GDMA", "bytes", 16, 64), Pipe("TIU", "multiply-adds", 128)))
LANES = Lanes(8, 16)


def example(cut=1, memory=T8):
    """The worked example's slices, steps and local memory."""
    slices = slice_group(group_of(worked_example()), Cut(h=cut))
    steps = time_steps(slices.group, {})
    return slices, steps, of_time_steps(slices, steps, memory, lane_bytes(slices, LANES))


def test_bytes_of_the_worked_example():
    slices, _, _ = example(4)
    sizes = lane_bytes(slices, LANES)
    expected = {"in0": 17920, "t1": 16128, "t2": 16128, "t3": 4096, "t4": 3200}
    expected |= {"t1.weight": 9216, "t4.weight": 9216, "t1.bias": 32, "t4.bias": 32}
    assert {name: sizes[name] for name in expected} == expected


def test_time_steps_of_the_worked_example():
    _, steps, _ = example(4)
    rows = [
        (row.layers, [(t.tensor, t.kind, t.stage) for t in row.transfers]) for row in steps.rows
    ]
    assert rows == [
        ((0,), [("t4", "store", 2)]),
        ((1,), []),
        ((2,), [("t4.weight", "load", 1), ("t4.bias", "load", 1)]),
        ((3,), [("in0", "load", 0), ("t1.weight", "load", 0), ("t1.bias", "load", 0)]),
    ]


@pytest.mark.parametrize(("cut", "live"), [(1, 122144), (2, 79424), (3, 64192), (4, 55744)])
def test_live_bytes_of_the_worked_example(cut, live):
    assert example(cut)[2].most_live == live


def test_three_slices_of_the_worked_example_fit_exactly():
    _, _, local = example(3)
    for planner in ("best", "first_fit"):
        plan = place(local, planner)
        check(local.problem, plan)
        assert plan.peak == 64192
    assert place(example(2)[2], "best") is None


COMPUTE = (100, 40, 40, 60)
TRANSFER = {"t4": 30, "t4.weight": 20, "in0": 50, "t1.weight": 20}


def transfer_cycles(steps):
    return {t: TRANSFER.get(t.tensor, 0) for row in steps.rows for t in row.transfers}


@pytest.mark.parametrize(("slices", "cycles"), [(1, 340), (2, 580), (4, 1060)])
def test_cycles_of_the_worked_example(slices, cycles):
    sliced, steps, _ = example(4)
    held = set(sliced.resident)
    moving = transfer_cycles(steps)
    assert pipelined_cycles(steps, COMPUTE, moving, slices, held) == cycles


def test_rebalancing_the_worked_example():
    slices, steps, _ = example(4)
    sizes = lane_bytes(slices, LANES)
    balanced = rebalance(steps, COMPUTE, transfer_cycles(steps), sizes)
    loaded = {t.tensor: at for at, row in enumerate(balanced.rows) for t in row.transfers}
    assert [loaded[name] for name in ("t1.weight", "in0", "t1.bias")] == [2, 3, 3]


def test_one_layer_alone_is_not_pipelined():
    slices = slice_group(group_of(worked_example(), [1]), Cut(h=2))
    steps = time_steps(slices.group, {})
    assert not steps.pipelined
    does = [(row.layers, [(t.tensor, t.kind) for t in row.transfers]) for row in steps.rows]
    assert does == [((), [("t1", "load")]), ((0,), []), ((), [("t2", "store")])]
    moving = dict.fromkeys((t for row in steps.rows for t in row.transfers), 7)
    cycles = pipelined_cycles(steps, (0, 10, 0), moving, 3, set())
    assert cycles == 3 * (7 + 10 + 7)


def test_replay_finds_a_weight_that_is_overwritten():
    # As if resident weights lived from their first use only: the second slice misses one.
    slices, steps, local = example(4)
    wrong = replace(local, live={**local.live, "t4.weight": ((2, 4),)})
    plan = solve(wrong.problem, "first_fit")
    assert verify(local.problem, plan)
    cost, _ = group_cost(slices, steps, MACHINE, LANES, lane_bytes(slices, LANES))
    with pytest.raises(AssertionError, match="reads"):
        check_replay(PlannedGroup(slices, steps, wrong, cost, plan))


def test_a_chip_that_cannot_be_planned_for_is_refused():
    with pytest.raises(ValueError, match=r"memory scope 'local.LMEM' has no capacity"):
        Chip(MemoryScope("local.LMEM", facts=FACTS), MACHINE)
    with pytest.raises(ValueError, match="unknown planner 'mine'"):
        Chip(T8, MACHINE, planner="mine")
    with pytest.raises(ValueError, match="no pipe 'TIU'"):
        Chip(T8, Machine((Pipe("GDMA", "bytes", 16),)))


def test_what_is_kept_repeats_no_rows():
    group = group_of(worked_example())
    assert plan_group(group, Cut(h=7), Chip(T8, MACHINE)) is not None
    kept = plan_group(group, Cut(h=7, keep_rows=True), Chip(T8, MACHINE))
    assert kept is not None
    assert kept.halo == "keep"
    assert kept.repeated_rows == 0


BM1684X = Lanes(64, 64)
BM1688 = Lanes(32, 16)
BM1684 = Lanes(64, 128, pack_bytes=4)


@pytest.mark.parametrize(
    ("lanes", "shape", "bits", "kind", "nbytes"),
    [
        (BM1684X, (1, 64, 56, 56), 32, Kind.ACTIVATION, 12544),
        (BM1684X, (2, 130, 5, 5), 8, Kind.ACTIVATION, 384),
        (BM1684X, (2, 130, 5, 5), 8, Kind.WEIGHT, 150),
        (BM1684X, (1, 1000, 1, 1), 32, Kind.ACTIVATION, 1024),
        (BM1688, (1, 3, 224, 224), 8, Kind.ACTIVATION, 50176),
        (BM1684, (1, 3, 224, 224), 8, Kind.ACTIVATION, 200704),
        (BM1684, (4, 64, 7, 7), 32, Kind.ACTIVATION, 1024),
        (BM1684, (4, 64, 7, 7), 64, Kind.ACTIVATION, 2048),
        (BM1688, (1, 33, 3, 3), 4, Kind.WEIGHT, 9),
    ],
)
def test_bytes_a_lane(lanes, shape, bits, kind, nbytes):
    assert lanes.tensor_bytes(Tensor("x", shape, bits, "nchw", kind), shape) == nbytes


def test_other_axes():
    # A sequence of embeddings: rows are positions, embeddings lie across the lanes.
    assert BM1684X.tensor_bytes(Tensor("x", (2, 10, 768), 8, "nhc"), (2, 10, 768)) == 2 * 12 * 64
    # Planes of several axes count together.
    assert BM1684X.tensor_bytes(Tensor("x", (1, 12, 5, 6), 16, "nchw"), (1, 12, 2, 6)) == 64


def test_results_of_which_one_has_too_few_entries_of_the_batch_are_not_cut():
    memory = MemoryScope("local.LMEM", 1 << 16, facts=(("lanes", 4), ("eu_bytes", 16)))
    packed = replace(memory, facts=(*memory.facts, ("pack_bytes", 4)))
    same = tuple(map(Window, range(4)))
    fourth = (Window(0, divide=4), *same[1:])
    tensors = (
        Tensor("x", (2, 4, 4, 4), 32, "nchw"),
        Tensor("y", (2, 4, 4, 4), 32, "nchw"),
        Tensor("z", (8, 4, 4, 4), 8, "nchw"),
    )
    x, y, z = (tensor.shape for tensor in tensors)
    layers = (
        Layer("relu:y", "relu", ("x",), "y", (maps_of(same, y, x),)),
        Layer("repeat:z", "repeat", ("y",), "z", (maps_of(fourth, z, y),)),
    )
    group = NetworkIndex(Network(tensors, layers, ("y", "z"))).group(0, 1)
    pipes = Machine((Pipe("GDMA", "bytes", 64, 100), Pipe("TIU", "multiply-adds", 512, 20)))
    assert plan_group(group, Cut(n=2), Chip(memory, pipes)) is not None
    assert plan_group(group, Cut(n=2), Chip(packed, pipes)) is None
    # Two slices of three entries would take four of them apart that lie in the same bytes.
    x, y = (Tensor(name, (12, 4, 4, 4), 8, "nchw") for name in "xy")
    relu = Layer("relu:y", "relu", ("x",), "y", (maps_of(same, y.shape, x.shape),))
    index = NetworkIndex(Network((x, y), (relu,), ("y",)))
    saved = SavedGroup("group 0", ("relu:y",), Cut(n=2))
    with pytest.raises(ValueError, match="group 0: 2 of the batch would part entries"):
        plan_saved(index, Chip(packed, pipes), [saved])


@pytest.mark.parametrize("name", ["lanes", "eu_bytes"])
def test_a_chip_without_lanes_is_refused(name: str):
    facts = {"lanes": 4, "eu_bytes": 16, name: 0}
    with pytest.raises(ValueError, match=f"'local.LMEM': {name} must be at least 1"):
        Lanes.of(MemoryScope("local.LMEM", 1 << 16, facts=tuple(facts.items())))
