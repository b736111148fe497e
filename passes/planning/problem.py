# SPDX-License-Identifier: Apache-2.0
"""The problem that every planner solves: buffers that compete for one memory.

Sizes, offsets, alignments and capacities are in bytes. Positions are indices in a linear access
sequence, and every range is half-open.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import Any

from passes.planning.html_table import html_table
from passes.planning.live_ranges import LiveRange as LiveRange
from passes.planning.live_ranges import join_ranges, live_together
from target_hw.memory import MemoryScope, as_plain, is_byte_count

ADDRESS_LIMIT = 1 << 62
"""Sizes and positions stay below this, so that a sum of two always fits a signed 64-bit word."""

SLOT_LIMIT = 1 << 31
"""Slots of all buffers stay below this: planners number them in words of 32 bits."""


@dataclass(frozen=True)
class PipelineUse:
    """How a buffer meets the hardware's pipelines: what the reuse levels look at.

    Parameters
    ----------
    dma : bool
        Whether a transfer writes or reads it: it is filled from global memory (MTE2), or drained
        to global memory (MTE3, FIX).
    scalar : bool
        Whether the scalar unit reads or writes it.
    loop : int, optional
        The innermost loop around its allocation and all its uses: each iteration writes it anew
        before it reads it, so that iterations can take turns with several offsets. None where
        there is no such loop. Equal numbers are equal loops; they have no other meaning.
    runs : int
        How often a statement that uses it runs in one call of the kernel, at most; at least 1.

    Raises
    ------
    ValueError
        If `runs` is no integer from 1.
    """

    dma: bool = False
    scalar: bool = False
    loop: int | None = None
    runs: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "runs", as_plain(self.runs))
        if not is_byte_count(self.runs) or not 0 < self.runs < ADDRESS_LIMIT:
            raise ValueError(f"pipeline use: runs must be an integer from 1, got {self.runs!r}")


@dataclass(frozen=True)
class Buffer:
    """One allocation.

    Parameters
    ----------
    name : str
        Unique within its problem.
    size : int
        Bytes of one slot; a buffer of zero bytes shares with everything.
    live : tuple of LiveRange
        When it holds a value, in any order; kept sorted, ranges that touch joined. Ranges of one
        buffer may not overlap.
    alignment : int
        Its offsets are multiples of this many bytes, and of the memory's own alignment.
    slots : int
        Number of copies (2 for a double buffer). Each has its own offset and lives as long as the
        buffer does, so slots of one buffer never share bytes.
    pinned : tuple of int, optional
        Offsets that are already decided, one a slot.
    use : PipelineUse, optional
        How it meets the hardware's pipelines, where that is known.

    Raises
    ------
    ValueError
        If the fields contradict each other or are out of range; the message names the buffer.
    """

    name: str
    size: int
    live: tuple[LiveRange, ...]
    alignment: int = 1
    slots: int = 1
    pinned: tuple[int, ...] | None = None
    use: PipelineUse | None = None

    def __post_init__(self) -> None:
        for what, given, least in (
            ("size", self.size, 0),
            ("alignment", self.alignment, 1),
            ("slots", self.slots, 1),
        ):
            value: Any = given if type(given) is int else as_plain(given)
            if value is not given:
                object.__setattr__(self, what, value)
            if not is_byte_count(value) or not least <= value < ADDRESS_LIMIT:
                raise ValueError(
                    f"buffer {self.name!r}: {what} must be an integer of at least {least} and "
                    f"below 2**62, got {value!r}"
                )
        object.__setattr__(self, "live", _checked_live(self))
        if self.pinned is not None:
            object.__setattr__(self, "pinned", _checked_pins(self))

    @property
    def may_widen(self) -> bool:
        """Whether a plan may give it more offsets than it has slots: a loop's iterations rotate."""
        return self.use is not None and self.use.loop is not None and self.pinned is None


