"""Less penalty by moving buffers: take a few out of a plan, put each back where it costs least.

A large neighbourhood search (P. Shaw, "Using Constraint Programming and Local Search Methods to
Solve Vehicle Routing Problems", CP 1998) with the acceptance rule of simulated annealing. A step
does one of two things:

- *ruin*: take out a buffer that pays, often one that it pays for, and some that are related to
  them, and put all back one by one;
- *eject*: move a buffer that pays to where it costs least, taking out what is in its way there,
  and put that back one by one.

A step that costs more than before is undone, unless it is hot enough for that.

`passes.planning.engine.relocate.kernel` holds the same steps as a compiled loop; both take the same
steps in the same order.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from passes.planning.engine.blocks import BlockList
from passes.planning.engine.relocate.relations import Relations, relations_of

MOST_OUT = 6
"""Buffers that are taken out at once, at most."""
EJECTIONS = 4
"""What ejecting one block may count for, at most, in average charges."""
FIXED_POINT = 1024
"""Heat and noise are counted in this part of one, so that all steps are on integers."""
NOISE = tuple(round(-math.log((at + 0.5) / FIXED_POINT) * FIXED_POINT) for at in range(FIXED_POINT))
"""Draws of the exponential distribution."""
MULTIPLIER, MODULUS = 48_271, (1 << 31) - 1
"""Of the generator of Park and Miller ("minimal standard", 1988; the multiplier of 1993)."""
NOWHERE = -1
NO_LIMIT = 1 << 62


class Relocation:
    """A plan that is being changed step by step: the plain Python version.

    Parameters
    ----------
    block_list : BlockList
        Its in-place pairs are honoured, slot by slot.
    offsets : sequence of int
        A right placement within the capacity: bytes, for each block.

    Attributes
    ----------
    nodes : int
        Blocks put back so far.
    low : list of int
        For each block its offset in bytes, as the plan is now.
    best : list of int
        The best placement so far.
    score : (int, int)
        Its penalty and its peak in bytes.
    unit : float
        What a penalty that is due at the begin costs on average.
    prices : list of int
        What the ejection of a block can count for.
    """

    def __init__(self, block_list: BlockList, offsets: Sequence[int]) -> None:
        problem = block_list.problem
        self.relations: Relations = relations_of(block_list)
        self.sizes, self.alignments = block_list.sizes, block_list.alignments
        self.owner = block_list.buffer_of
        self.first = [block_list.blocks_of(buffer.name).start for buffer in problem.buffers]
        self.slots = [buffer.slots for buffer in problem.buffers]
        self.fixed = [
            int(block in block_list.pinned or not size) for block, size in enumerate(self.sizes)
        ]
        self.reserved = list(problem.memory.reserved)
        self.capacity = NO_LIMIT if problem.capacity is None else problem.capacity
        self.costs = [(penalty.cost_in_step, penalty.cost) for penalty in problem.penalties]
        self.payers = [
            (problem.index[penalty.first], problem.index[penalty.second])
            for penalty in problem.penalties
        ]
        self.dues: list[list[int]] = [[] for _ in problem.buffers]
        for index, payers in enumerate(self.payers):
            for buffer in payers:
                self.dues[buffer].append(index)
        self.low = [NOWHERE] * len(block_list)
        self.met = [0] * len(self.costs)
        self.crossed = [0] * len(self.costs)
        self.owes = [0] * len(problem.buffers)
        self.cost = 0
        self.nodes = 0
        self.seed = 1
        for block, offset in enumerate(offsets):
            self._put(block, offset)
        self.best = list(self.low)
        self.score = (self.cost, self._peak())
        due = sum(1 for count in self.met if count)
        self.unit = self.cost / due if due else 1.0
        self.prices = [max(1, int(self.unit * count)) for count in range(1, EJECTIONS + 1)]
        self._out: list[int] = []
        self._taken: list[tuple[int, int]] = []

    def restart(self) -> None:
        """Go back to the best plan."""
        self.restart_at(self.best)

    def restart_at(self, offsets: Sequence[int]) -> None:
        """Go on from other offsets: bytes, for each block."""
        for block in range(len(self.low)):
            self._take(block)
        for block, offset in enumerate(offsets):
            self._put(block, offset)

    def advance(self, steps: int, heat: int, limit: int) -> None:
        """Take steps at one heat, in `FIXED_POINT` parts of the cost, until `limit` more nodes."""
        stop = self.nodes + limit
        for _ in range(steps):
            if self.cost == 0 or self.nodes >= stop:
                return
            before = self.cost
            self._out, self._taken = [], []
            done = self._eject() if self._draw(2) else self._ruin()
            if not done or not self._accepts(self.cost - before, heat):
                self._undo()
                continue
            if self.cost <= self.score[0]:
                score = (self.cost, self._peak())
                if score < self.score:
                    self.best, self.score = list(self.low), score

    def _draw(self, count: int) -> int:
        """Return a number below `count`."""
        self.seed = self.seed * MULTIPLIER % MODULUS
        return self.seed % count

    def _draw_weighted(self, weights: Iterator[int], total: int) -> int:
        """Return an index, drawn with weights that add up to `total`."""
        left = self._draw(total)
        for index, weight in enumerate(weights):
            left -= weight
            if left < 0:
                return index
        raise AssertionError("the weights add up to the total")

    def _accepts(self, added: int, heat: int) -> bool:
        if added <= 0:
            return True
        return added * FIXED_POINT * FIXED_POINT <= heat * NOISE[self._draw(FIXED_POINT)]

    def _peak(self) -> int:
        return max((o + s for o, s in zip(self.low, self.sizes, strict=True)), default=0)

    def _charge(self, penalty: int) -> int:
        """Return what a penalty costs as things stand."""
        if not self.met[penalty]:
            return 0
        return self.costs[penalty][self.crossed[penalty] > 0]

    def _count(self, block: int, sign: int) -> None:
        """Note what `block` shares at a cost (1), or that it does so no more (-1)."""
        rows, low, high = self.relations, self.low[block], self.low[block] + self.sizes[block]
        for at in range(rows.begins[block], rows.begins[block + 1]):
            other, penalty = rows.others[at], rows.penalty[at]
            begin = self.low[other]
            if penalty < 0 or begin < 0 or begin >= high or low >= begin + self.sizes[other]:
                continue
            before = self._charge(penalty)
            self.met[penalty] += sign
            self.crossed[penalty] += sign * rows.crossed[at]
            added = self._charge(penalty) - before
            self.cost += added
            for buffer in self.payers[penalty]:
                self.owes[buffer] += added

    def _put(self, block: int, offset: int) -> None:
        self.low[block] = offset
        self._count(block, 1)

    def _take(self, block: int) -> None:
        self._count(block, -1)
        self.low[block] = NOWHERE

    def _take_out(self, buffer: int) -> None:
        """Take out the blocks of a buffer that can be moved."""
        self._out.append(buffer)
        for block in range(self.first[buffer], self.first[buffer] + self.slots[buffer]):
            if not self.fixed[block]:
                self._taken.append((block, self.low[block]))
                self._take(block)

    def _undo(self) -> None:
        """Put all that was taken out back where it was."""
        for block, _ in self._taken:
            if self.low[block] != NOWHERE:
                self._take(block)
        for block, offset in self._taken:
            self._put(block, offset)

    def _ruin(self) -> bool:
        """Take out some related buffers and put them back; whether all found a place."""
        one = self._draw_weighted(iter(self.owes), 2 * self.cost)
        chosen = [one]
        if self._draw(2):
            dues = self.dues[one]
            due = dues[self._draw_weighted(map(self._charge, dues), self.owes[one])]
            chosen.append(sum(self.payers[due]) - one)
        for _ in range(self._draw(MOST_OUT - len(chosen) + 1)):
            block = self.first[chosen[self._draw(len(chosen))]]
            begin, end = self.relations.begins[block], self.relations.begins[block + 1]
            if begin < end:
                other = self.owner[self.relations.others[begin + self._draw(end - begin)]]
                if other not in chosen:
                    chosen.append(other)
        for buffer in chosen:
            self._take_out(buffer)
        order = self._draw(5)
        if order < 2:
            for at in range(len(chosen) - 1, 0, -1):
                with_at = self._draw(at + 1)
                chosen[at], chosen[with_at] = chosen[with_at], chosen[at]
        elif order < 4:
            self._sort(chosen)
        return self._put_back(chosen)

    def _sort(self, buffers: list[int]) -> None:
        buffers.sort(key=lambda buffer: -self.sizes[self.first[buffer]])

    def _put_back(self, buffers: Sequence[int]) -> bool:
        """Place buffers one by one where they cost least; whether all found a place."""
        for buffer in buffers:
            for block in range(self.first[buffer], self.first[buffer] + self.slots[buffer]):
                if self.fixed[block]:
                    continue
                offset = self._cheapest(block, 0, NOWHERE)
                if offset == NOWHERE:
                    return False
                self._put(block, offset)
        return True

    def _eject(self) -> bool:
        """Move a buffer, whatever is in its way; whether that found a place again."""
        one = self._draw_weighted(iter(self.owes), 2 * self.cost)
        price = self.prices[self._draw(EJECTIONS)]
        self._take_out(one)
        for block, old in list(self._taken):
            offset = self._cheapest(block, price, old)
            if offset == NOWHERE or not self._clear(block, offset):
                return False
            self._put(block, offset)
        ejected = self._out[1:]
        self._sort(ejected)
        return self._put_back(ejected)

    def _clear(self, block: int, offset: int) -> bool:
        """Take out what `block` may not share with at `offset`; whether that is few enough."""
        rows, end = self.relations, offset + self.sizes[block]
        for at in range(rows.begins[block], rows.begins[block + 1]):
            other = rows.others[at]
            begin = self.low[other]
            if begin < 0 or begin >= end or offset >= begin + self.sizes[other]:
                continue
            if rows.hard[at] and not (rows.partner[at] and begin == offset):
                if len(self._out) > MOST_OUT:
                    return False
                self._take_out(self.owner[other])
        return True

    def _cheapest(self, block: int, eject: int, banned: int) -> int:
        """Return an offset that costs least for `block`, drawn among equals, or `NOWHERE`.

        With `eject` other than zero, a block that is in the way costs so much; else it must not be.
        """
        ties, best, best_cost = 0, NOWHERE, NO_LIMIT
        for offset in self._candidates(block):
            if offset == banned:
                continue
            cost = self._cost_at(block, offset, eject, best_cost)
            if cost < best_cost:
                ties, best, best_cost = 1, offset, cost
            elif cost == best_cost < NO_LIMIT:
                ties += 1
                if self._draw(ties) == 0:
                    best = offset
        self.nodes += 1
        return best

    def _candidates(self, block: int) -> Iterator[int]:
        """Yield the offsets worth trying: zero, above what is there, and equal to a partner's."""
        rows, size, alignment = self.relations, self.sizes[block], self.alignments[block]

        def fits(offset: int) -> bool:
            return offset + size <= self.capacity and not any(
                begin < offset + size and offset < end for begin, end in self.reserved
            )

        for low in (0, *(end for _, end in self.reserved)):
            low += -low % alignment
            if fits(low):
                yield low
        for at in range(rows.begins[block], rows.begins[block + 1]):
            other = rows.others[at]
            begin = self.low[other]
            if begin < 0:
                continue
            top = begin + self.sizes[other]
            top += -top % alignment
            if fits(top):
                yield top
            if rows.equal[at] and begin % alignment == 0 and fits(begin):
                yield begin

    def _cost_at(self, block: int, offset: int, eject: int, enough: int) -> int:
        """Return what `block` would cost at an offset; `NO_LIMIT` once that is above `enough`."""
        rows, end, cost = self.relations, offset + self.sizes[block], 0
        for at in range(rows.begins[block], rows.begins[block + 1]):
            other = rows.others[at]
            begin = self.low[other]
            if begin < 0 or begin >= end or offset >= begin + self.sizes[other]:
                continue
            if rows.hard[at] and not (rows.partner[at] and begin == offset):
                own = self.owner[other] == self.owner[block]
                if eject == 0 or own or self.fixed[other]:
                    return NO_LIMIT
                cost += eject
            cost += rows.price[at]
            if cost > enough:
                return NO_LIMIT
        return cost
