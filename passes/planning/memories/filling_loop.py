# SPDX-License-Identifier: Apache-2.0
"""Local search by ejection: a block goes where what is in its way is worth least.

That goes out, and comes back where there is a gap. A step that loses is taken ever less often: the
rule of simulated annealing.

The functions here are of the subset that `passes.ir.loop_to_tir` translates.
"""

from __future__ import annotations

from collections.abc import MutableSequence
from typing import NamedTuple

from passes.planning.engine.blocks import UNPLACED
from passes.planning.planners.first_fit_loop import gather, sort_rows
from passes.planning.planners.relocation_loop import FIXED_POINT, MODULUS, MULTIPLIER

Ints = MutableSequence[int]

NEVER = 1 << 44  # The price of what stays: more than all that can be worth anything
NOWHERE = 1 << 62

# Entries of `FillingState.now`: blocks looked at so far, what all that lies outside is worth, the
# least that it was, the random number, how many blocks lie outside, are met by one, and are in its
# way; the place that was found for one, and its price.
WORK, LOST, LEAST, SEED, OUTSIDE, MET, OUT, PLACE, PRICE, NOW_SIZE = range(10)


class FillingState(NamedTuple):
    """A filling of a memory that is being changed."""

    # A block: bytes, alignment, what it is worth, the price of its ejection; its offset or -1, and
    # that in the best filling.
    size: Ints
    alignment: Ints
    worth: Ints
    price: Ints
    offset: Ints
    best: Ints
    # A live range, sorted by begin: its begin, its end, how many begin before it ends, its block.
    begin: Ints
    end: Ints
    until: Ints
    owner: Ints
    latest: Ints  # For each node of the tree over them, the last end under it
    # The live ranges of block `b` are `piece[piece_begins[b]:piece_begins[b + 1]]`.
    piece_begins: Ints
    piece: Ints
    reserved_begin: Ints
    reserved_end: Ints
    noise: Ints
    outside: Ints
    # Room for nodes to visit and their widths, for blocks that one meets, those in its way, the
    # begins and ends of what it meets with their prices, and to sort those.
    node: Ints
    width: Ints
    met: Ints
    out: Ints
    low: Ints
    low_price: Ints
    high: Ints
    high_price: Ints
    other: Ints
    other_price: Ints
    now: Ints
    blocks: int
    leaves: int  # A power of two
    reserved: int
    capacity: int


def advance(state: FillingState, heat: int, stop: int) -> None:
    """Take steps at one heat, the worth that may be lost, until `stop` blocks were looked at."""
    now = state.now
    while now[OUTSIDE] > 0 and now[WORK] < stop:
        now[WORK] += 1
        _step(state, heat)


def _draw(state: FillingState, count: int) -> int:
    """Return a number below `count`."""
    state.now[SEED] = state.now[SEED] * MULTIPLIER % MODULUS
    return state.now[SEED] % count


def _step(state: FillingState, heat: int) -> None:
    """Try to put one block in that lies outside."""
    now, outside = state.now, state.outside
    at = _draw(state, now[OUTSIDE])
    block = outside[at]
    _find(state, block)
    loss = now[PRICE] - state.worth[block]
    if now[PRICE] >= NEVER:
        return
    if loss > 0:
        drawn = _draw(state, FIXED_POINT)
        if loss * FIXED_POINT > heat * state.noise[drawn]:
            return
    offset = now[PLACE]
    _eject(state, offset, offset + state.size[block])
    state.offset[block] = offset
    now[OUTSIDE] -= 1
    outside[at] = outside[now[OUTSIDE]]
    now[LOST] -= state.worth[block]
    for number in range(now[OUT]):
        _put_back(state, state.out[number])
    if now[LOST] < now[LEAST]:
        now[LEAST] = now[LOST]
        for one in range(state.blocks):
            state.best[one] = state.offset[one]


def _put_back(state: FillingState, block: int) -> None:
    """Place a block where nothing is in its way; where there is no such place it lies outside."""
    now = state.now
    _find(state, block)
    if now[PRICE] == 0:
        state.offset[block] = now[PLACE]
        now[LOST] -= state.worth[block]
    else:
        state.outside[now[OUTSIDE]] = block
        now[OUTSIDE] += 1


def _eject(state: FillingState, begin: int, end: int) -> None:
    """Take out what the last block met between two offsets, and sort it by worth."""
    now, out = state.now, state.out
    now[OUT] = 0
    for at in range(now[MET]):
        block = state.met[at]
        low = state.offset[block]
        if low >= 0 and low < end and begin < low + state.size[block]:
            state.offset[block] = UNPLACED
            now[LOST] += state.worth[block]
            to = now[OUT]
            while to > 0 and state.worth[out[to - 1]] < state.worth[block]:
                out[to] = out[to - 1]
                to -= 1
            out[to] = block
            now[OUT] += 1


def _find(state: FillingState, block: int) -> None:
    """Look for the place of a block at which what is in its way has the least price."""
    now = state.now
    found = 0
    for at in range(state.piece_begins[block], state.piece_begins[block + 1]):
        found = gather(
            state.begin,
            state.end,
            state.until,
            state.owner,
            state.latest,
            state.node,
            state.width,
            state.met,
            state.piece[at],
            state.leaves,
            found,
        )
    count = 0
    for at in range(found):
        other = state.met[at]
        if state.offset[other] >= 0:
            state.met[count] = other
            count += 1
    now[MET] = count
    now[WORK] += found
    for at in range(count):
        other = state.met[at]
        state.low[at] = state.offset[other]
        state.high[at] = state.offset[other] + state.size[other]
        state.low_price[at] = state.price[other]
        state.high_price[at] = state.price[other]
    for at in range(state.reserved):
        state.low[count] = state.reserved_begin[at]
        state.high[count] = state.reserved_end[at]
        state.low_price[count] = NEVER
        state.high_price[count] = NEVER
        count += 1
    sort_rows(state.low, state.low_price, state.other, state.other_price, count)
    sort_rows(state.high, state.high_price, state.other, state.other_price, count)
    now[PRICE] = NOWHERE
    _look(state, block, count, 1)
    if now[PRICE] > 0:
        _look(state, block, count, 0)


def _look(state: FillingState, block: int, count: int, is_above: int) -> None:
    """Try the places right above what is met, or right below it."""
    now, size, alignment = state.now, state.size[block], state.alignment[block]
    begun = 0
    ended = 0
    price = 0
    for at in range(-is_above, count):
        offset = 0
        if is_above and at >= 0:
            offset = state.high[at]
            offset += -offset % alignment
        if not is_above:
            offset = state.low[at] - size
            if offset < 0:
                continue
            offset -= offset % alignment
        if offset + size > state.capacity:
            return
        while begun < count and state.low[begun] < offset + size:
            price += state.low_price[begun]
            begun += 1
        while ended < count and state.high[ended] <= offset:
            price -= state.high_price[ended]
            ended += 1
        if price < now[PRICE]:
            now[PRICE] = price
            now[PLACE] = offset
            if price == 0:
                return
