# SPDX-License-Identifier: Apache-2.0
"""What a memory map can be drawn of: a workload, a network, a kernel, a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from os import PathLike, fspath
from pathlib import Path

from tvm import relax
from tvm.ir import IRModule
from tvm.target import Target
from tvm.tirx import PrimFunc

from passes.driver import memory_of
from passes.planning import Budget, Problem, solve
from passes.prim_func.problems import ProblemOptions, find_problems
from passes.prim_func.sink_allocations import sink_allocations
from target_hw.memory import MemoryScope
from tvm_ext.lowering import DEFAULT_TARGET, as_module, has_relax, known_target
from tvm_ext.map.ascend import ascend_maps, is_ascend
from tvm_ext.map.layer_group import layer_group_maps
from tvm_ext.map.memory_map import MemoryMap
from tvm_ext.map.model import Placement, PlannedRun, ScopeMap
from tvm_ext.map.prim_func import scope_maps, stock_solver
from tvm_ext.map.relax_function import relax_maps
from tvm_ext.map.shared_memory import shared_memory_maps
from tvm_ext.map.stock import STOCK
from tvm_ext.named_planners import known_planners, listed, planners_for
from tvm_ext.programs import TABLE, Program, load_program, program_of, read_module, read_table

PLANNERS = ("best",)
"""Asked by default."""

ASCEND_PLANNERS = ("three_level",)
"""Asked by default for a kernel of an Ascend core: what `AscendPlanMemory` does."""


@dataclass(frozen=True)
class MapOptions:
    """What a memory map shows.

    Parameters
    ----------
    planners : str or sequence of str
        The planners to ask, to be shown side by side; ``all`` stands for those that are made for
        such buffers, ``stock`` for the plan of TVM's own pass, which a program has and a table of
        buffers has not. By default ``best``; for a kernel with an Ascend target ``three_level``,
        which is what `AscendPlanMemory` does.
    scopes : str or sequence of str
        Show these memories only; by default all.
    functions : str or sequence of str
        Show these functions only. By default the Relax functions where there are some, and else
        all PrimFuncs.
    layer_group : bool
        Of a network: show the local memory of the groups of layers that `LayerGroup` makes, group
        by group, in the place of its activations in global memory.
    budget : Budget, optional
        Limits for planners that search.
    order : bool
        Of a network: show it in the order that `OrderForMemory` finds, and say what moved.
    shared_memory : bool
        Of GPU kernels: show the shared memory of each, as `PlanSharedMemory` places it. Lines are
        what may run in each epoch; a rule stands for the barrier between two.

    Raises
    ------
    ValueError
        When a planner is not known, or options contradict one another.
    """

    planners: str | Sequence[str] = ()
    scopes: str | Sequence[str] = ()
    functions: str | Sequence[str] = ()
    layer_group: bool = False
    budget: Budget | None = None
    order: bool = False
    shared_memory: bool = False

    def __post_init__(self) -> None:
        is_default = self.planners == ()
        for field in ("planners", "scopes", "functions"):
            object.__setattr__(self, field, listed(getattr(self, field)))
        ours = [name for name in self.planners if name != STOCK]
        if ours or not (is_default or self.planners):
            known_planners(ours)
        if self.layer_group and STOCK in self.planners:
            raise ValueError(f"TVM has no groups of layers, so no plan {STOCK!r} of them")
        if self.shared_memory and STOCK in self.planners:
            raise ValueError(f"TVM shares before barriers are there: it has no plan {STOCK!r}")
        if self.layer_group + self.order + self.shared_memory > 1:
            raise ValueError("a map shows groups of layers, another order or shared memory")

    def names(self, default: Sequence[str], problem: Problem, *, graph: bool = False) -> list[str]:
        """Return which planners are asked to solve a problem: TVM's own comes first."""
        ours = [name for name in self.planners or default if name != STOCK]
        stock = [STOCK] if STOCK in self.planners else []
        return stock + (planners_for(problem, ours, graph=graph) if ours else [])


def memory_map_of(
    what: str | PathLike[str],
    *,
    target: str | Target | None = None,
    capacity: int | None = None,
    alignment: int = 1,
    options: MapOptions | None = None,
) -> MemoryMap:
    """Plan the memory of a program, or of a table of buffers, and return each placement.

    Parameters
    ----------
    what : str or path
        The name of a workload or network; ``ascend:KERNEL`` or ``ascend:KERNEL:SIZE``; or a file:
        TVMScript (``.py``, or ``FILE.py:NAME`` for one module of several), a module saved as JSON
        (``.json``), an ONNX network (``.onnx``), or a table of buffers (``.csv``).
    target : str or tvm.target.Target, optional
        What the program is lowered for; by default as in `tvm_ext.programs.load_program`.
    capacity, alignment : int
        Of the memory for the buffers of a table, in bytes. By default it has no end.
    options : MapOptions, optional
        What to show.

    Returns
    -------
    MemoryMap
        Plans that do not fit are in it, too.

    Raises
    ------
    ValueError
        When there is no such program, planner or memory, or it cannot be read, lowered or planned.
    """
    what, options = fspath(what), options or MapOptions()
    if Path(what).suffix == TABLE:
        memory = MemoryScope("global", capacity, alignment)
        problem = read_table(what, memory, Path(what).name)
        return _chosen(map_of_problem(problem, options=options), options)
    if capacity is not None or alignment != 1:
        raise ValueError(
            "a capacity and an alignment are for tables of buffers; a program has its target's"
        )
    if options.layer_group:
        return _chosen(_of_groups(what, read_module(what), target, options), options)
    return _chosen(_of_program(load_program(what, target), options), options)


