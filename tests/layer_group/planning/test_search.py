# SPDX-License-Identifier: Apache-2.0
"""The search for groups: what it estimates, what it finds, and what it leaves."""

from __future__ import annotations

import random
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import Builder, random_networks, worked_example
from replay import check_replay
from sweeps import sample
from test_local_memory import MACHINE, T8

from passes.layer_group.planning.cut import Cut, slice_counts
from passes.layer_group.planning.layer_groups import SEARCHES, by_dependencies, plan_layer_groups
from passes.layer_group.planning.network import NetworkIndex
from passes.layer_group.planning.planned_group import Chip, Walk, plan_group
from passes.layer_group.planning.search import HALOS, GroupSearch
from passes.planning import check
from target_hw.sophgo import CHIPS, MACHINES

SMALL = replace(T8, capacity=4096)
TINY = replace(T8, capacity=512)


@given(
    network=random_networks(),
    cut=st.builds(
        Cut,
        n=st.integers(1, 3),
        h=st.integers(1, 6),
        w=st.integers(1, 3),
        keep_rows=st.booleans(),
    ),
    cores=st.sampled_from((1, 2)),
    capacity=st.sampled_from((600, 4096, 1 << 24)),
)
@settings(max_examples=30, deadline=None, print_blob=True)
def test_a_walk_bounds_what_groups_cost(network, cut, cores, capacity):
    letter = cut.outermost or "h"
    check_walk(
        network, replace(cut.along(letter, cut.counts[letter] * cores), cores=cores), capacity
    )


def check_walk(network, cut, capacity=1 << 24):
    """No group costs less than its bound, and a group without room does not fit."""
    index = NetworkIndex(network)
    chip = Chip(replace(T8, capacity=capacity), MACHINE)
    last = len(network.layers) - 1
    walk = Walk(index, chip, last, cut)
    floors = GroupSearch(index, chip, "cheapest").floors(0, last)
    for first in range(last, -1, -1):
        step = walk.to(first)
        if whole := plan_group(index.group(first, last), Cut(), chip):
            assert floors[first][0] <= whole.cost.price
            assert floors[first][1] == whole.cost.moved
        planned = plan_group(index.group(first, last), cut, chip)
        assert not planned or (step and step.fits)
        if planned:
            assert step.bound(cut.cores) <= planned.cost.price
            assert step.moved == planned.cost.moved
            again = any(tensor.repeated_rows for tensor in planned.slices.tensors.values())
            assert again <= step.overlap <= (cut.counts["h"] > 1)
            tight = Chip(replace(T8, capacity=planned.plan.peak), MACHINE)
            assert Walk(index, tight, last, cut).to(first).fits


@given(network=random_networks(max_layers=5), capacity=st.sampled_from((700, 4096, 65536)))
@settings(max_examples=15, deadline=None, print_blob=True)
def test_no_partition_into_uncut_groups_costs_less(network, capacity):
    chip = Chip(replace(T8, capacity=capacity), MACHINE)
    found = plan_layer_groups(network, chip, halo="cheapest")
    network, index = found.network, NetworkIndex(found.network)
    numbers = range(len(network.layers))
    search = GroupSearch(index, chip, "cheapest")
    alone = [search.waiting(n).price for n in numbers]
    moved = [found.alone[layer.name].moved for layer in network.layers]
    best = [0]
    for end in numbers:
        ways = [best[end] + alone[end]]
        for first in range(end):
            planned = plan_group(index.group(first, end), Cut(), chip)
            if planned and planned.cost.moved <= sum(moved[first : end + 1]):
                ways.append(best[first] + planned.cost.price)
        best.append(min(ways))
    assert found.after.price <= best[-1]


