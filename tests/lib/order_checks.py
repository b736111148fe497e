# SPDX-License-Identifier: Apache-2.0
"""Whether an order of operators is right; shares nothing with the search."""

from __future__ import annotations

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
