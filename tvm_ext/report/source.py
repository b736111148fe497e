# SPDX-License-Identifier: Apache-2.0
"""Reports of programs: a workload, a file, a module, a function, a problem."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING

from passes.planning import Budget, Plan, Problem
from target_hw.memory import MemoryScope
from tvm_ext.named_planners import EVERY, STOCK, compared_planners
from tvm_ext.report.ask import Ask, given_plans, silent
from tvm_ext.report.memory_view import MemoryView
from tvm_ext.report.report import Finding, Report, report_of

if TYPE_CHECKING:
    from passes.ir import IRModule, PrimFunc, Target
    from passes.relax import rx
    from tvm_ext.reading.input_sizes import InputSizes
    from tvm_ext.reading.programs import Program

VIEWS = {
    "groups": "the groups of layers of a network, in the local memory of the target (by default "
    "sophgo/bm1684x), and what running them together there saves",
    "order": "a network in the order of operators in which the least memory is live, and what that "
    "order saves",
    "shared": "the shared memory of GPU kernels, epoch by epoch between barriers, beside TVM's",
    "rewrite": "what TVM's StorageRewrite and ours allocate in each function, whether the IR is "
    "equal, and the first difference",
}
"""Views in the place of all memories of a program: the word for each, and its description."""


def memory_map(
    what: str | PathLike[str] | IRModule | PrimFunc | rx.Function | Problem | Program,
    planners: str | Sequence[str] | Mapping[str, Plan] = (),
    *,
    view: str = "",
    target: str | Target | None = None,
    scopes: str | Sequence[str] = (),
    functions: str | Sequence[str] = (),
    budget: Budget | int | None = None,
    sizes: InputSizes | None = None,
    upper_bounds: Mapping[str, int] | None = None,
    capacity: int | None = None,
    alignment: int = 1,
    title: str = "module",
    progress: Callable[[int, int], object] = silent,
) -> Report:
    """Plan the memories of a program, and return each with its plans, to be shown.

    Plans that do not fit are in it, too. Every plan that fits is verified.

    Parameters
    ----------
    what : str or path or tvm.IRModule or a function of one or Problem
        A module, a problem, or the name of a workload; ``ascend:KERNEL`` or
        ``ascend:KERNEL:SIZE``; or a file: TVMScript (``.py``, or ``FILE.py:NAME`` for one module
        of several), a module saved as JSON (``.json``), a network of ONNX (``.onnx``) or PyTorch
        (``.pt2``), a program of ExecuTorch (``.pte``), a model for TensorFlow Lite Micro
        (``.tflite``), or a table of buffers (``.csv``). A module stays as it is. Any other than
        these is a TypeError.
    planners : str or sequence of str or mapping of str to Plan
        The planners to ask, whose plans stand side by side; ``all`` stands for those that are made
        for such buffers, ``stock`` for TVM's own plan, ``module:function`` for one of the user's
        own. By default ``best``, and ``three_level`` for a kernel of an Ascend core. Of a problem:
        also plans of it, by what to call each.
    view : str
        ``groups``, ``order``, ``shared`` or ``rewrite`` in the place of all memories: see `VIEWS`.
    target : str or tvm.target.Target, optional
        What a program is lowered for; a network by default for ``llvm``. PrimFuncs without a target
        have to stand right before ``StorageRewrite``.
    scopes, functions : str or sequence of str
        These memories or functions only. By default the Relax functions, if any.
    budget : Budget or int, optional
        Limits for planners that search; an int is the number of placements that may be tried.
    sizes : InputSizes, optional
        Of a network in a file, or a workload: sizes that it leaves open.
    upper_bounds : mapping of str to int, optional
        Most elements of symbolic dimensions of a network, by name, for TVM's plan too.
    capacity, alignment : int
        Of the memory for the buffers of a table, in bytes. By default it has no end.
    title : str
        What to call a module.
    progress : callable, optional
        Is called with the number of layers that were looked at, and of all, by the view ``groups``.

    Raises
    ------
    ValueError
        When there is no such program, planner or memory, or it cannot be read, lowered or planned.
    """
    if isinstance(planners, Mapping):
        if not isinstance(what, Problem):
            raise TypeError("memory_map: plans are of a Problem; of a program, name planners")
        return report_of(what.name, [MemoryView(what.name, given_plans(what, planners))])
    ask = Ask(planners, scopes, functions, budget, False, upper_bounds or {}, progress)
    name, found = _read(what, ask, view, target, sizes, capacity, alignment, title)
    shown = _asked(report_of(name, found), ask)
    if view != "rewrite":
        shown.need_memories()
    return shown


def compare(
    what: str | PathLike[str] | IRModule | PrimFunc | rx.Function | Problem | Program,
    planners: str | Sequence[str] = EVERY,
    *,
    view: str = "",
    target: str | Target | None = None,
    budget: Budget | int | None = None,
    sizes: InputSizes | None = None,
    upper_bounds: Mapping[str, int] | None = None,
    title: str = "module",
    progress: Callable[[int, int], object] = silent,
) -> Report:
    """Plan every memory of a program with every planner, beside TVM's own plans.

    Of a network that is the tensors between operators, fused and not, and what kernels allocate. A
    note says whether our `StorageRewrite` gives the same IR as TVM's. All else is as in
    `memory_map`.
    """
    bounds = upper_bounds or {}
    ask = Ask(compared_planners(planners), (), (), budget, True, bounds, progress)
    name, found = _read(what, ask, view, target, sizes, None, 1, title)
    return report_of(name, found)


def _read(
    what: object,
    ask: Ask,
    view: str,
    target: str | Target | None,
    sizes: InputSizes | None,
    capacity: int | None,
    alignment: int,
    title: str,
) -> tuple[str, Iterable[Finding]]:
    """Return what a program is called, and what there is to say of its memory."""
    if view and view not in VIEWS:
        raise ValueError(f"unknown view {view!r}; there are: {', '.join(VIEWS)}")
    if isinstance(what, Problem):
        return what.name, _buffers(what, ask, view, what.name)
    own_memory = capacity is not None or alignment != 1
    if isinstance(what, str | PathLike) and Path(what).suffix == ".tflite":
        from tvm_ext.hosts.tflite_micro import read_arena

        _check_host("TensorFlow Lite Micro", fspath(what), ask, view, target, own_memory, sizes)
        return Path(what).name, read_arena(what, ask)
    from tvm_ext.hosts.executorch import SUFFIX, read_program
    from tvm_ext.reading import programs
    from tvm_ext.report.readers.program_memories import grouped, of_program

    if isinstance(what, str | PathLike):
        what = fspath(what)
        name, suffix = Path(what).name, Path(what).suffix
        if suffix == SUFFIX:
            _check_host("ExecuTorch", what, ask, view, target, own_memory, sizes)
            arenas = read_program(what)
            return name, (replace(a, plans=(*a.plans, *ask.plan(a.problem))) for a in arenas)
        if suffix == programs.TABLE:
            memory = MemoryScope("global", capacity, alignment)
            table = programs.read_table(what, memory, target, sizes, name=name)
            return name, _buffers(table, ask, view, what)
        if own_memory:
            raise ValueError(
                "a capacity and an alignment are for tables of buffers; a program has its target's"
            )
        if view == "groups":
            return what, grouped(what, programs.read_module(what, sizes), target, ask)
        program = programs.load_program(what, target, sizes)
    elif view == "groups":
        return title, grouped(title, what, target, ask)
    elif isinstance(what, programs.Program):
        program = what
    else:
        program = programs.program_of(what, target, name=title)
    return program.title, of_program(program, ask, view)


def _buffers(problem: Problem, ask: Ask, view: str, name: str) -> Iterator[Finding]:
    _check_alone(name, ask, view)
    return iter([MemoryView(problem.name, ask.plan(problem))])


def _check_host(
    host: str,
    name: str,
    ask: Ask,
    view: str,
    target: object,
    own_memory: bool,
    sizes: InputSizes | None,
) -> None:
    """Raise ValueError for options that a program of another compiler decides itself."""
    if target is not None or own_memory or sizes:
        own = "its memories, its target and its sizes"
        raise ValueError(f"{name}: a program of {host} has {own}")
    _check_alone(name, ask, view)


def _check_alone(name: str, ask: Ask, view: str) -> None:
    """Raise ValueError for options that ask for more than the buffers of a table or file."""
    if STOCK in ask.planners:
        raise ValueError(f"{name}: buffers without a program of TVM have no plan {STOCK!r}")
    if view:
        raise ValueError(f"{name}: buffers without a program of TVM have no view {view!r}")


def _asked(report: Report, ask: Ask) -> Report:
    """Return the part of a report that is asked for."""
    memories = report.memories
    for what, asked in (("scope", ask.scopes), ("owner", ask.functions)):
        called = "function" if what == "owner" else what
        known = dict.fromkeys(getattr(view, what) for view in report.memories)
        for name in asked:
            if name not in known:
                there = ", ".join(known)
                raise ValueError(
                    f"{report.title}: no {called} {name!r} to show; there are: {there}"
                )
        memories = tuple(view for view in memories if not asked or getattr(view, what) in asked)
    return replace(report, memories=memories)
