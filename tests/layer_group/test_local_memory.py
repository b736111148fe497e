# SPDX-License-Identifier: Apache-2.0
"""Time steps, lives and addresses: the source's worked example, and replays of groups."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import worked_example
from replay import check_replay
from test_slicing import group_of, sliced_groups

from passes.layer_group.planning.bank_aware import bank_aware
from passes.layer_group.planning.banks import bank_conflicts, bank_penalty, keep_apart, spread
from passes.layer_group.planning.cost import group_cost, pipelined_cycles
from passes.layer_group.planning.lanes import Lanes
from passes.layer_group.planning.local_memory import (
    Item,
    LocalMemory,
    RowUse,
    item_bytes,
    of_time_steps,
)
from passes.layer_group.planning.op_order import op_order
from passes.layer_group.planning.planned_group import (
    STRATEGIES,
    Chip,
    PlannedGroup,
    place,
    plan_group,
)
from passes.layer_group.planning.slicing import Cut, slice_group
from passes.layer_group.planning.time_steps import Life, nearest, pipeline, rebalance
from passes.planning import solve
from passes.planning.plan import Status
from passes.planning.verify import check, verify
from target_hw.machine import Machine, Pipe
from target_hw.memory import MemoryScope

FACTS = (("lanes", 8), ("eu_bytes", 16))
T8 = MemoryScope("local.LMEM", 65536, alignment=16, bank_count=16, bank_bytes=4096, facts=FACTS)
LARGE = MemoryScope(
    "local.LMEM", 262144, alignment=16, bank_count=16, bank_bytes=16384, facts=FACTS
)
HUGE = MemoryScope(
    "local.LMEM", 1 << 24, alignment=16, bank_count=16, bank_bytes=1 << 20, facts=FACTS
)
MACHINE = Machine((Pipe("GDMA", "bytes", 16, 64), Pipe("TIU", "multiply-adds", 128)))
LANES = Lanes(8, 16)

NAMES = {
    "w1": "t1.weight", "b1": "t1.bias", "w2": "t4.weight", "b2": "t4.bias",
}  # fmt: skip


def example(cut=1, memory=T8):
    """The worked example's slices, steps and local memory."""
    slices = slice_group(group_of(worked_example()), Cut(h=cut))
    steps = pipeline(nearest(slices.group))
    return slices, steps, of_time_steps(slices, steps, memory, item_bytes(slices, LANES))


def offsets(plan):
    short = {long: name for name, long in NAMES.items()}
    return {short.get(name, name): at for name, (at,) in plan.offsets.items()}


def test_bytes_of_the_worked_example():
    slices, _, _ = example(4)
    sizes = item_bytes(slices, LANES)
    expected = {"in0": 17920, "t1": 16128, "t2": 16128, "t3": 4096, "t4": 3200}
    expected |= {"t1.weight": 9216, "t4.weight": 9216, "t1.bias": 32, "t4.bias": 32}
    assert {name: sizes[name] for name in expected} == expected


def test_first_strategy_on_the_worked_example():
    assert [op_order(example(cut)[2]) is None for cut in (1, 2, 3)] == [True, True, False]
    _, _, local = example(4)
    plan = op_order(local)
    check(local.problem, plan)
    # What stays for all slices comes first, before all that only passes through.
    stays = [plan.offsets[i.name][0] for i in local.items if i.life.everywhere]
    assert max(stays) < min(plan.offsets[i.name][0] for i in local.items if not i.life.everywhere)


def test_time_steps_of_the_worked_example():
    _, steps, _ = example(4)
    rows = [(row.layer, [(t.tensor, t.kind, t.stage) for t in row.transfers]) for row in steps.rows]
    assert rows == [
        (0, [("t4", "store", 2)]),
        (1, []),
        (2, [("t4.weight", "load", 1), ("t4.bias", "load", 1)]),
        (3, [("in0", "load", 0), ("t1.weight", "load", 0), ("t1.bias", "load", 0)]),
    ]


@pytest.mark.parametrize(
    ("cut", "live"),
    [
        (1, (122144, 100352, 71968, 93760)),
        (2, (79424, 72256, 52160, 59328)),
        (3, (64192, 57920, 43200, 49472)),
        (4, (55744, 50752, 38720, 43712)),
    ],
)
def test_live_bytes_of_the_worked_example(cut, live):
    assert example(cut)[2].live_bytes == live


