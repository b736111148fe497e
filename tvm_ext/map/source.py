# SPDX-License-Identifier: Apache-2.0
"""What a memory map can be drawn of: a workload, a network, a kernel, a file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from os import PathLike, fspath
from pathlib import Path

from tvm import relax
from tvm.ir import IRModule
from tvm.target import Target
from tvm.tirx import PrimFunc

from passes.planning import Problem
from target_hw.memory import MemoryScope
from tvm_ext.hosts import executorch
from tvm_ext.lowering import DEFAULT_TARGET, as_module, has_relax, known_target
from tvm_ext.map.functions import prim_func_maps, relax_maps
from tvm_ext.map.layer_group import layer_group_maps
from tvm_ext.map.memory_map import MemoryMap, ScopeMap, Shown
from tvm_ext.map.shared_memory import shared_memory_maps
from tvm_ext.named_planners import STOCK
from tvm_ext.planned.placements import MapOptions, PlannedRun
from tvm_ext.reading import programs
from tvm_ext.reading.input_sizes import InputSizes


def memory_map_of(
    what: str | PathLike[str],
    *,
    target: str | Target | None = None,
    capacity: int | None = None,
    alignment: int = 1,
    options: MapOptions | None = None,
    sizes: InputSizes | None = None,
) -> MemoryMap:
    """Plan the memory of a program, or of a table of buffers, and return each placement.

    Plans that do not fit are in it, too. Raises ValueError when there is no such program, planner
    or memory, or it cannot be read, lowered or planned.

    Parameters
    ----------
    what : str or path
        The name of a workload or network; ``ascend:KERNEL`` or ``ascend:KERNEL:SIZE``; or a file:
        TVMScript (``.py``, or ``FILE.py:NAME`` for one module of several), a module saved as JSON
        (``.json``), a network of ONNX (``.onnx``) or PyTorch (``.pt2``), a program of ExecuTorch
        (``.pte``), or a table of buffers (``.csv``).
    target : str or tvm.target.Target, optional
        What the program is lowered for; a network by default for ``llvm``.
    capacity, alignment : int
        Of the memory for the buffers of a table, in bytes. By default it has no end.
    options : MapOptions, optional
        What to show.
    sizes : InputSizes, optional
        Of a network: sizes that it leaves open.
    """
    what, options = fspath(what), options or MapOptions()
    has_memory = capacity is not None or alignment != 1
    if Path(what).suffix == executorch.SUFFIX:
        if target is not None or has_memory or sizes:
            own = "its memories, its target and its sizes"
            raise ValueError(f"{what}: a program of ExecuTorch has {own}")
        _check_buffers_alone(what, options)
        return _map_of(Path(what).name, _of_arenas(what, options), options)
    if Path(what).suffix == programs.TABLE:
        memory = MemoryScope("global", capacity, alignment)
        table = programs.read_table(what, memory, target, sizes, name=Path(what).name)
        return map_of_problem(table, options=options)
    if has_memory:
        raise ValueError(
            "a capacity and an alignment are for tables of buffers; a program has its target's"
        )
    if options.layer_group:
        return _of_groups(what, programs.read_module(what, sizes), target, options)
    return _of_program(programs.load_program(what, target, sizes), options)


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
    options : MapOptions, optional
        What to show.
    """
    options = options or MapOptions()
    if options.layer_group:
        return _of_groups(title, as_module(mod), target, options)
    return _of_program(programs.program_of(mod, target, name=title), options)


def map_of_problem(problem: Problem, *, options: MapOptions | None = None) -> MemoryMap:
    """Plan one problem, and return each placement; the map is called by the problem's name."""
    options = options or MapOptions()
    _check_buffers_alone(problem.name, options)
    return _map_of(problem.name, [ScopeMap(problem.name, options.plan(problem))], options)


def _check_buffers_alone(name: str, options: MapOptions) -> None:
    """Raise ValueError for options that ask for more than the buffers of a table or file."""
    if STOCK in options.planners:
        raise ValueError(f"{name}: buffers without a program of TVM have no plan {STOCK!r}")
    if options.layer_group or options.order or options.shared_memory:
        raise ValueError(f"{name}: buffers without a program of TVM are shown as they are listed")


def _of_arenas(path: str, options: MapOptions) -> Iterator[ScopeMap]:
    """Yield the arenas of a program of ExecuTorch: the plan in the file, and others beside it."""
    for arena in executorch.read_program(path):
        yield replace(arena, placements=(*arena.placements, *options.plan(arena.problem)))


def _of_groups(
    name: str, mod: IRModule, target: str | Target | None, options: MapOptions
) -> MemoryMap:
    """Show a network's groups, which are planned before anything is lowered for the chip."""
    if not has_relax(mod):
        raise ValueError(f"{name}: is no network, so it has no layers to group")
    chip = known_target(target or DEFAULT_TARGET)
    return _map_of(name, layer_group_maps(mod, chip, options), options)


def _of_program(program: programs.Program, options: MapOptions) -> MemoryMap:
    if options.order and program.relax is None:
        raise ValueError(f"{program.name}: is no network, so it has no order of operators")
    maps = shared_memory_maps if options.shared_memory else prim_func_maps
    shown: list[Shown] = []
    functions = options.functions or tuple(program.functions)
    if program.relax is not None and not options.shared_memory:
        assert program.target is not None
        shown += relax_maps(program.relax, program.target, options)
        functions = tuple(name for name in options.functions if name in program.functions)
    for name in functions:
        if name not in program.functions:
            raise _nothing_to_show(program.title, "function", name, program.functions)
        shown += maps(name, program.functions[name], options)
    return _map_of(program.title, shown, options)


def _map_of(title: str, found: Iterable[Shown], options: MapOptions) -> MemoryMap:
    """Return the part of a map that is asked for."""
    shown = list(found)
    scopes = tuple(one for one in shown if isinstance(one, ScopeMap))
    runs = tuple(one for one in shown if isinstance(one, PlannedRun))
    whole = MemoryMap(title, scopes, runs, tuple(one for one in shown if isinstance(one, str)))
    for what, asked in (("scope", options.scopes), ("function", options.functions)):
        known = dict.fromkeys(getattr(scope, what) for scope in whole.scopes)
        for name in asked:
            if name not in known:
                raise _nothing_to_show(title, what, name, known)
        scopes = tuple(one for one in scopes if not asked or getattr(one, what) in asked)
    return replace(whole, scopes=scopes)


def _nothing_to_show(title: str, what: str, name: str, there: Iterable[str]) -> ValueError:
    return ValueError(f"{title}: no {what} {name!r} to show; there are: {', '.join(there)}")
