# SPDX-License-Identifier: Apache-2.0
"""The replay of groups notices what is wrong with a plan: faults are planted, each is seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import strategies as st
from networks import random_networks
from replay import check_replay
from sweeps import swept
from test_local_memory import HUGE, LANES, MACHINE, group_of, worked_example
from test_slicing import sliced_groups

from passes.layer_group.planning.cost import group_cost
from passes.layer_group.planning.cut import Cut
from passes.layer_group.planning.local_memory import lane_bytes, of_time_steps
from passes.layer_group.planning.loops import part_loops
from passes.layer_group.planning.planned_group import PlannedGroup, place
from passes.layer_group.planning.slicing import GroupSlices, slice_group
from passes.layer_group.planning.spans import Spans
from passes.layer_group.planning.time_steps import time_steps
from passes.planning import check

ROWS, COLUMNS = 2, 3  # The axes of rows and columns in NCHW.


def plan(
    slices: GroupSlices,
    change: Callable[[dict[str, int]], None] = lambda _: None,
    planner: str = "first_fit",
):
    """Plan slices on lanes with room for all, with sizes that a test may change."""
    sizes = lane_bytes(slices, LANES)
    change(sizes)
    steps = time_steps(slices.group, slices.loops)
    cost, steps = group_cost(slices, steps, MACHINE, LANES, sizes)
    local = of_time_steps(slices, steps, HUGE, sizes)
    found = place(local, planner)
    assert found is not None
    check(local.problem, found)
    return PlannedGroup(slices, steps, local, cost, found)


def cut(keep_rows: bool = False, columns: int = 1) -> GroupSlices:
    return slice_group(group_of(worked_example(bits=8)), Cut(h=4, w=columns, keep_rows=keep_rows))


def with_spans(
    slices: GroupSlices,
    name: str,
    holds: Callable[[Spans], Spans],
    makes: Callable[[Spans], Spans],
):
    """Change what the slices of a tensor hold, and what they make, of its rows."""

    def changed(region, change):
        part = region[ROWS]._replace(spans=change(region[ROWS].spans))
        return (*region[:ROWS], part, *region[ROWS + 1 :])

    tensor = slices.tensors[name]
    other = replace(tensor, holds=changed(tensor.holds, holds), makes=changed(tensor.makes, makes))
    return replace(slices, tensors={**slices.tensors, name: other})


def one_less(spans):
    return Spans.of(
        tuple((a, b - 1) if at == 1 else (a, b) for at, (a, b) in enumerate(spans.ranges))
    )


def halo_one_row_short(name):
    return plan(with_spans(cut(), name, one_less, one_less))


def window_too_small(name):
    def short(spans):
        return Spans(spans.begin + 1, spans.end)

    return plan(with_spans(cut(True), name, short, lambda spans: spans))


def keep_freed_early(name):
    """Give the bytes of a tensor that stays to what lives when the slice has read it."""
    planned = plan(cut(True))
    local = planned.local
    assert local.live[name] == ((0, local.rows),)
    rows = planned.steps.rows
    touched = [n for n, row in enumerate(rows) if name in row.touched(planned.group)]
    other = next(
        other
        for other in local.sizes
        if local.live[other][-1][0] not in touched
        and all(begin > touched[-1] or end <= touched[0] for begin, end in local.live[other])
    )
    offsets = {**planned.plan.offsets, other: planned.plan.offsets[name]}
    peak = planned.plan.peak + local.sizes[other]
    return replace(planned, plan=replace(planned.plan, offsets=offsets, peak=peak))


def share_of_a_lane_too_small(name):
    return plan(cut(), lambda sizes: sizes.update({name: sizes[name] - 1}))


def never_stored(_name):
    planned = plan(cut())
    rows = tuple(
        replace(row, transfers=tuple(t for t in row.transfers if t.kind == "load"))
        for row in planned.steps.rows
    )
    return replace(planned, steps=replace(planned.steps, rows=rows))


FAULTS = [
    (halo_one_row_short, "in0", "needs|reads"),
    (halo_one_row_short, "t4", "needs"),
    (window_too_small, "t3", "t3"),
    (keep_freed_early, "in0", "reads in0"),
    (keep_freed_early, "t1.weight", "reads"),
    (share_of_a_lane_too_small, "t1", "t1 takes"),
    (never_stored, "t4", "t4 is stored 0"),
]


@pytest.mark.parametrize(
    ("fault", "name", "said"), FAULTS, ids=[f"{f.__name__}-{n}" for f, n, _ in FAULTS]
)
def test_a_planted_fault_is_seen(fault, name, said):
    with pytest.raises(AssertionError, match=said):
        check_replay(fault(name))


@pytest.mark.parametrize("columns", [1, 2])
@pytest.mark.parametrize("keep", [False, True])
def test_a_plan_without_faults_runs(keep, columns):
    replay = check_replay(plan(cut(keep, columns)))
    assert min(replay.computed.values()) > 0


PLANNERS = st.sampled_from(("first_fit", "best"))


@swept(12, 2000, sliced_groups(), PLANNERS)
def test_replay_finds_every_value(slices, planner):
    check_replay(plan(slices, planner=planner))


@swept(8, 2000, random_networks(), st.integers(1, 5), st.integers(1, 5), st.data())
def test_groups_of_random_networks_run(network, h, w, data):
    """Rows stay also where columns are cut, and layers are made in parts of their channels."""
    last = data.draw(st.integers(0, len(network.layers) - 1))
    group = group_of(network, tuple(range(last + 1)))
    outputs = [group.tensor(name).shape for name in group.outputs]
    cut = Cut(h=min(h, *(s[ROWS] for s in outputs)), w=min(w, *(s[COLUMNS] for s in outputs)))
    part_bytes = data.draw(st.sampled_from((0, 1, 100)))
    cut = replace(cut, keep_rows=data.draw(st.booleans()), part_bytes=part_bytes)
    if part_bytes:
        cores = data.draw(st.integers(1, 3))
        if cores > 1:
            cut = replace(cut, cores=cores, by_channels=True)
    loops = part_loops(group, LANES, part_bytes, cut.cores)
    planned = plan(slice_group(group, cut, loops=loops))
    assert check_replay(planned).moved == planned.cost.moved
