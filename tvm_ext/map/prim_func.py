# SPDX-License-Identifier: Apache-2.0
"""The memory map of a `PrimFunc`: its problems, solved by each planner, beside its lines."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import IRModule, TensorLoad, Var
from tvm.ir.expr import Call
from tvm.tirx import AllocBuffer, BufferStore, DeclBuffer, PrimFunc, Stmt, is_buffer_var
from tvm_ffi import structural_walk

from passes.addresses import has_tiles, tile_problems
from passes.driver import (
    EXACT_DTYPE_TARGETS,
    above,
    limits_of,
    memory_of,
    options_of,
    taken_around,
    target_of,
)
from passes.ir import find_linear_access, first_line
from passes.planning import Solver as Solver
from passes.planning import solve
from passes.prim_func import (
    AttachedProblem,
    FunctionProblems,
    find_problems,
    sink_allocations,
    statement_lines,
)
from passes.storage_rewrite import plan_storage, storage_rewrite
from tvm_ext.map.map_options import MapOptions
from tvm_ext.map.model import BufferNote, Listing, PlannedProblem, ScopeMap, Shown
from tvm_ext.map.stock import StockAllocation, stock_plan
from tvm_ext.named_planners import STOCK

Lines = defaultdict[int, set[int]]
"""Lines of a text, by the handle of a buffer."""


def prim_func_maps(name: str, func: PrimFunc, options: MapOptions) -> Iterator[Shown]:
    """Plan every memory of a flat function as `PlanAddresses` does; yield what is shown of it."""
    stock = func
    if has_tiles(func):
        for tiles in tile_problems(func, memory_of(func) or limits_of(func)):
            placements = (
                PlannedProblem(
                    planner, tiles.problem, solve(tiles.problem, planner, options.budget)
                )
                for planner in options.names(tiles.problem)
            )
            yield ScopeMap(name, tuple(placements))
        return
    func = sink_allocations(func)  # As `PlanAddresses` does, so that the plans are the same.
    found = find_problems(func, options_of(stock))
    yield from (f"{name}: {note}" for note in found.left_alone)
    if found.problems:
        within = partial(solve, budget=options.budget)
        planners = options.names(found.problems[0].problem)
        solvers: dict[str, Solver] = {name: partial(within, planner=name) for name in planners}
        if STOCK in solvers:
            solvers[STOCK] = stock_solver(name, stock, found)
        yield from scope_maps(name, func, found, solvers)


def scope_maps(
    name: str,
    func: PrimFunc,
    found: FunctionProblems,
    solvers: Mapping[str, Solver],
    pipes: Mapping[str, Sequence[str]] | None = None,
) -> tuple[ScopeMap, ...]:
    """Plan every memory of a flat function with every solver, which are by their planners' names.

    `pipes` has the pipelines that touch each buffer. Memory of a parallel loop lies behind that of
    the function around it, as each planner planned that.
    """
    text = statement_lines(func, found)
    listing = Listing(text.lines, text.line_of, name)
    allocated, reads, writes = _lines_of_buffers(func, text.begins)
    placements = [_placements(found.problems, *planner) for planner in solvers.items()]
    maps = []
    for attached, *placed in zip(found.problems, *placements, strict=True):
        scope = attached.problem.memory.name
        notes = {}
        for buffer, allocation in attached.allocations.items():
            variable = allocation.statement.buffer
            handle = variable.__chandle__()
            notes[buffer] = BufferNote(
                # Without the name of its memory, which says nothing on a map of that memory.
                buffer.removesuffix(f"_{scope}").removesuffix(f".{scope}") or buffer,
                type_and_shape(variable),
                allocated.get(handle),
                tuple(sorted(reads[handle])),
                tuple(sorted(writes[handle])),
                tuple((pipes or {}).get(buffer, ())),
            )
        maps.append(ScopeMap(name, tuple(placed), listing, notes))
    return tuple(maps)


def stock_solver(name: str, func: PrimFunc, found: FunctionProblems) -> Solver:
    """Return what gives the plan of the stock `StorageRewrite` for each of a function's problems.

    Our mirror of that pass says which allocation a buffer is in, once its result is the same IR.
    The function is as the stock pass takes it; in `found`, allocations may have been moved. Raises
    ValueError when the stock pass does not take the function, or our mirror makes other IR of it.
    """
    target = target_of(func)
    exact = target is not None and target.kind.name in EXACT_DTYPE_TARGETS
    try:
        stock = tirx.transform.StorageRewrite()(IRModule({name: func}))[name]
    except Exception as error:  # whatever an internal check of the stock pass raises
        raise ValueError(
            f"function {name!r}: TVM's StorageRewrite fails: {first_line(error)}"
        ) from error
    ours = storage_rewrite(func, exact_dtype=exact)
    if not tvm_ffi.structural_equal(stock, ours, map_free_vars=True):
        raise ValueError(
            f"function {name!r}: the plan of TVM's StorageRewrite cannot be read off its result; "
            f"leave out the planner {STOCK!r}"
        )
    access = find_linear_access(func)
    plan = plan_storage(access, exact_dtype=exact)
    names = {
        allocation.statement.buffer.__chandle__(): buffer
        for attached in found.problems
        for buffer, allocation in attached.allocations.items()
    }
    pieces = []
    for entry in plan.entries:
        if entry.parent is not None:
            continue
        piece = StockAllocation((entry.packed_nbits or entry.const_nbits) // 8, {})
        for part in (entry, *entry.children):
            for index in part.allocs:
                handle = access.alloc_stmts[index].buffer.__chandle__()
                if handle in names:
                    piece.offsets[names[handle]] = part.bits_offset // 8
        pieces.append(piece)
    return partial(stock_plan, pieces=pieces, stock_pass="StorageRewrite", function=name)


def _placements(
    problems: Sequence[AttachedProblem], planner: str, solver: Solver
) -> list[PlannedProblem]:
    placed: list[PlannedProblem] = []
    for attached in problems:
        around = [(placed[at].problem, placed[at].plan) for at in attached.enclosing]
        problem, _ = above(attached.problem, taken_around(attached, around))
        placed.append(PlannedProblem(planner, problem, solver(problem)))
    return placed


def type_and_shape(buffer: Var) -> str:
    """Say what a buffer's elements are, and how many."""
    return f"{buffer.ty.dtype.dtype} × {' × '.join(map(str, buffer.ty.shape))}"


