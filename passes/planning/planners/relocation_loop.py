# SPDX-License-Identifier: Apache-2.0
"""Local search by ejection: move a buffer that pays to where it costs least, again and again.

Blocks in its way there are taken out, and put back one by one where that costs least. A step that
costs more than before is undone, unless it is hot enough for that: the rule of simulated annealing.

The functions here are of the subset that `passes.ir.loop_to_tir` translates: they run
as Python, and as what TVM compiles.
"""

from __future__ import annotations

import math
from collections.abc import MutableSequence
from typing import NamedTuple

Ints = MutableSequence[int]

MOST_OUT = 6  # Buffers that are taken out at once, at most
EJECTIONS = 4  # The most that ejecting one block may count for, in average charges
FIXED_POINT = 1024
"""Heat and noise are counted in this part of one, so that all steps are on integers."""
NOISE = tuple(round(-math.log((at + 0.5) / FIXED_POINT) * FIXED_POINT) for at in range(FIXED_POINT))
"""Draws of the exponential distribution."""
MULTIPLIER, MODULUS = 48_271, (1 << 31) - 1
"""Of the generator of Park and Miller ("minimal standard", 1988; the multiplier of 1993)."""
NOWHERE = -1
NO_LIMIT = 1 << 62

# Entries of `RelocationState.now`: blocks put back so far, what the plan costs, the random number,
# the penalty and the peak of the best plan, and how many buffers and blocks are taken out.
NODES, TOTAL, SEED, BEST_COST, BEST_PEAK, OUT, TAKEN, NOW_SIZE = range(8)


class RelocationState(NamedTuple):
    """A plan that is being changed step by step."""

    # A block: bytes, alignment, buffer, whether it stays where it is; its offset in bytes, now and
    # before the step, and in the best plan.
    size: Ints
    alignment: Ints
    owner: Ints
    fixed: Ints
    low: Ints
    before: Ints
    best: Ints
    # A buffer: its first block, its slots, and what it owes: the penalties that it pays.
    first: Ints
    slots: Ints
    owes: Ints
    # The relations of a block are those from `begins[block]` to `begins[block + 1]`: the other
    # block; whether the two may not share bytes; whether they may all the same have one offset, in
    # place; whether one offset for both is worth trying, in place or where slots match at less
    # cost; whether they are no equal slots of buffers with equally many; the penalty that is due
    # where they share bytes, or -1, and what that costs if nothing else makes it due.
    begins: Ints
    other: Ints
    hard: Ints
    partner: Ints
    equal: Ints
    crossed: Ints
    penalty: Ints
    price: Ints
    # A penalty: the buffers that pay, what is due if slots match and if not, and how many
    # pairs of blocks share bytes, and do so in slots that do not match.
    one: Ints
    two: Ints
    cost_if_slots_match: Ints
    cost: Ints
    met: Ints
    met_crossed: Ints
    reserved_begin: Ints
    reserved_end: Ints
    noise: Ints
    # The most that the ejection of a block can count for.
    prices: Ints
    # The buffers that are taken out, and the blocks that are.
    out: Ints
    taken: Ints
    now: Ints
    blocks: int
    reserved: int
    capacity: int


def advance(state: RelocationState, steps: int, heat: int, stop: int) -> None:
    """Take steps at one heat, in `FIXED_POINT` parts of the cost, until there are `stop` nodes."""
    now = state.now
    for _ in range(steps):
        if now[TOTAL] == 0 or now[NODES] >= stop:
            return
        before = now[TOTAL]
        done = _move(state)
        if done and now[TOTAL] > before:
            drawn = _draw(state, FIXED_POINT)
            done = (now[TOTAL] - before) * FIXED_POINT * FIXED_POINT <= heat * state.noise[drawn]
        if not done:
            _undo(state)
        elif now[TOTAL] <= now[BEST_COST]:
            _remember(state)


