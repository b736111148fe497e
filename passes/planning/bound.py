# SPDX-License-Identifier: Apache-2.0
"""A lower bound on the peak of every plan, found without planning."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from itertools import combinations

import numpy as np
import numpy.typing as npt

from passes.planning.buffer import Buffer, common, join_ranges, live_together
from passes.planning.problem import Ints as Ints
from passes.planning.problem import Problem
from target_hw.memory import round_up, settle

CLIQUE_STEPS = 20_000  # Buffers that the search for a heavy set of separated ones may try
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
      separations: the best such set that a short search finds;
    - the lowest end of each buffer on its own between the reserved ranges, or where it is pinned.

    Capacity and penalties play no part.
    """
    columns = problem.columns
    bound = int(columns.sizes.max(initial=0))
    if problem.memory.reserved or any(buffer.pinned for buffer in problem.buffers):
        bound = max((_lowest_end(problem, buffer) for buffer in problem.buffers), default=0)
    alignments: list[int] = np.unique(columns.alignments).tolist()
    for unit in sorted({*alignments, math.gcd(*alignments)} - {0}):
        live = _most_live(problem, unit)
        bound = max(bound, _with_reserved(problem, live, unit))
    if problem.separations and len(problem.buffers) <= CLIQUE_BUFFERS:
        unit = math.gcd(*alignments)
        bound = max(bound, _with_reserved(problem, _heaviest_clique(problem, unit), unit))
    return bound


def may_fit(problem: Problem) -> bool:
    """Return whether the lower bound leaves it open that some plan is within the capacity."""
    return problem.capacity is None or lower_bound(problem) <= problem.capacity


def live_bytes(problem: Problem) -> list[tuple[int, int]]:
    """Return (position, bytes live from there on), one entry a position where that changes.

    Sizes are counted as they are: no alignment, no in-place sharing. For reports and for finding
    the position of the peak.
    """
    change: defaultdict[int, int] = defaultdict(int)
    for buffer in problem.buffers:
        for begin, end in buffer.live:
            change[begin] += buffer.slots * buffer.size
            change[end] -= buffer.slots * buffer.size
    profile, total = [], 0
    for position in sorted(change):
        total += change[position]
        profile.append((position, total))
    return profile


def _lowest_end(problem: Problem, buffer: Buffer) -> int:
    """Return where `buffer` ends at the lowest, were it alone."""
    if buffer.pinned is not None:
        return max(buffer.pinned) + buffer.size
    alignment, reserved = problem.alignment_of(buffer), problem.memory.reserved
    return settle(0, buffer.size, alignment, reserved) + buffer.size


def _most_live(problem: Problem, alignment: int) -> int:
    """Return the most bytes needed at one position by the buffers aligned to `alignment`."""
    columns = problem.columns
    is_aligned = columns.alignments % alignment == 0
    padded = columns.sizes + -columns.sizes % alignment
    there = is_aligned[columns.owners]
    owners = columns.owners[there]
    saved = list(_savings(problem, is_aligned, padded)) if problem.in_place else []
    begins, ends, sizes = np.array(saved, dtype=np.int64).reshape(-1, 3).T
    begins = np.append(columns.begins[there], begins)
    ends = np.append(columns.ends[there], ends)
    sizes = np.append((columns.slots * padded)[owners], -sizes)
    slack = np.append((padded - columns.sizes)[owners], np.zeros(len(saved), dtype=np.int64))
    positions, places = np.unique(np.concatenate((begins, ends)), return_inverse=True)
    begins, ends = places[: len(begins)], places[len(begins) :]
    # The topmost buffer need not be padded: at best that is the one with the most padding.
    live = live_at(begins, ends, sizes, len(positions))
    bound = int((live - highest_at(begins, ends, slack, len(positions))).max(initial=0))
    fullest = int(live.max(initial=0))
    if alignment == 1 or bound == fullest or problem.in_place:
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


def _heaviest_clique(problem: Problem, unit: int) -> int:
    """Return the bytes of buffers that may not share any: the most that `CLIQUE_STEPS` find.

    `unit` is a number of bytes that all offsets are multiples of. Only buffers that are separated
    from one, or live with one that is, are looked at: all others add nothing to what is live at
    one position.
    """
    weights = [b.slots * round_up(b.size, unit) for b in problem.buffers]
    slack = max(round_up(b.size, unit) - b.size for b in problem.buffers)
    conflicts = _conflicts(problem)
    separated = {problem.index[name] for pair in problem.separations for name in pair}
    steps = CLIQUE_STEPS

    def grow(weight: int, candidates: list[int], best: int) -> int:
        """Return the better of `best` and what `candidates` can add to a clique of `weight`."""
        nonlocal steps
        best = max(best, weight)
        rest = sum(weights[c] for c in candidates)
        for at, chosen in enumerate(candidates):
            if weight + rest <= best or steps == 0:
                break
            steps -= 1
            rest -= weights[chosen]
            common = [c for c in candidates[at + 1 :] if c in conflicts[chosen]]
            best = grow(weight + weights[chosen], common, best)
        return best

    best = 0
    for root in sorted(separated, key=lambda b: (-weights[b], b)):
        around = sorted(conflicts[root], key=lambda b: (-weights[b], b))
        best = grow(weights[root], around, best)
    return best - slack


def _conflicts(problem: Problem) -> dict[int, set[int]]:
    """Return, for each separated buffer and those live with one, the buffers it cannot share with.

    In-place pairs may share, so they are left out.
    """
    conflicts: defaultdict[int, set[int]] = defaultdict(set)
    for first, second in problem.separations:
        conflicts[problem.index[first]].add(problem.index[second])
        conflicts[problem.index[second]].add(problem.index[first])
    buffers, near = problem.buffers, list(conflicts)
    around = {
        other
        for other, buffer in enumerate(buffers)
        if any(live_together(buffer.live, buffers[index].live) for index in near)
    }
    for low, high in combinations(sorted(around | conflicts.keys()), 2):
        one, two = buffers[low], buffers[high]
        if live_together(one.live, two.live) and problem.sharing.pair(one, two) is None:
            conflicts[low].add(high)
            conflicts[high].add(low)
    return conflicts


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
