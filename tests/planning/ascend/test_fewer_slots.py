"""Slots against levels: every set of buffers is weighed, and cycles decide."""

from __future__ import annotations

from itertools import combinations

import pytest

from passes.planning import Buffer, PipelineUse, Problem, check, solve
from passes.planning.ascend.fewer_slots import choose, front
from target_hw.memory import MemoryScope

LOOP = PipelineUse(loop=1)


def problem(capacity: int | None, *sizes: int) -> Problem:
    """Double buffers that are all live together."""
    buffers = (Buffer(f"b{at}", size, ((0, 4),), 1, 2, use=LOOP) for at, size in enumerate(sizes))
    return Problem(tuple(buffers), MemoryScope("local.UB", capacity))


def slots_cost(prices: dict[str, int]):
    """A kernel that takes so many cycles more for each buffer that has one offset."""

    def judge(placed):
        return 100 + sum(
            prices[name]
            for _, plan in placed
            for name, offsets in plan.offsets.items()
            if len(offsets) == 1
        )

    return judge


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


@pytest.mark.parametrize("capacity", [100, 150, 170, 199, 210, 260, 300])
def test_the_cheapest_set_of_buffers_gives_up_its_slots(capacity: int):
    sizes, prices = (10, 20, 30, 40, 50), {"b0": 9, "b1": 2, "b2": 7, "b3": 6, "b4": 11}
    (choices,) = choose([problem(capacity, *sizes)], [], solve, slots_cost(prices))
    expected = best_sum(capacity, sizes, prices)
    assert (choices[0].cycles if choices else None) == expected
    for choice in choices:
        check(choice.problem, choice.plan)
        assert choice.plan.peak <= capacity


def test_many_buffers_are_searched_from_the_largest_on():
    sizes = tuple(range(10, 110, 10))
    prices = {f"b{at}": 1 + (at * 7) % 5 for at in range(len(sizes))}
    capacity = 2 * sum(sizes) - 230
    (choices,) = choose([problem(capacity, *sizes)], [], solve, slots_cost(prices))
    largest_first = [f"b{at}" for at in (9, 8, 7)]
    assert choices[0].cycles <= 100 + sum(prices[name] for name in largest_first)
    assert choices[0].plan.peak <= capacity


def test_what_fits_with_all_slots_gives_up_none():
    (choices,) = choose([problem(None, 10, 20)], [], solve, slots_cost({"b0": 1, "b1": 1}))
    assert choices[0].given_up == ()
    assert choices[0].cycles == 100


def test_where_nothing_fits_there_is_no_choice():
    found = choose([problem(20, 10, 20)], [], solve, slots_cost({"b0": 1, "b1": 1}))
    assert found == ((),)


def test_memories_are_weighed_together():
    # The second memory's single buffer costs nothing once the first memory has one.
    problems = [
        problem(30, 20),
        Problem((Buffer("c", 8, ((0, 4),), 1, 2, use=LOOP),), MemoryScope("local.L1", 12)),
    ]

    def judge(placed):
        lengths = {name: len(o) for _, plan in placed for name, o in plan.offsets.items()}
        return 100 + 50 * (min(lengths.values()) == 1) + lengths["c"]

    first, second = choose(problems, [], solve, judge)
    assert first[0].given_up == ("b0",)
    assert second[0].given_up == ("c",)
    assert first[0].cycles == second[0].cycles == 151


def test_the_front_has_what_nothing_beats_in_bytes_and_cycles():
    sizes, prices = (10, 20, 30), {"b0": 9, "b1": 2, "b2": 7}
    (choices,) = choose([problem(119, *sizes)], [], solve, slots_cost(prices))
    kept = front(choices)
    assert [c.plan.peak for c in kept] == sorted({c.plan.peak for c in kept})
    assert [c.cycles for c in kept] == sorted({c.cycles for c in kept}, reverse=True)
    for choice in choices:
        assert any(k.plan.peak <= choice.plan.peak and k.cycles <= choice.cycles for k in kept)