def put(state: RelocationState, block: int, offset: int) -> None:
    """Give a block that has none an offset."""
    state.low[block] = offset
    _count(state, block, 1)


def take(state: RelocationState, block: int) -> None:
    """Take a block's offset away."""
    _count(state, block, -1)
    state.low[block] = NOWHERE


def peak(state: RelocationState) -> int:
    """Return where the highest block ends, in bytes."""
    highest = 0
    for block in range(state.blocks):
        highest = max(highest, state.low[block] + state.size[block])
    return highest


def _remember(state: RelocationState) -> None:
    """Keep the plan if it is the best."""
    now, low = state.now, state.low
    highest = peak(state)
    if now[TOTAL] < now[BEST_COST] or highest < now[BEST_PEAK]:
        now[BEST_COST] = now[TOTAL]
        now[BEST_PEAK] = highest
        for block in range(state.blocks):
            state.best[block] = low[block]


def _draw(state: RelocationState, count: int) -> int:
    """Return a number below `count`."""
    state.now[SEED] = state.now[SEED] * MULTIPLIER % MODULUS
    return state.now[SEED] % count


def _charge(state: RelocationState, penalty: int) -> int:
    """Return what a penalty costs as things stand."""
    if state.met_crossed[penalty] > 0:
        return state.cost[penalty]
    return state.cost_if_slots_match[penalty] if state.met[penalty] > 0 else 0


def _count(state: RelocationState, block: int, sign: int) -> None:
    """Note what `block` shares at a cost (1), or that it does so no more (-1)."""
    low = state.low[block]
    high = low + state.size[block]
    for at in range(state.begins[block], state.begins[block + 1]):
        penalty, other = state.penalty[at], state.other[at]
        begin = state.low[other]
        if penalty < 0 or begin < 0 or begin >= high or low >= begin + state.size[other]:
            continue
        before = _charge(state, penalty)
        state.met[penalty] += sign
        state.met_crossed[penalty] += sign * state.crossed[at]
        after = _charge(state, penalty)
        state.now[TOTAL] += after - before
        state.owes[state.one[penalty]] += after - before
        state.owes[state.two[penalty]] += after - before


def _take_out(state: RelocationState, buffer: int) -> None:
    """Take out the blocks of a buffer that can be moved."""
    now = state.now
    state.out[now[OUT]] = buffer
    now[OUT] += 1
    first = state.first[buffer]
    for block in range(first, first + state.slots[buffer]):
        if not state.fixed[block]:
            state.taken[now[TAKEN]] = block
            now[TAKEN] += 1
            state.before[block] = state.low[block]
            take(state, block)


def _undo(state: RelocationState) -> None:
    """Put all that was taken out back where it was."""
    for at in range(state.now[TAKEN]):
        if state.low[state.taken[at]] != NOWHERE:
            take(state, state.taken[at])
    for at in range(state.now[TAKEN]):
        put(state, state.taken[at], state.before[state.taken[at]])


def _move(state: RelocationState) -> int:
    """Move a buffer that pays, and what is in its way; whether all found a place."""
    now = state.now
    left = _draw(state, 2 * now[TOTAL])
    payer = 0
    while left >= state.owes[payer]:
        left -= state.owes[payer]
        payer += 1
    drawn = _draw(state, EJECTIONS)
    now[OUT] = 0
    now[TAKEN] = 0
    _take_out(state, payer)
    is_placed = _put_back(state, payer, state.prices[drawn])
    if is_placed:
        _sort(state)
    at = 1
    while is_placed and at < now[OUT]:
        is_placed = _put_back(state, state.out[at], 0)
        at += 1
    return is_placed


def _sort(state: RelocationState) -> None:
    """Sort the buffers that were in the way by bytes, the largest first."""
    out, size, first = state.out, state.size, state.first
    for at in range(2, state.now[OUT]):
        to = at
        while to > 1 and size[first[out[to - 1]]] < size[first[out[to]]]:
            out[to - 1], out[to] = out[to], out[to - 1]
            to -= 1


