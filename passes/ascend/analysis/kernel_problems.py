# SPDX-License-Identifier: Apache-2.0
"""The planning problems of a function for an Ascend core, with what the reuse levels look at."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import combinations

from passes.ascend.analysis.first_reads import is_read_first
from passes.ascend.analysis.instructions import FILLS_FROM_GLOBAL, STORES_TO_GLOBAL, may_write_over
from passes.ascend.analysis.pipes import Pipelines
from passes.ascend.planning.levels import DEPENDENCE, STALL, with_level_penalties
from passes.ir import AllocationUses, PrimFunc, tir
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
    memory: MemoryHierarchy  # The memories of the core
    found: FunctionProblems  # The problems, with penalties of the levels
    pipelines: Pipelines  # The pipe of each statement
    restrict_inplace_as_isa: bool = False  # As `restrict` of `may_write_over`
    # Whether a buffer that both branches of an `if` write may be in place of another.
    results_of_branches_in_place: bool = True

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

        These are not pinned. Pairs in place depend on slots, and so do the penalties of the levels:
        both are found anew.
        """
        attached = self.found.problems[number]
        buffers = [
            replace(buffer, slots=slots.get(buffer.name, buffer.slots))
            for buffer in attached.problem.buffers
        ]
        return _problem(self, attached, buffers)


def read_kernel(
    func: PrimFunc,
    memory: MemoryHierarchy,
    *,
    restrict_inplace_as_isa: bool = False,
    results_of_branches_in_place: bool = True,
    addressed: bool = True,
    callers: Callers | None = None,
) -> CoreKernel:
    """Read a flat function once.

    ValueError is raised where memory cannot be planned, a pipe is unknown, or a buffer is preloaded
    and in no loop.
    """
    options = ProblemOptions(
        memory=memory, addressed=addressed, is_native=True, callers=callers or Callers()
    )
    found = find_problems(func, options)
    _check_allocations(found, memory)
    kernel = CoreKernel(
        func,
        memory,
        found,
        Pipelines(found),
        restrict_inplace_as_isa,
        results_of_branches_in_place,
    )
    problems = tuple(_with_uses(kernel, attached) for attached in found.problems)
    return replace(kernel, found=replace(found, problems=problems))


def _with_uses(kernel: CoreKernel, attached: AttachedProblem) -> AttachedProblem:
    """Add to a problem how its buffers meet the pipelines, and what follows from that.

    Buffers stand in the order in which their lives begin.
    """
    lives = _preloaded_lives(kernel.found, attached)
    buffers = [
        replace(b, live=lives.get(b.name, b.live), use=kernel.pipelines.uses[b.name])
        for b in attached.problem.buffers
    ]
    buffers.sort(key=lambda buffer: buffer.live[0][0])
    allocations = {buffer.name: attached.allocations[buffer.name] for buffer in buffers}
    separated = {frozenset(pair): pair for pair in attached.problem.separations}
    unique = {name for name, a in allocations.items() if a.annotations.get(_UNIQUE)}
    for pair in combinations(allocations, 2) if unique else ():
        if not unique.isdisjoint(pair):
            separated.setdefault(frozenset(pair), pair)
    apart = {*lives}
    if not kernel.results_of_branches_in_place:
        apart.update(n for n, a in allocations.items() if _is_result_of_branches(kernel, a))
    safe = tuple(
        pair
        for pair in attached.safe_pairs
        if apart.isdisjoint(pair) and frozenset(pair) not in separated
    )
    problem = replace(attached.problem, separations=tuple(separated.values()), in_place=())
    attached = replace(attached, problem=problem, allocations=allocations, safe_pairs=safe)
    return replace(attached, problem=_problem(kernel, attached, buffers))


def _check_allocations(found: FunctionProblems, memory: MemoryHierarchy) -> None:
    """Refuse memory that the chip does not have, and what the planner cannot do."""
    for uses in found.accesses.of:
        alloc, scope = uses.alloc, uses.scope
        if scope not in memory and scope not in _GENERAL:
            known = ", ".join(described.name for described in memory)
            has = f"which has: {known}" if known else "which describes none"
            raise ValueError(
                f"buffer {alloc.name!r}: scope {scope!r} is not in the memory of the target, {has}"
            )
        if _TIGHTLY_COUPLED in uses.annotations:
            raise ValueError(
                f"buffer {alloc.name!r} in {scope}: {_TIGHTLY_COUPLED} is not supported; "
                "its address would have to be that of a buffer in another function"
            )


def check_is_planned(kernel: CoreKernel, scopes: Collection[str]) -> None:
    """Refuse a kernel in which memory of some scopes that should be planned is not.

    That is a buffer of symbolic size, read before it is written, or used in a way that keeps it
    from being planned. The message of the ValueError names the buffer and its scope.
    """
    found = kernel.found
    for note in found.left_alone:
        if note.scope in scopes and note.is_used:
            raise ValueError(f"{note}; its place must be decided when the kernel is compiled")
    planned = {use.index for each in found.problems for use in each.allocations.values()}
    for uses in found.accesses.of:
        # A preloaded buffer was written an iteration before.
        is_exempt = uses.scope not in scopes or uses.annotations.get(_PRELOAD)
        if uses.index in planned and not is_exempt and is_read_first(found.accesses, uses):
            where = f"buffer {uses.alloc.name!r} in {uses.scope}"
            raise ValueError(f"{where}: error: read before first write")


