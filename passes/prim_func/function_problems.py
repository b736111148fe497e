# SPDX-License-Identifier: Apache-2.0
"""The planning problems of a function as plain data, and the allocations that are in none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from passes.ir import AllocationUses, Bound, FunctionAccesses, LinearAccess
from passes.planning import LiveRange, Problem


@dataclass(frozen=True)
class AllocationNote:
    """Notes for the user on one allocation; the string is one line of a log."""

    # The buffer's name, and the storage scope that it is in.
    name: str
    scope: str
    text: str  # The reason for which the buffer is not planned, or not as it asks
    is_used: bool = True  # Whether the function uses it

    def __str__(self) -> str:
        return f"buffer {self.name!r} in {self.scope}: {self.text}"


@dataclass(frozen=True, eq=False)
class AttachedProblem:
    """A problem, and where its memory belongs in the IR."""

    problem: Problem  # Its positions are indices of ``access.sequence``
    # The allocation of each buffer of the problem, in the problem's order.
    allocations: Mapping[str, AllocationUses]
    # The handle of the statement that owns the memory; None for the whole function.
    owner: int | None
    # Indices of the problems of the same scope whose memory is there at the same time, because
    # their owners enclose this one's; outermost first.
    enclosing: tuple[int, ...]
    # The positions at which the owner runs, in address form: this problem may use the bytes of
    # enclosing buffers that are dead meanwhile. None in arena form, which shares no such bytes.
    owner_range: LiveRange | None = None
    # (source, destination): pairs that may be in place if each iteration uses the same slot index
    # in both; see `pairs_that_take_turns`.
    safe_pairs: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, eq=False)
class FunctionProblems:
    """The planning problems of a function, and the allocations that are not planned."""

    problems: tuple[AttachedProblem, ...]  # Each stands after those that enclose it
    left_alone: tuple[AllocationNote, ...]  # The allocations that keep memory of their own, and why
    # The allocations that get fewer slots than they ask for.
    remarks: tuple[AllocationNote, ...]
    bounds: tuple[Bound, ...]  # The bounds of variables that the planned sizes assume
    access: LinearAccess  # The function, as it was read, and which statement touches what
    accesses: FunctionAccesses


def pairs_that_take_turns(
    safe_pairs: Iterable[tuple[str, str]],
    allocations: Mapping[str, AllocationUses],
    slots: Mapping[str, int],
) -> tuple[tuple[str, str], ...]:
    """Return the safe pairs that may be in place when buffers have these numbers of slots.

    Both must use the same slot index in each iteration of one loop: with equal numbers of slots, or
    after a planner has given one of them more offsets.
    """

    def take_turns(one: str, two: str) -> bool:
        loops = [allocations[name].loop for name in (one, two)]
        handles = {None if loop is None else loop.__chandle__() for loop in loops}
        return max(slots[one], slots[two]) == 1 or len(handles) == 1

    return tuple(pair for pair in safe_pairs if take_turns(*pair))
