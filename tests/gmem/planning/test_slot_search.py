# SPDX-License-Identifier: Apache-2.0
"""The planner of whole slots: right, and as low as brute force finds; its bound is one."""

from __future__ import annotations

from itertools import combinations
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from planning_oracles import parts

from passes.gmem.planning.slot_search import plan_slots
from passes.planning import Budget, Buffer, Plan, Problem, Status, verify
from target_hw.memory import MemoryScope


def least_in_slots(problem: Problem) -> int:
    """Return the least that any partition into slots takes, by trying all of them."""
    buffers = list(problem.buffers)
    apart = {
        frozenset((a.name, b.name))
        for a, b in combinations(buffers, 2)
        if any(max(s, t) < min(e, f) for s, e in a.live for t, f in b.live)
    }
    apart |= {frozenset(pair) for pair in problem.separations}
    best = sum(b.size for b in buffers)

    def put(index: int, slots: list[list[Buffer]]) -> None:
        nonlocal best
        if index == len(buffers):
            best = min(best, sum(max(b.size for b in slot) for slot in slots))
            return
        buffer = buffers[index]
        for slot in slots:
            if all(frozenset((buffer.name, other.name)) not in apart for other in slot):
                slot.append(buffer)
                put(index + 1, slots)
                slot.pop()
        put(index + 1, [*slots, [buffer]])

    put(0, [])
    return best


def small_problems():
    """Problems without what whole slots are not asked for."""
    return st.integers(0, 1 << 32).map(_plain)


def _plain(seed: int) -> Problem:
    buffers, fields = parts(Random(seed), 7, 7, roles="-----s", pins=0)
    plain = (Buffer(b.name, max(b.size, 1), b.live) for b in buffers)
    return Problem(tuple(plain), separations=fields["separations"])


def assert_in_slots(problem: Problem, plan: Plan) -> None:
    assert verify(problem, plan) == ()
    spans = {plan.offsets[b.name][0] for b in problem.buffers}
    for one, other in combinations(problem.buffers, 2):
        (a,), (b,) = plan.offsets[one.name], plan.offsets[other.name]
        assert a == b or a + one.size <= b or b + other.size <= a
    assert len(spans) <= len(problem.buffers)


@given(small_problems())
@settings(max_examples=75, deadline=None)
def test_small_problems_are_solved_and_the_bound_is_one(problem: Problem):
    best = least_in_slots(problem)
    plan, bound = plan_slots(problem, Budget(20_000))
    assert_in_slots(problem, plan)
    assert bound <= best <= plan.peak
    assert (plan.peak == bound) == (plan.status is Status.OPTIMAL)
    assert plan.peak == best


@given(small_problems(), st.integers(0, 12))
@settings(max_examples=50, deadline=None)
def test_a_short_budget_gives_a_plan_and_a_bound(problem: Problem, nodes: int):
    plan, bound = plan_slots(problem, Budget(nodes))
    assert_in_slots(problem, plan)
    assert bound <= least_in_slots(problem) <= plan.peak


def layered(layers: int) -> Problem:
    """Return buffers as a network's layers have them."""
    buffers = []
    for layer in range(layers):
        at = 4 * layer
        for index, (size, begin, end) in enumerate(
            ((9, 0, 2), (7, 0, 3), (4, 1, 4), (12, 2, 4), (5, 3, 6), (3, 3, 9))
        ):
            buffers.append(Buffer(f"l{layer}_{index}", size, ((at + begin, at + end),)))
    return Problem(tuple(buffers))


def test_plans_are_the_same_in_each_run():
    first, second = (plan_slots(layered(9), Budget(3_000)) for _ in range(2))
    assert first == second


def test_reserved_bytes_and_alignment_hold():
    scope = MemoryScope("global", alignment=64, reserved=((64, 128),))
    problem = Problem((Buffer("a", 100, ((0, 2),)), Buffer("b", 10, ((1, 3),))), scope)
    plan = plan_slots(problem, Budget())[0]
    assert_in_slots(problem, plan)
