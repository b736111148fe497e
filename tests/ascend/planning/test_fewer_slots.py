# SPDX-License-Identifier: Apache-2.0
"""Slots against levels: every set of buffers is weighed, and cycles decide."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from random import Random

import pytest
from slot_kernels import Kernel, fewest_cycles, random_kernel
from sweeps import sample

from passes.ascend.planning.fewer_slots import MemoryRequest, choose
from passes.ascend.planning.planner import plan_levels
from passes.planning import Budget, Buffer, PipelineUse, Problem, check
from target_hw.memory import MemoryScope

LOOP = PipelineUse(loop=1)


def request(problem: Problem) -> MemoryRequest:
    """A memory whose pairs and penalties do not depend on slots."""

    def with_slots(slots):
        buffers = (replace(b, slots=slots.get(b.name, b.slots)) for b in problem.buffers)
        return replace(problem, buffers=tuple(buffers))

    return MemoryRequest(problem, with_slots)


def problem(capacity: int | None, *sizes: int) -> Problem:
    """Double buffers that are all live together."""
    buffers = (Buffer(f"b{at}", size, ((0, 4),), 1, 2, use=LOOP) for at, size in enumerate(sizes))
    return Problem(tuple(buffers), MemoryScope("local.UB", capacity))


def slots_cost(prices: dict[str, int]):
    """A kernel that takes so many cycles more for each buffer that has one offset."""

    def cost(placed):
        return 100 + sum(
            prices[name]
            for _, plan in placed
            for name, offsets in plan.offsets.items()
            if len(offsets) == 1
        )

    return cost


def best_sum(capacity: int, sizes: tuple[int, ...], prices: dict[str, int]) -> int | None:
    """The least cycles of any set of buffers that fits once it is single: all sets are tried."""
    names = [f"b{at}" for at in range(len(sizes))]
    fitting = (
        sum(prices[name] for name in single)
        for count in range(len(names) + 1)
        for single in combinations(names, count)
        if sum(size * (1 if name in single else 2) for name, size in zip(names, sizes, strict=True))
        <= capacity
    )
    least = min(fitting, default=None)
    return None if least is None else 100 + least


@pytest.mark.parametrize("capacity", [100, 150, 199, 260, 300])
def test_the_cheapest_set_of_buffers_gives_up_its_slots(capacity: int):
    sizes, prices = (10, 20, 30, 40, 50), {"b0": 9, "b1": 2, "b2": 7, "b3": 6, "b4": 11}
    (choice,) = choose([request(problem(capacity, *sizes))], plan_levels, slots_cost(prices))
    expected = best_sum(capacity, sizes, prices)
    assert (choice.cycles if choice else None) == expected
    if choice:
        check(choice.problem, choice.plan)
        assert choice.plan.peak <= capacity


def test_what_fits_with_all_slots_gives_up_none():
    (choice,) = choose(
        [request(problem(None, 10, 20))], plan_levels, slots_cost({"b0": 1, "b1": 1})
    )
    assert choice.slots == ()
    assert choice.cycles == 100


def test_memories_are_weighed_together():
    # The second memory's single buffer costs nothing once the first memory has one.
    problems = [
        problem(30, 20),
        Problem((Buffer("c", 8, ((0, 4),), 1, 2, use=LOOP),), MemoryScope("local.L1", 12)),
    ]

    def cost(placed):
        lengths = {name: len(o) for _, plan in placed for name, o in plan.offsets.items()}
        return 100 + 50 * (min(lengths.values()) == 1) - lengths.get("c", 2)

    first, second = choose([request(one) for one in problems], plan_levels, cost)
    assert first.slots == (("b0", 1),)
    assert second.slots == (("c", 1),)
    assert first.cycles == second.cycles == 149


def best_of(kernel: Kernel, budget: Budget | None = None) -> int | None:
    """What our search finds, checked."""
    (choice,) = choose([kernel.request], plan_levels, kernel.cost, budget)
    if choice is None:
        return None
    check(choice.problem, choice.plan)
    assert choice.problem == kernel.with_slots(dict(choice.slots))
    assert kernel.cost([(choice.problem, choice.plan)]) == choice.cycles
    return choice.cycles


def compare(seeds: range, most_slots: int) -> None:
    for seed in seeds:
        print(f"seed {seed}, {most_slots} slots at most")
        kernel = random_kernel(Random(seed), most_slots)
        best, ours = fewest_cycles(kernel), best_of(kernel)
        # Ours may also give a buffer more slots than it asks for.
        assert (best is None) == (ours is None)
        assert best is None or ours is None or ours <= best


@pytest.mark.parametrize("times", sample((1, 50), 1))
def test_no_plan_of_a_small_kernel_takes_fewer_cycles(times: int):
    compare(range(12 * times), 2)
    compare(range(4 * times), 3)


def test_a_small_budget_is_kept_and_still_finds_what_fits():
    fits = 0
    for seed in range(15):
        print(f"seed {seed}")
        kernel = random_kernel(Random(seed))
        ours = best_of(kernel, Budget(0))
        assert (ours is None) == (best_of(kernel) is None)
        fits += ours is not None
    assert fits > 5


def test_the_same_choice_is_made_each_time():
    for seed in range(2):
        kernel = random_kernel(Random(seed))
        once, again = (choose([kernel.request], plan_levels, kernel.cost) for _ in range(2))
        assert once == again