def test_newer_strategy_on_the_worked_example():
    assert [bank_aware(example(cut)[2]) for cut in (1, 2, 3)] == [None, None, None]
    _, _, local = example(4)
    plan = bank_aware(local)
    check(local.problem, plan)
    expected = {"w2": 0, "t1": 9216, "t3": 12288, "b2": 25344, "w1": 28672, "t2": 37888}
    expected |= {"in0": 40960, "t4": 61440, "b1": 25376}
    assert offsets(plan) == expected
    met = [(c.row, {c.first, c.second}, c.bank) for c in bank_conflicts(local, plan)]
    assert met == [(0, {"t1.bias", "t1"}, 6), (3, {"t4.bias", "t1.bias"}, 6)]
    _, _, local = example(5)
    plan = bank_aware(local)
    assert plan.peak == 57376
    assert bank_conflicts(local, plan) == ()


def test_three_slices_fit_exactly_without_avoiding_banks():
    _, _, local = example(3)
    plan = bank_aware(local, avoid=False)
    check(local.problem, plan)
    expected = {"in0": 0, "t2": 0, "t1": 21504, "t3": 21504, "w2": 41216, "w1": 50432}
    expected |= {"t4": 59648, "b2": 64128, "b1": 64160}
    assert offsets(plan) == expected
    for planner in (*STRATEGIES, "best", "first_fit"):
        placed = place(local, planner)
        if placed is not None:
            check(local.problem, placed)
        assert planner == "op_order" or placed.peak == 64192


def test_newer_strategy_without_slices():
    _, _, local = example(1, LARGE)
    plan = bank_aware(local)
    expected = {"t1": 0, "t3": 0, "w2": 16384, "b2": 32768, "in0": 65536, "t2": 65536}
    expected |= {"t4": 131072, "w1": 147456, "b1": 163840}
    assert offsets(plan) == expected


COMPUTE = (100, 40, 40, 60)
TRANSFER = {"t4": 30, "t4.weight": 20, "in0": 50, "t1.weight": 20}


def transfer_cycles(transfer):
    return TRANSFER.get(transfer.tensor, 0)


@pytest.mark.parametrize(("slices", "cycles"), [(1, 340), (2, 580), (4, 1060)])
def test_cycles_of_the_worked_example(slices, cycles):
    sliced, steps, _ = example(4)
    held = set(sliced.resident)
    assert pipelined_cycles(steps, COMPUTE.__getitem__, transfer_cycles, slices, held) == cycles


def test_rebalancing_the_worked_example():
    slices, steps, _ = example(4)
    sizes = item_bytes(slices, LANES)
    balanced = rebalance(steps, COMPUTE.__getitem__, transfer_cycles, sizes)
    loaded = {t.tensor: at for at, row in enumerate(balanced.rows) for t in row.transfers}
    assert [loaded[name] for name in ("t1.weight", "in0", "t1.bias")] == [2, 3, 3]
    local = of_time_steps(slices, balanced, T8, sizes)
    plan = bank_aware(local)
    expected = {"w1": 0, "w2": 9216, "t1": 18432, "t3": 20480, "b2": 34560, "in0": 36864}
    expected |= {"t2": 36864, "t4": 57344, "b1": 61440}
    assert offsets(plan) == expected
    assert plan.peak == 61472
    assert bank_conflicts(local, plan) == ()


def test_one_layer_alone_is_not_pipelined():
    slices = slice_group(group_of(worked_example(), [1]), Cut(h=2))
    steps = pipeline(nearest(slices.group))
    assert not steps.pipelined
    does = [(row.layer, [(t.tensor, t.kind) for t in row.transfers]) for row in steps.rows]
    assert does == [(None, [("t1", "load")]), (0, []), (None, [("t2", "store")])]
    cycles = pipelined_cycles(steps, lambda _: 10, lambda _: 7, 3, set())
    assert cycles == 3 * (7 + 10 + 7)


def planned(slices, planner="first_fit"):
    """Plan slices on a memory that is large enough for them."""
    steps = pipeline(nearest(slices.group))
    sizes = item_bytes(slices, LANES)
    cost, balanced = group_cost(slices, steps, MACHINE, LANES, sizes)
    local = of_time_steps(slices, balanced, HUGE, sizes)
    plan = place(local, planner)
    assert plan is not None
    # No more memory than what the plan takes, and the plan is still right.
    check(replace(local.problem, memory=replace(HUGE, bank_count=1, bank_bytes=None)), plan)
    return PlannedGroup(slices, balanced, local, cost, plan)


