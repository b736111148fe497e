# SPDX-License-Identifier: Apache-2.0
"""All planners side by side on the memory of a program."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike, fspath
from pathlib import Path

import tvm
from tvm import relax
from tvm.ir import IRModule
from tvm.target import Target
from tvm.tirx import PrimFunc

from passes.addresses import has_tiles, naive_bytes, tile_problems
from passes.ascend import core_kernel, machine_of
from passes.driver import limits_of, memory_of, options_of
from passes.ir import allocated_bits
from passes.planning import Budget, Problem, as_budget
from passes.prim_func import AllocationNote, find_problems
from passes.simulation import simulate, statements_of
from target_hw.memory import MemoryScope, round_up
from target_hw.storage_scope import parse_storage_scope
from tvm_ext.comparison.memory_comparison import ActivationMemory, activation_memory
from tvm_ext.comparison.planner_results import (
    SEARCH_NODES,
    Makespan,
    PlannerComparison,
    ScopeResult,
    plan_scope,
)
from tvm_ext.hosts import executorch
from tvm_ext.named_planners import EVERY, compared_planners, planners_for
from tvm_ext.reading.input_sizes import InputSizes, open_dimensions
from tvm_ext.reading.programs import TABLE, Program, load_program, program_of, read_table
from tvm_ext.text import counted

_FEW = 4
"""So many buffers are named where they are not planned."""

REGISTER_BITS = 32
"""Untagged allocations up to here become registers: neither the stock pass nor ours plans them."""

_UNSOUND = "it lets buffers share that are live together (docs/stock-differences.md)"


@dataclass
class _Found:
    """What was found of the functions so far."""

    scopes: list[ScopeResult] = field(default_factory=list)
    makespans: list[Makespan] = field(default_factory=list)
    # Allocations that are not planned, with their functions.
    left: list[tuple[str, AllocationNote]] = field(default_factory=list)
    # Functions that are not simulated, by the pipelines that the target lacks.
    not_simulated: dict[tuple[str, ...], list[str]] = field(default_factory=dict)


def compare_planners(
    what: str | PathLike[str] | IRModule | PrimFunc | relax.Function | Problem | Program,
    planners: str | Sequence[str] = EVERY,
    *,
    target: str | Target | None = None,
    budget: Budget | int | None = None,
    sizes: InputSizes | None = None,
) -> PlannerComparison:
    """Plan every memory of a program with every planner.

    Every plan that fits is verified.

    Parameters
    ----------
    what : str or path or tvm.IRModule or a function of one or Problem
        A module, a problem, or what a user calls a program: the name of a workload,
        ``ascend:KERNEL`` or ``ascend:KERNEL:SIZE``, a file (``.py``, ``.json``, ``.onnx``,
        ``.pt2``), or a table of buffers (``.csv``).
    planners : str or sequence of str
        Their names; ``module:function`` for one of the user's own; ``all`` stands for those that
        are made for each problem.
    target : str or tvm.target.Target, optional
        What a program is lowered for; by default ``llvm`` if it has Relax functions. PrimFuncs
        without one have to stand right before ``StorageRewrite``.
    budget : Budget or int, optional
        What each planner may spend on a problem; by default `SEARCH_NODES` placements.
    sizes : InputSizes, optional
        Of a network that is named, or in a file: sizes that it leaves open.

    Returns
    -------
    PlannerComparison
        `render_planners` writes it as tables.

    Raises
    ------
    ValueError
        When it cannot be read, lowered or planned.
    """
    budget = Budget(SEARCH_NODES) if budget is None else as_budget(budget)
    planners = compared_planners(planners)
    if isinstance(what, str | PathLike):
        what = fspath(what)
        if Path(what).suffix == executorch.SUFFIX:
            if target is not None or sizes:
                raise ValueError(f"{what}: a program of ExecuTorch has its target and its sizes")
            return executorch.compare_program(what, planners_for(Problem(()), planners), budget)
        if Path(what).suffix != TABLE:
            what = load_program(what, target, sizes)
        elif sizes:
            raise ValueError(f"{what}: a table of buffers has no inputs whose sizes are open")
        else:
            what = read_table(what, MemoryScope("global"))
    if isinstance(what, Problem):
        names = planners_for(what, planners)
        result, _ = plan_scope(what.name, what.memory.name, (what,), names, budget)
        return PlannerComparison(what.name, (result,))
    program = what if isinstance(what, Program) else program_of(what, target, name="module")
    tensors = tuple(tensors_of(program, planners, budget))
    found = _Found([memory.planned for memory in tensors if memory.tensors])
    found.scopes += [one.result for memory in tensors for one in memory.symbolic]
    for name, func in program.functions.items():
        try:
            _plan_function(found, name, func, planners, budget)
        except ValueError as error:
            raise ValueError(f"{program.name}: function {name!r}: {error}") from error
    # A network's storages are counted as they stand in its IR; the runtime aligns each.
    why = {
        result: _unlike(m)
        for m in tensors
        for result in (m.planned, *(one.result for one in m.symbolic))
    }
    less = [s for s in found.scopes if s.stock is not None and s.stock < s.lower_bound]
    below = (
        f"{s.function}, {s.scope}: the stock pass takes {s.stock:,} bytes, less than any plan of "
        f"the same buffers can: {why.get(s, _UNSOUND)}"
        for s in less
    )
    alike = tuple(replace(s, stock=None) if s in less else s for s in found.scopes)
    notes = (*_notes(program, tensors, found), *below)
    return PlannerComparison(program.name, alike, tuple(found.makespans), notes)


def _notes(program: Program, tensors: Sequence[ActivationMemory], found: _Found) -> Iterator[str]:
    """Yield what was assumed, and what the numbers leave out."""
    if program.assumed:
        yield program.assumed
    opened = [] if program.relax is None else open_dimensions(program.relax)
    if opened:
        yield (
            f"sizes that only the running program knows: {', '.join(opened)}; "
            f"--bind {opened[0]}=8 plans at a value"
        )
    for memory in tensors:
        yield from (f"{memory.function}, {line}" for line in memory.not_counted())
    if tensors and len(tensors[0].served.functions) > 1:
        yield str(tensors[0].served)
    yield from _left_alone(found.left)
    for pipes, functions in found.not_simulated.items():
        yield (
            f"not simulated, {counted(len(functions), 'function')}: the target describes no "
            f"pipeline {', '.join(map(repr, pipes))}"
        )


def _unlike(memory: ActivationMemory) -> str:
    """Say why the stock plan of a network's tensors can be below the lower bound."""
    if memory.stock.left > memory.left:
        return "it leaves more of them to the runtime"
    return "it counts no bytes for alignment"