@dataclass(frozen=True)
class Penalty:
    """What it costs when two buffers share bytes.

    The cost is charged once, however many bytes and slots are shared: a false dependence between
    two pipelines, a double buffer that stalls. Two buffers share *in step* if they have equally
    many offsets and slot `k` of one shares bytes with no slot of the other but slot `k`.

    Parameters
    ----------
    first, second : str
        The names of the buffers.
    cost : int
        A positive number, as large as it may be.
    in_step : int, optional
        What it costs instead where they share in step: positive, at most `cost`.
    """

    first: str
    second: str
    cost: int
    in_step: int | None = None

    def __post_init__(self) -> None:
        for what, given in (("cost", self.cost), ("in_step", self.in_step)):
            if given is not None and type(given) is not int:
                object.__setattr__(self, what, as_plain(given))

    @property
    def cost_in_step(self) -> int:
        """What it costs where the two share in step."""
        return self.cost if self.in_step is None else self.in_step


@dataclass(frozen=True)
class Problem:
    """Buffers that compete for one memory at one attach point.

    Two buffers that are live at one position must not share bytes, unless they are an in-place
    pair that starts at the same offset.

    Parameters
    ----------
    buffers : tuple of Buffer
        In any order; planners do not depend on names.
    memory : MemoryScope
        Its capacity, alignment and reserved ranges hold for every buffer.
    in_place : tuple of (str, str)
        (source, destination): these may take the *same* offset while both are live, slot by slot;
        any other overlap while both are live is still forbidden. Both then have equally many
        offsets: of two with unequal slots, the one with fewer goes in place by taking all offsets
        of the other, which it can if it may have more offsets than slots. With more than one
        offset each, they must not be known to be of different loops: see `rotate_alike`.
    separations : tuple of (str, str)
        Pairs that must not share bytes although they need not be live together.
    penalties : tuple of Penalty
        Pairs whose sharing costs something. An in-place pair that is penalized, too, may be in
        place at that cost.
    name : str
        Where the problem comes from, for messages.

    Raises
    ------
    ValueError
        If a name is unknown or used twice, a pair is given twice or contradicts another, or a
        pinned offset cannot hold; the message names the problem and the buffers.
    """

    buffers: tuple[Buffer, ...]
    memory: MemoryScope = field(default_factory=lambda: MemoryScope("global"))
    in_place: tuple[tuple[str, str], ...] = ()
    separations: tuple[tuple[str, str], ...] = ()
    penalties: tuple[Penalty, ...] = ()
    name: str = "problem"

    def __post_init__(self) -> None:
        if not isinstance(self.memory, MemoryScope):
            raise ValueError(f"{self.name}: memory must be a MemoryScope, got {self.memory!r}")
        for what, kind in (("buffers", Buffer), ("penalties", Penalty)):
            given = tuple(getattr(self, what))
            for entry in given:
                if not isinstance(entry, kind):
                    raise ValueError(
                        f"{self.name}: {what} must be of {kind.__name__}, got {entry!r}"
                    )
            object.__setattr__(self, what, given)
        for what in ("in_place", "separations"):
            object.__setattr__(self, what, tuple((a, b) for a, b in getattr(self, what)))
        _check_names(self)
        _check_pairs(self)
        _check_pins(self)
        _check_total(self)

    @property
    def capacity(self) -> int | None:
        """Bytes in the memory, or None."""
        return self.memory.capacity

    @cached_property
    def index(self) -> dict[str, int]:
        """Position of each buffer in `buffers`, by name."""
        return {buffer.name: i for i, buffer in enumerate(self.buffers)}

    def alignment_of(self, buffer: Buffer) -> int:
        """Bytes that every offset of `buffer` is a multiple of: its own and the memory's."""
        return math.lcm(buffer.alignment, self.memory.alignment)

    def __str__(self) -> str:
        """Say in a line what competes for which memory."""
        capacity = "" if self.capacity is None else f" of {self.capacity:,} bytes"
        return f"{self.name}: {len(self.buffers):,} buffers in {self.memory.name}{capacity}"

    def _repr_html_(self) -> str:
        """Return a table of the buffers, for a notebook."""
        header = ("buffer", "bytes", "slots", "alignment", "live")
        rows = (
            (
                buffer.name,
                f"{buffer.size:,}",
                f"{buffer.slots:,}",
                f"{self.alignment_of(buffer):,}",
                " ".join(f"[{begin}, {end})" for begin, end in buffer.live),
            )
            for buffer in self.buffers
        )
        pairs = (("in place", self.in_place), ("apart", self.separations))
        notes = [f"{what}: {len(found):,} pairs" for what, found in pairs if found]
        notes += [f"penalties: {len(self.penalties):,}"] if self.penalties else []
        return html_table(str(self), header, rows, notes=notes)


