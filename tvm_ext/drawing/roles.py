# SPDX-License-Identifier: Apache-2.0
"""What the colours of a memory map mean: the part that a buffer plays in how high a plan is."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from enum import Enum
from itertools import pairwise

from passes.planning import Plan, Problem, live_bytes


class Role(Enum):
    """The part of a buffer in the height of a plan; the value is what a legend says of it."""

    FULLEST = "live when the most bytes are live"
    TOP = "reaches the peak at another time"
    OTHER = "all other buffers"


ROLE_COLOURS = {Role.FULLEST: "#ee8866", Role.TOP: "#eedd88", Role.OTHER: "#8cc8ee"}
"""Colours that carry black text, and differ for colour-blind readers and in grey.

After Paul Tol's light colours (SRON/EPS/TN/09-002).
"""


def role_finder(problem: Problem, plan: Plan) -> Callable[[int, int, int], Role]:
    """Return what tells the role of a rectangle on the map of a plan.

    It takes the first position of a live range, the one past its last, and the byte past the end of
    the buffer. The most bytes may be live at several times.
    """
    changes = live_bytes(problem)
    most = max((live for _, live in changes), default=0)
    fullest = [(begin, end) for (begin, live), (end, _) in pairwise(changes) if live == most]
    ends = [end for _, end in fullest]

    def role(begin: int, end: int, high: int) -> Role:
        at = bisect_left(ends, begin + 1)  # The first fullest time that ends after `begin`.
        if at < len(fullest) and fullest[at][0] < end:
            return Role.FULLEST
        return Role.TOP if high == plan.peak else Role.OTHER

    return role
