# SPDX-License-Identifier: Apache-2.0
"""Operators that may be reordered, what they keep in memory, and what an order of them takes."""

from __future__ import annotations

from collections.abc import Sequence
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