def rotate_alike(first: Buffer, second: Buffer) -> bool:
    """Whether one loop moves two buffers from offset to offset, as far as is known.

    Only then are they at equal slots in each iteration.
    """
    return first.use is None or second.use is None or first.use.loop == second.use.loop


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _checked_live(buffer: Buffer) -> tuple[LiveRange, ...]:
    """Return the live ranges sorted and joined, or say which one is wrong."""
    if _is_one_range(buffer.live):
        return buffer.live
    where = f"buffer {buffer.name!r}: live range"
    previous: LiveRange | None = None
    if not _is_list(buffer.live) or not all(map(_is_list, buffer.live)):
        raise ValueError(f"{where}s must be pairs (begin, end), got {buffer.live!r}")
    pieces: list[Any] = sorted(tuple(map(as_plain, entry)) for entry in buffer.live)
    for entry in pieces:
        if len(entry) != 2 or not all(is_byte_count(p) and abs(p) < ADDRESS_LIMIT for p in entry):
            raise ValueError(f"{where} must be two integers within 2**62, got {entry!r}")
        begin, end = entry
        if end <= begin:
            raise ValueError(f"{where} [{begin}, {end}) is empty")
        if previous is not None and begin < previous[1]:
            raise ValueError(f"{where}s {list(previous)} and {list(entry)} overlap")
        previous = (begin, end)
    if not buffer.live:
        raise ValueError(f"buffer {buffer.name!r}: it needs at least one live range")
    return join_ranges(pieces)


def _is_one_range(live: object) -> bool:
    """Whether this is one right range: most buffers have one, and there can be a million."""
    if type(live) is not tuple or len(live) != 1:
        return False
    entry = live[0]
    if type(entry) is not tuple or len(entry) != 2:
        return False
    begin, end = entry
    return type(begin) is int and type(end) is int and -ADDRESS_LIMIT < begin < end < ADDRESS_LIMIT


def _checked_pins(buffer: Buffer) -> tuple[int, ...]:
    """Return the pinned offsets as a tuple, or say what is wrong with them."""
    pins: tuple[Any, ...] = tuple(map(as_plain, buffer.pinned or ()))
    if len(pins) != buffer.slots:
        raise ValueError(
            f"buffer {buffer.name!r}: {buffer.slots} slots need {buffer.slots} pinned offsets, "
            f"got {len(pins)}"
        )
    for offset in pins:
        if not is_byte_count(offset) or not 0 <= offset < ADDRESS_LIMIT:
            raise ValueError(
                f"buffer {buffer.name!r}: a pinned offset must be an integer from 0, got {offset!r}"
            )
    return pins


def _check_names(problem: Problem) -> None:
    seen = set()
    for buffer in problem.buffers:
        if buffer.name in seen:
            raise ValueError(f"{problem.name}: two buffers are called {buffer.name!r}")
        seen.add(buffer.name)


def _check_known(problem: Problem, what: str, pairs: Iterable[tuple[str, str]]) -> None:
    """Refuse a pair with an unknown name, of a buffer with itself, or given twice."""
    seen = set()
    for first, second in pairs:
        for name in (first, second):
            if name not in problem.index:
                raise ValueError(f"{problem.name}: {what} names an unknown buffer {name!r}")
        if first == second:
            raise ValueError(f"{problem.name}: {what} pairs buffer {first!r} with itself")
        pair = frozenset((first, second))
        if pair in seen:
            raise ValueError(f"{problem.name}: {what} lists {first!r} and {second!r} twice")
        seen.add(pair)