def map_of_module(
    mod: IRModule | PrimFunc | relax.Function,
    *,
    target: str | Target | None = None,
    title: str = "module",
    options: MapOptions | None = None,
) -> MemoryMap:
    """Plan the memory of a module, and return each placement, as `memory_map_of` does.

    Parameters
    ----------
    mod : tvm.IRModule or a function of one
        It stays as it is. Anything else is a TypeError.
    target : str or tvm.target.Target, optional
        What it is lowered for; by default ``llvm`` if it has Relax functions. PrimFuncs without a
        target have to stand right before ``StorageRewrite``.
    title : str
        What to call it.
    """
    options = options or MapOptions()
    if options.layer_group:
        return _chosen(_of_groups(title, as_module(mod), target, options), options)
    return _chosen(_of_program(program_of(mod, target, name=title), options), options)


def map_of_problem(problem: Problem, *, options: MapOptions | None = None) -> MemoryMap:
    """Plan one problem, and return each placement; the map is called by the problem's name."""
    options = options or MapOptions()
    if STOCK in options.planners:
        raise ValueError(f"{problem.name}: buffers without a program have no plan {STOCK!r}")
    placements = tuple(
        Placement(name, problem, solve(problem, name, options.budget))
        for name in options.names(PLANNERS, problem)
    )
    return MemoryMap(problem.name, (ScopeMap(problem.name, placements),))


def _of_program(program: Program, options: MapOptions) -> MemoryMap:
    if options.order and program.relax is None:
        raise ValueError(f"{program.name}: is no network, so it has no order of operators")
    scopes: list[ScopeMap] = []
    runs: list[PlannedRun] = []
    left: list[str] = []
    network = None if options.shared_memory else program.relax
    if network is not None and program.target is not None:
        found, unplanned = relax_maps(
            network,
            program.target,
            partial(options.names, PLANNERS, graph=True),
            options.budget,
            order=options.order,
        )
        scopes += found
        left += list(unplanned)
    if network is None or options.functions:
        for name, func in program.functions.items():
            if options.functions and name not in options.functions:
                continue
            more, simulated, alone = _of_function(name, func, options)
            scopes += more
            runs += simulated
            left += alone
    return MemoryMap(program.title, tuple(scopes), tuple(runs), tuple(left))


def _of_groups(
    name: str, mod: IRModule, target: str | Target | None, options: MapOptions
) -> MemoryMap:
    """Show a network's groups, which are planned before anything is lowered for the chip."""
    if not has_relax(mod):
        raise ValueError(f"{name}: is no network, so it has no layers to group")
    chip = known_target(target or DEFAULT_TARGET)
    scopes, runs, left = layer_group_maps(mod, chip, partial(options.names, PLANNERS))
    return MemoryMap(name, scopes, runs, tuple(left))


def _of_function(
    name: str, func: PrimFunc, options: MapOptions
) -> tuple[tuple[ScopeMap, ...], tuple[PlannedRun, ...], list[str]]:
    if options.shared_memory:
        scopes, left = shared_memory_maps(
            name, func, partial(options.names, PLANNERS), options.budget
        )
        return scopes, (), left
    if is_ascend(func):
        return ascend_maps(name, func, partial(options.names, ASCEND_PLANNERS), options.budget)
    memory, stock = memory_of(func), func
    func = sink_allocations(func)  # As `PlanAddresses` does, so that the plans are the same.
    problems = find_problems(func, ProblemOptions(memory=memory, addressed=memory is not None))
    left = [f"{name}: {note}" for note in problems.left_alone]
    if not problems.problems:
        return (), (), left
    names = options.names(PLANNERS, problems.problems[0].problem)
    solvers = {
        planner: stock_solver(name, stock, problems)
        if planner == STOCK
        else partial(solve, planner=planner, budget=options.budget)
        for planner in names
    }
    return scope_maps(name, func, problems, solvers), (), left


def _chosen(whole: MemoryMap, options: MapOptions) -> MemoryMap:
    """Return the part of a map that is asked for."""
    for what, asked, known in (
        ("scope", options.scopes, [scope.scope for scope in whole.scopes]),
        ("function", options.functions, [scope.function for scope in whole.scopes]),
    ):
        for name in asked:
            if name not in known:
                there = ", ".join(dict.fromkeys(known))
                raise ValueError(f"{whole.title}: no {what} {name!r} to show; there are: {there}")
    scopes = tuple(
        scope
        for scope in whole.scopes
        if (not options.scopes or scope.scope in options.scopes)
        and (not options.functions or scope.function in options.functions)
    )
    return replace(whole, scopes=scopes)
