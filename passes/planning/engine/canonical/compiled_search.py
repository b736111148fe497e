"""The canonical search on the loop that TVM compiles.

The loop itself is `passes.planning.engine.canonical.kernel`; its arrays are made and read here.
"""

from __future__ import annotations

from collections.abc import Sequence

from passes.planning.engine import compiled
from passes.planning.engine.canonical.sections import Packing
from passes.planning.engine.canonical.steps import CanonicalSearch, Group, Outcome

LOOP = "advance"

# Columns of `blocks`.
SIZE, ALIGNMENT, WEIGHT, RANK, FIRST, LAST, OFFSET, REACH, LOAD = range(9)
# Columns of `sections`.
REMAINING, CROSSING = range(2)
# Columns of `obstacles` and `lives`.
BEGIN, END = range(2)
# Columns of `waiting`, a group each, and of `frames`, which continue a group's; of `trail`.
G_BEGIN, G_END, G_FIRST, G_LAST, G_PARENT, G_OFFSET, G_LOAD, G_RANK = range(8)
F_TRAIL, F_WAITING = range(8, 10)
T_BLOCK, T_OLD = range(2)
# Entries of `state`.
NODES, STOP, OUTCOME, CAPACITY, WHOLE_CAPACITY, FRAMES, WAITING, TRAIL = range(8)
BY_LOAD = 8
DESCEND, NEXT, SETTLED = range(9, 12)  # what `place`, `next_block` and `settle` return
STATE_SIZE = 12
LOCAL_SIZE = 27
FOUND, EXHAUSTED, PAUSED = (int(o) for o in (Outcome.FOUND, Outcome.EXHAUSTED, Outcome.PAUSED))


class CompiledSearch:
    """A `CanonicalSearch` that runs compiled; the same parameters and attributes."""

    def __init__(
        self, packing: Packing, ranks: Sequence[int], by_load: bool, capacity: int
    ) -> None:
        plain = CanonicalSearch(packing, ranks, by_load, capacity)
        n = len(packing)
        self._fits = plain.fits
        blocks = compiled.columns(
            packing.sizes,
            packing.alignments,
            packing.weights,
            ranks,
            packing.first,
            packing.last,
            plain.offsets,
            plain.reach,
            plain.loads,
        )
        waiting = compiled.empty((n + 1, 8))
        for at, group in enumerate(plain.waiting):
            waiting[at] = _row(group)
        self._state = compiled.aligned([0] * STATE_SIZE)
        self._state[[CAPACITY, WHOLE_CAPACITY, BY_LOAD]] = capacity, plain.whole_capacity, by_load
        self._state[WAITING] = len(plain.waiting)
        arrays = (
            blocks,
            compiled.columns(plain.remaining, plain.crossing),
            compiled.aligned(packing.conflicts.begins),
            compiled.aligned(packing.conflicts.values),
            compiled.aligned(packing.obstacle_begins.begins),
            compiled.columns(packing.obstacle_begins.values, packing.obstacle_ends.values),
            compiled.aligned(packing.section_begins.begins),
            compiled.columns(packing.section_begins.values, packing.section_ends.values),
            compiled.aligned(packing.members.begins),
            compiled.aligned(packing.members.values),
            compiled.aligned(plain.order),
            waiting,
            compiled.empty((n + 1, 10)),  # frames
            # The trail: each placement raises a conflict once and may renew the load of every
            # block left. Most of this is never touched, so it takes address space, not memory.
            compiled.empty((n + len(packing.conflicts.values) + (n + 1) * (n + 2) // 2, 2)),
            compiled.empty((LOCAL_SIZE,)),
            self._state,
        )
        self._blocks = blocks
        self._tensors = compiled.tensors(arrays)

    @property
    def nodes(self) -> int:
        """Placements tried so far."""
        return int(self._state[NODES])

    @property
    def offsets(self) -> list[int]:
        """For each block its offset in bytes, or `UNPLACED`."""
        offsets: list[int] = self._blocks[:, OFFSET].tolist()
        return offsets

    def advance(self, limit: int) -> Outcome:
        """Try at most `limit` more placements."""
        if not self._fits:
            return Outcome.EXHAUSTED
        advance = compiled.loop(LOOP)
        assert advance is not None, "only asked for where the loop can be compiled"
        self._state[STOP] = self.nodes + limit
        advance(*self._tensors)
        return Outcome(int(self._state[OUTCOME]))


def _row(group: Group) -> tuple[int, ...]:
    return (
        group.begin,
        group.end,
        group.first,
        group.last,
        group.parent,
        group.offset,
        group.load,
        group.rank,
    )