def _check_pairs(problem: Problem) -> None:
    _check_known(problem, "in_place", problem.in_place)
    _check_known(problem, "separations", problem.separations)
    _check_known(problem, "penalties", [(p.first, p.second) for p in problem.penalties])
    for penalty in problem.penalties:
        if not is_byte_count(penalty.cost) or penalty.cost <= 0:
            raise ValueError(
                f"{problem.name}: the penalty of {penalty.first!r} and {penalty.second!r} must be "
                f"a positive integer, got {penalty.cost!r}"
            )
        if not is_byte_count(penalty.cost_in_step) or not 0 < penalty.cost_in_step <= penalty.cost:
            raise ValueError(
                f"{problem.name}: the penalty in step of {penalty.first!r} and {penalty.second!r} "
                f"must be an integer from 1 to {penalty.cost}, got {penalty.in_step!r}"
            )
    separated = {frozenset(pair) for pair in problem.separations}
    for pair in problem.in_place:
        if frozenset(pair) in separated:
            raise ValueError(
                f"{problem.name}: {pair[0]!r} and {pair[1]!r} are both an in-place pair and "
                "separated"
            )


def _check_pins(problem: Problem) -> None:
    for buffer in problem.buffers:
        if buffer.pinned is None:
            continue
        alignment = problem.alignment_of(buffer)
        for offset in buffer.pinned:
            where = f"{problem.name}: buffer {buffer.name!r} is pinned at {offset}"
            if offset % alignment:
                raise ValueError(f"{where}, which is not a multiple of its alignment {alignment}")
            for begin, end in problem.memory.reserved:
                if max(begin, offset) < min(end, offset + buffer.size):
                    raise ValueError(f"{where}, inside the reserved range [{begin}, {end})")
    separated = {frozenset(pair) for pair in problem.separations}
    for first, second, begin, other_begin, same_place in _pinned_overlaps(problem):
        apart = frozenset((first.name, second.name)) in separated
        if apart or _may_not_share(problem, first, second, same_place):
            raise ValueError(
                f"{problem.name}: buffers {first.name!r} and {second.name!r} may not share bytes, "
                f"but are pinned at {begin} and {other_begin}"
            )


def _pinned_overlaps(problem: Problem) -> Iterator[tuple[Buffer, Buffer, int, int, bool]]:
    """Yield pinned slots that share bytes, their offsets, and whether offset and slot are equal."""
    slots = sorted(
        (offset, index, slot)
        for index, buffer in enumerate(problem.buffers)
        if buffer.size
        for slot, offset in enumerate(buffer.pinned or ())
    )
    for at, (begin, index, slot) in enumerate(slots):
        first = problem.buffers[index]
        for other_begin, other, other_slot in islice(slots, at + 1, None):
            if other_begin >= begin + first.size:
                break
            same_place = (begin, slot) == (other_begin, other_slot)
            yield first, problem.buffers[other], begin, other_begin, same_place


def _may_not_share(problem: Problem, first: Buffer, second: Buffer, same_place: bool) -> bool:
    """Whether two slots live together must be disjoint; those of an in-place pair need not be."""
    pairs = ((first.name, second.name), (second.name, first.name))
    in_step = same_place and first.slots == second.slots
    in_step = in_step and (first.slots == 1 or rotate_alike(first, second))
    if in_step and any(pair in problem.in_place for pair in pairs):
        return False
    return live_together(first.live, second.live)


def _check_total(problem: Problem) -> None:
    """Refuse sizes whose sum could not be an offset."""
    total = _most_bytes(problem)
    if total >= ADDRESS_LIMIT:
        raise ValueError(f"{problem.name}: its buffers add up to {total} bytes, above 2**62")
    slots = sum(buffer.slots for buffer in problem.buffers)
    if slots >= SLOT_LIMIT:
        raise ValueError(f"{problem.name}: its buffers have {slots} slots, above 2**31")


def _most_bytes(problem: Problem) -> int:
    """Return an end that buffers laid out one after the other, above all that is fixed, have."""
    fixed = [end for _, end in problem.memory.reserved]
    fixed += [max(b.pinned) + b.size for b in problem.buffers if b.pinned is not None]
    return max(fixed, default=0) + sum(
        buffer.slots * (buffer.size + problem.alignment_of(buffer)) for buffer in problem.buffers
    )


def widest_alignment(problem: Problem) -> int:
    """Return an alignment that all buffers could have on top of theirs, with sums in 2**62.

    What plans buffers at multiples of more than their alignments, such as several in place, asks
    for it first: the least common multiple of large alignments can be above every limit.
    """
    slots = sum(buffer.slots for buffer in problem.buffers)
    return (ADDRESS_LIMIT - 1 - _most_bytes(problem)) // max(1, slots)
