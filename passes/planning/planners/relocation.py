# SPDX-License-Identifier: Apache-2.0
"""Bring a plan's penalty down in rounds of `passes.planning.planners.relocation_loop`.

A round starts from the best plan, hot, and cools down. It has twice as many steps as the round
before, so that each length of time sees rounds that have ended cold.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any

from passes.planning.engine import compiled
from passes.planning.engine.blocks import BlockList
from passes.planning.planner import BudgetTracker
from passes.planning.planners import relocation_loop as loop

MOST_PAIRS = 1_200_000
"""Pairs of blocks live together, and penalties, beyond which no buffers are moved: each pair takes
some hundred bytes."""
MOST_COST = 1 << 36
"""The limit of the sum of all penalties, so that the compiled form does not overflow."""
FIRST_WORK = 500_000
"""Pairs of relations looked at in plain Python before the compiled form takes over."""
HOT, COLD = 2.0, 0.3
"""The extra cost accepted with probability 1/e, in average charges: first and last of a round."""
CHUNK = 64  # Steps at one heat
FIRST_CHUNKS = 3  # Chunks of the first round


def improved(
    block_list: BlockList, offsets: Sequence[int], tracker: BudgetTracker, patience: float = inf
) -> list[int]:
    """Return the best placement found from one that is right, or that itself.

    Offsets are bytes for each block, within the capacity; the best placement has the least penalty,
    then the lowest peak. Ends when nothing is paid, after `patience` rounds without a better plan,
    or when the tracker is used up: a node is one block put back. In-place pairs are honoured, slot
    by slot.
    """
    search = Relocation(block_list, offsets)
    problem = block_list.problem
    # In plain Python a node takes time with the square of the relations of a block.
    related = len(search.running.state.other) // max(1, len(block_list)) + 1
    first_nodes = FIRST_WORK // related**2
    spare = (loop.MOST_OUT + 1) * max(b.slots for b in problem.buffers)  # nodes one step can take
    may_compile = sum(penalty.cost for penalty in problem.penalties) < MOST_COST
    chunks, idle = FIRST_CHUNKS, 0
    while idle < patience:
        before, begun = search.score, search.nodes
        search.restart()
        for chunk in range(chunks):
            limit = tracker.left - spare
            if limit <= 0 or search.score[0] == 0:
                return search.best
            is_worth_it = search.nodes > first_nodes or compiled.is_loaded(loop.advance)
            if may_compile and is_worth_it and compiled.is_ready(loop.advance):
                may_compile = False
                search.compile()
            used = search.nodes
            heat = search.unit * HOT * (COLD / HOT) ** (chunk / chunks)
            search.advance(CHUNK, int(loop.FIXED_POINT * heat), limit)
            tracker.spend(search.nodes - used)
        if search.nodes == begun:
            break  # Nothing that pays can be moved.
        chunks = 2 * chunks + 1
        idle = 0 if search.score < before else idle + 1
    return search.best


class Relocation:
    """A right plan, the best one found from it, and the steps that change it.

    In-place pairs are honoured, slot by slot.
    """

    def __init__(self, block_list: BlockList, offsets: Sequence[int]) -> None:
        self.running = compiled.start(loop.advance, unplaced(block_list), False)
        state = self.running.state
        self._place(offsets)
        state.best[:] = state.low
        state.now[loop.BEST_COST] = state.now[loop.TOTAL]
        state.now[loop.BEST_PEAK] = loop.peak(state)
        due = sum(1 for count in state.met if count)
        # The average cost of a penalty that is due at the begin.
        self.unit = state.now[loop.TOTAL] / due if due else 1.0
        state.prices[:] = [max(1, int(self.unit * count)) for count in range(1, loop.EJECTIONS + 1)]

    @property
    def nodes(self) -> int:
        """Blocks put back so far."""
        return int(self.running.state.now[loop.NODES])

    @property
    def score(self) -> tuple[int, int]:
        """The penalty and the peak, in bytes, of the best placement so far."""
        now = self.running.state.now
        return int(now[loop.BEST_COST]), int(now[loop.BEST_PEAK])

    @property
    def best(self) -> list[int]:
        """The best placement so far: bytes, for each block."""
        return [int(offset) for offset in self.running.state.best]

    def compile(self) -> None:
        """Go on as what TVM compiles; only where that can be."""
        self.running = compiled.start(loop.advance, self.running.state, True)

    def restart(self) -> None:
        """Go back to the best plan."""
        for block in range(self.running.state.blocks):
            loop.take(self.running.state, block)
        self._place(self.running.state.best)

    def advance(self, steps: int, heat: int, limit: int) -> None:
        """Take steps at one heat, in `FIXED_POINT` parts of the cost, until `limit` more nodes."""
        self.running.advance(steps, heat, self.nodes + min(limit, 1 << 61))

    def _place(self, offsets: Sequence[int]) -> None:
        for block, offset in enumerate(offsets):
            loop.put(self.running.state, block, offset)


def unplaced(block_list: BlockList) -> loop.RelocationState:
    """Return the blocks of a list, all without an offset."""
    problem, sizes = block_list.problem, block_list.sizes
    payers = [(problem.index[each.first], problem.index[each.second]) for each in problem.penalties]
    now = [0] * loop.NOW_SIZE
    now[loop.SEED] = 1
    make: Any = loop.RelocationState  # Sequences of every kind become what the loop runs on.
    state: loop.RelocationState = make(
        size=sizes,
        alignment=block_list.alignments,
        owner=block_list.buffer_of,
        fixed=[int(b in block_list.pinned or not size) for b, size in enumerate(sizes)],
        low=[loop.NOWHERE] * len(sizes),
        before=[loop.NOWHERE] * len(sizes),
        best=[loop.NOWHERE] * len(sizes),
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
        reserved_begin=[begin for begin, _ in problem.memory.reserved],
        reserved_end=[end for _, end in problem.memory.reserved],
        noise=loop.NOISE,
        prices=[0] * loop.EJECTIONS,
        out=[0] * (loop.MOST_OUT + 2),
        taken=[0] * len(sizes),
        now=now,
        blocks=len(sizes),
        reserved=len(problem.memory.reserved),
        capacity=loop.NO_LIMIT if problem.capacity is None else problem.capacity,
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
