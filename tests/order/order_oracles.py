# SPDX-License-Identifier: Apache-2.0
"""Graphs of operators at random, and what every order of one takes."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import strategies as st

from passes.order.planning.graph import OrderProblem, Tensor


def orders(problem: OrderProblem, ran: tuple[int, ...] = ()) -> Iterator[tuple[int, ...]]:
    """Yield every order that the graph allows."""
    if len(ran) == len(problem.before):
        yield ran
    for operator, earlier in enumerate(problem.before):
        if operator not in ran and set(earlier) <= set(ran):
            yield from orders(problem, (*ran, operator))


def replayed_peak(problem: OrderProblem, order: tuple[int, ...]) -> int:
    """Run an order with one set of tensors that live, and return the most bytes of it."""
    peak = max(problem.base, problem.floor)
    live = {index for index, tensor in enumerate(problem.tensors) if tensor.begun}
    for position, operator in enumerate(order):
        touched = {i for i, tensor in enumerate(problem.tensors) if operator in tensor.touched_by}
        live |= touched
        peak = max(peak, problem.base + sum(problem.tensors[index].size for index in live))
        rest = set(order[position + 1 :])
        live = {
            index
            for index in live
            if problem.tensors[index].kept or rest & set(problem.tensors[index].touched_by)
        }
    return peak


def least_peak(problem: OrderProblem) -> int:
    """Return the lowest peak over all orders."""
    return min(replayed_peak(problem, order) for order in orders(problem))


@st.composite
def problems(draw: st.DrawFn, most: int = 8) -> OrderProblem:
    """Draw a graph: each operator makes tensors that some later ones read, or keeps others."""
    count = draw(st.integers(1, most))
    before: list[set[int]] = [set() for _ in range(count)]
    tensors = []
    for operator in range(count):
        for _ in range(draw(st.integers(0, 2))):
            later = range(operator + 1, count)
            readers = draw(st.sets(st.sampled_from(later), max_size=3)) if later else set()
            size = draw(st.sampled_from((0, 1, 1, 2, 3, 5, 8)))
            kept = draw(st.integers(0, 5)) == 0
            tensors.append(Tensor(size, (operator, *sorted(readers)), False, kept))
            for reader in readers:
                before[reader].add(operator)
        if operator and draw(st.integers(0, 3)) == 0:
            before[operator].add(draw(st.integers(0, operator - 1)))
    for _ in range(draw(st.integers(0, 2))):
        touched = draw(st.sets(st.integers(0, count - 1), min_size=1, max_size=3))
        flags = draw(st.sampled_from(((True, False), (True, True), (False, False), (False, True))))
        tensors.append(Tensor(draw(st.integers(0, 4)), tuple(sorted(touched)), *flags))
    base = draw(st.sampled_from((0, 0, 2)))
    floor = draw(st.sampled_from((0, 0, 0, 6)))
    earlier = tuple(tuple(sorted(one)) for one in before)
    return OrderProblem(earlier, tuple(tensors), base, floor)
