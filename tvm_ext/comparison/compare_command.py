# SPDX-License-Identifier: Apache-2.0
"""``tvm-ext compare``: our plans beside those of TVM's passes, as tables."""

from __future__ import annotations

import argparse
import shutil
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from tvm_ext.commands.command_options import (
    PROGRAM,
    TARGET,
    add_json,
    add_planners,
    add_sizes,
    check_writable,
    progress_line,
    sizes_of,
    write_json,
)
from tvm_ext.comparison import (
    layer_group_command,
    memories_command,
    order_command,
    shared_memory_command,
    storage_rewrite,
)
from tvm_ext.comparison.onnxruntime_memory import onnxruntime_memory
from tvm_ext.comparison.planner_results import PlannerComparison, render_planners, summary
from tvm_ext.comparison.planners import compare_planners
from tvm_ext.hosts import executorch
from tvm_ext.named_planners import EVERY, compared_planners
from tvm_ext.reading.program_files import SUFFIXES
from tvm_ext.reading.programs import ASCEND, TABLE, load_program

_DEFAULT_WORKLOAD = "resnet18"
_PLANNERS = "best"
"""Asked by default, but of Ascend kernels, which have planners of their own."""
_COMMANDS: Mapping[str, Any] = {
    "--layer-group": layer_group_command,
    "--shared-memory": shared_memory_command,
    "--order": order_command,
    "--memories": memories_command,
    "--storage-rewrite": storage_rewrite,
}
"""Modules by the option that shows something else than planners."""
_NEED = {
    "search": "--layer-group",
    "halo": "--layer-group",
    "fail_on_difference": "--storage-rewrite",
}
"""Options that mean something with one of these only."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's description and arguments to a parser or subparser."""
    parser.description = (
        "Plan every memory of a program and show the bytes of each plan beside TVM's own (stock) "
        "and the lower bound: the tensors of a network, with operators fused and not, and what "
        "kernels allocate. A line below says whether our StorageRewrite gives the same IR as TVM's."
    )
    parser.epilog = (
        "Exit status: 0; 1 when no plan of a memory fits, or a function has other IR than by TVM's "
        "StorageRewrite; 2 on bad input. "
        "A .py file is run, as Python runs it: give only files that you trust."
    )
    parser.add_argument(
        "program",
        nargs="?",
        default=_DEFAULT_WORKLOAD,
        metavar="WHAT",
        help=f"{PROGRAM}; a table of buffers (.csv); or a folder of such files; "
        f"{_DEFAULT_WORKLOAD} by default",
    )
    parser.add_argument(
        "--target",
        metavar="T",
        help=f"lower the program first, by the stock pipeline up to StorageRewrite, for {TARGET}; "
        "on functions that stand there and name no target, it is noted",
    )
    parser.add_argument("--list", action="store_true", help="list the workloads and leave")
    add_sizes(parser)
    add_json(parser)
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
    for command in _COMMANDS.values():
        command.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Run what the options name; return the exit status."""
    if args.list:
        _print_workloads()
        return 0
    check_writable(args.program, args.json)
    given = {name for name, value in vars(args).items() if value not in (None, False)}
    alone = [option for option in sorted([*_COMMANDS, "--planners"]) if _name(option) in given]
    if len(alone) > 1:
        raise ValueError(f"{' and '.join(alone)} are commands of their own; give one of them")
    for option, command in _NEED.items():
        if option in given and command not in alone:
            raise ValueError(f"--{option.replace('_', '-')} needs {command}")
    chosen = _COMMANDS.get(alone[0]) if alone else None
    status: int = _run_planners(args) if chosen is None else chosen.run(args)
    return status


def _name(option: str) -> str:
    return option[2:].replace("-", "_")


def _print_workloads() -> None:
    from tvm_ext import workloads

    targets = ", ".join(workloads.NETWORK_TARGETS)
    rows = [(name, f"{one.description} [{targets}]") for name, one in workloads.NETWORKS.items()]
    for name, description in workloads.ascend_kernels().items():
        rows.append((f"{ASCEND}{name}", f"{description} [{workloads.ascend.CHIP}-llvm]"))
    width = max(len(name) for name, _ in rows)
    columns = shutil.get_terminal_size().columns
    for name, text in rows:
        line = f"{name:{width}}  {text}"
        print(textwrap.fill(line, columns, subsequent_indent=" " * (width + 2)))
    sizes = ",".join(workloads.ascend.SIZES)
    print(f"\nan Ascend kernel may have a size: {ASCEND}KERNEL:{{{sizes}}}")


# ------------------------------------------------------------------------------- planners


@dataclass(frozen=True)
class Failure:
    """A program that could not be compared, and why."""

    program: str
    reason: str


Outcome = PlannerComparison | Failure


def _run_planners(args: argparse.Namespace) -> int:
    """Show planners side by side, and whether the mirrored pass is equal.

    Returned is 0; 1 if a memory has no plan that fits, or a function has other IR than by TVM's
    StorageRewrite; 2 if a program of a folder could not be compared.
    """
    if args.jobs is not None and args.jobs < 1:
        raise ValueError(f"--jobs must be at least 1, and is {args.jobs}")
    by_default = EVERY if args.program.startswith(ASCEND) else _PLANNERS
    planners, sizes = compared_planners(args.planners or by_default), sizes_of(args)
    path = Path(args.program)
    moved = onnxruntime_memory(args.program, sizes) if args.onnxruntime else None
    outcomes: list[Outcome]
    mirrored = None
    if path.is_dir():
        if sizes:
            raise ValueError(f"{path}: sizes of inputs are for one network, and this is a folder")
        outcomes = _compare_folder(path, planners, args.target, args.jobs or 1)
    elif args.planners is None and path.suffix not in (TABLE, executorch.SUFFIX):
        program = load_program(args.program, args.target, sizes)
        outcomes = [compare_planners(program, planners)]
        mirrored = storage_rewrite.compare_program(program)
        mirrored = mirrored if mirrored.functions else None
    else:
        outcomes = [compare_planners(args.program, planners, target=args.target, sizes=sizes)]
    plain = [asdict(outcome) for outcome in outcomes]
    if mirrored is not None:
        plain[0]["storage_rewrite"] = mirrored.plain()["totals"]
    if moved is not None:
        plain[0]["onnxruntime"] = asdict(moved)
    write_json(args.json, plain[0] if len(plain) == 1 else {"programs": plain})
    print("\n\n".join(_sections(outcomes, args.markdown)))
    if moved is not None:
        print(f"\n{moved}")
    if mirrored is not None:
        print(f"\n{mirrored.in_one_line()}")
    failures = [outcome for outcome in outcomes if isinstance(outcome, Failure)]
    for failure in failures:
        named = failure.reason.startswith(failure.program)
        reason = failure.reason if named else f"{failure.program}: {failure.reason}"
        print(f"{args.prog}: error: {reason}", file=sys.stderr)
    if failures:
        return 2
    fits = all(one.fits for one in outcomes if isinstance(one, PlannerComparison))
    return 0 if fits and (mirrored is None or mirrored.equal) else 1


def _compare_folder(
    folder: Path, planners: Sequence[str], target: str | None, jobs: int
) -> list[Outcome]:
    programs, outcomes = programs_in(folder), []
    with progress_line("programs") as show:
        for outcome in compare_many(programs, planners, target, jobs):
            outcomes.append(outcome)
            show(len(outcomes), len(programs))
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
    programs: Sequence[str], planners: Sequence[str], target: str | None = None, jobs: int = 1
) -> Iterator[Outcome]:
    """Plan many programs, `jobs` at a time; yield what came of each, in their order."""
    compare = partial(_outcome, planners=tuple(planners), target=target)
    if jobs == 1:
        yield from map(compare, programs)
        return
    # New processes: a copy of one in which TVM has started threads may hang.
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as executor:
        left = list(programs)
        try:
            for outcome in executor.map(compare, programs):
                left.pop(0)
                yield outcome
        except BrokenExecutor as error:  # A process has ended, and the executor gives up the rest.
            yield from (Failure(one, f"{type(error).__name__}: {error}") for one in left)


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
