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
  put back into any slot, by branch and bound first, and later one by one in a random order.

Buffers have one slot each, no pins and no in-place pairs; other pairs are kept apart as asked.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from passes.planning import Budget, Buffer, Plan, Problem, Status
from passes.planning.engine import BlockList, NewMemory
from target_hw.memory import round_up

_SHARE = 8
"""One part in so many of the nodes goes to branch and bound on the whole problem, and two to branch
and bound on neighbourhoods."""

_ROUND_NODES = 2_000  # Nodes of branch and bound on one neighbourhood
_MOST_TAKEN = 6  # Slots of which a neighbourhood consists, at most
_ORDERS = (1.0, 0.7, 0.3)  # What sizes are at most multiplied down to in a random order
_NOISES = (1.0, 0.5)  # The same of what slots would grow by


@dataclass(frozen=True)
class SlotPlan:
    """A plan in whole slots, and what is known of it."""

    plan: Plan  # Slots in a row; optimal where no plan in whole slots is lower
    bound: int  # Bytes that no plan in whole slots does with less than


def plan_slots(problem: Problem, budget: Budget) -> SlotPlan:
    """Return a plan in which two buffers share all of a slot or nothing.

    Its peak is the sum of the slots, each rounded up to the alignment.
    """
    search = _Search(problem, budget.nodes)
    slot_of, bound = search.run()
    sizes: dict[int, int] = {}
    for item, slot in enumerate(slot_of):
        sizes[slot] = max(sizes.get(slot, 0), search.sizes[item])
    scope = problem.memory
    memory = NewMemory(0, scope.alignment, scope.reserved)
    starts = {slot: memory.open(size) for slot, size in sorted(sizes.items())}
    offsets = {b.name: (starts[slot_of[item]],) for item, b in enumerate(search.buffers)}
    offsets |= {b.name: (0,) for b in problem.buffers if b.name not in offsets}
    peak = max((offsets[b.name][0] + b.size for b in problem.buffers), default=0)
    status = Status.OPTIMAL if sum(sizes.values()) == bound else Status.FEASIBLE
    if problem.capacity is not None and peak > problem.capacity:
        status = Status.NOT_FOUND
    return SlotPlan(Plan(offsets, peak, 0, "slots", status, search.nodes), bound)


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
        everything = range(len(self.buffers))
        share = self._most_nodes // _SHARE
        best, all_tried = self._pack({}, everything, limit=share)
        bound = self.cost(best) if all_tried else sum(self.least)
        rng = random.Random(0)
        while self.cost(best) > bound and self.nodes < self._most_nodes:
            best = self._improved(best, rng, exact=self.nodes < 3 * share)
        slots = {slot: number for number, slot in enumerate(dict.fromkeys(best.values()))}
        return [slots[best[i]] for i in everything], bound

    def cost(self, slot_of: dict[int, int]) -> int:
        """Return the bytes of all slots together."""
        largest: dict[int, int] = {}
        for item, slot in slot_of.items():
            largest[slot] = max(largest.get(slot, 0), self.sizes[item])
        return sum(largest.values())

    def _improved(
        self, slot_of: dict[int, int], rng: random.Random, *, exact: bool
    ) -> dict[int, int]:
        """Take the buffers of a few slots out, and put them back for no more bytes."""
        slots = sorted(set(slot_of.values()))
        taken = set(rng.sample(slots, min(len(slots), rng.randint(2, _MOST_TAKEN))))
        out = [item for item in sorted(slot_of) if slot_of[item] in taken]
        kept = {item: slot for item, slot in slot_of.items() if slot not in taken}
        if exact:
            limit = min(_ROUND_NODES, self._most_nodes - self.nodes)
            found, _ = self._pack(kept, out, rng, limit=limit)
        else:
            found = self._inserted(kept, out, rng)
        return found if self.cost(found) <= self.cost(slot_of) else slot_of

    def _numbered(self, kept: dict[int, int]) -> tuple[dict[int, int], list[int], list[int]]:
        """Return slots numbered from 0, and of each its buffers, as bits, and its bytes."""
        number = {slot: at for at, slot in enumerate(dict.fromkeys(kept.values()))}
        result = {item: number[slot] for item, slot in kept.items()}
        members, largest = [0] * len(number), [0] * len(number)
        for item, slot in result.items():
            members[slot] |= 1 << item
            largest[slot] = max(largest[slot], self.sizes[item])
        return result, members, largest

    def _inserted(
        self, kept: dict[int, int], items: Sequence[int], rng: random.Random
    ) -> dict[int, int]:
        """Put buffers one by one into the slot that grows least, or a new one, with some noise."""
        result, members, largest = self._numbered(kept)
        order, noise = rng.choice(_ORDERS), rng.choice(_NOISES)
        for item in sorted(items, key=lambda item: -self.sizes[item] * rng.uniform(order, 1)):
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
        self.nodes += len(items)
        return result

    def _pack(
        self,
        kept: dict[int, int],
        items: Sequence[int],
        rng: random.Random | None = None,
        *,
        limit: int,
    ) -> tuple[dict[int, int], bool]:
        """Put buffers, largest first, beside those that are kept; return whether all was tried.

        Depth first: a buffer joins the slot that it fits most tightly, or opens one. A kept slot
        may grow, which is paid for.
        """
        result, members, largest = self._numbered(kept)
        if not items:
            return result, True
        fixed, paid, start = len(members), sum(largest), self.nodes
        best: dict[int, int] = {}
        best_cost = 1 << 62
        trail: list[tuple[int, int]] = []  # Of each buffer put so far, its slot and what that cost
        options = [self._options(items[0], members, largest, rng)]
        while options:
            if self.nodes - start >= limit and best:
                return best, False
            is_open = False
            if options[-1]:
                self.nodes += 1
                item, slot = items[len(trail)], options[-1].pop()
                if slot == len(members):
                    members.append(0)
                    largest.append(0)
                cost = max(self.sizes[item] - largest[slot], 0)
                trail.append((slot, cost))
                members[slot] |= 1 << item
                largest[slot] += cost
                paid += cost
                is_open = paid + (0 if fixed else sum(self.least[len(members) :])) < best_cost
                if is_open and len(trail) == len(items):
                    slots = (slot for slot, _ in trail)
                    best = {**result, **dict(zip(items, slots, strict=True))}
                    best_cost, is_open = paid, False
            else:
                options.pop()
            if is_open:
                options.append(self._options(items[len(trail)], members, largest, rng))
            elif trail:
                slot, cost = trail.pop()
                members[slot] &= ~(1 << items[len(trail)])
                largest[slot] -= cost
                paid -= cost
                if members[slot] == 0 and slot >= fixed:
                    members.pop()
                    largest.pop()
        return best, True

    def _options(
        self, item: int, members: Sequence[int], largest: Sequence[int], rng: random.Random | None
    ) -> list[int]:
        """Return the slots that a buffer may go to, the best one last."""
        conflicts, size = self._conflicts[item], self.sizes[item]
        free = [slot for slot, inside in enumerate(members) if not inside & conflicts]
        free.append(len(members))

        def key(slot: int) -> tuple[int, float]:
            if slot == len(members):
                return size, 1.0
            noise = rng.random() if rng else slot / len(members)
            return max(size - largest[slot], 0), noise

        free.sort(key=key, reverse=True)
        return free


def _conflicts(problem: Problem, buffers: Sequence[Buffer]) -> list[int]:
    """Return for each buffer, as bits, those that may not be in one slot with it."""
    item = {problem.index[buffer.name]: number for number, buffer in enumerate(buffers)}
    interference = BlockList(problem).interference
    return [sum(1 << item[other] for other in interference[block].tolist()) for block in item]
