# SPDX-License-Identifier: Apache-2.0
"""Bring a plan's penalty down in rounds of `passes.planning.planners.neighborhood.loop`.

A round starts from the best plan, hot, and cools down. It has twice as many steps as the round
before, so that each length of time sees rounds that have ended cold.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from passes.planning.engine import compiled
from passes.planning.engine.blocks import BlockList
from passes.planning.planner import BudgetTracker
from passes.planning.planners.neighborhood.loop import FIXED_POINT, MOST_OUT, advance
from passes.planning.planners.neighborhood.relocation import Relocation

MOST_BLOCKS = 1500
"""Blocks beyond which a problem is too large to be improved in this way."""
MOST_COST = 1 << 36
"""What all penalties must add up to less than, so that the compiled form does not overflow."""
FIRST_WORK = 5_000_000
"""Pairs of relations looked at in plain Python before the compiled form takes over."""
ROUND = 250
"""Steps in the first round."""
PATIENCE = 3
"""Rounds without a better plan after which the search ends."""
HOT, COLD = 2.0, 0.3
"""What a step may cost more with probability 1/e, in average charges: first and last of a round."""
CHUNK = 64
"""Steps at one heat."""


def improved(
    block_list: BlockList, offsets: Sequence[int], tracker: BudgetTracker, enough: int = 0
) -> list[int]:
    """Return the best placement found from one that is right, or that itself.

    Offsets are bytes for each block, within the capacity; the best placement has the least penalty,
    then the lowest peak. Ends when the penalty is as low as `enough`, below which no plan is, after
    `PATIENCE` rounds without a better plan, or when the tracker is used up: a node is one block put
    back. In-place pairs are honoured, slot by slot.
    """
    search = Relocation(block_list, offsets)
    problem = block_list.problem
    # In plain Python a node takes time with the square of the relations of a block.
    related = search.related // max(1, len(block_list)) + 1
    first_nodes = FIRST_WORK // related**2
    spare = (MOST_OUT + 1) * max(b.slots for b in problem.buffers)  # nodes one step can take
    may_compile = sum(penalty.cost for penalty in problem.penalties) < MOST_COST
    steps, idle = ROUND, 0
    while idle < PATIENCE:
        before = search.score
        search.restart()
        for heat in _heats(steps, search.unit):
            limit = tracker.left - spare
            if limit <= 0 or search.score[0] <= enough:
                return search.best
            if may_compile and (search.nodes > first_nodes or compiled.is_loaded(advance)):
                may_compile = False
                if compiled.loop(advance) is not None:
                    search.compile()
            used = search.nodes
            search.advance(CHUNK, heat, limit)
            tracker.spend(search.nodes - used)
        steps *= 2
        idle = 0 if search.score < before else idle + 1
    return search.best


def _heats(steps: int, unit: float) -> Iterator[int]:
    """Yield the heat of each chunk of a round; `unit` is an average charge."""
    chunks = steps // CHUNK
    for chunk in range(chunks):
        yield int(FIXED_POINT * unit * HOT * (COLD / HOT) ** (chunk / chunks))
