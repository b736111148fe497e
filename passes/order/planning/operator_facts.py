# SPDX-License-Identifier: Apache-2.0
"""A graph of operators as the search reads it: sets of operators are the bits of integers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from passes.order.planning.operator_graph import LiveBytes, OrderProblem

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


def network_of(problem: OrderProblem) -> OperatorFacts:
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


def least_live(network: OperatorFacts) -> list[int]:
    """Return for each operator bytes that live while it runs, in any order.

    They are its operands and results, and the tensors that an ancestor and a descendant touch.
    """
    problem = network.problem
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
            behind |= network.below[operator]
            before |= network.above[operator]
        for operator in bits((behind & before) | as_set(tensor.touched_by)):
            least[operator] += tensor.size
    return [always + live for live in least]


def parts_of(network: OperatorFacts, order: Sequence[int]) -> list[tuple[int, ...]]:
    """Cut an order where every order has to pass: behind an operator that all others wait for.

    Late operators move to the first operator that needs them; what they leave is the order that is
    cut.
    """
    everything = (1 << len(order)) - 1
    moved: dict[int, None] = {}
    parts: list[tuple[int, ...]] = []
    begin = 0
    for operator in order:
        if network.late >> operator & 1:
            continue
        moved |= dict.fromkeys((*network.brings[operator], operator))
        related = network.above[operator] | network.below[operator] | 1 << operator
        if related | network.late == everything or len(moved) == len(order):
            parts.append(tuple(moved)[begin:])
            begin = len(moved)
    return parts


def part_problems(
    problem: OrderProblem, parts: Sequence[tuple[int, ...]]
) -> list[tuple[tuple[int, ...], OrderProblem]]:
    """Return each part with the problem of ordering it; its operators are numbered as written."""
    part_of = {operator: index for index, part in enumerate(parts) for operator in part}
    members = [tuple(sorted(part)) for part in parts]
    number = {operator: at for part in members for at, operator in enumerate(part)}
    tensors: list[list[LiveBytes]] = [[] for _ in parts]
    base = [problem.base] * len(parts)
    for tensor in problem.tensors:
        touched: dict[int, list[int]] = {}
        for operator in tensor.touched_by:
            touched.setdefault(part_of[operator], []).append(number[operator])
        first = 0 if tensor.begun else min(touched, default=len(parts))
        last = len(parts) - 1 if tensor.kept else max(touched, default=-1)
        for index in range(first, last + 1):
            if index not in touched:
                base[index] += tensor.size
                continue
            inside = tuple(touched[index])
            begun, kept = tensor.begun or index > first, tensor.kept or index < last
            tensors[index].append(LiveBytes(tensor.size, inside, begun, kept))
    problems = []
    for index, part in enumerate(members):
        before = tuple(
            tuple(number[one] for one in problem.before[operator] if part_of[one] == index)
            for operator in part
        )
        problems.append(
            (parts[index], OrderProblem(before, tuple(tensors[index]), base[index], problem.floor))
        )
    return problems
