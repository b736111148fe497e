"""The planning problems of a function for an Ascend core, with what the reuse levels look at."""

from __future__ import annotations

from dataclasses import replace

from tvm.tirx import PrimFunc

from passes.analysis.ascend.first_writes import check_first_writes
from passes.analysis.ascend.isa_in_place import isa_in_place
from passes.analysis.ascend.pipes import Pipelines, find_pipelines
from passes.analysis.tir.problems import AttachedProblem, FunctionProblems
from passes.planning.ascend.levels import DEPENDENCE, STALL
from passes.planning.problem import Buffer, Penalty


def check_is_planned(func: PrimFunc, found: FunctionProblems, scopes: tuple[str, ...]) -> None:
    """Refuse a function in which memory that should be planned is not.

    Parameters
    ----------
    func : tvm.tirx.PrimFunc
        Flat.
    found : FunctionProblems
        Its problems.
    scopes : tuple of str
        The storage scopes in which each allocation that is used has to be planned.

    Raises
    ------
    ValueError
        When a size is symbolic, a buffer has several slots and no loop whose iterations could
        take turns with them, memory is read before it is written, or a buffer is used in a way
        that keeps it from being planned; the message names the buffer and its scope.
    """
    planned = {a.index for attached in found.problems for a in attached.allocations.values()}
    rest = [index for index in range(len(found.access.allocs)) if index not in planned]
    touched = {index for entry in found.access.sequence for index in entry.touched}
    for index, line in zip(rest, found.left_alone, strict=True):
        if str(found.access.allocs[index].scope) in scopes and index in touched:
            raise ValueError(f"{line}; its place must be decided when the kernel is compiled")
    for line in found.remarks:
        raise ValueError(f"{line}; take the slots away, or allocate it inside of the loop")
    check_first_writes(func.body, found.access, found.uses, planned)


def ascend_problems(
    func: PrimFunc, found: FunctionProblems, restrict_inplace_as_isa: bool = False
) -> tuple[FunctionProblems, Pipelines]:
    """Add to a function's problems how its buffers meet the pipelines.

    Parameters
    ----------
    func : tvm.tirx.PrimFunc
        Flat.
    found : FunctionProblems
        Its problems.
    restrict_inplace_as_isa : bool
        As `restrict` of `isa_in_place`.

    Returns
    -------
    FunctionProblems
        The same problems. Buffers have their `PipelineUse` and stand in the order in which their
        lives begin; of the pairs in place those are left that the instruction set allows, in the
        order of their instructions. A pair that stalls a double buffer is in place at the cost of
        a wait and a stall each time that its statements run.
    Pipelines
        The function as the pipelines see it.

    Raises
    ------
    ValueError
        When a pipe is unknown.
    """
    pipelines = find_pipelines(func, found)
    problems = tuple(
        _with_pipelines(found, attached, pipelines, restrict_inplace_as_isa)
        for attached in found.problems
    )
    return replace(found, problems=problems), pipelines


def _with_pipelines(
    found: FunctionProblems, attached: AttachedProblem, pipelines: Pipelines, restrict: bool
) -> AttachedProblem:
    attached = in_order_of_life(attached)
    uses = {name: pipelines.uses[a.index] for name, a in attached.allocations.items()}
    buffers = tuple(replace(buffer, use=uses[buffer.name]) for buffer in attached.problem.buffers)
    in_place = isa_in_place(found, attached, pipelines, restrict)
    stalls = tuple(
        Penalty(a, b, (DEPENDENCE + STALL) * min(uses[a].runs, uses[b].runs))
        for a, b in in_place.stalls
    )
    problem = replace(attached.problem, buffers=buffers, in_place=in_place.pairs, penalties=stalls)
    return replace(attached, problem=problem)


def in_order_of_life(attached: AttachedProblem) -> AttachedProblem:
    """Return a problem with its buffers in the order in which their lives begin."""

    def begins(buffer: Buffer) -> int:
        return buffer.live[0][0]

    buffers = tuple(sorted(attached.problem.buffers, key=begins))
    return replace(
        attached,
        problem=replace(attached.problem, buffers=buffers),
        allocations={buffer.name: attached.allocations[buffer.name] for buffer in buffers},
    )