def test_numbers_of_slices():
    assert slice_counts(1) == [1]
    assert slice_counts(7) == [1, 2, 3, 4, 7]
    assert slice_counts(56)[-1] == 56
    for extent in range(1, 300):
        sizes = [-(-extent // count) for count in slice_counts(extent)]
        assert sizes == sorted(set(sizes), reverse=True)


def check_groups(network, chip, found):
    """Every layer is in one group or left with a reason; groups are right and run in order."""
    assert sorted(network.layers, key=str) == sorted(found.network.layers, key=str)
    network = found.network
    index = NetworkIndex(network)
    numbers = [n for group in found.groups for n in group.group.numbers]
    left = [n for n, layer in enumerate(network.layers) if layer.name in found.left]
    assert sorted(numbers + left) == list(range(len(network.layers)))
    assert numbers == sorted(numbers)
    assert all(found.left.values())
    for group in found.groups:
        check(group.local.problem, group.plan)
        assert group.plan.peak <= chip.capacity
        assert group.local.most_live <= chip.capacity
        check_replay(group)
        for name in group.group.outputs:
            assert name in index.outputs or index.readers[name][-1] > group.group.last
    assert min(found.before.moved, found.after.moved) >= found.moved_least
    if not left:
        assert found.after.cycles == sum(group.cost.cycles for group in found.groups)
        assert found.after.moved == sum(group.cost.moved for group in found.groups)


@pytest.mark.parametrize("halo", HALOS)
@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("examples", sample((3, 300), 3))
def test_groups_of_random_networks(search, halo, examples):
    @settings(max_examples=examples)
    @given(
        random_networks(), st.sampled_from((SMALL, TINY)), st.sampled_from(("first_fit", "best"))
    )
    def check(network, memory, planner):
        chip = Chip(memory, MACHINE, planner)
        check_groups(network, chip, plan_layer_groups(network, chip, search=search, halo=halo))

    check()


def test_the_worked_example_as_a_whole():
    network = worked_example()
    chip = Chip(T8, MACHINE)
    longest = plan_layer_groups(network, chip, search="tail_to_head")
    assert [group.group.numbers for group in longest.groups] == [range(4)]
    assert longest.groups[0].cut == Cut(h=3)
    assert longest.groups[0].plan.peak == 64192
    best = plan_layer_groups(network, chip, halo="keep")
    assert best.after.price <= longest.after.price
    assert best.after.moved == best.moved_least
    check_groups(network, chip, best)


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
    ("seed", "layers"), [(0, 5), *(pytest.param(s, 20, marks=pytest.mark.slow) for s in range(4))]
)
def test_dynamic_programming_is_at_least_as_good_on_long_networks(seed, layers):
    network = long_network(seed, layers)
    chip = Chip(CHIPS["sophgo/cv184x"]["local.LMEM"], MACHINES["sophgo/cv184x"], "first_fit")
    for halo in HALOS:
        found = {s: plan_layer_groups(network, chip, search=s, halo=halo) for s in SEARCHES}
        assert found["dynamic_programming"].after.price <= found["tail_to_head"].after.price
        check_groups(network, chip, found["dynamic_programming"])


@given(random_networks(), st.sampled_from((SMALL, TINY)))
@settings(max_examples=8, deadline=None, print_blob=True)
def test_the_longest_groups_take_no_more_cycles_where_halos_are_chosen(network, memory):
    chip = Chip(memory, MACHINE, "first_fit")
    found = {h: plan_layer_groups(network, chip, search="tail_to_head", halo=h) for h in HALOS}
    cycles = {halo: groups.after.cycles for halo, groups in found.items()}
    assert cycles["cheapest"] == min(cycles.values())


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
    b.same("sort", "t", "s")  # One that reads what such a one makes parts them no more.
    b.same("add", "d", "c", "t")
    found = plan_layer_groups(refused(b.network("d"), "s", "t"), Chip(T8, MACHINE))
    assert [group.group.made for group in found.groups] == [("a", "c", "d")]


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
        any(plan_group(index.group(*layers), Cut(h=h, keep_rows=True), chip) for h in range(1, 17))
        for layers in ((0, 1), (0, 2))
    ]
    assert fits == [True, False]
    found = plan_layer_groups(network, chip, halo="cheapest")
    (group,) = found.groups
    assert group.group.numbers == range(3)
    assert group.cut.counts["w"] > 1
    assert found.after.moved < 1.05 * found.moved_least
    check_replay(group)


