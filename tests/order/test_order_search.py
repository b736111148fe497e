# SPDX-License-Identifier: Apache-2.0
"""The search for an order, held against all orders of small graphs."""

from __future__ import annotations

from random import Random

import pytest
from order_checks import (
    branches,
    least_peak,
    orders,
    random_problem,
    replayed_peak,
    verify_order,
)
from sweeps import sample

from passes.order.planning import order_search
from passes.order.planning.operator_graph import (
    FoundOrder,
    LiveBytes,
    OrderProblem,
    facts_of,
    least_live,
    peak_of,
)
from passes.order.planning.order_search import find_order
from passes.planning import Budget


def check_against_all_orders(problem: OrderProblem) -> None:
    least, written = least_peak(problem), tuple(range(len(problem.before)))
    found = find_order(problem)
    assert verify_order(problem, found) == ()
    assert (found.peak, found.optimal) == (least, True)
    assert replayed_peak(problem, found.order) == least
    assert max(least_live(facts_of(problem))) <= least
    if least < replayed_peak(problem, written):
        for nodes in (0, 5):
            hasty = find_order(problem, Budget(nodes))
            assert verify_order(problem, hasty) == ()
            assert hasty.bound <= least <= hasty.peak <= replayed_peak(problem, written)
    else:
        assert found.order == written


@pytest.mark.parametrize("count", sample((150, 4000), 150))
def test_no_order_of_a_graph_is_lower(count: int):
    random = Random(count)
    for _ in range(count):
        check_against_all_orders(random_problem(random, 8 if count == 150 else 10))


def test_a_long_order_is_repaired_window_by_window(monkeypatch: pytest.MonkeyPatch):
    random = Random(23)
    monkeypatch.setattr(order_search, "WINDOW", 4)
    for _ in range(60):
        check_against_all_orders(random_problem(random, 8))
    monkeypatch.undo()
    problem = branches(400)
    found = find_order(problem, Budget(8_000))
    assert verify_order(problem, found) == ()
    assert found.peak < peak_of(problem, range(len(problem.before)))
    assert find_order(problem, Budget(8_000)) == found


def test_the_oracle_tries_all_orders():
    random = Random(22)
    for _ in range(20):
        problem = random_problem(random, 6)
        assert least_peak(problem) == min(replayed_peak(problem, o) for o in orders(problem))


def chain_of_diamonds(count: int) -> OrderProblem:
    """Make diamonds one behind the other; the branch that grows is written before the other."""
    before: list[tuple[int, ...]] = [()]
    tensors = []
    for top in range(0, 5 * count, 5):
        large, small, reduced, joined = top + 1, top + 2, top + 3, top + 5
        before += [(top,), (top,), (small,), (large, reduced), (top + 4,)]
        tensors += [
            LiveBytes(4, (top, large, small)),
            LiveBytes(2, (large, top + 4)),
            LiveBytes(8, (small, reduced)),
            LiveBytes(1, (reduced, top + 4)),
            LiveBytes(4, (top + 4, joined)),
        ]
    return OrderProblem(tuple(before), tuple(tensors))


def test_parts_are_searched_one_by_one():
    problem = chain_of_diamonds(40)
    found = find_order(problem, Budget(5_000))
    assert verify_order(problem, found) == ()
    assert (peak_of(problem, range(201)), found.peak, found.optimal) == (14, 13, True)


def test_an_order_that_cannot_be_lower_stays():
    problem = chain_of_diamonds(3)
    held = OrderProblem(problem.before, problem.tensors, 0, floor=14)
    found = find_order(held)
    assert (found.order, found.nodes, found.optimal) == (tuple(range(16)), 0, True)


def test_operators_that_are_ready_at_once_do_not_defeat_the_search():
    # Each of 300 operators in a row needs a copy that is written before all of them.
    count = 300
    before = tuple(() for _ in range(count)) + tuple(
        (at, count + at - 1) if at else (0,) for at in range(count)
    )
    copies = [LiveBytes(100 + at % 7, (at, count + at)) for at in range(count)]
    row = [LiveBytes(10, (count + at, count + at + 1)) for at in range(count - 1)]
    problem = OrderProblem(before, (*copies, *row))
    found = find_order(problem)
    assert verify_order(problem, found) == ()
    assert (found.peak, found.optimal) == (126, True)


def test_what_is_no_order_is_told():
    problem = chain_of_diamonds(1)
    found = find_order(problem)
    for order, bound in (
        (found.order[::-1], found.bound),
        (found.order[1:], found.bound),
        (tuple(range(6)), found.bound),
        (found.order, found.peak + 1),
    ):
        wrong = FoundOrder(order, found.peak, bound)
        assert verify_order(problem, wrong)
    for before, tensors in (
        (((1,), ()), ()),
        (((), (1,)), ()),
        (((),), (LiveBytes(1, (1,)),)),
        (((),), (LiveBytes(-1, (0,)),)),
    ):
        with pytest.raises(ValueError, match=r"written before|touched by"):
            OrderProblem(before, tensors)
