# SPDX-License-Identifier: Apache-2.0
"""Exact search for small problems where sharing has a cost or in-place pairs are undecided.

Branch and bound over canonical placements, as `planners.canonical_loop` does, with more
than one offset to try for a block: it can go on top of what it should not share with, or below that
and pay; it can take the offset of an in-place partner, or stay clear of it.

Buffers that share an offset in place move as one. In a best plan with the least sum of offsets such
a group stands at the lowest multiple of the least common multiple of its members' alignments above
what is in the way of one of them. That member is placed there first, the others join it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product

from passes.planning.engine import compiled
from passes.planning.engine.blocks import BlockList, widened
from passes.planning.planner import BudgetTracker
from passes.planning.planners import relocation_loop as loop
from passes.planning.planners.relocation import unplaced
from passes.planning.problem import Problem
from target_hw.memory import settle

Score = tuple[int, int]  # (penalty, peak in bytes)


class WeightedSearch:
    """A search for the plan of least penalty, then least peak, within the capacity.

    In-place pairs are honoured. `best` becomes the offsets in bytes of the best plan found that is
    better than the incumbent, and `score` what it costs; `complete` stays true unless the tracker
    stopped the search before it was known that there is no better one.
    """

    def __init__(self, block_list: BlockList, incumbent: Score, tracker: BudgetTracker) -> None:
        self.best: list[int] | None = None
        self.score = incumbent
        self.complete = True
        self._block_list = block_list
        self._meter = tracker
        self._partners = block_list.partners
        self._hard = [
            [o for o in row.tolist() if o not in self._partners[b]]
            for b, row in enumerate(block_list.interference)
        ]
        self._soft = [
            [other for other, _ in block_list.soft.get(b, ())] for b in range(len(block_list))
        ]
        # Where blocks are, and what that costs.
        self._state = compiled.start(loop.advance, unplaced(block_list), False).state
        self._left = [
            block
            for block in range(len(block_list))
            if block not in block_list.pinned and block_list.sizes[block]
        ]
        self._steps = _steps(block_list, self._partners)
        self._cliques = _cliques(block_list, self._partners, self._left)

    def run(self) -> None:
        """Search until nothing better is left or the tracker stops it."""
        pinned, sizes = self._block_list.pinned, self._block_list.sizes
        for block, size in enumerate(sizes):
            if block in pinned or not size:
                loop.put(self._state, block, pinned.get(block, 0))
        ends = (offset + sizes[block] for block, offset in pinned.items())
        self._descend((0, -1), max(ends, default=0))

    def _descend(self, key: tuple[int, int], peak: int) -> None:
        """Place the remaining blocks at or after `key`, (offset, block), in canonical order."""
        if not self._left:
            if (self._cost, peak) < self.score:
                self.score, self.best = (self._cost, peak), list(self._state.low)
            return
        for offset, block in self._children(key):
            if self._meter.left == 0:
                self.complete = False
                return
            self._meter.spend(1)
            loop.put(self._state, block, offset)
            top = max(peak, offset + self._block_list.sizes[block])
            self._left.remove(block)
            if self._may_be_better(top, offset):
                self._descend(max(key, (offset, block)), top)
            self._left.append(block)
            self._left.sort()
            loop.take(self._state, block)

    @property
    def _cost(self) -> int:
        return self._state.now[loop.TOTAL]

    def _may_be_better(self, peak: int, floor: int) -> bool:
        """Return whether a plan of at least the cost of now and this peak can still beat the best.

        No block that is left will start below `floor`.
        """
        best_cost, best_peak = self.score
        if (self._cost, peak) >= (best_cost, best_peak):
            return False
        limit = self._state.capacity if self._cost < best_cost else best_peak - 1
        sizes, left = self._block_list.sizes, set(self._left)
        return peak <= limit and all(
            floor + sum(sizes[block] for block in clique if block in left) <= limit
            for clique in self._cliques
        )

    def _children(self, key: tuple[int, int]) -> list[tuple[int, int]]:
        """Return the (offset, block) to try next, in canonical order."""
        lowest_top = min(self._highest_need(block) for block in self._left)
        children = set()
        for block in self._left:
            for offset, is_in_place in self._options(block):
                # A partner's offset may be open only once the partner is placed.
                canonical = offset >= key[0] if is_in_place else (offset, block) > key
                if canonical and offset < lowest_top:
                    children.add((offset, block))
        return sorted(children)

    def _placed(self, blocks: Sequence[int]) -> list[tuple[int, int]]:
        """Return the bytes that the placed ones of `blocks` take, by begin."""
        sizes, low = self._block_list.sizes, self._state.low
        taken = [(low[b], low[b] + sizes[b]) for b in blocks]
        return sorted(entry for entry in taken if entry[0] >= 0)

    def _obstacles(self, blocks: Sequence[int]) -> list[tuple[int, int]]:
        return sorted((*self._block_list.problem.memory.reserved, *self._placed(blocks)))

    def _options(self, block: int) -> Iterator[tuple[int, bool]]:
        """Yield the offsets that `block` can take, and whether each is an in-place partner's."""
        size = self._block_list.sizes[block]
        hard = self._obstacles(self._hard[block])
        partners = self._placed(self._partners[block])
        avoided = self._placed(self._soft[block])
        apart = sorted(hard + partners)
        for low in sorted({0, *(end for _, end in apart + avoided)}):
            for step in self._steps[block]:
                yield settle(low, size, step, apart), False
        for begin, _ in partners:
            clear = all(
                begin == low or begin >= high or low >= begin + size for low, high in partners
            )
            if clear and settle(begin, size, self._block_list.alignments[block], hard) == begin:
                yield begin, True

    def _highest_need(self, block: int) -> int:
        """Return where `block` would end, were it placed now at no cost and with no partner."""
        others = [*self._hard[block], *self._partners[block], *self._soft[block]]
        size, alignment = self._block_list.sizes[block], self._block_list.alignments[block]
        return settle(0, size, alignment, self._obstacles(others)) + size


