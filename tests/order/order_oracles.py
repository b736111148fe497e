# SPDX-License-Identifier: Apache-2.0
"""Graphs of operators at random, and what every order of one takes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from random import Random

from passes.order.planning.operator_graph import LiveBytes, OrderProblem


def orders(problem: OrderProblem, ran: tuple[int, ...] = ()) -> Iterator[tuple[int, ...]]:
    """Yield every order that the graph allows."""
    if len(ran) == len(problem.before):
        yield ran
    for operator, earlier in enumerate(problem.before):
        if operator not in ran and set(earlier) <= set(ran):
            yield from orders(problem, (*ran, operator))


def bytes_during(problem: OrderProblem, ran: frozenset[int], operator: int) -> int:
    """Return what lives while an operator runs behind some others."""
    everything = set(range(len(problem.before)))
    live = problem.base
    for tensor in problem.tensors:
        touched = set(tensor.touched_by)
        begun = tensor.begun or touched & ran or operator in touched
        wanted = tensor.kept or touched & (everything - ran)
        live += tensor.size if begun and wanted else 0
    return live


def replayed_peak(problem: OrderProblem, order: tuple[int, ...]) -> int:
    """Run an order, and return the most bytes that live."""
    live = [bytes_during(problem, frozenset(order[:at]), one) for at, one in enumerate(order)]
    return max(problem.base, problem.floor, *live)


def least_peak(problem: OrderProblem) -> int:
    """Return the lowest peak over all orders."""
    count = len(problem.before)

    @cache
    def least_behind(ran: frozenset[int]) -> int:
        if len(ran) == count:
            return 0
        return min(
            max(bytes_during(problem, ran, one), least_behind(ran | {one}))
            for one in range(count)
            if one not in ran and set(problem.before[one]) <= ran
        )

    return max(problem.base, problem.floor, least_behind(frozenset()))


def random_problem(random: Random, most: int) -> OrderProblem:
    """Make a graph: operators write tensors that some later ones read, or that are kept."""
    count = random.randint(1, most)
    before: list[set[int]] = [set() for _ in range(count)]
    tensors = []
    ordered_too = random.random() < 0.3
    for operator in range(count):
        for _ in range(random.choice((1, 1, 1, 2))):
            later = list(range(operator + 1, min(count, operator + random.choice((3, 6, most)))))
            readers = random.sample(later, min(len(later), random.choice((0, 1, 1, 2))))
            kept = random.random() < 0.1
            size = random.choice((0, 1, 2, 3, 5, 8, 13))
            tensors.append(LiveBytes(size, (operator, *sorted(readers)), False, kept))
            for reader in readers:
                before[reader].add(operator)
        if operator and ordered_too and random.random() < 0.3:
            before[operator].add(random.randrange(operator))
    for _ in range(random.choice((0, 0, 1, 3))):
        touched = random.sample(range(count), random.randint(1, min(3, count)))
        begun, kept = random.choice(((True, False), (True, False), (True, True), (False, False)))
        tensors.append(LiveBytes(random.randint(0, 9), tuple(sorted(touched)), begun, kept))
    base, floor = random.choice((0, 0, 2)), random.choice((0, 0, 0, 12))
    return OrderProblem(
        tuple(tuple(sorted(earlier)) for earlier in before), tuple(tensors), base, floor
    )
