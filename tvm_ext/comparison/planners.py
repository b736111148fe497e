# SPDX-License-Identifier: Apache-2.0
"""All planners side by side on the memory of a program."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike, fspath
from pathlib import Path

import tvm
from tvm import relax
from tvm.ir import IRModule
from tvm.target import Target
from tvm.tirx import PrimFunc

from passes.addresses import naive_bytes
from passes.driver import error_context
from passes.ir import allocated_bits, first_line
from passes.planning import Budget, Problem, as_budget, html_table
from target_hw.memory import MemoryScope, round_up
from target_hw.storage_scope import parse_storage_scope
from tvm_ext.comparison.memory_comparison import (
    SEARCH_NODES,
    ActivationMemory,
    ScopeResult,
    activation_memory,
    memory_as_given,
    scope_result,
    scope_table,
)
from tvm_ext.hosts import executorch
from tvm_ext.lowering import DEFAULT_TARGET, known_target
from tvm_ext.named_planners import EVERY, compared_planners
from tvm_ext.planned.placements import MapOptions, PlannedProblem
from tvm_ext.planned.prim_func import PlannedFunction, plan_function
from tvm_ext.reading import programs
from tvm_ext.reading.input_sizes import InputSizes, bind_hint, open_dimensions
from tvm_ext.reading.programs import Program
from tvm_ext.text import Table, counted
from tvm_ext.weights import REMEDY, weight_tensors

_FEW = 4
"""Up to so many buffers that are not planned are named."""

REGISTER_BITS = 32
"""Untagged allocations of at most so many bits become registers, which nothing plans."""


@dataclass(frozen=True)
class Makespan:
    """What a kernel for a chip costs under the plans of one planner."""

    function: str
    planner: str
    cycles: int  # From the first statement's start to the last one's end, simulated


@dataclass(frozen=True)
class PlannerComparison:
    """All planners on one program; printed, and in a notebook, it is tables."""

    program: str
    """What it is called."""
    scopes: tuple[ScopeResult, ...]
    """In the order of the functions' names; the tensors of a network come first."""
    makespans: tuple[Makespan, ...] = ()
    """Of the functions whose target describes its pipelines, for planners whose plans fit."""
    notes: tuple[str, ...] = ()
    """What was assumed, and what the numbers leave out: a line each."""

    @property
    def fits(self) -> bool:
        """Whether each memory has a plan that fits."""
        return all(any(plan.fits for plan in scope.plans) for scope in self.scopes if scope.plans)

    def tables(self) -> list[Table]:
        """Return a table for each memory, over all functions, and one of each kernel's cycles."""
        by_scope: defaultdict[str, list[ScopeResult]] = defaultdict(list)
        by_function: defaultdict[str, dict[str, int]] = defaultdict(dict)
        for result in self.scopes:
            by_scope[result.scope].append(result)
        for makespan in self.makespans:
            by_function[makespan.function][makespan.planner] = makespan.cycles
        found = [scope_table(results) for results in by_scope.values()]
        for function, cycles in by_function.items():
            least = min(cycles.values())
            rows = [(p, f"{n:,}", f"{n / least:.3f}") for p, n in cycles.items()]
            head = ("", "cycles", "of least")
            found.append(Table(f"{function}: makespan, simulated", [head, *rows]))
        return found

    def __str__(self) -> str:
        """Return the tables, and the notes below them."""
        parts = ["\n".join(table.text()) for table in self.tables()]
        parts = parts or [f"{self.program}: there is nothing to plan"]
        if self.notes:
            parts.append("\n".join(f"- {note}" for note in self.notes))
        return "\n\n".join(parts)

    def _repr_html_(self) -> str:
        """Return the same tables for a notebook."""
        notes = html_table(self.program, ("notes",), ((note,) for note in self.notes))
        parts = [table.html() for table in self.tables()]
        return "".join([*parts, notes] if self.notes or not parts else parts)


