# SPDX-License-Identifier: Apache-2.0
"""Banks of local memory: what is used at once lies apart, within the capacity, at no byte moved."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import combinations

import pytest
from networks import Builder
from test_local_memory import MACHINE, T8
from test_search import long_network

from passes.layer_group.planning.cut import Cut
from passes.layer_group.planning.layer_groups import plan_layer_groups
from passes.layer_group.planning.local_memory import in_banks
from passes.layer_group.planning.network import NetworkIndex
from passes.layer_group.planning.planned_group import Chip, plan_group
from passes.planning import check
from target_hw.sophgo import CHIPS, MACHINES

BANKS = replace(T8, facts=(*T8.facts, ("banks", 16)))


def meeting_steps(planned, banks):
    """Count time steps in which two things that are used at once have a byte in one bank.

    What is used at once is worked out from the steps alone, byte by byte.
    """
    capacity = planned.local.memory.capacity
    bank_of = [at * banks // capacity for at in range(capacity)]

    def banks_of(name):
        if name not in planned.local.sizes:
            return set()
        (at,) = planned.plan.offsets[name]
        return {bank_of[byte] for byte in range(at, at + planned.local.sizes[name])}

    count = 0
    for row in planned.steps.rows:
        layers = [planned.group.layers[position] for position in row.layers]
        moved = {transfer.tensor for transfer in row.transfers}
        used = [{*x.inputs, x.output, x.name} for x in layers]
        pairs = [pair for names in used for pair in combinations(sorted(names), 2)]
        pairs += [(a, b) for a in moved for names in used for b in names if a != b]
        count += any(banks_of(a) & banks_of(b) for a, b in pairs)
    return count


def without_banks(chip):
    facts = tuple(fact for fact in chip.memory.facts if fact[0] != "banks")
    return replace(chip, memory=replace(chip.memory, facts=facts))


def test_the_steps_of_a_mobile_network_meet_no_more():
    """Depthwise and pointwise convolutions on BM1684X: all steps meet without banks."""
    b = Builder(bits=32)
    last = b.tensor("x", 1, 16, 56, 56)
    for number, channels in enumerate((32, 64, 64, 128, 128, 256)):
        last = b.conv(last, f"d{number}", b.shape(last)[1], 3, 1 + number % 2, 1, depthwise=True)
        last = b.same("relu", f"p{number}.relu", b.conv(last, f"p{number}", channels, 1))
    chip = Chip(CHIPS["sophgo/bm1684x"]["local.LMEM"], MACHINES["sophgo/bm1684x"])
    found = plan_layer_groups(b.network(last), chip, halo="cheapest").groups
    assert sum(len(group.steps.rows) for group in found) > 15
    for group in found:
        check(group.local.problem, group.plan)
        assert group.plan.peak <= chip.capacity
        assert group.bank_conflicts == meeting_steps(group, 16) == 0
        # As without banks, and those steps meet.
        alone = plan_group(group.group, group.cut, without_banks(chip))
        assert alone is not None
        assert meeting_steps(alone, 16) > len(alone.steps.rows) // 2


@pytest.mark.parametrize("seed", range(2))
def test_banks_cost_no_bytes_and_no_fit(seed):
    network = long_network(seed, 7)
    chip = Chip(BANKS, MACHINE)
    found = plan_layer_groups(network, chip, halo="cheapest")
    other = plan_layer_groups(network, without_banks(chip), halo="cheapest")
    assert found.after == other.after
    for group, before in zip(found.groups, other.groups, strict=True):
        assert group.cut == before.cut
        check(group.local.problem, group.plan)
        assert group.plan.peak <= chip.capacity
        met = meeting_steps(group, 16)
        assert group.bank_conflicts == met
        assert met <= meeting_steps(before, 16)


def test_where_there_is_room_nothing_meets_and_nothing_crosses():
    choose = random.Random(7)
    bank = BANKS.capacity // 16
    for _ in range(20):
        builder = Builder(bits=8)
        last = builder.tensor("x", 1, 8, choose.randint(4, 20), choose.randint(4, 20))
        for number in range(choose.randint(2, 6)):
            last = builder.conv(last, f"t{number}", choose.choice((8, 16)), 3, padding=1)
        index = NetworkIndex(builder.network(last))
        group = index.group(0, len(index.network.layers) - 1)
        planned = plan_group(group, Cut(), Chip(BANKS, MACHINE))
        assert planned is not None
        plan = in_banks(planned.local, planned.steps, planned.plan)
        check(planned.local.problem, plan)
        assert meeting_steps(replace(planned, plan=plan), 16) == 0
        for name, size in planned.local.sizes.items():
            (at,) = plan.offsets[name]
            assert (at + size - 1) // bank - at // bank + 1 == -(-size // bank)


def test_a_named_planner_places_as_it_does():
    network = long_network(0, 6)
    chip = Chip(BANKS, MACHINE, "first_fit")
    found = plan_layer_groups(network, chip, halo="cheapest")
    other = plan_layer_groups(network, without_banks(chip), halo="cheapest")
    assert [x.plan.offsets for x in found.groups] == [x.plan.offsets for x in other.groups]
