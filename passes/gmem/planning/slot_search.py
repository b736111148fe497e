# SPDX-License-Identifier: Apache-2.0
"""Whole slots, planned: which buffers take turns in one slot, so that the slots' sum is least.

Where the runtime cannot add to a pointer, tensors stand at the start of an allocation. Buffers
that are never live together can share one, a slot. This is max-coloring of an interference graph:
a color is a slot, and costs its largest buffer.

- A bound: of each number of buffers that are live at one position, the smallest decides the size of
  a slot. So for each k the k-th largest slot is at least the k-th largest of any such clique.
- The first plan puts buffer by buffer, largest first, into the first slot that takes it.
- Large neighbourhood search: the buffers of a few slots are taken out, and put back one by one, in
  a random order, each into the slot that grows least.

Buffers have one slot each, no pins and no in-place pairs; other pairs are kept apart as asked.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from passes.planning import Budget, Buffer, Plan, Problem, Status
from passes.planning.engine import BlockList, NewMemory
from target_hw.memory import round_up

_MOST_TAKEN = 10  # Slots of which a neighbourhood consists, at most
_ORDERS = (1.0, 0.9, 0.5)  # The least factors that vary sizes, for a random order
_NOISES = (1.0, 0.9)  # The same of what slots would grow by

_OUT = -1  # The slot of a buffer that is in none


def plan_slots(problem: Problem, budget: Budget) -> tuple[Plan, int]:
    """Return a plan in which two buffers share all of a slot or nothing, and a bound of such plans.

    The slots stand in a row; their sum, each rounded up to the alignment, is the peak. The plan is
    called optimal where it is at the bound.
    """
    unit = problem.memory.alignment
    # Largest first; among equals, what lives longest has the fewest slots to go to.
    buffers = sorted(
        (b for b in problem.buffers if b.size),
        key=lambda b: (-round_up(b.size, unit), -sum(e - s for s, e in b.live)),
    )
    sizes = [round_up(buffer.size, unit) for buffer in buffers]
    bound = sum(_largest_slots(sizes, buffers))
    conflicts, rng = _conflicts(problem, buffers), random.Random(0)
    best = _filled([_OUT] * len(buffers), sizes, conflicts, (1.0, 1.0), lambda _least: 1.0)
    nodes = len(buffers)
    while _cost(best, sizes) > bound and nodes < budget.nodes:
        slots = sorted(set(best))
        taken = rng.sample(slots, min(len(slots), rng.randint(2, _MOST_TAKEN)))
        number = {slot: at for at, slot in enumerate(one for one in slots if one not in taken)}
        kept = [number.get(slot, _OUT) for slot in best]
        factors = rng.choice(_ORDERS), rng.choice(_NOISES)
        other = _filled(kept, sizes, conflicts, factors, lambda least: rng.uniform(least, 1))
        best = other if _cost(other, sizes) <= _cost(best, sizes) else best
        nodes += kept.count(_OUT)

    memory = NewMemory(0, unit, problem.memory.reserved)
    starts = {slot: memory.open(size) for slot, size in _slot_sizes(best, sizes).items()}
    offsets = {b.name: (starts[slot],) for b, slot in zip(buffers, best, strict=True)}
    offsets |= {b.name: (0,) for b in problem.buffers if b.name not in offsets}
    peak = max((offsets[b.name][0] + b.size for b in problem.buffers), default=0)
    status = Status.OPTIMAL if _cost(best, sizes) == bound else Status.FEASIBLE
    if problem.capacity is not None and peak > problem.capacity:
        status = Status.NOT_FOUND
    return Plan(offsets, peak, 0, "slots", status, nodes), bound


def _slot_sizes(slot_of: Sequence[int], sizes: Sequence[int]) -> dict[int, int]:
    """Return the bytes of each slot, in the order of their largest buffers."""
    largest: dict[int, int] = {}
    for slot, size in zip(slot_of, sizes, strict=True):
        largest.setdefault(slot, size)  # The sizes descend.
    return largest


def _cost(slot_of: Sequence[int], sizes: Sequence[int]) -> int:
    """Return the bytes of all slots together."""
    return sum(_slot_sizes(slot_of, sizes).values())


def _largest_slots(sizes: Sequence[int], buffers: Sequence[Buffer]) -> list[int]:
    """Return for each k a lower bound of the bytes of the k-th largest slot, largest first."""
    begins: dict[int, list[int]] = {}
    ends: dict[int, list[int]] = {}
    for item, buffer in enumerate(buffers):
        for begin, end in buffer.live:
            begins.setdefault(begin, []).append(item)
            ends.setdefault(end, []).append(item)
    least: list[int] = []
    live: set[int] = set()
    for position in sorted({*begins, *ends}):
        live.difference_update(ends.get(position, ()))
        live.update(begins.get(position, ()))
        if position in begins:
            there = sorted((sizes[item] for item in live), reverse=True)
            least += [0] * (len(there) - len(least))
            least[: len(there)] = map(max, least, there)
    return least


def _filled(
    slot_of: Sequence[int],
    sizes: Sequence[int],
    conflicts: Sequence[int],
    factors: tuple[float, float],
    vary: Callable[[float], float],
) -> list[int]:
    """Put each buffer that is in no slot where a slot grows least, the larger ones first.

    `vary` returns a number from a least one, of `factors`, to 1; the first is for sizes, which give
    the order, the other for what a slot would grow by.
    """
    order, noise = factors
    result = list(slot_of)
    count = max(slot_of, default=_OUT) + 1
    members, largest = [0] * count, [0] * count  # Of each slot its buffers, as bits, and its bytes
    for item, slot in enumerate(result):
        if slot != _OUT:
            members[slot] |= 1 << item
            largest[slot] = max(largest[slot], sizes[item])
    out = [item for item, slot in enumerate(result) if slot == _OUT]
    for item in sorted(out, key=lambda item: -sizes[item] * vary(order)):
        if not members or members[-1]:  # The last slot is a new one.
            members.append(0)
            largest.append(0)
        _, _, slot = min(
            (max(sizes[item] - largest[slot], 0) * vary(noise), vary(0), slot)
            for slot, inside in enumerate(members)
            if not inside & conflicts[item]
        )
        members[slot] |= 1 << item
        largest[slot] = max(largest[slot], sizes[item])
        result[item] = slot
    return result


def _conflicts(problem: Problem, buffers: Sequence[Buffer]) -> list[int]:
    """Return for each buffer, as bits, those that may not be in one slot with it."""
    item = {problem.index[buffer.name]: number for number, buffer in enumerate(buffers)}
    interference = BlockList(problem).interference
    return [sum(1 << item[other] for other in interference[block].tolist()) for block in item]
