# SPDX-License-Identifier: Apache-2.0
"""All planners on many programs, one after the other or at the same time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, as_completed
from dataclasses import dataclass
from functools import partial
from os import PathLike, fspath
from pathlib import Path

from tvm import relax
from tvm.ir import IRModule
from tvm.target import Target
from tvm.tirx import PrimFunc

from passes.planning import Budget, Problem
from passes.planning.files.csv_format import read_problem
from passes.planning.planner import as_budget
from target_hw.memory import MemoryScope
from tvm_ext.comparison.plan_scope import SEARCH_NODES
from tvm_ext.comparison.planner_results import PlannerComparison
from tvm_ext.comparison.planners import compare_problem, compare_program
from tvm_ext.named_planners import EVERY, known_planners
from tvm_ext.program_files import SUFFIXES
from tvm_ext.programs import load_program, program_of

TABLE = ".csv"
"""How the name of a table of buffers ends."""


@dataclass(frozen=True)
class Failure:
    """A program that could not be compared, and why."""

    program: str
    reason: str


Outcome = PlannerComparison | Failure


def compare_planners(
    what: str | PathLike[str] | IRModule | PrimFunc | relax.Function | Problem,
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
    planners = known_planners(planners)
    if isinstance(what, Problem):
        return compare_problem(what, planners, budget=budget)
    if not isinstance(what, str | PathLike):
        return compare_program(program_of(what, target, name="module"), planners, budget=budget)
    what = fspath(what)
    if Path(what).suffix != TABLE:
        return compare_program(load_program(what, target), planners, budget=budget)
    if not Path(what).is_file():
        raise ValueError(f"{what}: no such file")
    with open(what, encoding="utf-8-sig", newline="") as stream:
        problem = read_problem(stream, what, MemoryScope("global"))
    return compare_problem(problem, planners, budget=budget)


def programs_in(folder: Path) -> list[str]:
    """List the programs and tables of a folder and of the folders in it, in alphabetical order.

    Raises ValueError when there is none.
    """
    endings = (*SUFFIXES, TABLE)
    found = sorted(str(p) for p in folder.rglob("*") if p.suffix in endings and p.is_file())
    if not found:
        raise ValueError(f"{folder}: there is no file that ends in {', '.join(endings)}")
    return found


def compare_many(
    programs: Sequence[str],
    planners: Sequence[str] = (EVERY,),
    *,
    target: str | None = None,
    budget: Budget | None = None,
    executor: Executor | None = None,
    progress: Callable[[int], object] = lambda count: None,
) -> list[Outcome]:
    """Plan many programs with every planner; return what came of each, in their order.

    Programs, planners, target and budget are as in `compare_planners`. With an executor, the
    comparisons run there: each is a call of a function of a module with plain arguments. `progress`
    is called with the number of programs that are done, each time that one is.
    """
    run = partial(_outcome, planners=tuple(planners), target=target, budget=budget)
    if executor is None:
        outcomes = []
        for program in programs:
            outcomes.append(run(program))
            progress(len(outcomes))
        return outcomes
    futures = [executor.submit(run, program) for program in programs]
    for count, _ in enumerate(as_completed(futures), 1):
        progress(count)
    return [_result(program, future) for program, future in zip(programs, futures, strict=True)]


def _outcome(
    what: str, planners: Sequence[str], target: str | None, budget: Budget | None
) -> Outcome:
    try:
        return compare_planners(what, planners, target=target, budget=budget)
    except (ValueError, OSError) as error:
        return Failure(what, " ".join(str(error).split()))


def _result(program: str, future: Future[Outcome]) -> Outcome:
    """Return what a worker gave. If a worker's process ends, its executor gives up all the rest."""
    error = future.exception()
    if error is not None:
        return Failure(program, f"{type(error).__name__}: {error}")
    return future.result()
