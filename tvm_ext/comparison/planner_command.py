# SPDX-License-Identifier: Apache-2.0
"""``tvm-ext compare``: planners side by side, and whether the mirrored pass is equal."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from tvm_ext.command_options import add_planners, progress_line, sizes_of, write_json
from tvm_ext.comparison.onnxruntime_memory import onnxruntime_memory
from tvm_ext.comparison.planner_results import PlannerComparison, render_planners, summary
from tvm_ext.comparison.planners import compare_planners
from tvm_ext.comparison.storage_rewrite_command import compared, in_one_line
from tvm_ext.hosts import executorch
from tvm_ext.named_planners import EVERY, compared_planners
from tvm_ext.program_files import SUFFIXES
from tvm_ext.programs import ASCEND, TABLE, load_program

_PLANNERS = "best"
"""Asked by default, but of Ascend kernels, which have planners of their own."""


@dataclass(frozen=True)
class Failure:
    """A program that could not be compared, and why."""

    program: str
    reason: str


Outcome = PlannerComparison | Failure


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options to the parser of ``compare``."""
    add_planners(parser, f"show what these planners make of each memory (default: {_PLANNERS})")
    parser.add_argument("--markdown", action="store_true", help="print tables in Markdown")
    parser.add_argument(
        "--onnxruntime",
        action="store_true",
        help="of an ONNX file: run it once by onnxruntime too, and say what memory that takes",
    )
    parser.add_argument(
        "--jobs",
        type=int,
        metavar="N",
        help="of a folder: compare so many files at a time",
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the command.

    Returned is 0; 1 if a memory has no plan that fits, or a function has other IR than by TVM's
    StorageRewrite; 2 if a program of a folder could not be compared.
    """
    if arguments.jobs is not None and arguments.jobs < 1:
        raise ValueError(f"--jobs must be at least 1, and is {arguments.jobs}")
    by_default = EVERY if arguments.program.startswith(ASCEND) else _PLANNERS
    planners = compared_planners(arguments.planners or by_default)
    moved = None
    if arguments.onnxruntime:
        moved = onnxruntime_memory(arguments.program, sizes_of(arguments))
    mirrored = None
    if arguments.planners is None and _is_program(arguments.program):
        program = load_program(arguments.program, arguments.target, sizes_of(arguments))
        outcomes: list[Outcome] = [compare_planners(program, planners)]
        mirrored = compared(program, repeats=1)
        mirrored = mirrored if mirrored.functions else None
    else:
        outcomes = _outcomes(arguments, planners)
    failures = [outcome for outcome in outcomes if isinstance(outcome, Failure)]
    plain = [asdict(outcome) for outcome in outcomes]
    if mirrored is not None:
        plain[0]["storage_rewrite"] = asdict(mirrored.totals)
    if moved is not None:
        plain[0]["onnxruntime"] = asdict(moved)
    write_json(arguments.json, plain[0] if len(plain) == 1 else {"programs": plain})
    print("\n\n".join(_sections(outcomes, arguments.markdown)))
    if moved is not None:
        print(f"\n{moved}")
    if mirrored is not None:
        print(f"\n{in_one_line(mirrored)}")
    for failure in failures:
        named = failure.reason.startswith(failure.program)
        reason = failure.reason if named else f"{failure.program}: {failure.reason}"
        print(f"{arguments.prog}: error: {reason}", file=sys.stderr)
    if failures:
        return 2
    fits = all(one.fits for one in outcomes if isinstance(one, PlannerComparison))
    return 0 if fits and (mirrored is None or mirrored.equal) else 1


def _is_program(what: str) -> bool:
    return Path(what).suffix not in (TABLE, executorch.SUFFIX) and not Path(what).is_dir()


def _outcomes(arguments: argparse.Namespace, planners: Sequence[str]) -> list[Outcome]:
    path, jobs, target = Path(arguments.program), arguments.jobs or 1, arguments.target
    sizes = sizes_of(arguments)
    if not path.is_dir():
        return [compare_planners(arguments.program, planners, target=target, sizes=sizes)]
    if sizes:
        raise ValueError(f"{path}: sizes of inputs are for one network, and this is a folder")
    programs = programs_in(path)
    # New processes: a copy of one in which TVM has started threads may hang.
    spawned = ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) if jobs > 1 else None
    outcomes = []
    with spawned or nullcontext() as executor, progress_line("programs") as show:
        for done, outcome in enumerate(compare_many(programs, planners, target, executor), 1):
            outcomes.append(outcome)
            show(done, len(programs))
    return outcomes


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
    planners: Sequence[str],
    target: str | None = None,
    executor: Executor | None = None,
) -> Iterator[Outcome]:
    """Plan many programs with every planner; yield what came of each, in their order.

    With an executor, the comparisons run there: each is a call of a function of a module with plain
    arguments.
    """
    run = partial(_outcome, planners=tuple(planners), target=target)
    left = list(programs)
    try:
        for outcome in map(run, programs) if executor is None else executor.map(run, programs):
            left.pop(0)
            yield outcome
    except BrokenExecutor as error:  # A worker's process has ended: the executor gives up the rest.
        yield from (Failure(program, f"{type(error).__name__}: {error}") for program in left)


def _outcome(what: str, planners: Sequence[str], target: str | None) -> Outcome:
    try:
        return compare_planners(what, planners, target=target)
    except (ValueError, OSError) as error:
        return Failure(what, " ".join(str(error).split()))


def _sections(outcomes: list[Outcome], markdown: bool) -> Iterator[str]:
    done = [outcome for outcome in outcomes if not isinstance(outcome, Failure)]
    for comparison in done:
        if len(outcomes) > 1:
            yield f"## {comparison.program}" if markdown else f"== {comparison.program}"
        yield render_planners(comparison, markdown=markdown)
    if len(done) > 1:
        table = summary(done)
        yield "\n".join(table.markdown() if markdown else table.text())
