# SPDX-License-Identifier: Apache-2.0
"""The planning problems of a function, and where their memory belongs in the IR."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tvm.tirx import AllocBuffer, For, While

from passes.ir import Bound, LinearAccess
from passes.planning import LiveRange, Problem
from passes.prim_func.memory_uses import AllocationUses


@dataclass(frozen=True, eq=False)
class Allocation:
    """What stands behind one buffer of a problem."""

    index: int  # In ``access.allocs`` of the function
    statement: AllocBuffer  # The allocation in the IR
    # The innermost loop around it, whose iterations take turns with its slots.
    loop: For | While | None = None


@dataclass(frozen=True)
class AllocationNote:
    """What a user should know of one allocation; its string is one line of a log."""

    index: int  # In ``access.allocs`` of the function
    # The buffer's name, and the storage scope that it is in.
    name: str
    scope: str
    text: str  # Why the buffer is not planned, or not as it asks
    is_used: bool = True  # Whether the function uses it

    def __str__(self) -> str:
        return f"buffer {self.name!r} in {self.scope}: {self.text}"


@dataclass(frozen=True, eq=False)
class AttachedProblem:
    """A problem, and where its memory belongs in the IR."""

    problem: Problem  # Its positions are indices of ``access.sequence``
    # What each buffer of the problem stands for, in the problem's order.
    allocations: Mapping[str, Allocation]
    # The handle of the statement that owns the memory; None for the whole function.
    owner: int | None
    # Indices of the problems of the same scope whose memory is there at the same time, because
    # their owners enclose this one's; outermost first.
    enclosing: tuple[int, ...]
    # The positions at which the owner runs, in address form: this problem may use the bytes of
    # enclosing buffers that are dead meanwhile. None in arena form, which shares no such bytes.
    owner_range: LiveRange | None = None
    # (source, destination): pairs that may be in place if each iteration uses the same slot index
    # in both. Those of the problem are among them; see `pairs_that_take_turns`.
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
    uses: Sequence[AllocationUses]  # What is known of the memory of its allocations, by index


def pairs_that_take_turns(
    safe_pairs: Iterable[tuple[str, str]],
    allocations: Mapping[str, Allocation],
    slots: Mapping[str, int],
    unequal: bool,
) -> tuple[tuple[str, str], ...]:
    """Return the safe pairs that may be in place when buffers have these numbers of slots.

    Both must use the same slot index in each iteration: with equal numbers of slots, or after the
    planner has widened one of them. `unequal` is `unequal_slots` of `ProblemOptions`.
    """

    def take_turns(one: str, two: str) -> bool:
        if max(slots[one], slots[two]) == 1:
            return True
        loops = [allocations[name].loop for name in (one, two)]
        is_same = len({None if loop is None else loop.__chandle__() for loop in loops}) == 1
        return is_same and (slots[one] == slots[two] or unequal)

    return tuple(pair for pair in safe_pairs if take_turns(*pair))
