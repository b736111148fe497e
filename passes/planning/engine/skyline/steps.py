"""The steps of the skyline greedy on many blocks: the plain Python version.

`passes.planning.engine.skyline.rise` says what they do and makes the arrays.
"""

from __future__ import annotations

from dataclasses import dataclass

from passes.planning.engine.blocks import Ints

LEAF = 8
"""Blocks in a leaf of the tree."""
NO_RANK = 1 << 40
"""The rank of no block."""
CEILING = 1 << 62
"""A height above all offsets."""
STACK = 128
"""Nodes that may wait in a walk through the tree."""
ONE = 1 << 16
"""The weight of a position where every byte counts; others weigh from 1 up."""
EASE = 10
"""How many times as deep a shallow valley may be, at most, where positions weigh little."""

# Columns of `blocks`, in the order of ranks, and of `nodes`; of `segments`, in the order of
# positions; of `taken`: bytes, and positions.
BEGIN, END, SIZE, ALIGNMENT, SLOT, OFFSET = range(6)
MAX_BEGIN, MIN_END, MIN_BEGIN, MAX_END, RANK, MIN_SIZE, MAX_SIZE = range(7)
S_END, S_PREVIOUS, S_HEIGHT = range(3)
T_BEGIN, T_END, T_FIRST, T_LAST = range(4)
# Entries of `state`.
LEFT, HERE, STEPS, POSITIONS, LEAVES, TAKEN, SHALLOW = range(7)
STATE_SIZE = 7
LOCAL_SIZE = 8
UNPLACED = -1
NONE = (-1, NO_RANK, NO_RANK, -1, NO_RANK, CEILING, -1)
"""A node of no blocks."""


@dataclass(frozen=True)
class Rising:
    """Blocks that are being placed; they are numbered by rank.

    Attributes
    ----------
    order : Ints
        By rank, the number of each block in its block list.
    blocks, nodes, slots, segments, separated_rows, separated, taken, weights, state : Ints
        See the names of the columns. `slots` has the ranks of the blocks in the leaves,
        `separated` those of the blocks that each one must not share bytes with, and `weights` the
        sums of the weights of all positions before each.
    """

    order: Ints
    blocks: Ints
    nodes: Ints
    slots: Ints
    segments: Ints
    separated_rows: Ints
    separated: Ints
    taken: Ints
    weights: Ints
    state: Ints


