"""What a memory map can be drawn of: a workload, a network, a kernel, a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from tvm import relax
from tvm.ir import IRModule
from tvm.target import Target
from tvm.tirx import PrimFunc

from passes.analysis.tir.problems import ProblemOptions, find_problems
from passes.placement import memory_of
from passes.planning import Budget, get_planner, solve
from passes.planning.files.csv_format import read_problem
from target_hw.memory import MemoryScope
from tvm_ext.comparison import first_line, known_target, split
from tvm_ext.map.ascend import PLANNERS as ASCEND_PLANNERS
from tvm_ext.map.ascend import ascend_maps, is_ascend
from tvm_ext.map.model import MemoryMap, Placement, PlannedRun, ScopeMap
from tvm_ext.map.prim_func import scope_maps
from tvm_ext.map.relax_function import relax_maps
from tvm_ext.program_files import SUFFIXES, read_program

PLANNERS = ("best",)
"""Asked by default."""


def memory_map_of(
    what: str,
    *,
    names: Sequence[str] = (),
    target: str | Target | None = None,
    scopes: Sequence[str] = (),
    capacity: int | None = None,
    alignment: int = 1,
    budget: Budget | None = None,
) -> MemoryMap:
    """Plan the memory of a program, or of a table of buffers, and say who is where.

    Parameters
    ----------
    what : str
        The name of a workload or network; ``ascend:KERNEL`` or ``ascend:KERNEL:SIZE``; or a file:
        TVMScript (``.py``), a module saved as JSON (``.json``), or a table of buffers (``.csv``).
    names : sequence of str
        The planners to ask, to be shown side by side. By default ``best``; for a kernel with an
        Ascend target ``three_level``, which is what `AscendPlanMemory` does.
    target : str or tvm.target.Target, optional
        What the program is lowered for.
    scopes : sequence of str
        Show these memories only; by default all.
    capacity, alignment : int
        Of the memory for the buffers of a table, in bytes. By default it has no end.
    budget : Budget, optional
        Limits for planners that search.

    Returns
    -------
    MemoryMap
        Plans that do not fit are in it, too.

    Raises
    ------
    ValueError
        When there is no such program, planner or memory, or it cannot be read, lowered or planned.
    """
    for name in names:
        get_planner(name)
    if Path(what).suffix == ".csv":
        whole = _of_table(Path(what), names or PLANNERS, capacity, alignment, budget)
    else:
        if capacity is not None or alignment != 1:
            raise ValueError(
                "a capacity and an alignment are for tables of buffers; a program has its target's"
            )
        whole = _of_program(what, names, target, budget)
    return _only(whole, scopes) if scopes else whole


def map_of_module(
    mod: IRModule | PrimFunc,
    *,
    names: Sequence[str] = (),
    target: str | Target | None = None,
    title: str = "module",
    budget: Budget | None = None,
) -> MemoryMap:
    """Plan the memory of a module, and say who is where.

    Parameters
    ----------
    mod : tvm.IRModule or tvm.tirx.PrimFunc
        It stays as it is. Of a module with Relax functions, these are shown; else its PrimFuncs.
    names, target, budget
        As in `memory_map_of`.
    title : str
        What to call it.

    Returns
    -------
    MemoryMap
        Plans that do not fit are in it, too.

    Raises
    ------
    ValueError
        As `memory_map_of` does.
    """
    resolved = None if target is None else known_target(target)
    if isinstance(mod, IRModule) and any(
        isinstance(func, relax.Function) for func in mod.functions.values()
    ):
        return _of_relax(mod, names, resolved or known_target("llvm"), title, budget)
    return _of_functions(split(mod, target=resolved), names, title, budget)


def _of_table(
    path: Path, names: Sequence[str], capacity: int | None, alignment: int, budget: Budget | None
) -> MemoryMap:
    if not path.exists():
        raise ValueError(f"{path}: no such file")
    with path.open(encoding="utf-8-sig", newline="") as stream:
        problem = read_problem(stream, path.name, MemoryScope("global", capacity, alignment))
    placements = tuple(Placement(name, problem, solve(problem, name, budget)) for name in names)
    return MemoryMap(path.name, (ScopeMap(path.name, placements),))


def _of_program(
    what: str, names: Sequence[str], target: str | Target | None, budget: Budget | None
) -> MemoryMap:
    # Here, because importing the workloads takes seconds and tables do without.
    from tvm_ext import workloads

    if what.startswith("ascend:"):
        _, kernel, *size = what.split(":", 2)
        built = workloads.ascend_kernel(kernel, *size)  # type: ignore[arg-type]  # It checks.
        lowered = built.lower() if target is None else built.lower(known_target(target))
        return _of_functions(split(lowered), names, what, budget)
    path = Path(what)
    if path.suffix in SUFFIXES or len(path.parts) > 1 or path.exists():
        mod = read_program(path)
        try:
            return map_of_module(mod, names=names, target=target, title=path.name, budget=budget)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
    workload = workloads.find(what)
    resolved = known_target(target or workload.targets[0])
    if workload.kind == "model":
        return _of_relax(workloads.model(what), names, resolved, what, budget)
    return _of_functions(split(workloads.load(what, resolved)), names, what, budget)


def _of_relax(
    mod: IRModule, names: Sequence[str], target: Target, title: str, budget: Budget | None
) -> MemoryMap:
    from tvm_ext import workloads

    try:
        lowered = workloads.capture_relax(mod, target)
    except ValueError:
        raise
    except Exception as error:  # any pass of the pipeline may raise anything
        raise ValueError(
            f"cannot lower the Relax functions for target kind {target.kind.name!r}: "
            f"{first_line(error)}"
        ) from error
    scopes, left = relax_maps(lowered, target, names or PLANNERS, budget)
    return MemoryMap(title, scopes, left=left)


def _of_functions(
    modules: Sequence[IRModule], names: Sequence[str], title: str, budget: Budget | None
) -> MemoryMap:
    scopes: list[ScopeMap] = []
    runs: list[PlannedRun] = []
    left: list[str] = []
    for mod in modules:
        ((var, func),) = mod.functions.items()
        name = str(var.name_hint)
        if is_ascend(func):
            found, simulated = ascend_maps(name, func, names or ASCEND_PLANNERS, budget)
            scopes += found
            runs += simulated
            continue
        problems = find_problems(func, ProblemOptions(memory=memory_of(func)))
        left += [f"{name}: {line}" for line in problems.left_alone]
        solvers = {
            planner: partial(solve, planner=planner, budget=budget) for planner in names or PLANNERS
        }
        scopes += scope_maps(name, func, problems, solvers) if problems.problems else ()
    return MemoryMap(title, tuple(scopes), tuple(runs), tuple(left))


def _only(whole: MemoryMap, scopes: Sequence[str]) -> MemoryMap:
    known = tuple(dict.fromkeys(scope.scope for scope in whole.scopes))
    for name in scopes:
        if name not in known:
            raise ValueError(f"{whole.title}: no scope {name!r}; there are: {', '.join(known)}")
    return replace(whole, scopes=tuple(s for s in whole.scopes if s.scope in scopes))
