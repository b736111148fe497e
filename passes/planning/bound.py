# SPDX-License-Identifier: Apache-2.0
"""A lower bound on the peak of every plan, found without planning."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from passes.planning.buffer import Buffer, common, join_ranges
from passes.planning.columns import Ints
from passes.planning.problem import Problem
from target_hw.memory import round_up, settle

CLIQUE_STEPS = 50_000  # Buffers that the search for a heavy set of separated ones may look at
CLIQUE_BUFFERS = 2000  # Buffers beyond which separations are not looked at


def lower_bound(problem: Problem) -> int:
    """Return a number of bytes that no plan's peak can be below.

    The greatest of

    - the most bytes live at one position. Buffers whose offsets are all multiples of some `a` take
      whole multiples of `a`, except the topmost, and where several positions are as full, their
      topmost buffers are not live together; so the bound is taken for each alignment `a` in
      the problem, and for the greatest common divisor of all, over the buffers aligned to a
      multiple of it. An in-place destination counts only for what it takes beyond its source while
      both are live. Reserved ranges below come on top;
    - the bytes of buffers that are pairwise live together or separated, where there are
      separations: the best such set that a search of limited length finds;
    - the lowest end of each buffer on its own between the reserved ranges, or where it is pinned.

    Capacity and penalties play no part. ValueError is raised for what is no `Problem`.
    """
    if not isinstance(problem, Problem):
        raise ValueError(f"a lower bound is that of a Problem, got {type(problem).__name__}")
    known = vars(problem)  # Where its cached properties are
    if "lower_bound" not in known:
        known["lower_bound"] = _lower_bound(problem)
    return int(known["lower_bound"])


def _lower_bound(problem: Problem) -> int:
    columns = problem.columns
    bound = int(columns.sizes.max(initial=0))
    if problem.memory.reserved or problem.pins:
        bound = max((_lowest_end(problem, buffer) for buffer in problem.buffers), default=0)
    alignments = {*problem.alignments.tolist()}
    for unit in sorted({*alignments, math.gcd(*alignments)} - {0}):
        live = _most_live(problem, unit)
        bound = max(bound, _with_reserved(problem, live, unit))
    if problem.separations and len(problem.buffers) <= CLIQUE_BUFFERS:
        unit = math.gcd(*alignments)
        known = 0 if problem.memory.reserved else bound
        bound = max(bound, _with_reserved(problem, _bytes_apart(problem, unit, known), unit))
    return bound


def may_fit(problem: Problem) -> bool:
    """Return whether the lower bound leaves it open that some plan is within the capacity."""
    return problem.capacity is None or lower_bound(problem) <= problem.capacity


def live_bytes(problem: Problem) -> list[tuple[int, int]]:
    """Return (position, bytes live from there on), one entry a position where that changes.

    Sizes are counted as they are: no alignment, no in-place sharing. For reports and for finding
    the position of the peak.
    """
    columns = problem.columns
    positions, begins, ends = columns.places
    sizes = (columns.slots * columns.sizes)[columns.owners]
    live = live_at(begins, ends, sizes, len(positions))
    return list(zip(positions.tolist(), live.tolist(), strict=True))


def _lowest_end(problem: Problem, buffer: Buffer) -> int:
    """Return where `buffer` ends at the lowest, were it alone."""
    if buffer.pinned is not None:
        return max(buffer.pinned) + buffer.size
    alignment, reserved = problem.alignment_of(buffer), problem.memory.reserved
    return settle(0, buffer.size, alignment, reserved) + buffer.size


def _most_live(problem: Problem, alignment: int) -> int:
    """Return the most bytes needed at one position by the buffers aligned to `alignment`."""
    columns = problem.columns
    is_aligned = problem.alignments % alignment == 0
    padded = columns.sizes + -columns.sizes % alignment
    there = is_aligned[columns.owners]
    owners = columns.owners[there]
    positions, begins, ends = columns.places
    saved = list(_savings(problem, is_aligned, padded)) if problem.in_place else []
    begun, ended, less = np.array(saved, dtype=np.int64).reshape(-1, 3).T
    begins = np.append(begins[there], np.searchsorted(positions, begun))
    ends = np.append(ends[there], np.searchsorted(positions, ended))
    sizes = np.append((columns.slots * padded)[owners], -less)
    live = live_at(begins, ends, sizes, len(positions))
    fullest = int(live.max(initial=0))
    if alignment == 1:
        return fullest
    # The topmost buffer need not be padded: at best that is the one with the most padding.
    slack = np.append((padded - columns.sizes)[owners], np.zeros(len(saved), dtype=np.int64))
    bound = int((live - highest_at(begins, ends, slack, len(positions))).max(initial=0))
    if bound == fullest or problem.in_place:
        return bound
    return fullest - _slack_on_top(begins, ends, slack, live == fullest)


def _slack_on_top(begins: Ints, ends: Ints, slack: Ints, is_full: npt.NDArray[np.bool_]) -> int:
    """Return the most bytes of padding that every full position can leave out at its top.

    Where whole units are live up to the end of the last one, the topmost buffer of each position
    ends there but for its padding. These are not live together, as they share the last unit: so
    the full positions fall into their lives, each in exactly one.
    """
    full = np.append(0, np.cumsum(is_full))
    first, last = full[begins], full[ends]
    there = np.flatnonzero((last > first) & (slack > 0))
    there = there[np.argsort(first[there], kind="stable")]
    lives = list(
        zip(first[there].tolist(), last[there].tolist(), slack[there].tolist(), strict=True)
    )
    # The most padding, of which each way to reach a full position keeps the least.
    most = {0: 1 << 62}
    for begin, end, padding in lives:
        if begin in most:
            most[end] = max(most.get(end, 0), min(most[begin], padding))
    return most.get(int(full[-1]), 0)


def live_at(begins: Ints, ends: Ints, sizes: Ints, positions: int) -> Ints:
    """Return the bytes live at each of some positions, from lives and sizes."""
    change = np.zeros(positions + 1, dtype=np.int64)
    np.add.at(change, begins, sizes)
    np.subtract.at(change, ends, sizes)
    return np.cumsum(change)[:positions]


def highest_at(begins: Ints, ends: Ints, values: Ints, positions: int) -> Ints:
    """Return at each of some positions the greatest value live there; zero if there is none.

    A life is the union of two stretches whose lengths are a power of two; those are cut in half,
    the longest first.
    """
    levels = np.frexp((ends - begins).astype(np.float64))[1] - 1
    found = np.zeros(positions, dtype=np.int64)
    for level in range(int(levels.max(initial=0)), -1, -1):
        at = levels == level
        np.maximum.at(found, begins[at], values[at])
        np.maximum.at(found, ends[at] - (1 << level), values[at])
        half = 1 << level >> 1
        if half:
            found[half:] = np.maximum(found[half:], found[:-half])
    return found


def _savings(
    problem: Problem, is_aligned: npt.NDArray[np.bool_], padded: Ints
) -> Iterator[tuple[int, int, int]]:
    """Yield (begin, end, bytes that in-place pairs can save at most in these positions).

    Buffers that share one offset while live together are pairwise in-place pairs. Ordered by
    index, all but the largest of them are covered by charging each buffer the largest saving with
    *one* earlier partner, wherever it is live with any: so this never claims less than can be
    saved. Of buffers that got more offsets than slots, to be in place, the bytes that they ask for
    count as spread over all.
    """
    partners: defaultdict[int, list[int]] = defaultdict(list)
    for pair in problem.sharing.pairs:
        low, high = sorted(problem.index[name] for name in pair.names)
        if is_aligned[low] and is_aligned[high]:
            partners[high].append(low)
    for high in sorted(partners):
        buffer, others = problem.buffers[high], [problem.buffers[low] for low in partners[high]]
        largest = max(
            other.slots * int(padded[low])
            for low, other in zip(partners[high], others, strict=True)
        )
        saved = min(buffer.slots * int(padded[high]), largest)
        both = (live for other in others for live in common(buffer.live, other.live))
        yield from ((begin, end, saved) for begin, end in join_ranges(both))


def _bytes_apart(problem: Problem, unit: int, known: int) -> int:
    """Return the bytes of buffers that may not share any, of the heaviest such set found.

    Sets of no more bytes than are `known` are not looked for.

    `unit` is a number of bytes that all offsets are multiples of. Only buffers that are separated
    from one, or live with one that is, are looked at: all others add nothing to what is live at
    one position.
    """
    columns = problem.columns
    padding = -columns.sizes % unit
    weights = columns.slots * (columns.sizes + padding)
    meets, is_separated = _conflicts(problem)
    chosen = np.flatnonzero((is_separated | meets[is_separated].any(axis=0)) & (weights > 0))
    chosen = chosen[np.argsort(-weights[chosen], kind="stable")]
    packed = np.packbits(meets[np.ix_(chosen, chosen)], axis=1, bitorder="little")
    rows = [int.from_bytes(row.tobytes(), "little") for row in packed]
    slack = int(padding.max(initial=0))
    return heaviest_clique(rows, weights[chosen].tolist(), known + slack) - slack


def heaviest_clique(rows: Sequence[int], weights: Sequence[int], known: int = 0) -> int:
    """Return the greatest weight of members of a graph that all meet, or `known` if that is more.

    Bit `b` of `rows[a]` says that `a` and `b` meet; weights are positive, and fall. A search after
    `CLIQUE_STEPS` members ends with the best so far. A set in which nobody meets anybody adds its
    heaviest member at most: such sets, made greedily, bound what is left (D. Kumlander, 2004).
    """

    def layers(candidates: int) -> tuple[list[int], list[int]]:
        """Return the members set by set, and with each the most that those up to it can add."""
        members, most, total = [], [], 0
        while candidates:
            free, heaviest = candidates, 0
            while free:
                bit = free & -free
                member = bit.bit_length() - 1
                heaviest = max(heaviest, weights[member])
                members.append(member)
                most.append(total + heaviest)
                free &= ~(rows[member] | bit)
                candidates ^= bit
            total += heaviest
        return members, most

    best = known
    for member, row in enumerate(rows):  # From each member, the heaviest that still fits
        weight, common = weights[member], row
        while common:
            bit = common & -common
            weight += weights[bit.bit_length() - 1]
            common &= rows[bit.bit_length() - 1]
        best = max(best, weight)
    everybody = (1 << len(rows)) - 1
    stack = [(0, everybody, *layers(everybody))]
    steps = len(rows)
    while stack and steps < CLIQUE_STEPS:
        weight, candidates, members, most = stack.pop()
        if not members or weight + most.pop() <= best:
            continue
        member = members.pop()
        stack.append((weight, candidates & ~(1 << member), members, most))
        weight, common = weight + weights[member], candidates & rows[member]
        best = max(best, weight)
        stack.append((weight, common, *layers(common)))
        steps += len(stack[-1][2])
    return best


def _conflicts(problem: Problem) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Return which buffers cannot share with which, and which of them are separated from any.

    In-place pairs may share, so they are left out.
    """
    columns, count = problem.columns, len(problem.buffers)
    meets = np.zeros((count, count), dtype=bool)
    for begin, end, owner in zip(columns.begins, columns.ends, columns.owners, strict=True):
        meets[owner, columns.owners[(columns.begins < end) & (begin < columns.ends)]] = True
    for pair in problem.sharing.pairs:
        one, two = (problem.index[name] for name in pair.names)
        meets[one, two] = meets[two, one] = False
    apart = [(problem.index[one], problem.index[two]) for one, two in problem.separations]
    ones, twos = np.array(apart, dtype=np.int64).T
    meets[ones, twos] = meets[twos, ones] = True
    np.fill_diagonal(meets, val=False)
    is_separated = np.zeros(count, dtype=bool)
    is_separated[ones] = is_separated[twos] = True
    return meets, is_separated


def _with_reserved(problem: Problem, needed: int, unit: int) -> int:
    """Return the lowest end below which `needed` bytes are not reserved.

    They are counted in whole units. A reserved range takes those that it covers: the rest
    of it may lie in what a buffer is padded with.
    """
    for begin, end in problem.memory.reserved:
        begin, end = round_up(begin, unit), end // unit * unit
        if begin < min(needed, end):
            needed += end - begin
    return needed
