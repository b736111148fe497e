# SPDX-License-Identifier: Apache-2.0
"""Which buffers may share bytes although they live together: decided once for a problem.

Planners and bounds read it from `Problem.sharing`; only the verifier decides for itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from passes.planning.buffer import Buffer, Penalty

Pair = tuple[str, str]


@dataclass(frozen=True)
class InPlacePair:
    """A pair that some plan can put in place: at equal offsets, slot by slot."""

    source: Buffer
    destination: Buffer
    cost: int  # What that costs: zero for most pairs

    @property
    def names(self) -> Pair:
        """The names of source and destination."""
        return self.source.name, self.destination.name

    @property
    def has_equal_slots(self) -> bool:
        """Whether both have equally many slots; else the one with fewer takes all of the other."""
        return self.source.slots == self.destination.slots


class Sharing:
    """The pairs of a problem that can be in place, and what is to be kept apart.

    A pair of unequal slots can only be in place if the buffer with fewer may have more offsets, and
    one of several offsets only if one loop moves both. Other pairs are left out.
    """

    def __init__(
        self,
        buffers: Mapping[str, Buffer],
        in_place: Iterable[Pair],
        separations: Iterable[Pair],
        penalties: Iterable[Penalty],
    ) -> None:
        self._costs = {frozenset((p.first, p.second)): p.cost_if_slots_match for p in penalties}
        self._separated = {frozenset(pair) for pair in separations}
        self._pairs = {
            frozenset((first, second)): InPlacePair(
                buffers[first], buffers[second], self._costs.get(frozenset((first, second)), 0)
            )
            for first, second in in_place
            if _can_meet(buffers[first], buffers[second])
        }

    @property
    def pairs(self) -> tuple[InPlacePair, ...]:
        """The pairs that can be in place, in the order given."""
        return tuple(self._pairs.values())

    def pair(self, one: Buffer, two: Buffer) -> InPlacePair | None:
        """Return the in-place pair of two buffers, if they are one."""
        return self._pairs.get(frozenset((one.name, two.name)))

    def are_separated(self, one: Buffer, two: Buffer) -> bool:
        """Whether two buffers must share no byte although they need not be live together."""
        return frozenset((one.name, two.name)) in self._separated

    def have_a_cost(self, one: Buffer, two: Buffer) -> bool:
        """Whether it costs something when two buffers share bytes."""
        return frozenset((one.name, two.name)) in self._costs


def _can_meet(one: Buffer, two: Buffer) -> bool:
    """Whether two buffers can have equally many offsets, of one number in each iteration."""
    fewer, more = sorted((one, two), key=lambda buffer: buffer.slots)
    if fewer.slots < more.slots and not fewer.may_widen:
        return False
    return more.slots == 1 or one.rotates_with(two)
