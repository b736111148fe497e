# SPDX-License-Identifier: Apache-2.0
"""All planners side by side on the memory of a program."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from os import PathLike, fspath
from pathlib import Path

import tvm
from tvm import relax
from tvm.ir import IRModule
from tvm.target import Target
from tvm.tirx import PrimFunc

from passes.ascend.cost import core_kernel
from passes.ascend.degrade import machine_of
from passes.driver import memory_of
from passes.ir.buffers import allocated_bits
from passes.planning import Budget, Problem
from passes.planning.planner import as_budget
from passes.prim_func.function_problems import AllocationNote
from passes.prim_func.problems import ProblemOptions, find_problems
from passes.simulation import simulate
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
from tvm_ext.named_planners import EVERY, compared_planners, planners_for
from tvm_ext.programs import TABLE, Program, load_program, program_of, read_table

_FEW = 4
"""So many buffers are named where they are not planned."""

REGISTER_BITS = 32
"""Untagged allocations up to here become registers: neither the stock pass nor ours plans them."""

_UNSOUND = "it lets buffers share that are live together (docs/stock-differences.md)"


def compare_planners(
    what: str | PathLike[str] | IRModule | PrimFunc | relax.Function | Problem | Program,
    planners: str | Sequence[str] = EVERY,
    *,
    target: str | Target | None = None,
    budget: Budget | int | None = None,
) -> PlannerComparison:
    """Plan every memory of a program with every planner.

    Every plan that fits is verified.

    Parameters
    ----------
    what : str or path or tvm.IRModule or a function of one or Problem
        A module, a problem, or what a user calls a program: the name of a workload,
        ``ascend:KERNEL`` or ``ascend:KERNEL:SIZE``, a file (``.py``, ``.json``, ``.onnx``), or a
        table of buffers (``.csv``).
    planners : str or sequence of str
        Their names; ``module:function`` for one of the user's own; ``all`` stands for those that
        are made for each problem.
    target : str or tvm.target.Target, optional
        What a program is lowered for; by default ``llvm`` if it has Relax functions. PrimFuncs
        without one have to stand right before ``StorageRewrite``.
    budget : Budget or int, optional
        What each planner may spend on a problem; by default `SEARCH_NODES` placements.

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
        is_table = Path(what).suffix == TABLE
        what = read_table(what, MemoryScope("global")) if is_table else load_program(what, target)
    if isinstance(what, Problem):
        names = planners_for(what, planners)
        result, _ = plan_scope(what.name, what.memory.name, (what,), names, budget)
        return PlannerComparison(what.name, (result,))
    program = what if isinstance(what, Program) else program_of(what, target, name="module")
    tensors = tuple(tensors_of(program, planners, budget))
    scopes = [memory.planned for memory in tensors if memory.tensors]
    makespans: list[Makespan] = []
    left: list[tuple[str, AllocationNote]] = []
    for name, func in program.functions.items():
        try:
            results, cycles, alone = _function(name, func, planners, budget)
        except ValueError as error:
            raise ValueError(f"{program.name}: function {name!r}: {error}") from error
        scopes += results
        makespans += cycles
        left += [(name, note) for note in alone]
    notes = [program.assumed] if program.assumed else []
    notes += [f"{m.function}, {line}" for m in tensors for line in m.not_counted()]
    notes += _left_alone(left)
    # A network's storages are counted as they stand in its IR; the runtime aligns each.
    why = {m.planned: _unlike(m) for m in tensors}
    less = [s for s in scopes if s.stock is not None and s.stock < s.lower_bound]
    notes += [
        f"{s.function}, {s.scope}: the stock pass takes {s.stock:,} bytes, less than any plan of "
        f"the same buffers can: {why.get(s, _UNSOUND)}"
        for s in less
    ]
    alike = tuple(replace(s, stock=None) if s in less else s for s in scopes)
    return PlannerComparison(program.name, alike, tuple(makespans), tuple(notes))


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
        count = f"{len(buffers)} buffer{'s' * (len(buffers) > 1)}"
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


def _function(
    name: str, func: PrimFunc, planners: Sequence[str], budget: Budget
) -> tuple[list[ScopeResult], list[Makespan], tuple[AllocationNote, ...]]:
    """Return what each memory and the run of one function come to, and what is not planned."""
    machine = machine_of(func) if memory_of(func) is not None else None
    if machine is not None:
        kernel = core_kernel(func)
        found, problems, program = kernel.found, kernel.problems, kernel.program
    else:
        # Without a chip's memory, plans are held against what the stock pass can place.
        memory = memory_of(func)
        found = find_problems(func, ProblemOptions(memory=memory, addressed=memory is not None))
        problems = tuple(attached.problem for attached in found.problems)
    stock = _stock_bytes(func, {p.memory.name: p.memory.alignment for p in problems})
    results, chosen = [], []
    for scope in dict.fromkeys(problem.memory.name for problem in problems):
        of_scope = tuple(problem for problem in problems if problem.memory.name == scope)
        names = dict.fromkeys(n for problem in of_scope for n in planners_for(problem, planners))
        result, plans = plan_scope(name, scope, of_scope, [*names], budget, stock[scope])
        results.append(result)
        chosen.append(plans)
    makespans = []
    if machine is not None and chosen:
        for planner in chosen[0]:
            placed = [pair for plans in chosen for pair in plans.get(planner, ())]
            if len(placed) == len(problems) and all(plan.fits for _, plan in placed):
                cycles = simulate(program, placed, machine).makespan
                makespans.append(Makespan(name, planner, cycles))
    return results, makespans, found.left_alone


def _stock_bytes(func: PrimFunc, units: Mapping[str, int]) -> dict[str, int]:
    """Return what the stock pass allocates in some scopes, each allocation in whole units."""
    total = dict.fromkeys(units, 0)
    stock = tvm.tirx.transform.StorageRewrite()(IRModule({"main": func}))["main"]
    for name, nbits in allocated_bits(stock.body):
        scope = parse_storage_scope(name)
        if str(scope) in total and nbits is not None and (scope.tag or nbits > REGISTER_BITS):
            total[str(scope)] += round_up(-(-nbits // 8), units[str(scope)])
    return total
