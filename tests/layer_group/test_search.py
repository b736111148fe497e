# SPDX-License-Identifier: Apache-2.0
"""The search for groups: what it estimates, what it finds, and what it leaves."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import Builder, random_networks, worked_example
from replay import check_replay
from test_local_memory import MACHINE, T8

from passes.layer_group.planning import partition
from passes.layer_group.planning.cost import group_cost, pipelined_cycles
from passes.layer_group.planning.cuts import counts
from passes.layer_group.planning.dependencies import by_dependencies
from passes.layer_group.planning.group import NetworkIndex
from passes.layer_group.planning.layer_facts import LayerFacts
from passes.layer_group.planning.layer_groups import HALOS, SEARCHES, plan_layer_groups
from passes.layer_group.planning.local_memory import item_bytes, of_time_steps
from passes.layer_group.planning.partition import shortest_path
from passes.layer_group.planning.planned_group import Chip, plan_group
from passes.layer_group.planning.runs import streams_of
from passes.layer_group.planning.search import GroupSearch
from passes.layer_group.planning.slicing import Cut, slice_group
from passes.layer_group.planning.sweep import Sweep
from passes.layer_group.planning.time_steps import nearest, pipeline
from passes.planning.verify import check
from target_hw.sophgo import CHIPS, MACHINES

SMALL = replace(T8, capacity=4096, bank_bytes=256)
TINY = replace(T8, capacity=512, bank_count=1, bank_bytes=None)


@given(
    network=random_networks(),
    cut=st.builds(
        Cut,
        n=st.integers(1, 3),
        h=st.integers(1, 6),
        w=st.integers(1, 3),
        part_bytes=st.sampled_from((0, 1, 100)),
    )
    | st.builds(Cut, part_bytes=st.sampled_from((1, 100)), passing=st.booleans()),
    keep=st.sampled_from(("", "h")),
)
@settings(max_examples=100, deadline=None, print_blob=True)
def test_a_sweep_finds_what_slices_and_time_steps_say(network, cut, keep):
    check_sweep(network, cut, keep)


def test_a_sweep_knows_an_operand_that_is_loaded_while_its_place_is_stored():
    """The second of two layers that read it stores its result, and then the first one comes."""
    builder = Builder(bits=32)
    for name in ("x", "y"):
        builder.tensor(name, 1, 8, 12, 10)
    made = builder.same("add", "b", builder.conv("x", "a", 8, 1), "y", in_place=False)
    last = builder.same("relu", "c", "y")
    builder.layers[-1] = replace(builder.layers[-1], buffer_bits=32)
    check_sweep(builder.network(made, last), Cut(h=2), "")


def test_a_sweep_knows_an_operand_that_was_stored_before_its_place_is_taken():
    builder = Builder()
    builder.tensor("x", 1, 8, 5, 5)
    made = [builder.same("relu", f"t{at}", "x" if at < 3 else f"t{at - 3}") for at in range(5)]
    check_sweep(builder.network(*made), Cut(), "")


def check_sweep(network, cut, keep):
    """Compare what is estimated of all groups that end with the last layer with their plans."""
    index = NetworkIndex(network)
    chip = Chip(replace(T8, capacity=1 << 24, bank_count=1, bank_bytes=None), MACHINE, "first_fit")
    last = len(network.layers) - 1
    for estimate in Sweep(LayerFacts(index, chip), last, cut, keep).run(0):
        group = index.group(tuple(range(estimate.first, last + 1)))
        streams = streams_of(group, chip.lanes, cut)
        slices = slice_group(group, cut, keep, streams=streams)
        steps = pipeline(nearest(group, slices.streams))
        local_bytes = item_bytes(slices, chip.lanes)
        local = of_time_steps(slices, steps, chip.memory, local_bytes)
        assert estimate.live_bytes == max(local.live_bytes)
        cost, _ = group_cost(slices, steps, chip.machine, chip.lanes, local_bytes)
        assert abs(estimate.moved - cost.moved) <= len(group.names)


def test_the_shortest_path_on_the_worked_costs():
    costs = {
        (0, 0): 10, (1, 1): 12, (2, 2): 8, (3, 3): 15,
        (0, 1): 18, (1, 2): 15, (2, 3): 20, (0, 2): 24,
    }  # fmt: skip
    assert shortest_path(0, 3, costs) == [(0, 1), (2, 3)]
    assert shortest_path(0, 3, {**costs, (1, 3): 40}) == [(0, 1), (2, 3)]
    assert shortest_path(0, 2, costs) == [(0, 2)]
    assert shortest_path(1, 3, costs) == [(1, 2), (3, 3)]


@given(
    costs=st.dictionaries(
        st.tuples(st.integers(0, 6), st.integers(0, 6)).filter(lambda p: p[0] <= p[1]),
        st.integers(1, 50),
    )
)
@settings(max_examples=150, deadline=None, print_blob=True)
def test_the_shortest_path_is_the_best_of_all(costs):
    def total(parts):
        return sum(costs[part] for part in parts)

    costs = {(number, number): 30 for number in range(7)} | costs
    every = []
    for size in range(7):
        for cuts in combinations(range(1, 7), size):
            ends = [*cuts, 7]
            parts = list(zip([0, *cuts], [e - 1 for e in ends], strict=True))
            if all(p in costs for p in parts):
                every.append(total(parts))
    assert total(shortest_path(0, 6, costs)) == min(every)


def test_numbers_of_slices():
    assert counts(1) == [1]
    assert counts(7) == [1, 2, 3, 4, 7]
    assert counts(56)[-1] == 56
    for extent in range(1, 300):
        sizes = [-(-extent // count) for count in counts(extent)]
        assert sizes == sorted(set(sizes), reverse=True)


def check_groups(network, chip, found):
    """Every layer is in one group or left with a reason; groups are right and run in order."""
    index = NetworkIndex(network)
    numbers = [n for group in found.groups for n in group.numbers]
    left = [n for n, layer in enumerate(network.layers) if layer.name in found.left]
    assert sorted(numbers + left) == list(range(len(network.layers)))
    assert numbers == sorted(numbers)
    assert all(found.left.values())
    for group in found.groups:
        check(group.local.problem, group.plan)
        assert group.plan.peak <= chip.capacity
        assert max(group.local.live_bytes) <= chip.capacity
        check_replay(group)
        for name in group.group.outputs:
            assert name in index.outputs or index.readers[name][-1] > group.numbers[-1]
    assert min(found.moved_before, found.moved_after) >= found.moved_least
    if not left:
        assert found.cycles == sum(group.cost.cycles for group in found.groups)
        assert found.moved_after == sum(group.cost.moved for group in found.groups)


@pytest.mark.parametrize("halo", HALOS)
@pytest.mark.parametrize("search", SEARCHES)
@given(data=st.data())
@settings(max_examples=8, deadline=None, print_blob=True)
def test_groups_of_random_networks(search, halo, data):
    random_groups(search, halo, data)


@pytest.mark.slow
@pytest.mark.parametrize("halo", HALOS)
@pytest.mark.parametrize("search", SEARCHES)
@given(data=st.data())
@settings(max_examples=300, deadline=None, print_blob=True)
def test_groups_of_many_random_networks(search, halo, data):
    random_groups(search, halo, data)


def random_groups(search, halo, data):
    network = data.draw(random_networks())
    memory = data.draw(st.sampled_from((SMALL, TINY)))
    planner = data.draw(st.sampled_from(("first_fit", "skyline", "best")))
    chip = Chip(memory, MACHINE, planner)
    check_groups(network, chip, plan_layer_groups(network, chip, search=search, halo=halo))


def test_the_worked_example_as_a_whole():
    network = worked_example()
    chip = Chip(T8, MACHINE)
    longest = plan_layer_groups(network, chip, search="tail_to_head")
    assert [group.numbers for group in longest.groups] == [(0, 1, 2, 3)]
    assert longest.groups[0].cut == Cut(h=3)
    assert longest.groups[0].plan.peak == 64192
    best = plan_layer_groups(network, chip, halo="keep")
    assert best.price <= longest.price
    assert best.moved_after == best.moved_least
    check_groups(network, chip, best)


def test_dynamic_programming_is_at_least_as_good_as_its_rival():
    b = Builder(bits=16)
    b.tensor("x", 1, 16, 40, 40)
    last = "x"
    for number in range(9):
        last = b.conv(last, f"t{number}", 16, 3, 1, 1)
    network = b.network(last)
    chip = Chip(replace(T8, capacity=32768, bank_bytes=2048), MACHINE)
    for halo in HALOS:
        found = {s: plan_layer_groups(network, chip, search=s, halo=halo) for s in SEARCHES}
        assert found["dynamic_programming"].price <= found["tail_to_head"].price


def long_network(seed, layers=20):
    """Return convolutions, additions and element-wise layers in a row, of 64 x 64 and 8 bits."""
    choose = random.Random(seed)
    b = Builder(bits=8)
    before = last = b.tensor("x", 1, 16, 64, 64)
    for number in range(layers):
        name, kind = f"t{number}", choose.choice(("conv", "relu", "add"))
        if kind == "add" and before != last and b.shape(before) == b.shape(last):
            made = b.same("add", name, last, before)
        elif kind == "conv":
            kernel = choose.choice((1, 3))
            made = b.conv(last, name, choose.choice((16, 32, 64)), kernel, 1, kernel // 2)
        else:
            made = b.same("relu", name, last)
        before, last = last, made
    return b.network(last)


@pytest.mark.parametrize(
    ("seed", "layers"), [(0, 8), *(pytest.param(s, 20, marks=pytest.mark.slow) for s in range(4))]
)
def test_dynamic_programming_is_at_least_as_good_on_long_networks(seed, layers):
    network = long_network(seed, layers)
    chip = Chip(CHIPS["sophgo/cv184x"]["local.LMEM"], MACHINES["sophgo/cv184x"], "first_fit")
    for halo in HALOS:
        found = {s: plan_layer_groups(network, chip, search=s, halo=halo) for s in SEARCHES}
        assert found["dynamic_programming"].price <= found["tail_to_head"].price
        check_groups(network, chip, found["dynamic_programming"])


@pytest.mark.parametrize("seed", [2, 4, 7])
def test_of_groups_that_cost_about_as_much_those_that_move_less_are_taken(seed, monkeypatch):
    network = long_network(seed, 8)
    chip = Chip(replace(T8, capacity=16384, bank_count=1, bank_bytes=None), MACHINE, "first_fit")
    found = plan_layer_groups(network, chip)
    monkeypatch.setattr(partition, "WEIGHT", 0)
    cheapest = plan_layer_groups(network, chip)
    assert found.moved_after < cheapest.moved_after
    assert cheapest.price <= found.price <= cheapest.price * 1.01


def test_where_a_draft_finds_no_place_the_next_best_is_taken(monkeypatch):
    index = NetworkIndex(worked_example())
    search = GroupSearch(index, Chip(replace(T8, bank_count=1, bank_bytes=None), MACHINE), "keep")
    last = len(index.network.layers) - 1
    ways = [e for e in search.ending_with(last, 0, search.parts) if e.first == 0]
    best, other = sorted(ways, key=search.price)[:2]
    assert search.plan(best).cost.price <= search.plan(other).cost.price
    plan = search.plan

    def without_place(estimate):
        if estimate.group == best.group:
            search._drafts[best.group] = None
        return plan(estimate)

    monkeypatch.setattr(search, "plan", without_place)
    monkeypatch.setattr(search, "alone", [replace(one, price=1 << 40) for one in search.alone])
    (found,) = partition._cheapest_drafts(search, {last: {0: [best, other]}}, 0, last)
    assert (found.numbers, found.cut) == (tuple(range(last + 1)), other.cut)


def test_what_cannot_be_grouped_is_left_with_its_reason():
    b = Builder(bits=32)
    b.tensor("x", 1, 64, 8, 200)
    b.same("relu", "a", "x")
    b.same("sort", "b", "a")
    b.conv("b", "c", 64, 3, 1, 1)
    network = b.network("c")
    layers = list(network.layers)
    layers[1] = replace(layers[1], reason="no rule for sort")
    network = replace(network, layers=tuple(layers))
    chip = Chip(replace(T8, capacity=16384, bank_bytes=1024), MACHINE)
    found = plan_layer_groups(network, chip)
    assert not found.groups
    assert found.left["relu:a"] == "its neighbour 'sort:b' cannot be grouped"
    assert found.left["sort:b"] == "no rule for sort"
    assert "18464 of weights" in found.left["conv:c"]
    check_groups(network, chip, found)


def runs(network):
    """Return how many rows of layers that can be grouped there are."""
    able = [not layer.reason for layer in network.layers]
    return sum(now and not before for before, now in zip([False, *able], able, strict=False))


@given(network=random_networks(), data=st.data())
@settings(max_examples=40, deadline=None, print_blob=True)
def test_layers_by_dependencies_can_run_and_are_parted_no_more(network, data):
    refused = data.draw(st.sets(st.integers(0, len(network.layers) - 1)))
    layers = tuple(
        replace(layer, reason="no") if number in refused else layer
        for number, layer in enumerate(network.layers)
    )
    network = replace(network, layers=layers)
    found = by_dependencies(network)
    NetworkIndex(found)  # Each layer stands behind those whose results it reads.
    assert sorted(found.layers, key=network.layers.index) == list(network.layers)
    assert runs(found) <= runs(network)


def test_an_operator_between_two_layers_does_not_part_them():
    b = Builder(bits=8)
    b.tensor("x", 1, 16, 16, 16)
    b.tensor("z", 1, 16, 16, 16)
    b.conv("x", "a", 16, 3, 1, 1)
    b.same("sort", "s", "z")
    b.conv("a", "c", 16, 3, 1, 1)
    network = b.network("c", "s")
    layers = list(network.layers)
    layers[1] = replace(layers[1], reason="no rule for sort")
    found = plan_layer_groups(replace(network, layers=tuple(layers)), Chip(T8, MACHINE))
    assert [[x.name for x in group.group.layers] for group in found.groups] == [
        [layers[0].name, layers[2].name]
    ]


@pytest.mark.parametrize("capacity", [1000, 1300])
def test_columns_are_cut_where_more_layers_fit_so(capacity):
    # Of 1,300 bytes a lane the live ones of three layers fit in rows alone, but find no place.
    builder = Builder()
    image = builder.tensor("image", 1, 8, 16, 96)
    for number in range(3):
        image = builder.conv(image, f"conv{number}", 8, 3, padding=1)
    network = builder.network(image)
    chip = Chip(replace(TINY, capacity=capacity), MACHINE, "first_fit")
    index = NetworkIndex(network)
    fits = [
        any(plan_group(index.group(layers), Cut(h=h), chip, "h") for h in range(1, 17))
        for layers in ((0, 1), (0, 1, 2))
    ]
    assert fits == [True, False]
    found = plan_layer_groups(network, chip, halo="cheapest")
    (group,) = found.groups
    assert group.numbers == (0, 1, 2)
    assert group.cut.w > 1
    assert found.moved_after < 1.05 * found.moved_least
    check_replay(group)


def test_more_slices_than_an_output_has_elements_are_no_plan():
    builder = Builder()
    builder.tensor("image", 1, 8, 16, 12)
    builder.conv("image", "large", 8, 3, padding=1)
    builder.pool("large", "small", 2, 2, 0)
    group = NetworkIndex(builder.network("large", "small")).group((0, 1))
    chip = Chip(T8, MACHINE)
    assert plan_group(group, Cut(h=8, w=6), chip, "h") is not None
    for cut in (Cut(h=9), Cut(w=7), Cut(n=2), Cut(h=10, cores=2)):
        assert plan_group(group, cut, chip, "h") is None


def test_branches_are_groups():
    b = Builder(bits=8)
    b.tensor("x", 1, 16, 32, 32)
    a = b.conv("x", "a", 16, 1)
    c = b.conv("x", "c", 16, 3, 1, 1)
    d = b.conv(c, "d", 16, 3, 1, 1)
    e = b.concat("e", a, d, 1)
    pooled = b.pool(e, "p", 2, 2)
    up = b.upsample(b.conv(pooled, "q", 32, 3, 1, 1), "u", 2)
    b.concat("skip", e, up, 1)
    network = b.network("skip")
    chip = Chip(replace(T8, capacity=12288, bank_bytes=768), MACHINE)
    for halo in HALOS:
        found = plan_layer_groups(network, chip, search="tail_to_head", halo=halo)
        assert [group.numbers for group in found.groups] == [tuple(range(len(network.layers)))]
        assert found.groups[0].cut.h > 1
        check_groups(network, chip, found)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"search": "head_to_tail"}, "search must be one of 'dynamic_programming', 'tail_to_head'"),
        ({"halo": "drop"}, "halo must be one of 'recompute', 'keep', 'cheapest', got 'drop'"),
    ],
)
def test_unknown_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        plan_layer_groups(worked_example(), Chip(T8, MACHINE), **options)


def test_estimated_cycles_are_close_to_those_of_the_plan():
    network = worked_example()
    search = GroupSearch(NetworkIndex(network), Chip(T8, MACHINE, "first_fit"), "cheapest")
    for last in range(4):
        for estimate in search.ending_with(last, 0, search.parts):
            planned = search.plan(estimate)
            if planned is not None:
                assert planned.cost.price == pytest.approx(estimate.price, rel=0.25)
                assert planned.cost.moved == pytest.approx(estimate.moved, rel=0.02)
    assert pipelined_cycles(planned.steps, lambda _: 0, lambda _: 0, planned.cut.steps, set()) == 0


@given(network=random_networks())
@settings(max_examples=8, deadline=None, print_blob=True)
def test_groups_of_the_cheapest_halo_are_placed_as_the_replay_wants_them(network):
    index = NetworkIndex(network)
    chip = Chip(SMALL, MACHINE, "first_fit")
    search = GroupSearch(index, chip, "cheapest")
    last = len(network.layers) - 1
    for estimate in list(search.ending_with(last, 0, (Cut(),)))[:6]:
        planned = search.plan(estimate)
        if planned is not None:
            assert planned.halo in ("recompute", "keep", "mixed")
            check(planned.local.problem, planned.plan)
            check_replay(planned)
