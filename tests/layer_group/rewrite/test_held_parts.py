# SPDX-License-Identifier: Apache-2.0
"""What a slice needs of a buffer has to be held: both ends, and under another letter all slices."""

from __future__ import annotations

import pytest

from passes.layer_group.planning.spans import AxisPart, Spans
from passes.layer_group.rewrite.local_buffers import check_covers


def part(letter: str, *ranges: tuple[int, int]) -> AxisPart:
    return AxisPart(letter, Spans.of(ranges))


HELD = {
    "as much": (part("h", (0, 4), (4, 8)), part("h", (0, 4), (4, 8)), ""),
    "less": (part("h", (0, 4), (4, 8)), part("h", (1, 4), (4, 7)), ""),
    "nothing": (part("h", (0, 4), (4, 8)), part("h", (0, 4), (0, 0)), ""),
    "too early": (part("h", (0, 4), (4, 8)), part("h", (0, 4), (3, 8)), "3 to 8, holds 4 to 8"),
    "too late": (part("h", (0, 4), (4, 8)), part("h", (0, 5), (4, 8)), "0 to 5, holds 0 to 4"),
    "in all slices": (part("", (0, 8)), part("h", (0, 4), (4, 8)), ""),
    "in some": (part("w", (0, 6), (2, 8)), part("h", (2, 4), (4, 6)), ""),
    "in one": (part("w", (0, 6), (2, 8)), part("h", (2, 4), (4, 8)), "4 to 8, holds 2 to 6"),
    "in none": (part("w", (0, 4), (4, 8)), part("h", (3, 5)), "3 to 5, holds none"),
}


@pytest.mark.parametrize("name", HELD)
def test_what_is_not_held_is_refused(name: str):
    held, needed, lacking = HELD[name]
    if not lacking:
        check_covers(held, needed, "a read")
        return
    with pytest.raises(ValueError, match=f"^a read: needs elements {lacking}$"):
        check_covers(held, needed, "a read")
