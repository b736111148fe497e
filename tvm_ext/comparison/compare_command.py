# SPDX-License-Identifier: Apache-2.0
"""``tvm-ext compare``: our plans beside those of TVM's passes, as tables."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tvm_ext.commands import command_options as common
from tvm_ext.comparison import storage_rewrite, views
from tvm_ext.comparison.planners import compare_planners
from tvm_ext.comparison.runtimes import executorch_memory, onnxruntime_memory
from tvm_ext.hosts import executorch
from tvm_ext.lowering import DEFAULT_TARGET
from tvm_ext.named_planners import EVERY, compared_planners
from tvm_ext.reading.programs import ASCEND, SUFFIXES, TABLE, load_program

_DEFAULT_WORKLOAD = "resnet18"
_PLANNERS = "best"
"""Asked by default, but of Ascend kernels, which have planners of their own."""

_VIEWS = {
    "layer_group": (
        views.show_layer_groups,
        "what running layers of a Relax network together in the local memory of the target saves; "
        f"the target is by default {views.DEFAULT_CHIP}",
    ),
    "shared_memory": (
        views.show_shared_memory,
        "what the shared memory of each GPU kernel takes: by TVM's default, by its static merge "
        "(which may race), and by ours, without and with more barriers",
    ),
    "order": (
        views.show_order,
        "what another order of the operators of a Relax network saves; the target is by default "
        f"{DEFAULT_TARGET}",
    ),
    "storage_rewrite": (
        storage_rewrite.run,
        "what TVM's StorageRewrite and ours allocate in each function, whether the IR is equal, "
        "and the first difference; exit status 1 when a function differs",
    ),
}
"""By option, what shows something else than planners."""

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
        "Exit status: 0; 1 when no plan of a memory fits, or a function has other IR than by TVM's "
        "StorageRewrite; 2 on bad input. "
        "A .py file is run, as Python runs it: give only files that you trust."
    )
    parser.add_argument(
        "program",
        nargs="?",
        default=_DEFAULT_WORKLOAD,
        metavar="WHAT",
        help=f"{common.PROGRAM}; a table of buffers (.csv); or a folder of such files; "
        f"{_DEFAULT_WORKLOAD} by default",
    )
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
    for view, (_, what) in _VIEWS.items():
        option = f"--{view.replace('_', '-')}"
        shown.add_argument(option, action="store_true", help=f"show instead {what}")


def run(args: argparse.Namespace) -> int:
    """Run what the options name; return the exit status."""
    if args.list:
        common.check_writable(args.program, args.json)
        _print_workloads(args.json)
        return 0
    common.check_writable(args.program, args.json)
    asked = {view: show for view, (show, _) in _VIEWS.items() if getattr(args, view)}
    asked |= {"memories": views.show_memories} if args.memories is not None else {}
    view, show = next(iter(asked.items()), ("planners", _planners))
    for option in _RUNTIMES if view != "planners" else ():
        if getattr(args, option):
            raise ValueError(f"--{option} means nothing with --{view.replace('_', '-')}")
    report = show(args)
    common.write_json(args.json, report.data)
    print("\n".join(report.lines))
    return report.status


def _print_workloads(out: Path | None) -> None:
    """Print what each workload is called and is, and write it to a file of data."""
    from tvm_ext import workloads

    targets, chip = ", ".join(workloads.NETWORK_TARGETS), f"{workloads.ascend.CHIP}-llvm"
    said = {name: f"{one.description} [{targets}]" for name, one in workloads.NETWORKS.items()}
    said |= {f"{ASCEND}{name}": f"{x} [{chip}]" for name, x in workloads.ascend_kernels().items()}
    common.write_json(out, [{"name": name, "description": x} for name, x in said.items()])
    width, columns = max(map(len, said)), shutil.get_terminal_size().columns
    for name, text in said.items():
        line = f"{name:{width}}  {text}"
        print(textwrap.fill(line, columns, subsequent_indent=" " * (width + 2)))
    sizes = ",".join(workloads.ascend.SIZES)
    print(f"\nan Ascend kernel may have a size: {ASCEND}KERNEL:{{{sizes}}}")


def _planners(args: argparse.Namespace) -> common.Report:
    """Show planners side by side, and whether the mirrored `StorageRewrite` gives equal IR."""
    by_default = EVERY if args.program.startswith(ASCEND) else _PLANNERS
    planners, sizes = compared_planners(args.planners or by_default), common.sizes_of(args)
    beside = {
        runtime: measure(args.program, sizes)
        for runtime, (measure, _) in _RUNTIMES.items()
        if getattr(args, runtime)
    }
    path = Path(args.program)
    if path.is_dir():
        if sizes:
            raise ValueError(f"{path}: sizes of inputs are for one network, and this is a folder")
        return _folder(args, planners)
    program = None
    if args.planners is None and path.suffix not in (TABLE, executorch.SUFFIX):
        program = load_program(args.program, args.target, sizes)
        found = compare_planners(program, planners)
    else:
        found = compare_planners(args.program, planners, target=args.target, sizes=sizes)
    data, lines, is_equal = asdict(found), [str(found)], True
    for runtime, (taken, line) in beside.items():
        data[runtime] = taken
        lines += ["", line]
    if program is not None:
        try:
            mirrored = storage_rewrite.compare_program(program)
            is_equal = mirrored.equal
            if mirrored.functions:
                data["storage_rewrite"] = mirrored.plain()["totals"]
                lines += ["", mirrored.in_one_line()]
        except ValueError as error:  # The plans stand by themselves.
            is_equal = False
            lines += ["", f"StorageRewrite: not compared: {error}"]
    return common.Report(data, lines, 0 if found.fits and is_equal else 1)


def _folder(args: argparse.Namespace, planners: Sequence[str]) -> common.Report:
    """Show the programs of a folder one after another, and say which could not be compared."""
    programs, status = programs_in(Path(args.program)), 0
    data: list[dict[str, Any]] = []
    sections, failures = [], []
    with common.progress_line("programs") as show:
        for number, program in enumerate(programs, 1):
            try:
                found = compare_planners(program, planners, target=args.target)
                data.append(asdict(found))
                sections.append(f"== {program}\n\n{found}")
                status = max(status, int(not found.fits))
            except (ValueError, OSError, ImportError) as error:
                status, reason = 2, " ".join(str(error).split())
                data.append({"program": program, "reason": reason})
                failures.append(reason if reason.startswith(program) else f"{program}: {reason}")
            show(number, len(programs))
    for failure in failures:
        print(f"{args.prog}: error: {failure}", file=sys.stderr)
    return common.Report({"programs": data}, ["\n\n".join(sections)], status)


def programs_in(folder: Path) -> list[str]:
    """List the programs and tables below a folder in alphabetical order.

    Raises ValueError if there is none, OSError if a folder cannot be read.
    """

    def refuse(error: OSError) -> None:
        raise error

    endings, walked = (*SUFFIXES, TABLE), os.walk(folder, onerror=refuse)
    files = (Path(where, name) for where, _, names in walked for name in names)
    found = sorted(str(path) for path in files if path.suffix in endings and path.is_file())
    if not found:
        raise ValueError(f"{folder}: there is no file that ends in {', '.join(endings)}")
    return found
