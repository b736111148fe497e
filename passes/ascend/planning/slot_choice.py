# SPDX-License-Identifier: Apache-2.0
"""A memory as a kernel requests it, a plan of it with fewer slots, and what plans cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from passes.planning.plan import Plan
from passes.planning.planner import Budget
from passes.planning.problem import Problem

Placed = tuple[Problem, Plan]
Slots = tuple[tuple[str, int], ...]
"""Buffers that have fewer slots than they ask for, and how many, in `MemoryRequest.order`."""
Planner = Callable[[Problem, Budget], Plan]
"""From a problem to a complete plan, also when that does not fit."""


@dataclass(frozen=True)
class Cost:
    """What plans for the memories of a kernel cost."""

    cycles: int  # What the kernel takes
    # Pairs of buffers of which one waits for bytes that the other still uses, the longest wait
    # first.
    waits: tuple[tuple[str, str], ...] = ()


CostModel = Callable[[Sequence[Placed]], Cost]
"""From plans for some memories of a kernel to their cost, as if the other memories had no end.

To share fewer bytes never costs more.
"""


@dataclass(frozen=True)
class MemoryRequest:
    """One memory as a kernel requests it."""

    problem: Problem  # With all slots
    # From slots by name to the problem in which these buffers have so many; what may be in place
    # can depend on slots.
    with_slots: Callable[[Mapping[str, int]], Problem]

    @property
    def order(self) -> tuple[str, ...]:
        """The buffers that can lose slots, those first that free the most bytes."""
        several = [b for b in self.problem.buffers if b.slots > 1 and b.pinned is None]
        several.sort(key=lambda b: (-b.size * (b.slots - 1), b.name))
        return tuple(buffer.name for buffer in several)

    def single(self) -> Problem:
        """Return the problem in which each buffer that can has one slot."""
        return self.with_slots(dict.fromkeys(self.order, 1))


@dataclass(frozen=True)
class SlotChoice:
    """Slots for the buffers of one memory, with a plan that fits."""

    slots: Slots  # Buffers that have fewer slots than they ask for, and how many
    lost: int  # Slots that they lost in all
    problem: Problem  # With these slots
    plan: Plan  # Verified, and within the capacity
    cost: Cost  # Of this plan beside those that are chosen for the other memories

    @property
    def given_up(self) -> tuple[str, ...]:
        """The buffers that lost slots."""
        return tuple(name for name, _ in self.slots)

    @property
    def cycles(self) -> int:
        """What the kernel takes."""
        return self.cost.cycles

    @property
    def rank(self) -> tuple[int, int, int, Slots]:
        """What is minimised: cycles, then slots lost, then bytes."""
        return (self.cycles, self.lost, self.plan.peak, self.slots)


def front(choices: Sequence[SlotChoice]) -> tuple[SlotChoice, ...]:
    """Return the choices to which none is better in both bytes and cycles, fewest bytes first."""
    kept: list[SlotChoice] = []
    for choice in sorted(choices, key=lambda c: (c.plan.peak, c.rank)):
        if not kept or choice.cycles < kept[-1].cycles:
            kept.append(choice)
    return tuple(kept)
