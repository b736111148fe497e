# SPDX-License-Identifier: Apache-2.0
"""What is to plan in a function: the problems that were read off it, and where they belong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tvm.tirx import AllocBuffer, For, While

from passes.ir.linear_access import LinearAccess
from passes.ir.symbolic_bounds import Bound
from passes.planning.problem import LiveRange, Problem
from passes.prim_func.memory_uses import AllocationUses


@dataclass(frozen=True, eq=False)
class Allocation:
    """What stands behind one buffer of a problem.

    Attributes
    ----------
    index : int
        In ``access.allocs`` of the function.
    statement : tvm.tirx.AllocBuffer
        The allocation in the IR.
    loop : tvm.tirx.For or tvm.tirx.While or None
        The innermost loop around it, whose iterations take turns with its slots.
    """

    index: int
    statement: AllocBuffer
    loop: For | While | None = None


@dataclass(frozen=True)
class AllocationNote:
    """What a user should know of one allocation; its string is one line of a log.

    Attributes
    ----------
    index : int
        In ``access.allocs`` of the function.
    name, scope : str
        The buffer's name, and the storage scope that it is in.
    text : str
        What there is to say.
    is_used : bool
        Whether the function uses it.
    """

    index: int
    name: str
    scope: str
    text: str
    is_used: bool = True

    def __str__(self) -> str:
        return f"buffer {self.name!r} in {self.scope}: {self.text}"


@dataclass(frozen=True, eq=False)
class AttachedProblem:
    """A problem, and where its memory belongs in the IR.

    Attributes
    ----------
    problem : Problem
        Its positions are indices of ``access.sequence``.
    allocations : mapping of str to Allocation
        What each buffer of the problem stands for, in the problem's order.
    owner : int or None
        The handle of the statement that owns the memory; None for the whole function.
    inside : tuple of int
        Indices of the problems of the same scope whose memory is there at the same time, because
        their owners enclose this one's; outermost first.
    during : (int, int) or None
        The positions at which the owner runs, if what is not live then leaves its bytes to this
        problem, as addresses do. None where the memory of enclosing scopes is there all the time.
    safe : tuple of (str, str)
        (source, destination): the pairs that may be in place if each iteration finds both in slots
        of the same number. Those of the problem are among them; see `pairs_in_place`.
    """

    problem: Problem
    allocations: Mapping[str, Allocation]
    owner: int | None
    inside: tuple[int, ...]
    during: LiveRange | None = None
    safe: tuple[tuple[str, str], ...] = ()

    def pairs_in_place(
        self, slots: Mapping[str, int], unequal: bool = False
    ) -> tuple[tuple[str, str], ...]:
        """Return the safe pairs that may be in place when buffers have these numbers of slots.

        Parameters
        ----------
        slots : mapping of str to int
            Of each buffer.
        unequal : bool
            As `unequal_slots` of `ProblemOptions`.
        """
        return tuple(
            (source, destination)
            for source, destination in self.safe
            if self._take_turns(source, destination, slots, unequal)
        )

    def _take_turns(self, one: str, two: str, slots: Mapping[str, int], unequal: bool) -> bool:
        """Whether two buffers are in slots of the same number at the same time, or can be."""
        if max(slots[one], slots[two]) == 1:
            return True
        loops = [self.allocations[name].loop for name in (one, two)]
        is_same = len({None if loop is None else loop.__chandle__() for loop in loops}) == 1
        return is_same and (slots[one] == slots[two] or unequal)


@dataclass(frozen=True, eq=False)
class FunctionProblems:
    """All that is to plan in a function, and what is not planned.

    Attributes
    ----------
    problems : tuple of AttachedProblem
        Each stands after those that it is inside of.
    left_alone : tuple of AllocationNote
        The allocations that keep memory of their own, and why.
    remarks : tuple of AllocationNote
        The allocations that are planned other than they ask to be.
    bounds : tuple of Bound
        What the sizes rest on.
    access : LinearAccess
        What is known of the function.
    uses : sequence of AllocationUses
        What is known of the memory of its allocations, by index.
    """

    problems: tuple[AttachedProblem, ...]
    left_alone: tuple[AllocationNote, ...]
    remarks: tuple[AllocationNote, ...]
    bounds: tuple[Bound, ...]
    access: LinearAccess
    uses: Sequence[AllocationUses]
