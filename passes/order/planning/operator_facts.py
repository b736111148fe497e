# SPDX-License-Identifier: Apache-2.0
"""A graph of operators as the search reads it: sets of operators are the bits of integers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from passes.order.planning.operator_graph import OrderProblem

Touch = tuple[int, int, bool, bool]
"""The operators that touch a tensor, its bytes, and whether it is begun before or kept behind."""


def bits(members: int) -> Iterator[int]:
    """Yield the members of a set, the lowest first."""
    while members:
        low = members & -members
        yield low.bit_length() - 1
        members ^= low


def as_set(members: Iterable[int]) -> int:
    """Return numbers as the bits of one integer."""
    result = 0
    for member in members:
        result |= 1 << member
    return result


@dataclass(frozen=True, eq=False)
class OperatorFacts:
    """What the search asks of a problem, by operator."""

    problem: OrderProblem
    above: tuple[int, ...]  # All that have to run before it
    below: tuple[int, ...]  # All that have to run behind it
    touches: tuple[tuple[Touch, ...], ...]
    # Operators that free nothing and whose results wait: they are best run right before the first
    # operator that needs them, so the search runs them with it.
    late: int
    brings: tuple[tuple[int, ...], ...]  # The late ones that it needs, in their order
    waits_for: tuple[int, ...]  # The others that have to run before it and what it brings
    wakes: tuple[tuple[int, ...], ...]  # Those, none late, that may be ready or free more behind it


def facts_of(problem: OrderProblem) -> OperatorFacts:
    """Return a problem as the search reads it."""
    count = len(problem.before)
    above, below = [0] * count, [0] * count
    for number, earlier in enumerate(problem.before):
        for other in earlier:
            above[number] |= above[other] | 1 << other
    for number in reversed(range(count)):
        for other in problem.before[number]:
            below[other] |= below[number] | 1 << number
    touches: list[list[Touch]] = [[] for _ in range(count)]
    for tensor in problem.tensors:
        if tensor.size and not (tensor.begun and tensor.kept):
            touch = as_set(tensor.touched_by), tensor.size, tensor.begun, tensor.kept
            for operator in tensor.touched_by:
                touches[operator].append(touch)
    late = as_set(n for n in range(count) if below[n] and _is_late(n, touches[n], below[n]))
    brings: list[tuple[int, ...]] = []
    waits_for: list[int] = []
    wakes: list[set[int]] = [set() for _ in range(count)]
    for number, earlier in enumerate(problem.before):
        needed, others = 0, 0
        for other in earlier:
            if late >> other & 1:
                needed |= 1 << other | as_set(brings[other])
                others |= waits_for[other]
            else:
                others |= 1 << other
        brings.append(tuple(bits(needed)))
        waits_for.append(others)
        if not late >> number & 1:
            for other in bits(others):
                wakes[other].add(number)
    for number in range(count):
        for members, _, _, kept in touches[number]:
            if not kept:
                wakes[number].update(bits(members & ~late & ~above[number]))
        wakes[number].discard(number)
    return OperatorFacts(
        problem,
        tuple(above),
        tuple(below),
        tuple(map(tuple, touches)),
        late,
        tuple(brings),
        tuple(waits_for),
        tuple(tuple(sorted(behind)) for behind in wakes),
    )


def _is_late(number: int, touches: Sequence[Touch], below: int) -> bool:
    """Whether an operator begins all that it touches, and has nothing that ends with it."""
    alone = 1 << number
    return bool(touches) and all(
        not members & ~(below | alone) and (kept or members != alone)
        for members, _, _, kept in touches
    )


def least_live(facts: OperatorFacts) -> list[int]:
    """Return for each operator bytes that live while it runs, in any order.

    They are its operands and results, and the tensors that an ancestor and a descendant touch.
    """
    problem = facts.problem
    always = problem.base
    least = [0] * len(problem.before)
    everything = (1 << len(least)) - 1
    for tensor in problem.tensors:
        if tensor.begun and tensor.kept:
            always += tensor.size
            continue
        behind = everything if tensor.begun else 0
        before = everything if tensor.kept else 0
        for operator in tensor.touched_by:
            behind |= facts.below[operator]
            before |= facts.above[operator]
        for operator in bits((behind & before) | as_set(tensor.touched_by)):
            least[operator] += tensor.size
    return [always + live for live in least]


def late_moved(facts: OperatorFacts) -> tuple[int, ...]:
    """Return the written order with each late operator moved to the first one that needs it."""
    order: dict[int, None] = {}
    for operator, brings in enumerate(facts.brings):
        if not facts.late >> operator & 1:
            order |= dict.fromkeys((*brings, operator))
    return tuple(order)
