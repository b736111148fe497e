# SPDX-License-Identifier: Apache-2.0
"""Operators that may be reordered, what they keep in memory, and what an order of them takes.

The search reads sets of operators as the bits of integers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate


@dataclass(frozen=True)
class LiveBytes:
    """Bytes that live from the first operator that touches them to the last one."""

    size: int  # Bytes, padded to the alignment
    touched_by: tuple[int, ...]  # Operators that write or read it, sorted
    begun: bool = False  # Whether it lives when the first operator begins
    kept: bool = False  # Whether it lives when the last operator has ended


@dataclass(frozen=True)
class OrderProblem:
    """A graph of operators to run one after the other; they are numbered as they are written."""

    # For each operator, those that have to run before it; lower numbers, sorted.
    before: tuple[tuple[int, ...], ...]
    tensors: tuple[LiveBytes, ...]
    base: int = 0  # Bytes that live all the time
    floor: int = 0  # Bytes that are reached elsewhere: no order has a lower peak

    def __post_init__(self) -> None:
        count = len(self.before)
        for number, earlier in enumerate(self.before):
            if any(not 0 <= other < number for other in earlier):
                raise ValueError(f"operator {number} waits for one that is not written before it")
        for tensor in self.tensors:
            if tensor.size < 0 or any(not 0 <= one < count for one in tensor.touched_by):
                raise ValueError(f"{tensor} is of no size, or touched by no operator of the graph")


def mirrored(problem: OrderProblem) -> OrderProblem:
    """Return the problem of the orders read backwards, which have the same peaks."""
    last = len(problem.before) - 1
    behind: list[list[int]] = [[] for _ in problem.before]
    for number, earlier in enumerate(problem.before):
        for other in earlier:
            behind[last - other].append(last - number)
    tensors = tuple(
        LiveBytes(t.size, tuple(last - one for one in reversed(t.touched_by)), t.kept, t.begun)
        for t in problem.tensors
    )
    before = tuple(tuple(sorted(others)) for others in behind)
    return OrderProblem(before, tensors, problem.base, problem.floor)


def window_of(problem: OrderProblem, order: Sequence[int], begin: int, end: int) -> OrderProblem:
    """Return the problem of reordering a window of an order, numbered as the window is written."""
    members = sorted(order[begin:end])
    number = {operator: at for at, operator in enumerate(members)}
    ran = set(order[:begin])
    tensors, base = [], problem.base
    for tensor in problem.tensors:
        inside = tuple(number[one] for one in tensor.touched_by if one in number)
        begun = tensor.begun or any(one in ran for one in tensor.touched_by)
        kept = tensor.kept or any(one not in ran and one not in number for one in tensor.touched_by)
        if inside:
            tensors.append(LiveBytes(tensor.size, inside, begun, kept))
        elif begun and kept:
            base += tensor.size
    before = tuple(
        tuple(number[one] for one in problem.before[operator] if one in number)
        for operator in members
    )
    return OrderProblem(before, tuple(tensors), base, problem.floor)


@dataclass(frozen=True)
class FoundOrder:
    """An order of all operators, with what is known of it."""

    order: tuple[int, ...]
    peak: int  # Most bytes that live at once
    bound: int  # Bytes that no order has less than
    needs: int | None = None  # An operator that needs the bound by itself, where one does
    nodes: int = 0  # Steps that the search tried

    @property
    def optimal(self) -> bool:
        """Whether no order has a lower peak."""
        return self.peak <= self.bound


def live_bytes(problem: OrderProblem, order: Sequence[int]) -> list[int]:
    """Return the bytes that live while each operator of an order runs."""
    at = {operator: position for position, operator in enumerate(order)}
    steps = [0] * (len(order) + 1)
    for tensor in problem.tensors:
        touched = [at[operator] for operator in tensor.touched_by]
        first = 0 if tensor.begun else min(touched, default=len(order))
        end = len(order) if tensor.kept else max(touched, default=-1) + 1
        if first < end:
            steps[first] += tensor.size
            steps[end] -= tensor.size
    return [problem.base + live for live in accumulate(steps[:-1])]


def peak_of(problem: OrderProblem, order: Sequence[int]) -> int:
    """Return the most bytes that live at once in an order, at least the floor."""
    return max(problem.floor, problem.base, *live_bytes(problem, order))


# --------------------------------------------------------------------- as the search reads it

Touch = tuple[int, int, bool, bool]
"""The operators that touch a tensor, its bytes, and whether it is begun before or kept after."""


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
    """The facts that the search reads of a problem, by operator."""

    problem: OrderProblem
    above: tuple[int, ...]  # All that have to run before it
    below: tuple[int, ...]  # All that have to run after it
    touches: tuple[tuple[Touch, ...], ...]
    # Operators that free nothing and whose results wait: they are best run right before the first
    # operator that needs them, so the search runs them with it.
    late: int
    brings: tuple[tuple[int, ...], ...]  # The late operators that it needs, in their order
    waits_for: tuple[int, ...]  # The others that have to run before it and what it brings
    wakes: tuple[tuple[int, ...], ...]  # Operators that it may make ready or let free more


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
    """Return whether an operator begins all that it touches, and has nothing that ends with it."""
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
