# SPDX-License-Identifier: Apache-2.0
"""A plan that is being changed step by step by `passes.planning.planners.neighborhood.loop`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from passes.planning.engine import compiled
from passes.planning.engine.blocks import BlockList
from passes.planning.planners.neighborhood import loop
from passes.planning.planners.neighborhood.loop import (
    BEST_COST,
    BEST_PEAK,
    EJECTIONS,
    MOST_OUT,
    NO_LIMIT,
    NODES,
    NOISE,
    NOWHERE,
    SEED,
    TOTAL,
    RelocationState,
)


class Relocation:
    """A right plan, the best one found from it, and the steps that change it.

    In-place pairs are honoured, slot by slot.
    """

    def __init__(self, block_list: BlockList, offsets: Sequence[int]) -> None:
        state = _make_state(block_list)
        self.related = len(state.other)  # Relations of all blocks together
        self._running = compiled.on_lists(loop.advance, state)
        self._place(offsets)
        state = self._running.state
        state.best[:] = state.low
        state.now[BEST_COST], state.now[BEST_PEAK] = state.now[TOTAL], loop.peak(state)
        due = sum(1 for count in state.met if count)
        # What a penalty that is due at the begin costs on average.
        self.unit = state.now[TOTAL] / due if due else 1.0
        state.prices[:] = [max(1, int(self.unit * count)) for count in range(1, EJECTIONS + 1)]

    @property
    def nodes(self) -> int:
        """Blocks put back so far."""
        return int(self._running.state.now[NODES])

    @property
    def cost(self) -> int:
        """The penalty of the plan as it is now."""
        return int(self._running.state.now[TOTAL])

    @property
    def score(self) -> tuple[int, int]:
        """The penalty and the peak, in bytes, of the best placement so far."""
        now = self._running.state.now
        return int(now[BEST_COST]), int(now[BEST_PEAK])

    @property
    def low(self) -> list[int]:
        """For each block its offset in bytes, as the plan is now."""
        return [int(offset) for offset in self._running.state.low]

    @property
    def best(self) -> list[int]:
        """The best placement so far: bytes, for each block."""
        return [int(offset) for offset in self._running.state.best]

    def compile(self) -> None:
        """Go on as what TVM compiles; only where that can be."""
        self._running = compiled.on_arrays(loop.advance, self._running.state)

    def restart(self) -> None:
        """Go back to the best plan."""
        state = self._running.state
        for block in range(state.blocks):
            loop.take(state, block)
        self._place(state.best)

    def advance(self, steps: int, heat: int, limit: int) -> None:
        """Take steps at one heat, in `FIXED_POINT` parts of the cost, until `limit` more nodes."""
        self._running.advance(steps, heat, self.nodes + min(limit, 1 << 61))

    def _place(self, offsets: Sequence[int]) -> None:
        for block, offset in enumerate(offsets):
            loop.put(self._running.state, block, offset)


def _make_state(block_list: BlockList) -> RelocationState:
    """Return the blocks of a list, none of which has an offset."""
    problem, sizes = block_list.problem, block_list.sizes
    payers = [(problem.index[each.first], problem.index[each.second]) for each in problem.penalties]
    dues: list[list[int]] = [[] for _ in problem.buffers]
    for index, pair in enumerate(payers):
        for buffer in pair:
            dues[buffer].append(index)
    now = [0] * loop.NOW_SIZE
    now[SEED] = 1
    make: Any = RelocationState  # Sequences of every kind become what the loop runs on.
    state: RelocationState = make(
        size=sizes,
        alignment=block_list.alignments,
        owner=block_list.buffer_of,
        fixed=[int(b in block_list.pinned or not size) for b, size in enumerate(sizes)],
        low=[NOWHERE] * len(sizes),
        best=[NOWHERE] * len(sizes),
        first=[block_list.blocks_of(buffer.name).start for buffer in problem.buffers],
        slots=[buffer.slots for buffer in problem.buffers],
        owes=[0] * len(problem.buffers),
        **_relations(block_list),
        one=[one for one, _ in payers],
        two=[two for _, two in payers],
        cost_if_slots_match=[penalty.cost_if_slots_match for penalty in problem.penalties],
        cost=[penalty.cost for penalty in problem.penalties],
        met=[0] * len(payers),
        met_crossed=[0] * len(payers),
        due_begins=list(accumulate(map(len, dues), initial=0)),
        due=[index for row in dues for index in row],
        reserved_begin=[begin for begin, _ in problem.memory.reserved],
        reserved_end=[end for _, end in problem.memory.reserved],
        noise=NOISE,
        prices=[0] * EJECTIONS,
        out=[0] * (MOST_OUT + 2),
        taken=[0] * len(sizes),
        taken_low=[0] * len(sizes),
        now=now,
        blocks=len(sizes),
        reserved=len(problem.memory.reserved),
        capacity=NO_LIMIT if problem.capacity is None else problem.capacity,
    )
    return state


def _relations(block_list: BlockList) -> dict[str, list[int]]:
    """Return what each block must or should not share with: the columns of `RelocationState`.

    A block has a row for each other block that it may not share bytes with, or shares with at a
    cost, sorted by the other block.
    """
    buffers, penalties = block_list.problem.buffers, block_list.problem.penalties
    begins, rows = [0], []
    for block in range(len(block_list)):
        hard = set(block_list.interference[block].tolist())
        soft = dict(block_list.soft.get(block, ()))
        for other in sorted(hard | soft.keys()):
            penalty, is_hard = soft.get(other, -1), other in hard
            slots_match = block_list.slots_match(block, other)
            partner = other in block_list.partners[block]
            several = buffers[block_list.buffer_of[other]].slots > 1
            price = 0
            if penalty >= 0:
                due = penalties[penalty]
                price = due.cost_if_slots_match if slots_match else due.cost
            equal = partner or (slots_match and several and not is_hard)
            rows.append((other, is_hard, partner, equal, not slots_match, penalty, price))
        begins.append(len(rows))
    names = ("other", "hard", "partner", "equal", "crossed", "penalty", "price")
    columns = {name: [int(row[at]) for row in rows] for at, name in enumerate(names)}
    return {"begins": begins, **columns}
