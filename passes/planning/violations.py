# SPDX-License-Identifier: Apache-2.0
"""Every way in which a plan breaks a problem of one memory. Shares no code with any planner."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from passes.planning.buffer import ADDRESS_LIMIT, Buffer, Penalty
from passes.planning.columns import Ints
from passes.planning.plan import OffsetColumn, Plan
from passes.planning.problem import Problem
from target_hw.memory import as_plain, is_byte_count

FEW_LIVES = 200  # Lives up to which each is held against each
LEAF = 32  # Positions under a leaf of the tree over them
LIVES_AT_ONCE, PAIRS_AT_ONCE = 100_000, 300_000  # Looked at in one step

Numbers = npt.NDArray[np.signedinteger[Any]]


@dataclass(frozen=True)
class Violation:
    """One way in which a plan breaks its problem.

    Parameters
    ----------
    kind : str
        ``unplaced``, ``unknown``, ``slots``, ``offset``, ``misaligned``, ``capacity``,
        ``reserved``, ``pinned``, ``overlap``, ``in place``, ``separated``, ``peak``
        or ``penalty``.
    buffers : tuple of str
        The names of the buffers concerned.
    message : str
        One line for people.
    """

    kind: str
    buffers: tuple[str, ...]
    message: str


def violations(problem: Problem, plan: Plan) -> Iterator[Violation]:
    """Yield every way in which a plan breaks a problem of one memory.

    Slots that are live together and share bytes are found by a tree over the positions, whose nodes
    have the slots that are live throughout, by offset: n log n steps for n slots when nothing is
    wrong.
    """
    by_name = {} if isinstance(plan.offsets, OffsetColumn) else plan.offsets
    wrong = [(name, at) for name, at in by_name.items() if not _are_offsets(at)]
    for name, given in wrong:
        message = f"{name!r} must have a tuple of offsets in bytes, got {given!r}"
        yield Violation("offset", (name,), message)
    if wrong:
        return
    slots = _slots(problem, plan)
    unplaced = list(_unplaced(problem, plan, slots))
    yield from unplaced
    for buffer in _suspects(problem, slots):
        yield from _misplaced(problem, plan, buffer)
    yield from _overlapping(problem, plan, slots)
    for first, second in problem.separations:
        if _shared(problem, plan, first, second):
            message = f"{first!r} and {second!r} are separated but share bytes"
            yield Violation("separated", (first, second), message)
    if not unplaced:
        yield from _misstated(problem, plan, slots)


@dataclass(frozen=True)
class _Slots:
    """The slots of all buffers, one after the other."""

    counts: Ints  # Of each buffer: how many it has
    owners: Ints  # Of each slot: the index of its buffer, the first byte, and that after all
    begins: Ints  # Of any integers where one is no address
    ends: Ints


def _slots(problem: Problem, plan: Plan) -> _Slots:
    columns, offsets = problem.columns, plan.offsets
    if isinstance(offsets, OffsetColumn) and offsets.names is columns.names:
        counts, begins = np.ones_like(columns.slots), offsets.column
        if begins.min(initial=0) < 0 or begins.max(initial=0) >= ADDRESS_LIMIT:
            begins = begins.astype(object)
    else:
        rows = [offsets.get(name, ()) for name in columns.names]
        counts = np.fromiter(map(len, rows), np.int64, len(rows))
        given = [at for row in rows for at in row]
        are_addresses = min(given, default=0) >= 0 and max(given, default=0) < ADDRESS_LIMIT
        begins = np.array(given, dtype=np.int64 if are_addresses else object)
    owners = np.repeat(np.arange(len(counts)), counts)
    return _Slots(counts, owners, begins, begins + columns.sizes[owners])


def _are_offsets(given: object) -> bool:
    if type(given) is tuple and all(type(at) is int for at in given):
        return True
    return isinstance(given, tuple | list) and all(is_byte_count(as_plain(at)) for at in given)


def _unplaced(problem: Problem, plan: Plan, slots: _Slots) -> Iterator[Violation]:
    is_plain = (slots.counts == problem.columns.slots).all()
    if is_plain and len(plan.offsets) == len(slots.counts):
        return
    for buffer in problem.buffers:
        offsets = plan.offsets.get(buffer.name)
        if offsets is None:
            yield Violation("unplaced", (buffer.name,), f"{buffer.name!r} has no offset")
        elif len(offsets) < buffer.slots or (len(offsets) > buffer.slots and not _rotates(buffer)):
            message = f"{buffer.name!r} has {buffer.slots} slots and {len(offsets)} offsets"
            yield Violation("slots", (buffer.name,), message)
    for name in plan.offsets:
        if name not in problem.index:
            yield Violation("unknown", (name,), f"{name!r} is not in the problem")


def _rotates(buffer: Buffer) -> bool:
    """Return whether the iterations of a loop can take turns with more offsets than it asks for."""
    return buffer.use is not None and buffer.use.loop is not None


def _loops(problem: Problem, names: tuple[str, str]) -> set[int | None]:
    """Return the loops that are known to move buffers from offset to offset."""
    buffers = [problem.buffers[problem.index[name]] for name in names]
    return {buffer.use.loop for buffer in buffers if buffer.use is not None}


def _offsets(plan: Plan, buffer: Buffer) -> tuple[int, ...]:
    return plan.offsets.get(buffer.name, ())


def _suspects(problem: Problem, slots: _Slots) -> Iterator[Buffer]:
    """Yield the buffers whose own offsets may be wrong: there can be a million that are right."""
    memory, owners = problem.memory, slots.owners
    wrong = (slots.begins < 0) | (slots.begins % problem.alignments[owners] != 0)
    if memory.capacity is not None:
        wrong |= slots.ends > memory.capacity
    for low, high in memory.reserved:
        wrong |= np.maximum(low, slots.begins) < np.minimum(high, slots.ends)
    found = np.bincount(owners[wrong], minlength=len(slots.counts)) > 0
    found[list(problem.pins)] = True
    for index in np.flatnonzero(found).tolist():
        yield problem.buffers[index]


def _misplaced(problem: Problem, plan: Plan, buffer: Buffer) -> Iterator[Violation]:
    """Yield what is wrong with one buffer's offsets, whatever the others do."""
    name, alignment = buffer.name, problem.alignment_of(buffer)
    for offset in _offsets(plan, buffer):
        end = offset + buffer.size
        if offset < 0:
            yield Violation("offset", (name,), f"{name!r} starts at {offset}, below zero")
        if offset % alignment:
            message = f"{name!r} starts at {offset}, not a multiple of {alignment}"
            yield Violation("misaligned", (name,), message)
        if problem.capacity is not None and end > problem.capacity:
            message = f"{name!r} ends at {end}, above the capacity {problem.capacity}"
            yield Violation("capacity", (name,), message)
        for low, high in problem.memory.reserved:
            if max(low, offset) < min(high, end):
                message = f"{name!r} at [{offset}, {end}) takes reserved bytes [{low}, {high})"
                yield Violation("reserved", (name,), message)
    if buffer.pinned is not None and tuple(_offsets(plan, buffer)) != buffer.pinned:
        message = f"{name!r} is pinned at {buffer.pinned} but placed at {_offsets(plan, buffer)}"
        yield Violation("pinned", (name,), message)