def compare_planners(
    what: str | PathLike[str] | IRModule | PrimFunc | relax.Function | Problem | Program,
    planners: str | Sequence[str] = EVERY,
    *,
    target: str | Target | None = None,
    budget: Budget | int | None = None,
    sizes: InputSizes | None = None,
) -> PlannerComparison:
    """Plan every memory of a program with every planner, and return all plans with their bytes.

    Every plan that fits is verified. What is none of the below is a TypeError.

    Parameters
    ----------
    what : str or path or tvm.IRModule or a function of one or Problem
        A module, a problem, or what a user calls a program: the name of a workload,
        ``ascend:KERNEL`` or ``ascend:KERNEL:SIZE``, a file (``.py``, ``.json``, ``.onnx``,
        ``.pt2``, ``.pte``), or a table of buffers (``.csv``).
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

    Raises
    ------
    ValueError
        When it cannot be read, lowered or planned.
    """
    budget = Budget(SEARCH_NODES) if budget is None else as_budget(budget)
    options = MapOptions(compared_planners(planners), budget=budget)
    if isinstance(what, str | PathLike):
        what = fspath(what)
        suffix = Path(what).suffix
        if suffix == executorch.SUFFIX:
            if target is not None or sizes:
                raise ValueError(f"{what}: a program of ExecuTorch has its target and its sizes")
            return _of_arenas(what, options)
        if suffix == programs.TABLE:
            what = programs.read_table(what, MemoryScope("global"), target, sizes)
        else:
            what = programs.load_program(what, target, sizes)
    if isinstance(what, Problem):
        result = scope_result(what.name, what.memory.name, [options.plan(what)])
        return PlannerComparison(what.name, (result,))
    program = (
        what if isinstance(what, Program) else programs.program_of(what, target, name="module")
    )
    return _of_program(program, options)


def _of_arenas(path: str, options: MapOptions) -> PlannerComparison:
    """Hold planners against the plan in a file of ExecuTorch, arena by arena."""
    results = []
    for arena in executorch.read_program(path):
        plans, scope = [options.plan(arena.problem)], arena.problem.memory.name
        written = arena.placements[0].plan
        results.append(scope_result(arena.function, scope, plans, written.peak))
    notes = [result.note for result in results if result.note]
    stock = "stock is the plan in the file, as ExecuTorch wrote it"
    return PlannerComparison(Path(path).name, tuple(results), notes=(stock, *notes))


def _of_program(program: Program, options: MapOptions) -> PlannerComparison:
    tensors: list[ActivationMemory] = []
    target, names, budget = program.target or DEFAULT_TARGET, options.planners, options.budget
    for fuse in (True, False) if program.relax is not None else ():
        tensors += activation_memory(program.relax, target, fuse=fuse, names=names, budget=budget)
    scopes = [memory.planned for memory in tensors if memory.tensors]
    scopes += [result for memory in tensors for result in memory.symbolic]
    functions = []
    for name, func in program.functions.items():
        with error_context(program.name, name):
            functions.append(plan_function(name, func, options))
            scopes += _results(functions[-1], func)
    makespans = (
        Makespan(run.function, run.planner, run.simulation.makespan)
        for function in functions
        for at, run in enumerate(function.runs)
        if all(placements[at].plan.fits for placements in function.placements)
    )
    notes = [*_notes(program, tensors, functions), *(one.note for one in scopes if one.note)]
    notes += _weights_in_each_call(program, tensors, options)
    return PlannerComparison(program.name, tuple(scopes), tuple(makespans), tuple(notes))


