# SPDX-License-Identifier: Apache-2.0
"""A program of TVM: the memories of its Relax functions and its PrimFuncs, or one view of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache, partial

from passes.ir import UPPER_BOUND, IRModule, PrimFunc, Target, declared_bounds, first_line
from passes.pass_errors import error_context
from passes.prim_func import memory_of
from passes.relax import functions_in_order, place_of
from passes.shared_memory import SCOPES
from tvm_ext.lowering import as_module, has_relax, known_target
from tvm_ext.named_planners import STOCK
from tvm_ext.reading.input_sizes import bind_hint, described_dimensions, open_dimensions
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
    view = ask.view
    rewritten = cache(lambda name: rewrite(name, program.functions[name]))
    if view == "shared":
        chosen = ask.functions or program.functions
        yield from shared_memory({name: _function(program, name) for name in chosen}, ask)
        return
    if view == "rewrite":
        try:
            yield from rewrites(program.functions, rewritten)
        except ValueError as error:
            raise ValueError(f"{program.name}: {error}") from error
        return
    mod, names = program.relax, ask.functions or tuple(program.functions)
    if view == "order" and mod is None:
        raise ValueError(f"{program.name}: is no network, so it has no order of operators")
    bounds: dict[str, int] = {}
    if mod is not None:
        assert program.target is not None
        tensors = list(network(mod, program.target, ask, order=view == "order"))
        yield from tensors
        said: dict[str, str] = {}
        for _, func in functions_in_order(mod):
            for name, size in {**ask.upper_bounds, **declared_bounds(func)}.items():
                place = place_of(func, name)
                if place != name or name not in said:
                    said[name] = f"{place} = {size}"
                bounds[name] = ask.upper_bounds.get(name, size)
        if said:
            places = ", ".join(said[name] for name in sorted(said))
            yield f"planned at the upper bounds of symbolic dimensions: {places}"
        unknown = [name for name in open_dimensions(mod) if name not in bounds]
        if unknown:
            known = [one for one in described_dimensions(mod) if one.split(" ")[0] in unknown]
            sizes, bind = ", ".join(known), bind_hint(unknown)
            yield f"sizes that only the running program knows: {sizes}; {bind} plans at a value"
        if ask.functions or not ask.everything:  # The Relax functions are among those asked for.
            names = tuple(name for name in ask.functions if name in program.functions)
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
        func = _function(program, name)
        if bounds:
            func = func.with_attr(UPPER_BOUND, {**bounds, **declared_bounds(func)})
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
            yield from rewrites(program.functions, rewritten, each=False)
        except ValueError as error:  # The plans stand by themselves.
            yield Fault(f"StorageRewrite: not compared: {error}")


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


def grouped(name: str, what: object, ask: Ask) -> Iterator[Finding]:
    """Yield a network's groups, which are planned before anything is lowered for the chip."""
    mod = as_module(what)
    if not has_relax(mod):
        raise ValueError(f"{name}: is no network, so it has no layers to group")
    return groups(mod, known_target(ask.target or DEFAULT_CHIP), ask)