def _put_back(state: RelocationState, buffer: int, price: int) -> int:
    """Place the blocks of a buffer where they cost least; whether all found a place.

    With a price they go elsewhere than they were, and what is in their way there is taken out.
    """
    first = state.first[buffer]
    for block in range(first, first + state.slots[buffer]):
        if state.fixed[block]:
            continue
        offset = _cheapest(state, block, price, state.before[block] if price > 0 else NOWHERE)
        if offset == NOWHERE:
            return 0
        if price > 0:
            is_clear = _clear(state, block, offset)
            if not is_clear:
                return 0
        put(state, block, offset)
    return 1


def _clear(state: RelocationState, block: int, offset: int) -> int:
    """Take out what `block` may not share with at `offset`; whether that is few enough."""
    now, end = state.now, offset + state.size[block]
    for at in range(state.begins[block], state.begins[block + 1]):
        other = state.other[at]
        begin = state.low[other]
        if begin < 0 or begin >= end or offset >= begin + state.size[other]:
            continue
        if state.hard[at] and (not state.partner[at] or begin != offset):
            if now[OUT] > MOST_OUT:
                return 0
            _take_out(state, state.owner[other])
    return 1


def _cheapest(state: RelocationState, block: int, eject: int, banned: int) -> int:
    """Return an offset that costs least for `block`, drawn among equals, or `NOWHERE`.

    With `eject` other than zero, a block that is in the way costs so much; else it must not be.
    """
    ties = 0
    best = NOWHERE
    best_cost = NO_LIMIT
    candidates = 1 + state.reserved + 2 * (state.begins[block + 1] - state.begins[block])
    for candidate in range(candidates):
        offset = _candidate(state, block, candidate)
        if offset < 0 or offset == banned:
            continue
        cost = _cost_at(state, block, offset, eject, best_cost)
        if cost < best_cost:
            ties = 1
            best = offset
            best_cost = cost
        elif cost == best_cost and cost < NO_LIMIT:
            ties += 1
            drawn = _draw(state, ties)
            if drawn == 0:
                best = offset
    state.now[NODES] += 1
    return best


def _candidate(state: RelocationState, block: int, candidate: int) -> int:
    """Return an offset worth trying, or `NOWHERE`.

    First zero, then the ends of what is reserved, then for each relation the end of the other block
    and, where one offset for both is worth trying, its offset.
    """
    size, alignment = state.size[block], state.alignment[block]
    offset = 0
    at = candidate - 1 - state.reserved
    if at < 0 and candidate > 0:
        offset = state.reserved_end[candidate - 1]
    elif at >= 0:
        relation = state.begins[block] + at // 2
        other = state.other[relation]
        offset = state.low[other]
        if offset < 0:
            return NOWHERE
        if at % 2 == 0:
            offset += state.size[other]
        elif not state.equal[relation] or offset % alignment != 0:
            return NOWHERE
    offset += -offset % alignment
    if offset + size > state.capacity:
        return NOWHERE
    for at in range(state.reserved):
        if state.reserved_begin[at] < offset + size and offset < state.reserved_end[at]:
            return NOWHERE
    return offset


def _cost_at(state: RelocationState, block: int, offset: int, eject: int, enough: int) -> int:
    """Return what `block` would cost at an offset; `NO_LIMIT` once that is above `enough`."""
    end, cost = offset + state.size[block], 0
    for at in range(state.begins[block], state.begins[block + 1]):
        other = state.other[at]
        begin = state.low[other]
        if begin < 0 or begin >= end or offset >= begin + state.size[other]:
            continue
        if state.hard[at] and (not state.partner[at] or begin != offset):
            own = state.owner[other] == state.owner[block]
            if eject == 0 or own or state.fixed[other]:
                return NO_LIMIT
            cost += eject
        cost += state.price[at]
        if cost > enough:
            return NO_LIMIT
    return cost
