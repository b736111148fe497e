# SPDX-License-Identifier: Apache-2.0
"""``tvm-ext compare`` and ``tvm-ext map``: the report of a program, as tables and in a file."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from passes.planning import Budget
from tvm_ext.commands import command_options as common
from tvm_ext.hosts import executorch, tflite_micro
from tvm_ext.named_planners import EVERY
from tvm_ext.reading.programs import ASCEND, SUFFIXES, TABLE, problems_of
from tvm_ext.report import Report, check_suffix, compare, memory_map, report_of
from tvm_ext.report.readers.spread import SECONDS, spread, ways
from tvm_ext.report.report import Finding
from tvm_ext.report.runtimes import executorch_memory, onnxruntime_memory
from tvm_ext.report.source import VIEWS
from tvm_ext.text import folded

PROGRAM = (
    "a workload or kernel that 'compare --list' names, a TVMScript file (.py; FILE.py:NAME for one "
    "module of several), a module saved with tvm.ir.save_json (.json), an ONNX network (.onnx), a "
    "PyTorch program saved with torch.export.save (.pt2), a program of ExecuTorch (.pte), a model "
    "for TensorFlow Lite Micro (.tflite), a table of buffers (.csv)"
)
"""The programs that both commands take, in their help."""

_TARGET = (
    "lower the program for this target: a name such as llvm or cuda, a tag, which a .py file may "
    "register, or a JSON object. A workload is by default lowered for the first of its targets, a "
    "network in a file for llvm. Functions without a target that stand right before StorageRewrite "
    "get it as a note, and without this option have to stand there"
)
_TRUST = "A .py file is run, as Python runs it: give only files that you trust."
_DEFAULT_WORKLOAD = "resnet18"
_PLANNERS = "best"
"""Compared by default, but of Ascend kernels, which have planners of their own."""

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


def add_compare(parser: argparse.ArgumentParser) -> None:
    """Add the description, arguments and function of ``compare`` to a parser or subparser."""
    parser.description = (
        "Plan every memory of a program and show the bytes of each plan beside TVM's own (stock) "
        "and the lower bound: the tensors of a network, with operators fused and not, and what "
        "kernels allocate. A line below says whether our StorageRewrite gives the same IR as TVM's."
    )
    parser.epilog = (
        "Exit status: 0; 1 when no plan of a memory fits, a function has other IR than by TVM's "
        f"StorageRewrite, or shared memory takes more than by TVM; 2 on bad input. {_TRUST}"
    )
    parser.set_defaults(run=run_compare, program=_DEFAULT_WORKLOAD)
    _add_program(parser, f"{PROGRAM}, or a folder of such files; {_DEFAULT_WORKLOAD} by default")
    parser.add_argument("--list", action="store_true", help="list the workloads and leave")
    for runtime, (_, what) in _RUNTIMES.items():
        parser.add_argument(f"--{runtime}", action="store_true", help=f"of {what}")
    shown = parser.add_mutually_exclusive_group()
    common.add_planners(
        shown, f"show what these planners make of each memory (default: {_PLANNERS})"
    )
    common.add_memories(shown, moves=False)


def add_map(parser: argparse.ArgumentParser) -> None:
    """Add the description, arguments and function of ``map`` to a parser or subparser."""
    parser.description = (
        "Plan the memories of a program and show them: as a page with the map beside the program's "
        "lines, as a picture, as data or as a trace."
    )
    parser.epilog = (
        f"Exit status: 0 when every plan fits, 1 when one does not, 2 on bad input. {_TRUST}"
    )
    parser.set_defaults(run=run_map)
    _add_program(parser, PROGRAM)
    parser.add_argument(
        "-o",
        "--output",
        required=True,
        metavar="OUT",
        help="what to write, by its ending: .html a page for a browser; .svg a picture; "
        ".json data; .trace a trace for Perfetto or chrome://tracing",
    )
    common.add_planners(
        parser,
        "show the plans of these side by side, 'stock' being TVM's own; by default best, and for "
        "Ascend kernels three_level",
    )
    for option, what in (
        ("scopes", "show these memories only, such as local.UB"),
        ("functions", "show these functions only; by default the Relax functions, if any"),
    ):
        parser.add_argument(f"--{option}", default="", metavar="NAME[,NAME...]", help=what)
    common.add_memories(parser)
    common.add_limits(parser)


def _add_program(parser: argparse.ArgumentParser, programs: str) -> None:
    """Add the program, which may be left out where there is a default, and what both ask of it."""
    add = parser.add_argument
    nargs = None if parser.get_default("program") is None else "?"
    add("program", nargs=nargs, metavar="WHAT", help=programs)
    views = "; ".join(f"{view}: {what}" for view, what in VIEWS.items())
    what = f"show instead one of {views}"
    add("view", nargs="?", choices=tuple(VIEWS), metavar="VIEW", help=what)
    add("--target", metavar="T", help=_TARGET)
    shape = "the shape of a network's input, whose sizes its file leaves open; one for each input"
    add("--shape", action="append", metavar="NAME=1,3,320,320", help=shape)
    bind = "the value of a symbolic dimension of a network, such as batch=8"
    add("--bind", action="append", metavar="NAME=8[,NAME=8...]", help=bind)
    common.add_json(parser)


def run_compare(args: argparse.Namespace) -> int:
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
    planners = args.planners or (EVERY if args.program.startswith(ASCEND) else _PLANNERS)
    if Path(args.program).is_dir():
        return _folder(args, planners)
    if args.memories is None:
        report = _asked(compare, args, planners)
    else:
        problems, words = _over_memories(args)
        report = report_of(args.program, [ways(problem, words) for problem in problems])
    common.write_json(args.json, lambda: {**report.data(), **beside})
    width = common.columns()
    print("\n\n".join([report.text(width), *(folded(line, width) for line in said)]))
    return 0 if report.is_right else 1


def run_map(args: argparse.Namespace) -> int:
    """Write the file; return 0 if every plan fits, 1 if one does not."""
    common.check_memories(args)
    check_suffix(args.output)
    common.check_writable(args.program, args.output, args.json)
    budget = common.budget_of(args)
    if args.memories is None:
        names = ("scopes", "functions", "capacity", "alignment")
        more = {name: getattr(args, name) for name in names}
        report = _asked(memory_map, args, args.planners or (), budget=budget, **more)
    else:
        found: list[Finding] = []
        problems, words = _over_memories(args)
        for problem in problems:
            limit = Budget(1 << 60, SECONDS) if budget is None else budget
            found += spread(problem, words, limit, args.moves)[1]
        report = report_of(args.program, found)
    print(report.text(common.columns()))
    if report.memories:
        with common.naming(args.output):
            report.save(args.output)
        print(f"\n{report.title}: written to {args.output}")
    common.write_json(args.json, report.data)
    is_right = all(one.plan.fits for view in report.memories for one in view.plans)
    return 0 if is_right and report.is_right else 1


def _asked(
    report: Callable[..., Report], args: argparse.Namespace, planners: object, **more: object
) -> Report:
    sizes = common.sizes_of(args)
    options = {"view": args.view or "", "target": args.target, "sizes": sizes, **more}
    with common.progress_line("layers") as progress:
        return report(args.program, planners, progress=progress, **options)


def _over_memories(args: argparse.Namespace) -> tuple[list[Any], list[str]]:
    memories = common.read_memories(args.memories)
    problems = problems_of(args.program, memories, args.target, common.sizes_of(args))
    return problems, [*memories]


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


def _folder(args: argparse.Namespace, planners: str) -> int:
    """Show the programs of a folder one after another, and say which could not be compared."""
    if common.sizes_of(args) or args.view or args.memories:
        given = "sizes of inputs, a view and memories are for one program"
        raise ValueError(f"{args.program}: {given}, and this is a folder")
    programs, status = programs_in(Path(args.program)), 0
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
