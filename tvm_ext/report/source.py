# SPDX-License-Identifier: Apache-2.0
"""Reports of programs: a workload, a file, a module, a function, a problem."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING

from passes.planning import Budget, Plan, Problem
from target_hw.memory import MemoryScope
from tvm_ext.named_planners import EVERY, compared_planners
from tvm_ext.report.ask import Ask, silent
from tvm_ext.report.memory_view import MemoryView, PlannedProblem
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
        Of a network: sizes that it leaves open.
    upper_bounds : mapping of str to int, optional
        Most elements of symbolic dimensions, by name, for TVM's plan too. A bound that a function
        of a network declares counts before one that is given.
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
    plans = planners if isinstance(planners, Mapping) else None
    names = () if isinstance(planners, Mapping) else planners
    given = (names, scopes, functions, budget, False, upper_bounds or {}, progress)
    ask = Ask(*given, view, target, sizes, capacity, alignment)
    if plans is not None:
        if not isinstance(what, Problem):
            raise TypeError("memory_map: plans are of a Problem; of a program, name planners")
        ask.check_alone(what.name, "a Problem")
        if budget is not None:
            raise ValueError(f"{what.name}: its plans are given, so a budget limits nothing")
        placed = tuple(PlannedProblem(name, what, plan) for name, plan in plans.items())
        return _part_of(Report(what.name, (MemoryView(what.name, placed),)), ask)
    shown = _part_of(report_of(*_read(what, ask, title)), ask)
    if view != "rewrite":
        shown.need_memories()
    return shown


def compare(
    what: str | PathLike[str] | IRModule | PrimFunc | rx.Function | Problem | Program,
    planners: str | Sequence[str] = EVERY,
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
    """Plan every memory of a program with every planner, beside TVM's own plans.

    Of a network that is the tensors between operators, fused and not, and what kernels allocate. A
    note says whether our `StorageRewrite` gives the same IR as TVM's. All options are those of
    `memory_map`.
    """
    names = compared_planners(planners)
    given = (names, scopes, functions, budget, True, upper_bounds or {}, progress)
    ask = Ask(*given, view, target, sizes, capacity, alignment)
    return _part_of(report_of(*_read(what, ask, title)), ask)


def _part_of(report: Report, ask: Ask) -> Report:
    """Return the part of a report that is asked for."""
    memories = report.memories
    functions = () if ask.view == "rewrite" else ask.functions  # That view has no memories.
    for part, asked in (("scope", ask.scopes), ("owner", functions)):
        known = dict.fromkeys(getattr(view, part) for view in report.memories)
        for name in asked:
            if name not in known:
                called, there = "function" if part == "owner" else part, ", ".join(known)
                raise ValueError(
                    f"{report.title}: no {called} {name!r} to show; there are: {there}"
                )
        memories = tuple(view for view in memories if not asked or getattr(view, part) in asked)
    return replace(report, memories=memories)


def _read(what: object, ask: Ask, title: str) -> tuple[str, Iterable[Finding]]:
    """Return what a program is called, and what there is to say of its memory."""
    if ask.view and ask.view not in VIEWS:
        raise ValueError(f"unknown view {ask.view!r}; there are: {', '.join(VIEWS)}")
    if isinstance(what, Problem):
        ask.check_alone(what.name, "a Problem")
        return what.name, [MemoryView(what.name, ask.plan(what))]
    name, suffix = title, ""
    if isinstance(what, str | PathLike):
        what = fspath(what)
        name, suffix = Path(what).name, Path(what).suffix
    if suffix == ".tflite":
        from tvm_ext.hosts.tflite_micro import read_arena

        ask.check_alone(str(what), "a program of TensorFlow Lite Micro")
        return name, read_arena(str(what), ask)
    from tvm_ext.hosts.executorch import SUFFIX, read_program
    from tvm_ext.lowering import as_module
    from tvm_ext.reading import programs
    from tvm_ext.report.readers.program_memories import grouped, of_program

    if isinstance(what, str) and suffix == SUFFIX:
        ask.check_alone(what, "a program of ExecuTorch")
        arenas = read_program(what)
        return name, (replace(a, plans=(*a.plans, *ask.plan(a.problem))) for a in arenas)
    if isinstance(what, str) and suffix == programs.TABLE:
        memory = MemoryScope("global", ask.capacity, ask.alignment)
        table = programs.read_table(what, memory, ask.target, ask.sizes, name=name)
        ask.check_alone(what)
        return name, [MemoryView(table.name, ask.plan(table))]
    if ask.own_memory:
        raise ValueError(
            "a capacity and an alignment are for tables of buffers; a program has its target's"
        )
    if isinstance(what, programs.Program):
        if ask.target is not None or ask.sizes or ask.view == "groups":
            raise ValueError(
                f"{what.name}: is lowered for its target, at its sizes, without groups"
            )
        return what.title, of_program(what, ask)
    called = what if isinstance(what, str) else title
    if not isinstance(what, str):
        what = programs.sized(title, as_module(what), ask.sizes)
    if ask.view == "groups":
        mod = programs.read_module(what, ask.sizes) if isinstance(what, str) else what
        return called, grouped(called, mod, ask)
    if isinstance(what, str):
        program = programs.load_program(what, ask.target, ask.sizes)
    else:
        program = programs.program_of(what, ask.target, name=title)
    return program.title, of_program(program, ask)