def _results(function: PlannedFunction, func: PrimFunc) -> list[ScopeResult]:
    """Add up the plans of a function by scope, beside TVM's own allocator for tiles or buffers."""
    memories: defaultdict[str, list[Sequence[PlannedProblem]]] = defaultdict(list)
    has_tiles = function.found is None
    for placements in function.placements:
        problem = placements[0].problem
        memories[problem.name if has_tiles else problem.memory.name].append(placements)
    by_stock, fails = naive_bytes(func) if has_tiles else {}, ""
    if not has_tiles:
        units = {scope: p[0][0].problem.memory.alignment for scope, p in memories.items()}
        try:
            by_stock = _stock_bytes(func, units)
        except Exception as error:  # whatever an internal check of the stock pass raises
            fails = f"{function.name}: TVM's StorageRewrite fails: {first_line(error)}"
    results = [
        scope_result(function.name, scope, of_scope, by_stock.get(scope))
        for scope, of_scope in memories.items()
    ]
    return [replace(results[0], note=fails), *results[1:]] if fails and results else results


def _stock_bytes(func: PrimFunc, units: Mapping[str, int]) -> dict[str, int]:
    """Return the stock pass's bytes by scope, each allocation in units of the scope's alignment."""
    total = dict.fromkeys(units, 0)
    stock = tvm.tirx.transform.StorageRewrite()(IRModule({"main": func}))["main"]
    for name, nbits in allocated_bits(stock.body):
        scope = parse_storage_scope(name)
        if str(scope) in total and nbits is not None and (scope.tag or nbits > REGISTER_BITS):
            total[str(scope)] += round_up(-(-nbits // 8), units[str(scope)])
    return total


def _notes(
    program: Program, tensors: Sequence[ActivationMemory], functions: Sequence[PlannedFunction]
) -> Iterator[str]:
    """Yield what was assumed, and what the numbers leave out."""
    if program.assumed:
        yield program.assumed
    if opened := [] if program.relax is None else open_dimensions(program.relax):
        sizes, bind = ", ".join(opened), bind_hint(opened)
        yield f"sizes that only the running program knows: {sizes}; {bind} plans at a value"
    for memory in tensors:
        yield from (f"{memory.function}, {line}" for line in memory.not_counted())
    if tensors and len(tensors[0].served.functions) > 1:
        yield str(tensors[0].served)
    yield from _left_alone(functions)
    not_simulated: defaultdict[tuple[str, ...], list[str]] = defaultdict(list)
    for function in functions:
        not_simulated[function.not_described].append(function.name)
    for pipes, names in not_simulated.items():
        if pipes:
            why = f"the target describes no pipeline {', '.join(map(repr, pipes))}"
            yield f"not simulated, {counted(len(names), 'function')}: {why}"


def _weights_in_each_call(
    program: Program, tensors: Sequence[ActivationMemory], options: MapOptions
) -> Iterator[str]:
    """Yield what each function computes from weights alone, and its memory with and without."""
    if program.given is None:
        return
    target = known_target(program.target or DEFAULT_TARGET)
    with_them = {one.function: one for one in memory_as_given(program.given, target, options, True)}
    without = {one.function: one for one in tensors if one.fused}
    for found in weight_tensors(program.given):
        before, after = (
            one[found.function].plans[0].nbytes if found.function in one else 0
            for one in (with_them, without)
        )
        yield (
            f"{found}, and left out here, as where weights are constants: "
            f"{before:,} bytes with them, {after:,} without (fused); {REMEDY}"
        )


def _left_alone(functions: Sequence[PlannedFunction]) -> Iterator[str]:
    """Yield a line for each scope and reason for which buffers are not planned."""
    groups: defaultdict[tuple[str, str], list[tuple[str, str]]] = defaultdict(list)
    for function in functions:
        for note in function.found.left_alone if function.found is not None else ():
            groups[note.scope, note.text].append((function.name, note.name))
    for (scope, reason), buffers in groups.items():
        among = dict.fromkeys(function for function, _ in buffers)
        where = next(iter(among)) if len(among) == 1 else f"{len(among)} functions"
        names = ", ".join(repr(name) for _, name in buffers)
        few = f" ({names})" if len(buffers) <= _FEW and len(among) == 1 else ""
        yield f"not planned, {counted(len(buffers), 'buffer')} in {scope} of {where}{few}: {reason}"
