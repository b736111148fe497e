# SPDX-License-Identifier: Apache-2.0
"""Runs of layers that are alike: what is known of one holds for the other, and for no other one."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import pytest
from networks import Builder
from sweeps import sample
from test_local_memory import MACHINE, T8

from passes.layer_group.planning.layer_groups import plan_layer_groups
from passes.layer_group.planning.local_memory import LocalMemory
from passes.layer_group.planning.network import NetworkIndex, Repeats, WorkingBuffer
from passes.layer_group.planning.planned_group import Chip

CHIP = Chip(replace(T8, capacity=8192), MACHINE, "first_fit")
CHANGES = ("", "wide", "kernel", "output", "far", "twice", "work")


def blocks(changes: list[str]) -> NetworkIndex:
    """Return residual blocks, each changed in one respect."""
    builder = Builder("blocks", part_bits=32)
    x = builder.tensor("x", 1, 16, 8, 4)
    far, outputs = x, []
    for at, change in enumerate(changes):
        kernel = 5 if change == "kernel" else 3
        middle = builder.conv(x, f"a{at}", 32 if change == "wide" else 16, kernel, 1, kernel // 2)
        middle = builder.same("relu", f"b{at}", middle)
        y = builder.conv(middle, f"c{at}", 16, 3, 1, 1, bias=change != "twice")
        facts = {
            "work": {"buffers": (WorkingBuffer(64, (1,), (None,)),)},
            "sums": {"sums": ()},
            "late": {"after_sums": ((middle, 1, 1),)},
        }
        builder.layers[-1] = replace(builder.layers[-1], **facts.get(change, {}))
        skip = y if change == "twice" else far if change == "far" else x
        x = builder.same("add", f"d{at}", y, skip)
        outputs += [middle] if change == "output" else []
    return NetworkIndex(builder.network(*outputs, x))


@pytest.mark.parametrize("change", sample(CHANGES, "far"))
def test_what_is_known_of_a_group_holds_for_those_that_are_alike(change, monkeypatch):
    network = blocks(["", "", change, ""]).network
    found = plan_layer_groups(network, CHIP, halo="cheapest")
    monkeypatch.setattr(Repeats, "run", lambda _self, first, last: (first, last))
    fresh = count()
    monkeypatch.setattr(LocalMemory, "content", property(lambda _local: next(fresh)))
    anew = plan_layer_groups(network, CHIP, halo="cheapest")
    assert (found.after.price, found.after.moved) == (anew.after.price, anew.after.moved)
    for one, other in zip(found.groups, anew.groups, strict=True):
        assert (one.group.numbers, one.cut, one.cost) == (
            other.group.numbers,
            other.cut,
            other.cost,
        )
        assert one.plan == other.plan


@pytest.mark.parametrize("change", [*CHANGES[1:], "sums", "late"])
def test_blocks_that_differ_have_two_numbers(change):
    repeats = Repeats(blocks(["", "", change, ""]))
    assert repeats.run(8, 11) != repeats.run(4, 7)


def test_equal_blocks_have_one_number():
    repeats = Repeats(blocks([""] * 5))
    assert len({repeats.run(last - 3, last) for last in range(7, 16, 4)}) == 1