def _preloaded_lives(
    found: FunctionProblems, attached: AttachedProblem
) -> dict[str, tuple[LiveRange]]:
    """Return the life of each preloaded buffer by name: it lasts throughout the loop around it."""
    lives = {}
    for buffer in attached.problem.buffers:
        allocation = attached.allocations[buffer.name]
        if not allocation.annotations.get(_PRELOAD):
            continue
        if allocation.loop is None:
            raise ValueError(
                f"buffer {buffer.name!r} in {attached.problem.memory.name}: "
                "preload local buffer must be inside a loop-like op"
            )
        begin, end = found.access.ranges[allocation.loop.__chandle__()]
        # A buffer that something keeps may live longer than the loop.
        lives[buffer.name] = ((min(begin, buffer.live[0][0]), max(end, buffer.live[-1][1])),)
    return lives


def _problem(kernel: CoreKernel, attached: AttachedProblem, buffers: list[Buffer]) -> Problem:
    """Return the problem of some buffers, with the penalties of pairs that stall and of levels.

    Of the pairs in place those are left that the instruction set allows, in the order of their
    instructions. A pair that stalls a double buffer costs a wait and a stall each time that its
    statements run.
    """
    uses, slots = kernel.pipelines.uses, {buffer.name: buffer.slots for buffer in buffers}
    safe = pairs_that_take_turns(attached.safe_pairs, attached.allocations, slots)
    pairs, stalls = _isa_in_place(kernel, attached.allocations, buffers, safe)
    penalties = tuple(
        Penalty(a, b, (DEPENDENCE + STALL) * min(uses[a].runs, uses[b].runs)) for a, b in stalls
    )
    problem = replace(
        attached.problem, buffers=tuple(buffers), in_place=tuple(pairs), penalties=penalties
    )
    return with_level_penalties(problem)


def _is_result_of_branches(kernel: CoreKernel, allocation: AllocationUses) -> bool:
    """Say whether the first to write a buffer are both branches of an `if`, with a use after it.

    Two buffers that the branches hand on as the result of an `if` are one buffer in TIR.

    Source: AscendNPU-IR, ``PlanMemory.cpp`` of the HIVM dialect: such buffers get one place, and
    are neither in place of others nor others in place of them (``ignoreInplace``).
    """
    sequence, stores = kernel.found.access.sequence, allocation.stores
    written = {(e.number, e.part) for store in stores[1:] for e in store.around}
    for enclosure in stores[0].around if stores else ():
        if not isinstance(enclosure.op, tir.If):
            continue
        if (enclosure.number, 3 - enclosure.part) not in written:
            continue
        _, end = kernel.found.access.ranges[enclosure.op.__chandle__()]
        if any(allocation.index in entry.touched for entry in sequence[end:]):
            return True
    return False


def _isa_in_place(
    kernel: CoreKernel,
    allocations: Mapping[str, AllocationUses],
    buffers: Iterable[Buffer],
    safe: Iterable[tuple[str, str]],
) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Pick those of the `safe` pairs of some buffers that the instruction set allows.

    `passes.prim_func.in_place_pairs` finds pairs that are safe: each element is read before a store
    writes its place. Not every vector instruction can write over what it reads.

    Pairs are (source, destination), by the position of the instruction; of one instruction, the
    source that was allocated first. The second list has those of the pairs that would let the next
    load wait for a store: both are multi-buffered, one is stored to global memory and the other is
    loaded from it. A result has one source, beside those that stall.

    A pair must meet all of these:

    - the destination is no larger than the source;
    - the first store to the destination is an instruction of its own, which the vector unit runs,
      if only element by element in a loop of the scalar unit. Of a safe pair, no later one reads
      the source;
    - a destination of narrower elements has no more slots than the source: else the wider one
      would take as many slots, and the two more bytes than apart;
    - `may_write_over` allows the value that is stored.

    Two buffers count as multi-buffered if they, or what they are in place of directly, have several
    slots; they count as stored and as loaded if anything along their chains of pairs is.
    """
    pipelines = kernel.pipelines
    by_name = {buffer.name: buffer for buffer in buffers}
    partners: dict[str, list[str]] = {name: [] for name in allocations}
    pairs: list[tuple[str, str]] = []
    stalls: list[tuple[str, str]] = []
    taken: set[str] = set()

    def is_multi_buffered(name: str) -> bool:
        return any(by_name[other].slots > 1 for other in (name, *partners[name]))

    def is_moved(name: str, pipes: Mapping[str, Collection[str]], pipe: str) -> bool:
        chain = [name]
        for other in chain:
            chain += [partner for partner in partners[other] if partner not in chain]
        return any(pipe in pipes[other] for other in chain)

    def begins(pair: tuple[str, str]) -> tuple[int, int]:
        destination = by_name[pair[1]]
        return destination.live[0][0], -destination.size

    for source, destination in sorted(safe, key=begins):
        one, two = by_name[source], by_name[destination]
        read, written = allocations[source], allocations[destination]
        is_narrower = written.alloc.element.bits < read.alloc.element.bits
        first = written.stores[0].op
        if (
            destination in taken
            or two.size > one.size
            or (one.slots < two.slots and is_narrower)
            or first.__chandle__() not in pipelines.elementwise
            or not may_write_over(first, read.buffer, kernel.restrict_inplace_as_isa)
        ):
            continue
        pairs.append((source, destination))
        if (
            is_multi_buffered(source)
            and is_multi_buffered(destination)
            and is_moved(destination, pipelines.readers, STORES_TO_GLOBAL)
            and is_moved(source, pipelines.writers, FILLS_FROM_GLOBAL)
        ):
            stalls.append((source, destination))
            continue
        taken.add(destination)
        partners[source].append(destination)
        partners[destination].append(source)
    return pairs, stalls
