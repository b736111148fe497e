# SPDX-License-Identifier: Apache-2.0
"""The planning problems of a function for an Ascend core, with what the reuse levels look at."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import combinations

from tvm.tirx import AllocBuffer, PrimFunc

from passes.ascend.analysis.isa_in_place import isa_in_place
from passes.ascend.analysis.pipes import Pipelines, find_pipelines
from passes.ascend.planning.levels import DEPENDENCE, STALL, with_level_penalties
from passes.planning import Buffer, LiveRange, Penalty, Problem
from passes.prim_func import (
    AttachedProblem,
    Callers,
    FunctionProblems,
    ProblemOptions,
    find_problems,
    pairs_that_take_turns,
)
from passes.simulation import Step
from target_hw.memory import MemoryHierarchy

_PRELOAD = "preload_local_buffer"
"""The annotation of a buffer that one iteration of a loop fills for the next.

Source: AscendNPU-IR, ``PlanMemory.cpp`` of the HIVM dialect: it lives from the beginning of the
innermost loop around it to its end.
"""

_TIGHTLY_COUPLED = "tightly_coupled_buffer"
"""The annotation of a buffer that the other core of a pair has at the same address."""

_UNIQUE = "mem_unique"
"""The annotation of a buffer that shares bytes with no other."""

_GENERAL = ("global", "local")  # Scopes that every target has


@dataclass(frozen=True, eq=False)
class CoreKernel:
    """A function for one core: its problems, and its statements on their pipes."""

    func: PrimFunc  # As it was given
    memory: MemoryHierarchy  # What memory the core has
    found: FunctionProblems  # The problems: see `ascend_problems`; with penalties of the levels
    pipelines: Pipelines  # What runs where
    restrict_inplace_as_isa: bool = False  # As `restrict` of `isa_in_place`

    @property
    def program(self) -> tuple[Step, ...]:
        """The statements."""
        return self.pipelines.program

    @property
    def problems(self) -> tuple[Problem, ...]:
        """The problems as planners without TVM take them."""
        return tuple(attached.problem for attached in self.found.problems)

    def with_slots(self, number: int, slots: Mapping[str, int]) -> Problem:
        """Return a problem, by its index in `problems`, in which some buffers have other slots.

        These are not pinned. What may be in place depends on slots, and so do the penalties of the
        levels: both are found anew.
        """
        attached, restrict = self.found.problems[number], self.restrict_inplace_as_isa
        buffers = [
            replace(buffer, slots=slots.get(buffer.name, buffer.slots))
            for buffer in attached.problem.buffers
        ]
        attached = _attached(self.found, attached, buffers, self.pipelines, restrict)
        return with_level_penalties(attached.problem)


def read_kernel(
    func: PrimFunc,
    memory: MemoryHierarchy,
    *,
    restrict_inplace_as_isa: bool = False,
    addressed: bool = True,
    callers: Callers | None = None,
) -> CoreKernel:
    """Read a flat function once; ValueError where it cannot be planned, or a pipe is unknown."""
    options = ProblemOptions(
        memory=memory,
        addressed=addressed,
        is_native=True,
        callers=callers or Callers(),
    )
    found = find_problems(func, options)
    _check_allocations(found, memory)
    found, pipelines = ascend_problems(found, restrict_inplace_as_isa)
    problems = (replace(a, problem=with_level_penalties(a.problem)) for a in found.problems)
    found = replace(found, problems=tuple(problems))
    return CoreKernel(func, memory, found, pipelines, restrict_inplace_as_isa)


def _check_allocations(found: FunctionProblems, memory: MemoryHierarchy) -> None:
    """Refuse memory that the chip does not have, and what the planner cannot do."""
    for alloc, statement in zip(found.access.allocs, found.access.alloc_stmts, strict=True):
        scope = str(alloc.scope)
        if scope not in memory and scope not in _GENERAL:
            known = ", ".join(described.name for described in memory)
            has = f"which has: {known}" if known else "which describes none"
            raise ValueError(
                f"buffer {alloc.name!r}: scope {scope!r} is not in the memory of the target, {has}"
            )
        if _TIGHTLY_COUPLED in statement.annotations:
            raise ValueError(
                f"buffer {alloc.name!r} in {scope}: {_TIGHTLY_COUPLED} is not supported; "
                "its address would have to be that of a buffer in another function"
            )


def check_is_planned(kernel: CoreKernel, scopes: Collection[str]) -> None:
    """Refuse a kernel in which memory of some scopes that should be planned is not.

    ValueError is raised when a size is symbolic, a buffer has several slots and no loop whose
    iterations could take turns with them, memory is read before it is written, or a buffer is used
    in a way that keeps it from being planned; the message names the buffer and its scope.
    """
    found = kernel.found
    touched = {index for entry in found.access.sequence for index in entry.touched}
    for note in found.left_alone:
        if note.scope in scopes and note.index in touched:
            raise ValueError(f"{note}; its place must be decided when the kernel is compiled")
    for note in found.remarks:
        if note.scope in scopes:
            raise ValueError(f"{note}; take the slots away, or allocate it inside of the loop")
    for index in kernel.pipelines.read_first:
        alloc, statement = found.access.allocs[index], found.access.alloc_stmts[index]
        # What is preloaded was written an iteration before.
        if str(alloc.scope) in scopes and not _says(statement, _PRELOAD):
            where = f"buffer {alloc.name!r} in {alloc.scope}"
            raise ValueError(f"{where}: error: read before first write")


def ascend_problems(
    found: FunctionProblems, restrict_inplace_as_isa: bool = False
) -> tuple[FunctionProblems, Pipelines]:
    """Add to a flat function's problems how its buffers meet the pipelines, and return these too.

    Buffers stand in the order in which their lives begin; of the pairs in place those are left that
    the instruction set allows, in the order of their instructions. A pair that stalls a double
    buffer costs a wait and a stall each time that its statements run. Raises ValueError when a pipe
    is unknown, or a buffer is preloaded and in no loop.
    """
    pipelines, problems = find_pipelines(found), []
    for attached in found.problems:
        lives = _preloaded_lives(found, attached)
        buffers = [
            replace(
                buffer,
                live=(lives[buffer.name],) if buffer.name in lives else buffer.live,
                use=pipelines.uses[attached.allocations[buffer.name].index],
            )
            for buffer in attached.problem.buffers
        ]
        safe = tuple(pair for pair in attached.safe_pairs if lives.keys().isdisjoint(pair))
        attached = replace(attached, safe_pairs=safe)
        problems.append(_attached(found, attached, buffers, pipelines, restrict_inplace_as_isa))
    return replace(found, problems=tuple(problems)), pipelines


def _says(statement: AllocBuffer, annotation: str) -> bool:
    value = statement.annotations.get(annotation, False)
    return bool(getattr(value, "value", value))


def _preloaded_lives(found: FunctionProblems, attached: AttachedProblem) -> dict[str, LiveRange]:
    """Return the life of each preloaded buffer by name: it lasts throughout the loop around it."""
    lives = {}
    for buffer in attached.problem.buffers:
        allocation = attached.allocations[buffer.name]
        if not _says(allocation.statement, _PRELOAD):
            continue
        if allocation.loop is None:
            raise ValueError(
                f"buffer {buffer.name!r} in {attached.problem.memory.name}: "
                "preload local buffer must be inside a loop-like op"
            )
        loop = allocation.loop.__chandle__()
        sequence = found.access.sequence
        begin = next(position for position, entry in enumerate(sequence) if entry.key == loop)
        end = begin + sequence[begin].scope_pair_offset + 1
        # What something keeps may live longer than the loop.
        lives[buffer.name] = min(begin, buffer.live[0][0]), max(end, buffer.live[-1][1])
    return lives


def _attached(
    found: FunctionProblems,
    attached: AttachedProblem,
    buffers: Iterable[Buffer],
    pipelines: Pipelines,
    restrict: bool,
) -> AttachedProblem:
    """Return the problem of some buffers; its penalties are those of pairs in place that stall."""
    buffers = tuple(sorted(buffers, key=lambda buffer: buffer.live[0][0]))
    allocations = {buffer.name: attached.allocations[buffer.name] for buffer in buffers}
    separated = {frozenset(pair): pair for pair in attached.problem.separations}
    unique = {name for name, a in allocations.items() if _says(a.statement, _UNIQUE)}
    for pair in combinations(allocations, 2):
        if not unique.isdisjoint(pair):
            separated.setdefault(frozenset(pair), pair)
    slots = {buffer.name: buffer.slots for buffer in buffers}
    safe = pairs_that_take_turns(attached.safe_pairs, allocations, slots)
    together = [pair for pair in safe if frozenset(pair) not in separated]
    pairs, stalls = isa_in_place(found, allocations, buffers, together, pipelines, restrict)
    runs = {name: pipelines.uses[a.index].runs for name, a in allocations.items()}
    problem = Problem(
        buffers,
        attached.problem.memory,
        tuple(pairs),
        tuple(separated.values()),
        tuple(Penalty(a, b, (DEPENDENCE + STALL) * min(runs[a], runs[b])) for a, b in stalls),
        attached.problem.name,
    )
    return replace(attached, problem=problem, allocations=allocations)
