# SPDX-License-Identifier: Apache-2.0
"""A search for one placement below a capacity, that can be stopped and taken up again."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any

from passes.planning.engine import compiled
from passes.planning.engine.compiled import Room
from passes.planning.planners.branch_and_bound import loop
from passes.planning.planners.branch_and_bound.loop import (
    NODES,
    OUTCOME,
    WAITING,
    SearchState,
    advance,
)
from passes.planning.planners.branch_and_bound.sections import Packing

NO_GROUP = (-1, 0, -1)
"""The last placement of a group of which none was tried: offset, load, rank."""


class Outcome(IntEnum):
    """How far a search has come."""

    PAUSED = loop.PAUSED
    """The node limit is reached; it can go on."""
    FOUND = loop.FOUND
    """Every block is placed."""
    EXHAUSTED = loop.EXHAUSTED
    """There is no placement below the capacity: this is proven."""


class BranchAndBound:
    """A search that `passes.planning.planners.branch_and_bound.loop` explains.

    Among blocks of one reach the lowest rank goes first, or with `by_load` those that are live
    where most is left to place, which is looked at again each time that a group is cut off. No
    block ends above `capacity` bytes. `is_compiled` only where TVM can compile the loop.
    """

    def __init__(
        self,
        packing: Packing,
        ranks: Sequence[int],
        by_load: bool,
        capacity: int,
        is_compiled: bool = False,
    ) -> None:
        # Weights are whole units, so the capacity that they are held against is, too.
        whole_capacity = -(-capacity // packing.unit) * packing.unit
        state = _make_state(packing, ranks, by_load, capacity, whole_capacity)
        tops = (reach + size for reach, size in zip(state.reach, packing.sizes, strict=True))
        self._fits = all(top <= capacity for top in tops) and all(
            load <= whole_capacity for load in packing.loads
        )
        self._running = (compiled.on_arrays if is_compiled else compiled.on_lists)(advance, state)

    @property
    def nodes(self) -> int:
        """Placements tried so far."""
        return int(self._running.state.now[NODES])

    @property
    def offsets(self) -> list[int]:
        """For each block its offset in bytes, or `UNPLACED`."""
        return [int(offset) for offset in self._running.state.offset]

    def advance(self, limit: int) -> Outcome:
        """Try at most `limit` more placements."""
        if not self._fits:
            return Outcome.EXHAUSTED
        self._running.advance(self.nodes + limit)
        return Outcome(int(self._running.state.now[OUTCOME]))


def _make_state(
    packing: Packing, ranks: Sequence[int], by_load: bool, capacity: int, whole_capacity: int
) -> SearchState:
    """Return a search that has not begun: all blocks wait, in groups that never meet."""
    count, columns = len(packing), packing.columns
    order = sorted(range(count), key=lambda b: (columns["first"][b], b))
    groups = _root_groups(packing, order)
    now = [0] * loop.NOW_SIZE
    now[WAITING] = len(groups)
    waiting = [value for group in groups for value in group]
    # Each placement raises a conflict once and may renew the load of every block left. Most of
    # this is never touched, so it takes address space, not memory.
    trail = Room(count + sum(packing.degrees) + (count + 1) * (count + 2) // 2)
    make: Any = SearchState  # Sequences of every kind become what the loop runs on.
    state: SearchState = make(
        **columns,
        rank=list(ranks),
        offset=[loop.UNPLACED] * count,
        load=packing.peak_loads if by_load else [0] * count,
        remaining=packing.loads,
        order=order,
        waiting=waiting + [0] * ((count + 1) * loop.GROUP - len(waiting)),
        frames=Room((count + 1) * loop.FRAME),
        trail_block=trail,
        trail_old=trail,
        now=now,
        blocks=count,
        sections=len(packing.loads),
        capacity=capacity,
        whole_capacity=whole_capacity,
        by_load=int(by_load),
    )
    return state


def _root_groups(packing: Packing, order: Sequence[int]) -> list[list[int]]:
    """Return the groups into which all blocks fall, `order` being sorted by first section."""
    groups: list[list[int]] = []
    for at, block in enumerate(order):
        first, last = packing.columns["first"][block], packing.columns["last"][block]
        if groups and first < groups[-1][loop.LAST]:
            groups[-1][loop.END] = at + 1
            groups[-1][loop.LAST] = max(groups[-1][loop.LAST], last)
        else:
            groups.append([at, at + 1, first, last, -1, *NO_GROUP])
    return groups
