# SPDX-License-Identifier: Apache-2.0
"""``tvm-ext compare``: our plans beside those of TVM's passes, as tables."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tvm_ext.commands import command_options as common
from tvm_ext.hosts import executorch, tflite_micro
from tvm_ext.named_planners import EVERY, compared_planners
from tvm_ext.reading.programs import ASCEND, SUFFIXES, TABLE, problems_of
from tvm_ext.report import Report, compare, report_of
from tvm_ext.report.readers.spread import ways
from tvm_ext.report.runtimes import executorch_memory, onnxruntime_memory
from tvm_ext.text import folded

_DEFAULT_WORKLOAD = "resnet18"
_PLANNERS = "best"
"""Asked by default, but of Ascend kernels, which have planners of their own."""

_RUNTIMES = {
    "onnxruntime": (
        onnxruntime_memory,
        "an ONNX file: run it once by onnxruntime too, and say what memory that takes",
    ),
    "executorch": (
        executorch_memory,
        "a PyTorch program (.pt2): have ExecuTorch plan it too, and say what its planner takes",
    ),
}
"""By option, what says the memory of another runtime: as data and in a line."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's description and arguments to a parser or subparser."""
    parser.description = (
        "Plan every memory of a program and show the bytes of each plan beside TVM's own (stock) "
        "and the lower bound: the tensors of a network, with operators fused and not, and what "
        "kernels allocate. A line below says whether our StorageRewrite gives the same IR as TVM's."
    )
    parser.epilog = (
        "Exit status: 0; 1 when no plan of a memory fits, a function has other IR than by TVM's "
        "StorageRewrite, or shared memory takes more than by TVM; 2 on bad input. "
        "A .py file is run, as Python runs it: give only files that you trust."
    )
    common.add_program(
        parser,
        f"a table of buffers (.csv); or a folder of such files; {_DEFAULT_WORKLOAD} by default",
    ).default = _DEFAULT_WORKLOAD
    common.add_view(parser)
    parser.add_argument(
        "--target",
        metavar="T",
        help="lower the program first, by the stock pipeline up to StorageRewrite, for "
        f"{common.TARGET}; on functions that stand there and name no target, it is noted",
    )
    parser.add_argument("--list", action="store_true", help="list the workloads and leave")
    common.add_sizes(parser)
    common.add_json(parser)
    for runtime, (_, what) in _RUNTIMES.items():
        parser.add_argument(f"--{runtime}", action="store_true", help=f"of {what}")
    shown = parser.add_mutually_exclusive_group()
    common.add_planners(
        shown, f"show what these planners make of each memory (default: {_PLANNERS})"
    )
    common.add_memories(shown, moves=False)


def run(args: argparse.Namespace) -> int:
    """Run what the options name; return the exit status."""
    common.check_writable(args.program, args.json)
    if args.list:
        _print_workloads(args.json)
        return 0
    common.check_memories(args)
    beside, said = {}, []
    for runtime, (measure, _) in _RUNTIMES.items():
        if getattr(args, runtime):
            if args.view:
                raise ValueError(f"--{runtime} means nothing with the view {args.view!r}")
            beside[runtime], line = measure(args.program, common.sizes_of(args))
            said.append(line)
    if Path(args.program).is_dir():
        return _folder(args)
    report = _report(args)
    common.write_json(args.json, lambda: {**report.data(), **beside})
    width = common.columns()
    print("\n\n".join([report.text(width), *(folded(line, width) for line in said)]))
    return 0 if report.is_right else 1


def _report(args: argparse.Namespace) -> Report:
    sizes = common.sizes_of(args)
    if args.memories is not None:
        memories = common.read_memories(args.memories)
        problems = problems_of(args.program, memories, args.target, sizes)
        return report_of(args.program, [ways(problem, [*memories]) for problem in problems])
    with common.progress_line("layers") as progress:
        return compare(
            args.program,
            _planners(args),
            view=args.view or "",
            target=args.target,
            sizes=sizes,
            progress=progress,
        )


def _planners(args: argparse.Namespace) -> tuple[str, ...]:
    by_default = EVERY if args.program.startswith(ASCEND) else _PLANNERS
    return compared_planners(args.planners or by_default)


def _print_workloads(out: Path | None) -> None:
    """Print what each workload is called and is, and write it to a file of data."""
    from tvm_ext import workloads

    targets, chip = ", ".join(workloads.NETWORK_TARGETS), f"{workloads.ascend.CHIP}-llvm"
    said = {name: f"{one.description} [{targets}]" for name, one in workloads.NETWORKS.items()}
    said |= {f"{ASCEND}{name}": f"{x} [{chip}]" for name, x in workloads.ascend_kernels().items()}
    listed = [{"name": name, "description": x} for name, x in said.items()]
    common.write_json(out, lambda: listed)
    width, columns = max(map(len, said)), shutil.get_terminal_size().columns
    for name, text in said.items():
        line = f"{name:{width}}  {text}"
        print(textwrap.fill(line, columns, subsequent_indent=" " * (width + 2)))
    sizes = ",".join(workloads.ascend.SIZES)
    print(f"\nan Ascend kernel may have a size: {ASCEND}KERNEL:{{{sizes}}}")


def _folder(args: argparse.Namespace) -> int:
    """Show the programs of a folder one after another, and say which could not be compared."""
    if common.sizes_of(args) or args.view or args.memories:
        given = "sizes of inputs, a view and memories are for one program"
        raise ValueError(f"{args.program}: {given}, and this is a folder")
    programs, planners, status = programs_in(Path(args.program)), _planners(args), 0
    data: list[dict[str, Any]] = []
    sections, failures = [], []
    with common.progress_line("programs") as show:
        for number, program in enumerate(programs, 1):
            try:
                found = replace(compare(program, planners, target=args.target), title=program)
                data.append(found.data())
                sections.append(f"== {program}\n\n{found.text(common.columns())}")
                status = max(status, int(not found.is_right))
            except (ValueError, OSError, ImportError) as error:
                status, reason = 2, " ".join(str(error).split())
                data.append({"title": program, "reason": reason})
                failures.append(reason if reason.startswith(program) else f"{program}: {reason}")
            show(number, len(programs))
    for failure in failures:
        print(f"{args.prog}: error: {failure}", file=sys.stderr)
    common.write_json(args.json, lambda: {"programs": data})
    print("\n\n".join(sections))
    return status


def programs_in(folder: Path) -> list[str]:
    """List the programs and tables below a folder in alphabetical order.

    Raises ValueError if there is none, OSError if a folder cannot be read.
    """

    def refuse(error: OSError) -> None:
        raise error

    endings: Sequence[str] = (*SUFFIXES, TABLE, executorch.SUFFIX, tflite_micro.SUFFIX)
    files = (
        Path(where, name) for where, _, names in os.walk(folder, onerror=refuse) for name in names
    )
    found = sorted(str(path) for path in files if path.suffix in endings and path.is_file())
    if not found:
        raise ValueError(f"{folder}: there is no file that ends in {', '.join(endings)}")
    return found