def _overlapping(problem: Problem, plan: Plan, slots: _Slots) -> Iterator[Violation]:
    """Yield each pair of slots that share bytes while both are live, except rightly in place."""
    in_place = {frozenset(pair) for pair in problem.in_place}
    seen: set[frozenset[int]] = set()
    firsts = np.cumsum(slots.counts) - slots.counts
    called = problem.columns.names
    for pair in _live_overlaps(problem, slots):
        if frozenset(pair) in seen:
            continue
        seen.add(frozenset(pair))
        names = called[slots.owners[pair[0]]], called[slots.owners[pair[1]]]
        where = " and ".join(f"[{slots.begins[at]}, {slots.ends[at]})" for at in pair)
        if frozenset(names) not in in_place:
            message = f"{names[0]!r} and {names[1]!r} are live together and overlap: {where}"
            yield Violation("overlap", names, message)
            continue
        counts = [len(plan.offsets[name]) for name in names]
        places = {(int(slots.begins[at]), at - int(firsts[slots.owners[at]])) for at in pair}
        if len(places) > 1 or counts[0] != counts[1]:
            message = f"{names[0]!r} and {names[1]!r} are in place, but not at one offset: {where}"
            if counts[0] != counts[1]:
                message += f" of {counts[0]} and of {counts[1]}"
            yield Violation("in place", names, message)
        elif counts[0] > 1 and len(_loops(problem, names)) > 1:
            message = f"{names[0]!r} and {names[1]!r} are in place, but in different loops: {where}"
            yield Violation("in place", names, message)


