# SPDX-License-Identifier: Apache-2.0
"""Whether an order of operators is right, and what every order of a graph takes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from random import Random

from passes.order.planning.operator_graph import FoundOrder, LiveBytes, OrderProblem, peak_of


def verify_order(problem: OrderProblem, found: FoundOrder) -> tuple[str, ...]:
    """Return what is wrong with an order."""
    faults = []
    if sorted(found.order) != list(range(len(problem.before))):
        return ("it is no order of all operators",)
    at = {operator: position for position, operator in enumerate(found.order)}
    for operator, earlier in enumerate(problem.before):
        faults += [
            f"operator {operator} runs before {other}, which it waits for"
            for other in earlier
            if at[other] > at[operator]
        ]
    peak = peak_of(problem, found.order)
    if peak != found.peak:
        faults.append(f"its peak is {peak}, not {found.peak}")
    if found.bound > found.peak:
        faults.append(f"its bound, {found.bound}, is above its peak")
    return tuple(faults)


def branches(count: int, seed: int = 0) -> OrderProblem:
    """Return a random graph of about so many operators: cells of branches, one behind the other."""
    random = Random(seed)
    before: list[tuple[int, ...]] = [()]
    tensors: list[tuple[int, list[int]]] = [(8, [0])]
    ends = [0]
    while len(before) < count:
        made = []
        for _ in range(random.randint(2, 6)):
            at = random.choice(ends)
            for _ in range(random.randint(1, 4)):
                before.append((at,))
                tensors[at][1].append(len(before) - 1)
                at = len(before) - 1
                tensors.append((random.randint(1, 16), [at]))
            made.append(at)
        before.append(tuple(sorted(made)))
        for at in made:
            tensors[at][1].append(len(before) - 1)
        tensors.append((8, [len(before) - 1]))
        ends = [ends[-1], len(before) - 1]
    return OrderProblem(
        tuple(before), tuple(LiveBytes(64 * size, tuple(touched)) for size, touched in tensors)
    )


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
