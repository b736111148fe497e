# SPDX-License-Identifier: Apache-2.0
"""Rectangles that are too low to be seen on a map, gathered where they are near each other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tvm_ext.drawing.panel import Slot


def gathered(slots: Iterable[Slot], gap_across: float, gap_up: float) -> Iterator[tuple[Slot, ...]]:
    """Yield groups of slots that are close enough for one mark to stand for them.

    A group is a run of slots in one band of addresses, in the order in which they become live, with
    at most `gap_across` positions between one and those before it. A band holds slots of which each
    begins at most `gap_up` bytes above all those below it.
    """
    for band in _bands(sorted(slots, key=lambda slot: (slot.low, slot.begin)), gap_up):
        group: list[Slot] = []
        reached = 0
        for slot in sorted(band, key=lambda slot: (slot.begin, slot.low)):
            if group and slot.begin > reached + gap_across:
                yield tuple(group)
                group = []
            reached = max(reached, slot.end) if group else slot.end
            group.append(slot)
        yield tuple(group)


def _bands(slots: Iterable[Slot], gap: float) -> Iterator[list[Slot]]:
    """Split slots, sorted by offset, where more than `gap` bytes are between two of them."""
    band: list[Slot] = []
    reached = 0
    for slot in slots:
        if band and slot.low > reached + gap:
            yield band
            band = []
        reached = max(reached, slot.high) if band else slot.high
        band.append(slot)
    if band:
        yield band