def test_more_slices_than_an_output_has_elements_are_no_plan():
    builder = Builder()
    builder.tensor("image", 1, 8, 16, 12)
    builder.conv("image", "large", 8, 3, padding=1)
    builder.pool("large", "small", 2, 2, 0)
    group = NetworkIndex(builder.network("large", "small")).group(0, 1)
    chip = Chip(T8, MACHINE)
    assert plan_group(group, Cut(h=8, w=6, keep_rows=True), chip) is not None
    for cut in (Cut(h=9), Cut(w=7), Cut(n=2), Cut(h=10, cores=2)):
        assert plan_group(group, replace(cut, keep_rows=True), chip) is None


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
    chip = Chip(replace(T8, capacity=12288), MACHINE)
    for halo in HALOS:
        found = plan_layer_groups(network, chip, search="tail_to_head", halo=halo)
        assert [group.group.numbers for group in found.groups] == [range(len(network.layers))]
        assert found.groups[0].cut.counts["h"] > 1
        check_groups(network, chip, found)


def roomy(capacity):
    return Chip(replace(T8, capacity=capacity), MACHINE)


def convolutions(*kernels, channels=64, rows=8, columns=8):
    b = Builder(bits=32)
    made = b.tensor("x", 1, channels, rows, columns)
    for number, kernel in enumerate(kernels):
        name = f"t{number}"
        if kernel:
            made = b.conv(made, name, channels, kernel, 1, kernel // 2, bias=False)
        else:
            made = b.same("relu", name, made)
    return b.network(made)


def refused(network, *names):
    layers = (replace(x, reason="no rule") if x.output in names else x for x in network.layers)
    return replace(network, layers=tuple(layers))


def test_what_a_layer_needs_is_taken_apart():
    capacity = 16384
    left = plan_layer_groups(convolutions(3, columns=20), roomy(capacity)).left["conv:t0"]
    needed, weights, working, others, available = map(int, re.findall(r"(?<![\w.])\d+", left))
    # Eight lanes; one column of one row of the result needs 3 x 3 of the input, of 8 channels each.
    assert weights == 64 * 64 * 9 * 4 // 8
    assert working == 0
    # Each channel's 9 elements fill units of 4, and so does its one element.
    assert others == (12 + 4) * 64 * 4 // 8
    assert needed == weights + others + working
    assert available == capacity


def past_a_sort():
    b = Builder(bits=32)
    b.same("sort", "s", b.same("relu", "a", b.tensor("x", 1, 8, 8, 8)))
    return refused(b.network(b.same("add", "b", "a", "s")), "s")


OR_BETWEEN = "cannot be grouped, or layers that run between cannot"


@pytest.mark.parametrize(
    ("network", "capacity", "said"),
    [
        (convolutions(0), 4096, {"relu:t0": "no other layer"}),
        (
            refused(convolutions(0, 0), "t1"),
            4096,
            {"relu:t0": f"its neighbours 'relu:t1' {OR_BETWEEN}", "relu:t1": "no rule"},
        ),
        (convolutions(0, 3), 16384, {"relu:t0": "no group with 'conv:t1' fits"}),
        (
            past_a_sort(),
            4096,
            {
                "relu:a": f"its neighbours 'sort:s', 'add:b' {OR_BETWEEN}",
                "add:b": f"its neighbours 'relu:a', 'sort:s' {OR_BETWEEN}",
            },
        ),
    ],
)
def test_each_cause_has_its_words(network, capacity, said):
    found = plan_layer_groups(network, roomy(capacity))
    check_groups(network, roomy(capacity), found)
    for layer, words in said.items():
        assert found.left[layer].startswith(words), found.left