def _left_alone(left: Sequence[tuple[str, AllocationNote]]) -> Iterator[str]:
    """Yield a line for each reason for which buffers are not planned."""
    groups: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for function, note in left:
        groups.setdefault((note.scope, note.text), []).append((function, note.name))
    for (scope, reason), buffers in groups.items():
        functions = list(dict.fromkeys(function for function, _ in buffers))
        where = functions[0] if len(functions) == 1 else f"{len(functions)} functions"
        names = ", ".join(repr(name) for _, name in buffers)
        few = f" ({names})" if len(buffers) <= _FEW and len(functions) == 1 else ""
        count = counted(len(buffers), "buffer")
        yield f"not planned, {count} in {scope} of {where}{few}: {reason}"


def tensors_of(
    program: Program, planners: Sequence[str], budget: Budget | None = None
) -> Iterator[ActivationMemory]:
    """Yield the tensors of a network's functions, with operators fused and not."""
    if program.relax is None or program.target is None:
        return
    names = planners_for(Problem(()), planners, graph=True)
    for fuse in (True, False):
        yield from activation_memory(
            program.relax, program.target, fuse=fuse, names=names, budget=budget
        )


def _plan_function(
    found: _Found, name: str, func: PrimFunc, planners: Sequence[str], budget: Budget
) -> None:
    """Plan each memory of one function, and simulate it where its target has all its pipelines."""
    memory = memory_of(func)
    if has_tiles(func):
        stock = naive_bytes(func)
        for problem in (tile.problem for tile in tile_problems(func, memory or limits_of(func))):
            names, by_stock = planners_for(problem, planners), stock.get(problem.name)
            result, _ = plan_scope(name, problem.name, (problem,), names, budget, by_stock)
            found.scopes.append(result)
        return
    machine = machine_of(func) if memory is not None else None
    kernel = core_kernel(func) if machine is not None else None
    if kernel is not None and machine is not None:
        pipes = {statement.pipe for statement in statements_of(kernel.program)}
        missing = tuple(sorted(pipe for pipe in pipes if pipe not in machine))
        if missing:
            found.not_simulated.setdefault(missing, []).append(name)
            kernel = None
    # Without a chip's memory, plans are held against what the stock pass can place.
    read = find_problems(func, options_of(func)) if kernel is None else kernel.found
    problems = [attached.problem for attached in read.problems]
    problems = problems if kernel is None else [*kernel.problems]
    found.left += [(name, note) for note in read.left_alone]
    allocated = _stock_bytes(func, {p.memory.name: p.memory.alignment for p in problems})
    chosen = []
    for scope in dict.fromkeys(problem.memory.name for problem in problems):
        of_scope = tuple(problem for problem in problems if problem.memory.name == scope)
        names = [*dict.fromkeys(n for p in of_scope for n in planners_for(p, planners))]
        result, plans = plan_scope(name, scope, of_scope, names, budget, allocated[scope])
        found.scopes.append(result)
        chosen.append(plans)
    if kernel is None or machine is None or not chosen:
        return
    for planner in chosen[0]:
        placed = [pair for plans in chosen for pair in plans.get(planner, ())]
        if len(placed) == len(problems) and all(plan.fits for _, plan in placed):
            cycles = simulate(kernel.program, placed, machine).makespan
            found.makespans.append(Makespan(name, planner, cycles))


def _stock_bytes(func: PrimFunc, units: Mapping[str, int]) -> dict[str, int]:
    """Return what the stock pass allocates in some scopes, each allocation in whole units."""
    total = dict.fromkeys(units, 0)
    stock = tvm.tirx.transform.StorageRewrite()(IRModule({"main": func}))["main"]
    for name, nbits in allocated_bits(stock.body):
        scope = parse_storage_scope(name)
        if str(scope) in total and nbits is not None and (scope.tag or nbits > REGISTER_BITS):
            total[str(scope)] += round_up(-(-nbits // 8), units[str(scope)])
    return total
