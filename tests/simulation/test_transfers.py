# SPDX-License-Identifier: Apache-2.0
"""Cycles of a plan of several memories: copies run beside operators, or operators wait."""

import pytest

from passes.planning import Buffer, MemoriesProblem, Traffic, solve
from passes.simulation import simulate_transfers
from target_hw.memory import MemoryHierarchy, MemoryScope


def problem(rate=1):
    """`long` leaves the fast memory for `big`; copy out from 1 to 3."""
    memories = (
        MemoryScope("global.sram", 8, bytes_per_cycle=8),
        MemoryScope("global", bytes_per_cycle=rate),
    )
    buffers = (Buffer("long", 4, ((0, 10),)), Buffer("big", 8, ((3, 6),)))
    traffic = {"long": Traffic(touches=(0, 1, 2, 9)), "big": Traffic(touches=(3, 4, 5))}
    return MemoriesProblem(buffers, memories, traffic)


def test_operators_wait_for_a_copy_that_nothing_hides():
    found = problem()
    plan = solve(found, moves=True)
    (copy,) = plan.copies
    assert (copy.begin, copy.end) == (1, 3)
    time = simulate_transfers(found, plan)
    # Operators 0 to 5 take a cycle each. Of the copy's four, two are beside operators 1 and 2.
    # The read at 9 takes four cycles in the slow memory.
    assert (time.copying, time.stall, time.cycles) == (4, 2, 6 + 2 + 4)
    assert time.busy == {"global.sram": 6, "global": 4}


def test_operators_that_compute_hide_a_copy():
    found = problem()
    plan = solve(found, moves=True)
    time = simulate_transfers(found, plan, {1: 5, 2: 5})
    assert (time.stall, time.cycles) == (0, 1 + 5 + 5 + 3 + 4)


def test_nothing_waits_where_nothing_moves():
    found = problem(4)
    plan = solve(found)
    time = simulate_transfers(found, plan)
    assert (time.copying, time.stall) == (0, 0)
    assert time.busy["global"] == plan.moved["global"] // 4


def test_a_memory_without_a_rate_is_named():
    found = problem()
    bare = MemoriesProblem(found.buffers, (found.memories[0], MemoryScope("global")), found.traffic)
    with pytest.raises(ValueError, match="'global': bytes_per_cycle"):
        simulate_transfers(bare, solve(bare))


def test_memories_for_tensors_stand_by_speed():
    fast, slow = MemoryScope("global.sram", bytes_per_cycle=8), MemoryScope("global", 64)
    assert MemoryHierarchy((slow, fast)).for_tensors() == ()
    rated = MemoryScope("global", 64, bytes_per_cycle=2)
    on_chip = MemoryScope("local.UB", bytes_per_cycle=64)
    hierarchy = MemoryHierarchy((rated, on_chip, fast))
    assert hierarchy.for_tensors() == (fast, rated)
    assert MemoryHierarchy.from_feature(hierarchy.to_feature()) == hierarchy