PLANNERS = st.sampled_from(("first_fit", "skyline", *STRATEGIES))


@given(slices=sliced_groups(), planner=PLANNERS)
@settings(max_examples=12, deadline=None, print_blob=True)
def test_replay_finds_every_value(slices, planner):
    check_replay(planned(slices, planner))


@pytest.mark.slow
@given(slices=sliced_groups(), planner=PLANNERS)
@settings(max_examples=2000, deadline=None, print_blob=True)
def test_replay_of_many_groups(slices, planner):
    check_replay(planned(slices, planner))


def test_replay_finds_a_weight_that_is_overwritten():
    # As if resident weights lived from their first use only: the second slice misses one.
    slices, steps, local = example(4)
    items = tuple(
        replace(i, life=replace(i.life, everywhere=False, first=2, last=3))
        if i.name == "t4.weight"
        else i
        for i in local.items
    )
    wrong = replace(local, items=items)
    plan = op_order(wrong)
    assert verify(local.problem, plan)
    cost, _ = group_cost(slices, steps, MACHINE, LANES, item_bytes(slices, LANES))
    with pytest.raises(AssertionError, match="reads"):
        check_replay(PlannedGroup(slices, steps, wrong, cost, plan))


@given(slices=sliced_groups())
@settings(max_examples=30, deadline=None, print_blob=True)
def test_moving_items_apart_keeps_a_plan_right(slices):
    group = planned(slices, "first_fit")
    small = MemoryScope(
        "local.LMEM", 1 << 15, alignment=16, bank_count=8, bank_bytes=1 << 12, facts=FACTS
    )
    local = replace(group.local, memory=small)
    plan = replace(group.plan, status=Status.FEASIBLE)
    if plan.peak <= 1 << 15:
        moved = keep_apart(local, plan)
        check(local.problem, moved)
        assert bank_penalty(local, moved) <= bank_penalty(local, plan)


@given(slices=sliced_groups())
@settings(max_examples=30, deadline=None, print_blob=True)
def test_items_that_are_spread_are_placed_right(slices):
    small = MemoryScope(
        "local.LMEM",
        1 << 15,
        alignment=16,
        reserved=((64, 96),),
        bank_count=8,
        bank_bytes=1 << 12,
        facts=FACTS,
    )
    local = replace(planned(slices, "first_fit").local, memory=small)
    plans = spread(local)
    for plan in plans:
        check(local.problem, plan)
    best = place(local, "best")
    if plans:
        assert best is not None
    if best is not None:
        check(local.problem, best)
        found = [bank_penalty(local, plan) for plan in plans]
        assert bank_penalty(local, best) <= min(found, default=bank_penalty(local, best))


def test_two_operands_and_a_result_lie_in_banks_of_their_own():
    memory = MemoryScope(
        "local.LMEM", 4096, alignment=16, bank_count=4, bank_bytes=1024, facts=FACTS
    )
    names = ("x", "y", "z")
    items = tuple(Item(name, 800, Life(0, 0), "activation") for name in names)
    local = LocalMemory(items, (RowUse(names),), memory)
    assert bank_conflicts(local, solve(local.problem, "best"))
    for plan in (*spread(local), place(local, "best")):
        assert not bank_conflicts(local, plan)


def test_a_chip_that_cannot_be_planned_for_is_refused():
    with pytest.raises(ValueError, match=r"memory scope 'local.LMEM' has no capacity"):
        Chip(MemoryScope("local.LMEM", facts=FACTS), MACHINE)
    with pytest.raises(ValueError, match=r"unknown planner 'mine'.*bank_aware, op_order"):
        Chip(T8, MACHINE, planner="mine")
    with pytest.raises(ValueError, match="no pipe 'TIU'"):
        Chip(T8, Machine((Pipe("GDMA", "bytes", 16),)))


def test_what_is_kept_repeats_no_rows():
    group = group_of(worked_example())
    assert plan_group(group, Cut(h=7), Chip(T8, MACHINE)) is not None
    kept = plan_group(group, Cut(h=7), Chip(T8, MACHINE), "h")
    assert kept is not None
    assert kept.halo == "keep"
    assert kept.cost.repeated_rows == 0
