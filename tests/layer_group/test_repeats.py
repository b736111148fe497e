# SPDX-License-Identifier: Apache-2.0
"""Runs of layers that are alike: what is known of one holds for the other, and for no other one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from networks import Builder
from test_local_memory import MACHINE, T8

from passes.layer_group.planning import partition
from passes.layer_group.planning.group import NetworkIndex
from passes.layer_group.planning.planned_group import Chip
from passes.layer_group.planning.repeats import Repeats
from passes.layer_group.planning.search import GroupSearch
from passes.layer_group.planning.slicing import Cut

CHIP = Chip(replace(T8, capacity=8192, bank_bytes=512), MACHINE, "first_fit")
CHANGES = ("", "wide", "kernel", "output", "far", "twice", "apart", "work")


def blocks(changes: list[str]) -> NetworkIndex:
    """Return residual blocks, each changed in one respect."""
    builder = Builder("blocks", part_bits=32)
    x = builder.tensor("x", 1, 16, 8, 4)
    far, outputs = x, []
    for at, change in enumerate(changes):
        kernel = 5 if change == "kernel" else 3
        middle = builder.conv(x, f"a{at}", 32 if change == "wide" else 16, kernel, 1, kernel // 2)
        middle = builder.same("relu", f"b{at}", middle, in_place=change != "apart")
        y = builder.conv(middle, f"c{at}", 16, 3, 1, 1, bias=change != "twice")
        facts = {
            "work": {"buffer_bits": 64},
            "sums": {"sums": ()},
            "late": {"late": ((middle, 1, 1),)},
            "adds": {"adds": ((0, 2),)},
        }
        builder.layers[-1] = replace(builder.layers[-1], **facts.get(change, {}))
        skip = y if change == "twice" else far if change == "far" else x
        x = builder.same("add", f"d{at}", y, skip)
        outputs += [middle] if change == "output" else []
    return NetworkIndex(builder.network(*outputs, x))


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_known_of_a_run_holds_for_those_that_are_alike(change):
    index = blocks(["", "", change, ""])
    search = GroupSearch(index, CHIP, "cheapest")
    for last in range(4, len(index.network.layers)):
        first = max(0, last - 5)
        anew = GroupSearch(index, CHIP, "cheapest")
        found = search.ending_with(last, first, search.parts)
        expected = anew.ending_with(last, first, anew.parts)
        assert [replace(e, run=0, group=0) for e in found] == [
            replace(e, run=0, group=0) for e in expected
        ]
        for one, other in list(zip(found, expected, strict=True))[-2:]:
            planned, fresh = search.plan(one), anew.plan(other)
            assert (planned is None) == (fresh is None)
            if planned is not None and fresh is not None:
                assert planned.numbers == fresh.numbers == tuple(range(one.first, last + 1))
                assert (planned.plan, planned.cost) == (fresh.plan, fresh.cost)


@pytest.mark.parametrize("change", [*CHANGES[1:], "sums", "late", "adds"])
def test_blocks_that_differ_have_two_numbers(change):
    repeats = Repeats(blocks(["", "", change, ""]))
    assert repeats.run(8, 11) != repeats.run(4, 7)


def test_of_groups_that_are_alike_each_is_taken_from_its_own_ways():
    index = blocks([""] * 4)
    search = GroupSearch(index, CHIP, "recompute")
    one, other, *_ = (e for e in search.ending_with(7, 6, (Cut(),)) if e.first == 6)
    cheap, later = replace(one, price=1), other.behind(4)
    assert search._repeats.run(10, 11) == later.run == cheap.run
    search._drafts[later.group] = None  # As if it found no place
    last = len(index.network.layers) - 1
    known = {7: {6: [cheap]}, 11: {10: [later]}}
    chosen = partition._choose(search, known, 0, last)
    assert [part for part in chosen if not isinstance(part, int)] == [cheap]


def test_equal_blocks_have_one_number():
    index = blocks([""] * 5)
    search = GroupSearch(index, CHIP, "cheapest")
    runs = {
        search.ending_with(last, last - 3, search.parts)[-1].run
        for last in range(7, len(index.network.layers) - 4, 4)
    }
    assert len(runs) == 1
