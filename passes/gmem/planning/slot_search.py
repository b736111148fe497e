# SPDX-License-Identifier: Apache-2.0
"""Whole slots, planned: which buffers take turns in one slot, so that the slots' sum is least.

Where the run time cannot add to a pointer, a tensor stands at the start of an allocation of its
own. Buffers that are never live together can share one, a slot; it is as large as its largest
buffer. This is max-coloring of an interference graph: a color is a slot, and costs its largest
buffer.

- A bound: of each number of buffers that are live at one position, the smallest decides the size of
  a slot. So for each k the k-th largest slot is at least the k-th largest of any such clique.
- Branch and bound visits the buffers by size, largest first; then a buffer either joins a slot that
  is open, for nothing, or opens one of its own size. What is open already are the largest slots, so
  the bound for the others is known.
- Large neighbourhood search, where that does not end: the buffers of a few slots are taken out, and
  put back one by one, in a random order, each into the slot that grows least.

Buffers have one slot each, no pins and no in-place pairs; other pairs are kept apart as asked.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from passes.planning import Budget, Buffer, Plan, Problem, Status
from passes.planning.engine import BlockList, NewMemory
from target_hw.memory import round_up

_SHARE = 8  # One part in so many of the nodes goes to branch and bound
_MOST_TAKEN = 10  # Slots of which a neighbourhood consists, at most
_ORDERS = (1.0, 0.9, 0.5)  # What sizes are at most multiplied down to in a random order
_NOISES = (1.0, 0.9)  # The same of what slots would grow by


def plan_slots(problem: Problem, budget: Budget) -> tuple[Plan, int]:
    """Return a plan in which two buffers share all of a slot or nothing, and a bound of such plans.

    The slots stand in a row; their sum, each rounded up to the alignment, is the peak. The plan is
    called optimal where no plan in whole slots is lower.
    """
    search = _Search(problem, budget.nodes)
    slot_of, bound = search.run()
    sizes = search.slot_sizes(slot_of)
    memory = NewMemory(0, problem.memory.alignment, problem.memory.reserved)
    starts = {slot: memory.open(size) for slot, size in sizes.items()}
    offsets = {b.name: (starts[slot_of[item]],) for item, b in enumerate(search.buffers)}
    offsets |= {b.name: (0,) for b in problem.buffers if b.name not in offsets}
    peak = max((offsets[b.name][0] + b.size for b in problem.buffers), default=0)
    status = Status.OPTIMAL if sum(sizes.values()) == bound else Status.FEASIBLE
    if problem.capacity is not None and peak > problem.capacity:
        status = Status.NOT_FOUND
    return Plan(offsets, peak, 0, "slots", status, search.nodes), bound


def _largest_slots(sizes: Sequence[int], buffers: Sequence[Buffer]) -> list[int]:
    """Return for each k what the k-th largest slot has at least, in bytes, largest first."""
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


class _Search:
    def __init__(self, problem: Problem, nodes: int) -> None:
        unit = problem.memory.alignment
        known = [b for b in problem.buffers if b.size]
        # Largest first; among equals, what lives longest has the fewest slots to go to.
        self.buffers = sorted(
            known, key=lambda b: (-round_up(b.size, unit), -sum(e - s for s, e in b.live))
        )
        self.sizes = [round_up(b.size, unit) for b in self.buffers]
        self.least = _largest_slots(self.sizes, self.buffers)
        self.nodes = 0
        self._most_nodes = nodes
        self._conflicts = _conflicts(problem, self.buffers)

    def run(self) -> tuple[list[int], int]:
        """Return the slot of each buffer, and the bytes that no such plan is below."""
        best, all_tried = self._branch_and_bound(self._most_nodes // _SHARE)
        bound = self.cost(best) if all_tried else sum(self.least)
        rng = random.Random(0)
        while self.cost(best) > bound and self.nodes < self._most_nodes:
            other = self._inserted_again(best, rng)
            best = other if self.cost(other) <= self.cost(best) else best
        return best, bound

    def slot_sizes(self, slot_of: Sequence[int]) -> dict[int, int]:
        """Return the bytes of each slot, in the order of their largest buffers."""
        largest: dict[int, int] = {}
        for slot, size in zip(slot_of, self.sizes, strict=True):
            largest.setdefault(slot, size)  # The sizes descend.
        return largest

    def cost(self, slot_of: Sequence[int]) -> int:
        """Return the bytes of all slots together."""
        return sum(self.slot_sizes(slot_of).values())

    def _branch_and_bound(self, limit: int) -> tuple[list[int], bool]:
        """Return the slot of each buffer, and whether all was tried.

        Depth first: a buffer joins the first slot that takes it, or opens one. Something is found
        however low the limit is.
        """
        members: list[int] = []  # Of each slot its buffers, as bits
        slot_of: list[int] = []  # Of the buffers put so far
        best: list[int] = []
        paid, best_cost = 0, 1 << 62
        options = [self._options(0, members)] if self.buffers else []
        while options:
            if self.nodes >= limit and best:
                return best, False
            is_open = False
            if options[-1]:
                self.nodes += 1
                item, slot = len(slot_of), options[-1].pop()
                if slot == len(members):
                    members.append(0)
                    paid += self.sizes[item]
                members[slot] |= 1 << item
                slot_of.append(slot)
                is_open = paid + sum(self.least[len(members) :]) < best_cost
                if is_open and len(slot_of) == len(self.buffers):
                    best, best_cost, is_open = [*slot_of], paid, False
            else:
                options.pop()
            if is_open:
                options.append(self._options(len(slot_of), members))
            elif slot_of:
                slot, item = slot_of.pop(), len(slot_of)
                members[slot] &= ~(1 << item)
                if not members[slot]:
                    members.pop()
                    paid -= self.sizes[item]
        return best, True

    def _options(self, item: int, members: Sequence[int]) -> list[int]:
        """Return the slots that a buffer may go to, the first to be tried last."""
        conflicts = self._conflicts[item]
        free = [slot for slot, inside in enumerate(members) if not inside & conflicts]
        return [len(members), *reversed(free)]

    def _inserted_again(self, slot_of: Sequence[int], rng: random.Random) -> list[int]:
        """Take the buffers of a few slots out; put each where a slot grows least, with noise."""
        slots = sorted(set(slot_of))
        taken = rng.sample(slots, min(len(slots), rng.randint(2, _MOST_TAKEN)))
        kept = [slot for slot in slots if slot not in taken]
        number = {slot: at for at, slot in enumerate(kept)}
        result = [number.get(slot, -1) for slot in slot_of]
        members, largest = [0] * len(kept), [0] * len(kept)
        for item, slot in enumerate(result):
            if slot >= 0:
                members[slot] |= 1 << item
                largest[slot] = max(largest[slot], self.sizes[item])
        out = [item for item, slot in enumerate(result) if slot < 0]
        order, noise = rng.choice(_ORDERS), rng.choice(_NOISES)
        for item in sorted(out, key=lambda item: -self.sizes[item] * rng.uniform(order, 1)):
            size, conflicts = self.sizes[item], self._conflicts[item]
            if not members or members[-1]:  # The last slot is a new one.
                members.append(0)
                largest.append(0)
            _, _, slot = min(
                (max(size - largest[slot], 0) * rng.uniform(noise, 1), rng.random(), slot)
                for slot, inside in enumerate(members)
                if not inside & conflicts
            )
            members[slot] |= 1 << item
            largest[slot] = max(largest[slot], size)
            result[item] = slot
        self.nodes += len(out)
        return result


def _conflicts(problem: Problem, buffers: Sequence[Buffer]) -> list[int]:
    """Return for each buffer, as bits, those that may not be in one slot with it."""
    item = {problem.index[buffer.name]: number for number, buffer in enumerate(buffers)}
    interference = BlockList(problem).interference
    return [sum(1 << item[other] for other in interference[block].tolist()) for block in item]
