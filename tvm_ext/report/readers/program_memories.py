# SPDX-License-Identifier: Apache-2.0
"""A program of TVM: the memories of its Relax functions and its PrimFuncs, or one view of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache, partial

from passes.ir import (
    UPPER_BOUND,
    IRModule,
    PrimFunc,
    Target,
    declared_bounds,
    first_line,
    names_of_sizes,
)
from passes.pass_errors import error_context
from passes.pass_options import check_bound_names
from passes.prim_func import memory_of
from passes.shared_memory import SCOPES
from tvm_ext.lowering import has_relax, known_target
from tvm_ext.named_planners import STOCK
from tvm_ext.reading.input_sizes import Dimension, bind_hint, dimensions
from tvm_ext.reading.programs import Program
from tvm_ext.report.ask import Ask
from tvm_ext.report.memory_view import Fault, LeftAlone, MemoryView
from tvm_ext.report.readers.groups import DEFAULT_CHIP, groups
from tvm_ext.report.readers.rewrites import Rewritten, rewrite, rewrites
from tvm_ext.report.readers.shared_memory import kernel_memories, shared_memory
from tvm_ext.report.readers.statement_memories import Solved, statements
from tvm_ext.report.readers.tensor_memories import FUSED, network
from tvm_ext.report.report import Finding
from tvm_ext.weights import REMEDY, weight_tensors


def of_program(program: Program, ask: Ask) -> Iterator[Finding]:
    """Yield the memories of a program, or what a view shows in their place."""
    view, mod, functions = ask.view, program.relax, program.functions
    rewritten = cache(lambda name: rewrite(name, functions[name]))
    if view == "rewrite":
        if ask.upper_bounds:
            raise ValueError(f"{program.name}: StorageRewrite has no upper bounds: give none")
        try:
            chosen = {name: _function(program, name) for name in ask.functions or functions}
            yield from rewrites(chosen, rewritten)
        except ValueError as error:
            raise ValueError(f"{program.name}: {error}") from error
        return
    if view == "order" and mod is None:
        raise ValueError(f"{program.name}: is no network, so it has no order of operators")
    if mod is None or view == "shared":
        with error_context(program.name):
            check_bound_names(ask.upper_bounds, names_of_sizes(functions.values()))
    given = sorted(ask.upper_bounds.items())
    known = [Dimension(name, name, (size,), False) for name, size in given]
    known = known if mod is None else dimensions(mod, ask.upper_bounds)
    # Functions of a network share kernels, so these are planned at the largest bound.
    bounds = {one.name: one.sizes[-1] for one in known if not one.is_open}

    def kernel(name: str) -> PrimFunc:
        """Return a function with bounds: of a network, its own count first; else those given."""
        func = _function(program, name)
        own = declared_bounds(func)
        both = {**own, **bounds} if mod is None else {**bounds, **own}
        return func.with_attr(UPPER_BOUND, both) if bounds else func

    names = ask.functions or tuple(functions)
    if view == "shared":
        yield from shared_memory({name: kernel(name) for name in names}, ask)
        yield from _sizes(known)
        return
    if mod is None:
        yield from _sizes(known)
    else:
        assert program.target is not None
        tensors = list(network(mod, program.target, ask, order=view == "order"))
        yield from tensors
        yield from _sizes(known)
        if ask.functions or not ask.everything:  # The Relax functions are among those asked for.
            names = tuple(name for name in ask.functions if name in functions)
        if ask.everything and program.given is not None:
            built = _peaks(tensors)
            yield from _weights_in_each_call(program.given, program.target, ask, built)
    if view == "order":
        return
    if ask.everything and program.assumed:
        yield program.assumed
    notes: defaultdict[str, list[str]] = defaultdict(list)
    plan_kernel = partial(_statements, ask=ask, known={}, rewritten=rewritten)
    for name in names:
        func = kernel(name)
        with error_context(program.name, name):
            for found in plan_kernel(name, func):
                if isinstance(found, str):
                    notes[found].append(name)
                else:
                    yield found
    for note, of in notes.items():
        where = f"function {of[0]!r}" if not of[1:] else f"{len(of)} functions"
        yield f"{where}: {note}"
    if ask.everything:
        try:
            yield from rewrites(functions, rewritten, each=False)
        except ValueError as error:  # The plans stand by themselves.
            yield Fault(f"StorageRewrite: not compared: {error}")


def _sizes(known: Iterable[Dimension]) -> Iterator[str]:
    """Yield at which sizes symbolic dimensions are planned, and which are open."""
    sizes = [f"{one.place} = {' or '.join(map(str, one.sizes))}" for one in known if one.sizes]
    if sizes:
        yield f"planned at the upper bounds of symbolic dimensions: {', '.join(sizes)}"
    if unknown := [one for one in known if one.is_open]:
        places, bind = ", ".join(d.place for d in unknown), bind_hint(d.name for d in unknown)
        yield f"sizes that only the running program knows: {places}; {bind} plans at a value"


def _statements(
    name: str, func: PrimFunc, ask: Ask, known: Solved, rewritten: Callable[[str], Rewritten]
) -> Iterator[Finding]:
    """Yield a function's memories, with shared memory as the view ``shared`` has it.

    Shared memory is planned by epochs, unless the target describes that memory.
    """
    has_shared, shared = False, SCOPES if memory_of(func) is None else ()
    for found in statements(name, func, ask, known, rewritten):
        if isinstance(found, MemoryView | LeftAlone) and found.scope in shared:
            has_shared = True
        else:
            yield found
    if has_shared:
        try:
            yield from list(kernel_memories(name, func, ask))
        except Exception as error:  # any of TVM's passes may raise anything
            yield f"its shared memory is not planned: {first_line(error)}"


def _weights_in_each_call(
    given: IRModule, target: Target, ask: Ask, built: Mapping[str, str]
) -> Iterator[str]:
    """Yield what each function computes from weights alone, and its memory with and without.

    `built` has the memory of each function without them.
    """
    found = weight_tensors(given)
    ours = replace(ask, everything=False, planners=[n for n in ask.planners if n != STOCK][:1])
    peaks = _peaks(network(given, target, ours)) if found else {}
    for one in found:
        before, after = peaks.get(one.function, "0"), built.get(one.function, "0")
        yield (
            f"{one}, and left out here, as where weights are constants: "
            f"{before} bytes with them, {after} without (fused); {REMEDY}"
        )


def _peaks(found: Iterable[Finding]) -> dict[str, str]:
    """Return what the first planner's plans of the fused tensors of each function take."""
    of: defaultdict[str, list[str]] = defaultdict(list)
    for view in found:
        if isinstance(view, MemoryView) and view.holds.startswith(FUSED):
            peak = next(one.plan.peak for one in view.plans if one.planner != STOCK)
            of[view.owner].append(f"{peak:,}{view.unit and f' × {view.unit}'}")
    return {owner: " + ".join(parts) for owner, parts in of.items()}


def _function(program: Program, name: str) -> PrimFunc:
    if name not in program.functions:
        there = ", ".join(program.functions)
        raise ValueError(f"{program.title}: no function {name!r} to show; there are: {there}")
    return program.functions[name]


def grouped(name: str, mod: IRModule, ask: Ask) -> Iterator[Finding]:
    """Yield a network's groups, which are planned before anything is lowered for the chip."""
    if not has_relax(mod):
        raise ValueError(f"{name}: is no network, so it has no layers to group")
    return groups(mod, known_target(ask.target or DEFAULT_CHIP), ask)
