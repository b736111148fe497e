# SPDX-License-Identifier: Apache-2.0
"""Buffers that compete for memory, their use by the hardware, and the costs of sharing.

Sizes, offsets and alignments are in bytes. Positions are indices in a linear access sequence, and
every range is half-open.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

from target_hw.memory import as_plain, is_byte_count, is_list

ADDRESS_LIMIT = 1 << 62
"""Sizes and positions stay below this, so that a sum of two always fits a signed 64-bit word."""


LiveRange = tuple[int, int]
"""Half-open range of positions, ``(begin, end)``, in which a buffer holds a value."""


def join_ranges(ranges: Iterable[LiveRange]) -> tuple[LiveRange, ...]:
    """Return the same positions as sorted ranges that neither overlap nor touch."""
    result: list[LiveRange] = []
    for begin, end in sorted(ranges):
        if result and begin <= result[-1][1]:
            result[-1] = (result[-1][0], max(end, result[-1][1]))
        else:
            result.append((begin, end))
    return tuple(result)


def common(first: Sequence[LiveRange], second: Sequence[LiveRange]) -> Iterator[LiveRange]:
    """Yield the ranges of positions that are in both."""
    for begin, end in first:
        for other_begin, other_end in second:
            if max(begin, other_begin) < min(end, other_end):
                yield max(begin, other_begin), min(end, other_end)


def live_together(first: Sequence[LiveRange], second: Sequence[LiveRange]) -> bool:
    """Return whether some position is in both, of sorted ranges."""
    if first[-1][1] <= second[0][0] or second[-1][1] <= first[0][0]:
        return False
    return any(max(a, c) < min(b, d) for a, b in first for c, d in second)


@dataclass(frozen=True)
class PipelineUse:
    """The use of a buffer by the hardware's pipelines, from which reuse levels follow.

    Parameters
    ----------
    dma : bool
        Whether a transfer writes or reads it: it is filled from global memory (MTE2), or drained
        to global memory (MTE3, FIX).
    scalar : bool
        Whether the scalar unit reads or writes it.
    loop : int, optional
        The innermost loop around its allocation and all its uses. Iterations of it can take turns
        with several offsets, unless one reads what an earlier one wrote: such a buffer has one
        slot. None where there is no such loop. Equal numbers are equal loops; they have no other
        meaning.
    runs : int
        How often the body of `loop` runs in one call of the kernel, at most; 1 without a loop.

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

    def rotates_with(self, other: Buffer) -> bool:
        """Return whether one loop moves both from offset to offset, as far as is known.

        Only then are they at equal slots in each iteration.
        """
        return self.use is None or other.use is None or self.use.loop == other.use.loop


@dataclass(frozen=True, init=False)
class Penalty:
    """The cost of two buffers that share bytes.

    The cost is charged once, however many bytes and slots are shared: a false dependence between
    two pipelines, a double buffer that stalls. Their *slots match* if they have equally many
    offsets and slot `k` of one shares bytes with no slot of the other but slot `k`.

    Parameters
    ----------
    first, second : str
        The names of the buffers.
    cost : int
        A positive number, as large as it may be.
    cost_if_slots_match : int, optional
        What it costs instead where their slots match: positive, at most `cost`, the default.
    """

    first: str
    second: str
    cost: int
    cost_if_slots_match: int

    def __init__(
        self, first: str, second: str, cost: int, cost_if_slots_match: int | None = None
    ) -> None:
        matched = cost if cost_if_slots_match is None else cost_if_slots_match
        values = (first, second, as_plain(cost), as_plain(matched))
        for entry, value in zip(fields(self), values, strict=True):
            object.__setattr__(self, entry.name, value)


def _checked_live(buffer: Buffer) -> tuple[LiveRange, ...]:
    """Return the live ranges sorted and joined, or say which one is wrong."""
    if _is_one_range(buffer.live):
        return buffer.live
    where = f"buffer {buffer.name!r}: live range"
    previous: LiveRange | None = None
    if not is_list(buffer.live) or not all(map(is_list, buffer.live)):
        raise ValueError(f"{where}s must be pairs (begin, end), got {buffer.live!r}")
    pieces: list[Any] = sorted(tuple(map(as_plain, entry)) for entry in buffer.live)
    for entry in pieces:
        if len(entry) != 2 or not all(is_byte_count(p) and abs(p) < ADDRESS_LIMIT for p in entry):
            raise ValueError(f"{where} must be two integers within 2**62, got {entry!r}")
        begin, end = entry
        if end <= begin:
            raise ValueError(f"{where} [{begin}, {end}) is empty")
        if previous is not None and begin < previous[1]:
            first, last = previous
            raise ValueError(f"{where}s [{first}, {last}) and [{begin}, {end}) overlap")
        previous = (begin, end)
    if not buffer.live:
        raise ValueError(f"buffer {buffer.name!r}: it needs at least one live range")
    return join_ranges(pieces)


def _is_one_range(live: object) -> bool:
    """Return whether this is one right range: most buffers have one, and there can be a million."""
    if type(live) is not tuple or len(live) != 1:
        return False
    entry = live[0]
    if type(entry) is not tuple or len(entry) != 2:
        return False
    begin, end = entry
    return type(begin) is int and type(end) is int and -ADDRESS_LIMIT < begin < end < ADDRESS_LIMIT


def _checked_pins(buffer: Buffer) -> tuple[int, ...]:
    """Return the pinned offsets as a tuple, or say what is wrong with them."""
    given: Any = buffer.pinned if is_list(buffer.pinned) else ()
    pins: tuple[Any, ...] = tuple(map(as_plain, given))
    if len(pins) != buffer.slots:
        raise ValueError(
            f"buffer {buffer.name!r}: {buffer.slots} slots need {buffer.slots} pinned offsets, "
            f"got {buffer.pinned!r}"
        )
    for offset in pins:
        if not is_byte_count(offset) or not 0 <= offset < ADDRESS_LIMIT:
            raise ValueError(
                f"buffer {buffer.name!r}: a pinned offset must be an integer from 0, got {offset!r}"
            )
    return pins
