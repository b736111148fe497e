# SPDX-License-Identifier: Apache-2.0
"""Whether an order of operators is right; shares nothing with the search."""

from __future__ import annotations

from passes.order.planning.operator_graph import FoundOrder, OrderProblem, peak_of


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