def _live_overlaps(problem: Problem, slots: _Slots) -> Iterator[tuple[int, int]]:
    """Yield pairs of slots that share bytes at a position where both are live.

    Of many lives, each is looked at where it begins, among those that `_nodes` keeps there.
    """
    columns = problem.columns
    lives, owners = columns.lives_of(slots.counts)
    are_few = len(lives) <= FEW_LIVES
    firsts, lasts = (columns.begins, columns.ends) if are_few else columns.places[1:]
    order = firsts[lives].argsort(kind="stable")
    order = order[(slots.begins < slots.ends)[owners[order]]]
    lives, owners = lives[order], owners[order]
    first, last, low, high = firsts[lives], lasts[lives], slots.begins[owners], slots.ends[owners]
    if are_few:
        share = (low[:, None] < high) & (first[:, None] < last)
        ones, others = np.nonzero(np.tril(share & share.T, -1))
        yield from zip(owners[others].tolist(), owners[ones].tolist(), strict=True)
        return
    first, last = first.astype(np.int32), last.astype(np.int32)
    del order, lives
    most = 1 + int(high.max(initial=0))
    if high.dtype == object or most * len(columns.places[0]) >= ADDRESS_LIMIT:
        edges = np.unique(np.concatenate((low, high)))
        low, high, most = edges.searchsorted(low), edges.searchsorted(high), len(edges)

    def keys(nodes: Numbers, addresses: Ints) -> Ints:
        """Return numbers that sort addresses within nodes."""
        found: Ints = nodes * np.int64(most)
        found += addresses
        return found

    for width, kept, where in _nodes(first, last):
        # Those kept, by node and first byte, and the last byte of all of a node up to each.
        begins = keys(where, low[kept])
        by_low = begins.argsort()
        kept, begins = kept[by_low], begins[by_low]
        reach = np.maximum.accumulate(np.append(-1, keys(where[by_low], high[kept])))
        del by_low
        for begun in range(0, len(first), LIVES_AT_ONCE):
            some = slice(begun, begun + LIVES_AT_ONCE)
            node = first[some] // width
            stop, floor = begins.searchsorted(keys(node, high[some])), keys(node, low[some])
            met = np.flatnonzero(reach[stop] > floor)
            start = reach.searchsorted(floor[met], "right") - 1
            counts = stop[met] - start
            cuts = np.arange(PAIRS_AT_ONCE, counts.sum(), PAIRS_AT_ONCE)
            for part in np.split(np.arange(len(met)), np.cumsum(counts).searchsorted(cuts)):
                one = np.repeat(met[part] + begun, counts[part])
                shift = start[part] + counts[part] - np.cumsum(counts[part])
                other = kept[np.arange(len(one)) + np.repeat(shift, counts[part])]
                share = (other < one) & (last[other] > first[one]) & (high[other] > low[one])
                pairs = owners[other[share]].tolist(), owners[one[share]].tolist()
                yield from zip(*pairs, strict=True)


def _nodes(first: Numbers, last: Numbers) -> Iterator[tuple[int, Numbers, Numbers]]:
    """Yield the lives kept in a tree over positions: the positions of a node, lives, their nodes.

    A life is kept in the leaves in which it begins and ends, and in the highest nodes between that
    it covers: so it is in a leaf, or in one node above that, wherever it is live.
    """
    who, width = np.arange(len(first), dtype=np.int32), LEAF
    begin, end = first // width + 1, (last - 1) // width
    yield width, who, begin - 1
    yield width, who[end >= begin], end[end >= begin]
    while (is_open := begin < end).any():
        who, begin, end = who[is_open], begin[is_open], end[is_open]
        is_left, is_right = begin % 2 == 1, end % 2 == 1
        yield (
            width,
            np.append(who[is_left], who[is_right]),
            np.append(begin[is_left], end[is_right] - 1),
        )
        width, begin, end = 2 * width, (begin + 1) // 2, end // 2


def _shared(problem: Problem, plan: Plan, first: str, second: str) -> list[tuple[int, int]]:
    """Return the numbers of the slots of two buffers that share a byte."""
    one, two = (problem.buffers[problem.index[name]] for name in (first, second))
    return [
        (slot, other)
        for slot, a in enumerate(_offsets(plan, one))
        for other, b in enumerate(_offsets(plan, two))
        if max(a, b) < min(a + one.size, b + two.size)
    ]


def _misstated(problem: Problem, plan: Plan, slots: _Slots) -> Iterator[Violation]:
    """Yield what the plan says of itself and is not so."""
    peak = int(slots.ends.max(initial=0))
    if plan.peak != peak:
        yield Violation("peak", (), f"the peak is {peak}, the plan says {plan.peak}")
    penalty = sum(charge(problem, plan, p) for p in problem.penalties)
    if plan.penalty != penalty:
        yield Violation("penalty", (), f"the penalty is {penalty}, the plan says {plan.penalty}")


def charge(problem: Problem, plan: Plan, penalty: Penalty) -> int:
    """Return what one penalty costs under a plan."""
    shared = _shared(problem, plan, penalty.first, penalty.second)
    if not shared:
        return 0
    equally_many = len(plan.offsets[penalty.first]) == len(plan.offsets[penalty.second])
    slots_match = equally_many and all(slot == other for slot, other in shared)
    return penalty.cost_if_slots_match if slots_match else penalty.cost