def _lines_of_buffers(
    func: PrimFunc, lines_of: Mapping[int, tuple[int, ...]]
) -> tuple[dict[int, int], Lines, Lines]:
    """Find the line that allocates each buffer, by its handle, and those that read and write it.

    A view of a buffer counts as the buffer; `lines_of` has the lines of each statement.
    """
    allocated: dict[int, int] = {}
    reads, writes = Lines(set), Lines(set)
    root: dict[int, int] = {}
    here: tuple[int, ...] = (0,)

    def touch(lines: Lines, variable: Any) -> None:
        handle = variable.__chandle__()
        lines[root.get(handle, handle)].update(here)

    def enter(statement: Stmt) -> None:
        nonlocal here
        here = lines_of.get(statement.__chandle__(), here)
        if isinstance(statement, AllocBuffer):
            allocated[statement.buffer.__chandle__()] = here[0]
        elif isinstance(statement, DeclBuffer):
            sources: list[Var] = []
            structural_walk(statement.data, ((Var, sources.append),))
            if sources:
                handle = sources[0].__chandle__()
                root[statement.buffer.__chandle__()] = root.get(handle, handle)
        elif isinstance(statement, BufferStore):
            touch(writes, statement.buffer)

    def call(expression: Call) -> None:
        for argument in filter(is_buffer_var, expression.args):
            touch(reads, argument)  # What the callee does with it is not known.
            touch(writes, argument)

    load = (TensorLoad, lambda expression: touch(reads, expression.source))
    structural_walk(func.body, ((Stmt, enter), load, (Call, call)), order="pre")
    return allocated, reads, writes