class Steps:
    """Takes the steps of a `Rising`, whose arrays change with each."""

    def __init__(self, rising: Rising) -> None:
        self._blocks, self._nodes, self._slots = rising.blocks, rising.nodes, rising.slots
        self._segments, self._taken, self._state = rising.segments, rising.taken, rising.state
        self._rows, self._separated = rising.separated_rows, rising.separated
        self._weights = rising.weights

    def advance(self, steps: int) -> None:
        """Place a block, fill a valley, or go to a lower stretch of the skyline, so many times."""
        state, segments = self._state, self._segments
        for _ in range(steps):
            if state[LEFT] == 0:
                return
            here = int(state[HERE])
            end, before, height = (int(each) for each in segments[here])
            left = int(segments[before, S_HEIGHT]) if before >= 0 else CEILING
            right = int(segments[end, S_HEIGHT]) if end < state[POSITIONS] else CEILING
            if left < height:
                state[HERE] = before
            elif right < height:
                state[HERE] = end
            else:
                wall = min(left, right)
                rank = self._lowest_rank(here, end, self._most_size(here, end, wall - height))
                if rank == NO_RANK:
                    self._fill(here, wall)
                else:
                    self._place(rank, here)

    def _most_size(self, first: int, last: int, depth: int) -> int:
        """Return the bytes of the largest block that may go into a valley."""
        shallow, weight = int(self._state[SHALLOW]), int(self._weights[last] - self._weights[first])
        allowed = min(EASE * shallow, shallow * ONE * (last - first) // weight)
        return depth if depth <= allowed else CEILING

    def _lowest_rank(self, first: int, last: int, most_size: int) -> int:
        """Return the lowest rank of a block left whose life is within some positions."""
        best, stack = NO_RANK, [1]
        while stack:
            node = stack.pop()
            row = self._nodes[node]
            if row[RANK] >= best or row[MAX_BEGIN] < first or row[MIN_END] > last:
                continue
            if row[MIN_SIZE] > most_size:
                continue
            if row[MIN_BEGIN] >= first and row[MAX_END] <= last and row[MAX_SIZE] <= most_size:
                best = int(row[RANK])
            elif node >= self._state[LEAVES]:
                begin = (node - int(self._state[LEAVES])) * LEAF
                for rank in self._slots[begin : begin + LEAF].tolist():
                    if rank < best:
                        block = self._blocks[rank]
                        within = block[BEGIN] >= first and block[END] <= last
                        if within and block[SIZE] <= most_size:
                            best = rank
            else:
                lower = self._nodes[2 * node, RANK] <= self._nodes[2 * node + 1, RANK]
                stack += [2 * node + 1, 2 * node] if lower else [2 * node, 2 * node + 1]
        return best

    def _remove(self, rank: int) -> None:
        """Take a block out of the tree."""
        slot = int(self._blocks[rank, SLOT])
        self._slots[slot] = NO_RANK
        leaf = slot // LEAF
        bounds = list(NONE)
        for other in self._slots[leaf * LEAF : leaf * LEAF + LEAF].tolist():
            if other != NO_RANK:
                begin, end, size = (int(each) for each in self._blocks[other, : SIZE + 1])
                bounds = _joined(bounds, [begin, end, begin, end, other, size, size])
        node = leaf + int(self._state[LEAVES])
        self._nodes[node] = bounds
        while node > 1:
            node //= 2
            pair = self._nodes[2 * node].tolist(), self._nodes[2 * node + 1].tolist()
            self._nodes[node] = _joined(*pair)

    def _settled(self, rank: int, low: int) -> int:
        """Return the lowest offset from `low` up that a block can take."""
        block = self._blocks[rank]
        size, alignment = int(block[SIZE]), int(block[ALIGNMENT])
        low += -low % alignment
        moved = True
        while moved:
            moved = False
            for at in range(int(self._state[TAKEN])):
                begin, end, first, last = (int(each) for each in self._taken[at])
                if begin < low + size and low < end and first < block[END] and block[BEGIN] < last:
                    low, moved = end + -end % alignment, True
            for at in range(int(self._rows[rank]), int(self._rows[rank + 1])):
                other = self._blocks[self._separated[at]]
                begin, end = int(other[OFFSET]), int(other[OFFSET] + other[SIZE])
                if begin >= 0 and begin < low + size and low < end:
                    low, moved = end + -end % alignment, True
        return low

    def _place(self, rank: int, here: int) -> None:
        """Place a block on the stretch that begins at `here`, which it cuts in up to three."""
        segments, block, last = self._segments, self._blocks[rank], int(self._state[POSITIONS])
        end, _, height = (int(each) for each in segments[here])
        block[OFFSET] = self._settled(rank, height)
        self._state[LEFT] -= 1
        self._remove(rank)
        begin, stop, top = int(block[BEGIN]), int(block[END]), int(block[OFFSET] + block[SIZE])
        if stop < end:
            segments[stop] = end, begin, height
            if end < last:
                segments[end, S_PREVIOUS] = stop
        elif end < last:
            segments[end, S_PREVIOUS] = begin
        if begin > here:
            segments[here, S_END] = begin
            segments[begin, S_PREVIOUS] = here
        segments[begin, S_END], segments[begin, S_HEIGHT] = stop, top
        if stop < last and segments[stop, S_HEIGHT] == top:
            self._join(begin)
        before = int(segments[begin, S_PREVIOUS])
        if before >= 0 and segments[before, S_HEIGHT] == top:
            self._join(before)
            if begin == here:
                self._state[HERE] = before

    def _fill(self, here: int, height: int) -> None:
        """Raise a stretch to its lower neighbours, and join it with those of its height."""
        segments = self._segments
        segments[here, S_HEIGHT] = height
        end, before = int(segments[here, S_END]), int(segments[here, S_PREVIOUS])
        if end < self._state[POSITIONS] and segments[end, S_HEIGHT] == height:
            self._join(here)
        if before >= 0 and segments[before, S_HEIGHT] == height:
            self._join(before)
            self._state[HERE] = before

    def _join(self, here: int) -> None:
        """Join a stretch with the next one."""
        segments = self._segments
        end = int(segments[segments[here, S_END], S_END])
        segments[here, S_END] = end
        if end < self._state[POSITIONS]:
            segments[end, S_PREVIOUS] = here


def _joined(one: list[int], two: list[int]) -> list[int]:
    """Return the bounds and the lowest rank of two nodes."""
    return [
        max(one[MAX_BEGIN], two[MAX_BEGIN]),
        min(one[MIN_END], two[MIN_END]),
        min(one[MIN_BEGIN], two[MIN_BEGIN]),
        max(one[MAX_END], two[MAX_END]),
        min(one[RANK], two[RANK]),
        min(one[MIN_SIZE], two[MIN_SIZE]),
        max(one[MAX_SIZE], two[MAX_SIZE]),
    ]