def _steps(block_list: BlockList, partners: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return for each block the alignments that groups in place have which it can be in."""
    steps: list[list[int]] = []
    for block, alignment in enumerate(block_list.alignments):
        group, found = [block], {alignment}
        for member in group:
            group += [other for other in partners[member] if other not in group]
        for other in {block_list.alignments[member]: None for member in group}:
            found |= {math.lcm(step, other) for step in found}
        steps.append(sorted(found))
    return steps


def _cliques(
    block_list: BlockList, partners: Sequence[Sequence[int]], left: Sequence[int]
) -> list[list[int]]:
    """Return sets of blocks that are live together and pairwise may not share bytes.

    Of in-place partners only the first is counted, so that the rest take nothing of their own.
    """
    counted = [b for b in left if all(other > b or other not in left for other in partners[b])]
    positions = sorted({begin for block in counted for begin, _ in block_list.live[block]})
    return [
        [b for b in counted if any(begin <= p < end for begin, end in block_list.live[b])]
        for p in positions
    ]


# More offsets than slots: to go in place with a buffer of more slots, or to share with one in step
# where that costs less. A buffer that the iterations of a loop write anew can have them.


def _choices(problem: Problem) -> dict[str, list[int]]:
    """Return the numbers of offsets worth trying for each buffer that may have more than slots.

    More slots than the most of its connected component never help.
    """
    tied = _tied(problem)
    found = {}
    for buffer in problem.buffers:
        if buffer.may_widen and buffer.name in tied:
            more = {problem.buffers[problem.index[name]].slots for name in tied[buffer.name]}
            counts = [buffer.slots, *sorted(count for count in more if count > buffer.slots)]
            if len(counts) > 1:
                found[buffer.name] = counts
    return found


def widenings(problem: Problem, limit: int) -> Iterator[Problem] | None:
    """Yield `problem`, then each other way to choose among `_choices`.

    None if there are more than `limit`.
    """
    counts = _choices(problem)
    if math.prod(len(each) for each in counts.values()) > limit:
        return None
    return (
        widened(problem, dict(zip(counts, chosen, strict=True)))
        for chosen in product(*counts.values())
    )


def _tied(problem: Problem) -> dict[str, list[str]]:
    """Return for each buffer that could gain from more offsets those that it is tied to."""
    pairs = [pair.names for pair in problem.sharing.pairs]
    pairs += [(p.first, p.second) for p in problem.penalties if p.cost_if_slots_match < p.cost]
    group = {name: [name] for pair in pairs for name in pair}
    for first, second in pairs:
        if group[first] is not group[second]:
            group[first] += group[second]
            for name in group[second]:
                group[name] = group[first]
    return group
