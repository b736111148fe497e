# SPDX-License-Identifier: Apache-2.0
"""Fewer positions, with the same buffers live together."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace

from passes.planning.problem import Problem


def compressed(problem: Problem) -> Problem:
    """Return `problem` with its positions renumbered, without those at which nothing changes.

    The positions at which a live range begins or ends become 0, 1, 2 and so on. A plan of one is
    a plan of the other. Where a buffer's life begins in the statement in which another's ends, and
    nothing else changes within it, the two are then live together at exactly one position, however
    many positions the statement has.
    """
    changes = sorted({at for buffer in problem.buffers for live in buffer.live for at in live})

    def renumbered(at: int) -> int:
        return bisect_left(changes, at)

    buffers = (
        replace(buffer, live=tuple((renumbered(a), renumbered(b)) for a, b in buffer.live))
        for buffer in problem.buffers
    )
    return replace(problem, buffers=tuple(buffers))
