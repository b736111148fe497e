# SPDX-License-Identifier: Apache-2.0
"""What can be chosen for one memory, and who judges it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from passes.planning.plan import Plan
from passes.planning.planner import Budget
from passes.planning.problem import Problem

Placed = tuple[Problem, Plan]
Slots = tuple[tuple[str, int], ...]
"""Buffers that have fewer slots than they ask for, and how many, in the order of `Asked.order`."""
Planner = Callable[[Problem, Budget], Plan]
"""From a problem to a complete plan, also when that does not fit."""


@dataclass(frozen=True)
class Verdict:
    """What plans for all memories of a kernel cost."""

    cycles: int  # What the kernel takes
    # Pairs of buffers of which one waits for bytes that the other still uses, the longest wait
    # first.
    waits: tuple[tuple[str, str], ...] = ()


Judge = Callable[[Sequence[Placed]], Verdict]
"""From plans for all memories to what they cost. To share fewer bytes never costs more."""


@dataclass(frozen=True)
class Asked:
    """One memory as a kernel asks for it."""

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

    def slots_of(self, name: str) -> int:
        """Return how many slots a buffer asks for."""
        return self.problem.buffers[self.problem.index[name]].slots


@dataclass(frozen=True)
class Choice:
    """One memory with a plan that fits."""

    slots: Slots  # Buffers that have fewer slots than they ask for, and how many
    lost: int  # Slots that they lost in all
    problem: Problem  # With these slots
    plan: Plan  # Verified, and within the capacity
    verdict: Verdict  # Of this plan beside those that are chosen for the other memories

    @property
    def given_up(self) -> tuple[str, ...]:
        """The buffers that lost slots."""
        return tuple(name for name, _ in self.slots)

    @property
    def cycles(self) -> int:
        """What the kernel takes."""
        return self.verdict.cycles

    @property
    def rank(self) -> tuple[int, int, int, Slots]:
        """What is minimised: cycles, then slots lost, then bytes."""
        return (self.cycles, self.lost, self.plan.peak, self.slots)


def front(choices: Sequence[Choice]) -> tuple[Choice, ...]:
    """Return the choices to which none is better in both bytes and cycles, fewest bytes first."""
    kept: list[Choice] = []
    for choice in sorted(choices, key=lambda c: (c.plan.peak, c.rank)):
        if not kept or choice.cycles < kept[-1].cycles:
            kept.append(choice)
    return tuple(kept)
