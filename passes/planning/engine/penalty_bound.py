# SPDX-License-Identifier: Apache-2.0
"""A lower bound on the penalty of every plan within a capacity, found without planning.

Blocks of which no two may share bytes at no cost, live together or separated or penalized, need as
many bytes as they have in all, or else some pairs of them share and pay. That is a conflict; and of
conflicts that have no penalty in common, each must be paid for. (The idea of disjoint conflicts is
that of disjoint cores in MaxSAT: F. Heras, A. Morgado, J. Marques-Silva, "Core-Guided Binary Search
Algorithms for Maximum Satisfiability", AAAI 2011.)
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction

from passes.planning.engine.blocks import BlockList

MOST_BLOCKS = 1500  # Blocks beyond which no conflicts are looked for
MOST_TRIES = 500  # Pairs around which no conflict is found, after which no more are looked for


def penalty_bound(block_list: BlockList, capacity: int | None) -> int:
    """Return a penalty that no plan is below whose peak is within `capacity` bytes.

    It is a sum over conflicts found greedily: zero where none was found, or without a capacity.
    Plans that give buffers more offsets than slots are covered, too.
    """
    penalties = block_list.problem.penalties
    if capacity is None or not penalties or len(block_list) > MOST_BLOCKS:
        return 0
    hard = _hard(block_list)
    soft = [dict(block_list.soft.get(block, ())) for block in range(len(block_list))]
    spent: set[int] = set()
    total = 0
    tries = MOST_TRIES
    for one, two in _soft_pairs(block_list):
        if soft[one][two] in spent:
            continue
        clique = _clique(block_list, hard, soft, spent, (one, two))
        due, cost = _least_cost(block_list, soft, spent, clique, capacity)
        if cost:
            spent |= due
            total += cost
            continue
        tries -= 1
        if tries == 0:
            break
    return total


def _soft_pairs(block_list: BlockList) -> list[tuple[int, int]]:
    """Return the pairs of blocks whose sharing has a cost, those of most bytes first."""
    sizes = block_list.sizes
    pairs = [
        (block, other)
        for block in sorted(block_list.soft)
        for other, _ in block_list.soft[block]
        if block < other
    ]
    return sorted(pairs, key=lambda pair: (-sizes[pair[0]] - sizes[pair[1]], pair))


def _hard(block_list: BlockList) -> list[set[int]]:
    """Return for each block those that it shares no byte with in any plan."""
    hard = [set(row.tolist()) for row in block_list.interference]
    for pair in block_list.problem.sharing.pairs:  # of any slots: a plan may widen one of the two
        for first in block_list.blocks_of(pair.source.name):
            for second in block_list.blocks_of(pair.destination.name):
                hard[first].discard(second)
                hard[second].discard(first)
    return hard


def _clique(
    block_list: BlockList,
    hard: list[set[int]],
    soft: list[dict[int, int]],
    spent: set[int],
    pair: tuple[int, int],
) -> list[int]:
    """Return blocks around a pair of which no two may share for free, the largest first."""
    clique: list[int] = []
    candidates: Iterable[int] | None = None
    for block in pair:
        free = hard[block] | {o for o, penalty in soft[block].items() if penalty not in spent}
        candidates = free if candidates is None else [b for b in candidates if b in free]
        clique.append(block)
    remaining = sorted(candidates or (), key=lambda b: (-block_list.sizes[b], b))
    while remaining:
        block = remaining[0]
        clique.append(block)
        remaining = [
            other
            for other in remaining[1:]
            if other in hard[block] or soft[block].get(other, -1) not in ({-1} | spent)
        ]
    return clique


def _least_cost(
    block_list: BlockList,
    soft: list[dict[int, int]],
    spent: set[int],
    clique: list[int],
    capacity: int,
) -> tuple[set[int], int]:
    """Return the penalties within a clique, and the least that its bytes make it pay.

    Two blocks that share save the bytes of the smaller at most. The bytes that must be saved are
    bought as cheaply as could be, the last ones in part.
    """
    sizes, penalties = block_list.sizes, block_list.problem.penalties
    excess = sum(sizes[block] for block in clique) - capacity
    if excess <= 0:
        return set(), 0
    members = set(clique)
    saved: dict[int, int] = {}
    for block in clique:
        for other, penalty in soft[block].items():
            if block < other and other in members and penalty not in spent:
                saved[penalty] = saved.get(penalty, 0) + min(sizes[block], sizes[other])
    by_price = sorted(
        saved, key=lambda p: (Fraction(penalties[p].cost_if_slots_match, saved[p]), p)
    )
    cost, left = 0, excess
    for penalty in by_price:
        price = penalties[penalty].cost_if_slots_match
        if saved[penalty] >= left:
            cost += -(-price * left // saved[penalty])
            break
        cost += price
        left -= saved[penalty]
    return set(saved), cost
