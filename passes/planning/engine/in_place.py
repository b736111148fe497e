# SPDX-License-Identifier: Apache-2.0
"""Which buffers may have the same offsets, and which groups of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations

from passes.planning.live_ranges import live_together
from passes.planning.problem import Buffer, Problem, rotate_alike, widest_alignment


class SharingRules:
    """What each pair of buffers of a problem may share.

    Parameters
    ----------
    problem : Problem
        Where the pairs come from.
    at_a_cost : bool
        Whether two penalized buffers that are not live together may have the same offsets.
        Penalized buffers that are live together never may.
    """

    def __init__(self, problem: Problem, at_a_cost: bool) -> None:
        self._at_a_cost = at_a_cost
        self._in_place = {frozenset(pair) for pair in problem.in_place}
        self._penalized = {frozenset((p.first, p.second)) for p in problem.penalties}
        self._separated = {frozenset(pair) for pair in problem.separations}
        self._widest = widest_alignment(problem)

    def stalls(self, one: Buffer, two: Buffer) -> bool:
        """Whether two buffers are an in-place pair that has a penalty, too."""
        pair = frozenset((one.name, two.name))
        return pair in self._in_place and pair in self._penalized

    def are_separated(self, one: Buffer, two: Buffer) -> bool:
        """Whether two buffers must share no byte although they need not be live together."""
        return frozenset((one.name, two.name)) in self._separated

    def may_merge(self, one: Buffer, two: Buffer) -> bool:
        """Whether two buffers may have the same offsets.

        Of two with unequal slots, the one with fewer must be able to have more offsets.
        """
        pair = frozenset((one.name, two.name))
        if pair in self._separated or one.pinned is not None or two.pinned is not None:
            return False
        if one.slots != two.slots and not min(one, two, key=lambda b: b.slots).may_widen:
            return False
        if live_together(one.live, two.live):
            return pair in self._in_place and pair not in self._penalized
        return self._at_a_cost or pair not in self._penalized

    def may_join(self, one: Sequence[Buffer], two: Sequence[Buffer]) -> bool:
        """Whether two groups, each of buffers with the same offsets, may become one group.

        With more than one offset each, all members must rotate through them alike.
        """
        members = [*one, *two]
        if math.lcm(*(member.alignment for member in members)) > self._widest:
            return False
        if max(member.slots for member in members) > 1 and not all_rotate_alike(members):
            return False
        return all(self.may_merge(a, b) for a in one for b in two)


def all_rotate_alike(members: Sequence[Buffer]) -> bool:
    """Whether one loop moves all of `members` from offset to offset, as far as is known."""
    return all(rotate_alike(a, b) for a, b in combinations(members, 2))
