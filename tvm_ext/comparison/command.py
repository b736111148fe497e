"""``python -m tvm_ext compare``: ours against the stock passes, as tables."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tvm import relax
from tvm.ir import IRModule
from tvm.target import Target

from tvm_ext.comparison.memory_comparison import ActivationMemory, activation_memory
from tvm_ext.comparison.single_functions import split
from tvm_ext.comparison.storage_rewrite import Comparison, FunctionComparison, compare_function
from tvm_ext.comparison.tables import render, render_memory
from tvm_ext.lowering import capture, first_line, known_target, resolve_target
from tvm_ext.program_files import SUFFIXES, read_program

_DEFAULT_WORKLOAD = "resnet18"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's description and arguments to a parser or subparser."""
    parser.description = (
        "Run TVM's StorageRewrite and ours on each PrimFunc of a program, and show side by side "
        "the allocations and bytes by storage scope, whether the IR is equal, and the time of both "
        "passes. Of a Relax program, show what its tensors take too, with operators fused and not: "
        "without reuse, by StaticPlanBlockMemory, by each of our planners, and the lower bound."
    )
    parser.epilog = (
        "Exit status: 0 when all functions are equal, 1 when one is not, 2 on bad input. "
        "A .py file is run, as Python runs it: give only files that you trust."
    )
    parser.add_argument(
        "program",
        nargs="?",
        default=_DEFAULT_WORKLOAD,
        metavar="WORKLOAD | FILE",
        help="a workload that --list names, a TVMScript file (.py), or a module saved with "
        f"tvm.ir.save_json (.json); {_DEFAULT_WORKLOAD} by default",
    )
    parser.add_argument(
        "--target",
        metavar="T",
        help="lower the program for this target first, by the stock pipeline up to "
        "StorageRewrite: a name such as llvm or cuda, a tag, or a JSON object. A workload is "
        "always lowered, by default for the first of its targets. A file without a target has to "
        "stand right before StorageRewrite; one that does so with a target is not lowered again, "
        "the target is noted on its functions that name none. A Relax file needs a target",
    )
    parser.add_argument("--list", action="store_true", help="list the workloads and leave")
    parser.add_argument("--json", metavar="OUT", type=Path, help="write the data to this file too")
    parser.add_argument(
        "--fail-on-difference",
        action="store_true",
        help="stop at the first function that differs and print the difference in full",
    )


def run(args: argparse.Namespace) -> int:
    """Run the command; return 0 if all functions are equal, 1 if one is not.

    Raises
    ------
    ValueError
        On bad input.
    """
    if args.list:
        _print_workloads()
        return 0
    if args.json is not None:
        _check_writable(args.json)
    program = _load(args.program, args.target)
    rows: list[FunctionComparison] = []
    memories: list[ActivationMemory] = []
    try:
        for mod in _progress(program.functions):
            rows.append(compare_function(mod))
            if args.fail_on_difference and not rows[-1].equal:
                break
        if program.relax is not None:
            for fuse in (True, False):
                memories += activation_memory(program.relax, program.target, fuse=fuse)
    except ValueError as error:
        raise ValueError(f"{args.program}: {error}") from error
    comparison = Comparison(tuple(rows))
    if args.json is not None:
        args.json.write_text(_to_json(comparison, memories) + "\n", encoding="utf-8")
    width = shutil.get_terminal_size().columns
    print("\n".join(render(comparison, width)))
    for name in dict.fromkeys(memory.function for memory in memories):
        chosen = [memory for memory in memories if memory.function == name]
        print("\n" + "\n".join(render_memory(chosen, width)))
    if args.fail_on_difference and not comparison.equal:
        print(f"\nthe first function that differs: {rows[-1].name}\n{rows[-1].difference}")
    return 0 if comparison.equal else 1


def _to_json(comparison: Comparison, memories: Sequence[ActivationMemory]) -> str:
    data = json.loads(comparison.to_json())
    if memories:
        data["activation_memory"] = [asdict(memory) for memory in memories]
    return json.dumps(data, indent=2)


def _check_writable(path: Path) -> None:
    # Before the work, which may be long; what it misses is found on writing.
    if path.is_dir():
        raise ValueError(f"cannot write {path}: it is a directory")
    if not path.parent.is_dir():
        raise ValueError(f"cannot write {path}: there is no directory {path.parent}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ValueError(f"cannot write {path}: permission denied")


def _progress(modules: list[IRModule]) -> Iterable[IRModule]:
    if not sys.stderr.isatty():
        return modules
    try:
        from tqdm import tqdm
    except ImportError:  # the extra `cli` is not installed
        return modules
    bar: Iterable[IRModule] = tqdm(modules, unit="function", leave=False)
    return bar


def _print_workloads() -> None:
    from tvm_ext import workloads

    names = workloads.names()
    width = max(map(len, names))
    columns = shutil.get_terminal_size().columns
    for name in names:
        workload = workloads.find(name)
        text = f"{name:{width}}  {workload.description} [{', '.join(workload.targets)}]"
        print(textwrap.fill(text, columns, subsequent_indent=" " * (width + 2)))


@dataclass(frozen=True, eq=False)
class _Program:
    """What there is to compare.

    Attributes
    ----------
    functions : list of tvm.IRModule
        Each PrimFunc in a module of its own, as it stands before ``StorageRewrite``.
    relax : tvm.IRModule, optional
        The program before it was lowered, if that is Relax.
    target : tvm.target.Target or str
        What it was lowered for, if it was.
    """

    functions: list[IRModule]
    relax: IRModule | None = None
    target: Target | str = "llvm"


def _load(program: str, target_name: str | None) -> _Program:
    """Read and lower a workload or file.

    Raises
    ------
    ValueError
        When there is no such program, it cannot be read or lowered, or has no PrimFunc.
    """
    target = None if target_name is None else known_target(target_name)
    path = Path(program)
    if path.suffix not in SUFFIXES and len(path.parts) == 1 and not path.exists():
        return _load_workload(program, target)
    mod = read_program(path)
    if target is not None and any(isinstance(f, relax.Function) for f in mod.functions.values()):
        return _Program(split(_lowered_relax(str(path), mod, target)), mod, target)
    try:
        return _Program(split(mod, target=target))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _load_workload(name: str, target: Target | None) -> _Program:
    # Here, because importing the workloads takes seconds and files do without.
    from tvm_ext import workloads

    workload = workloads.find(name)
    resolved = target or resolve_target(workload.targets[0])
    try:
        functions = split(workloads.load(name, resolved))
    except Exception as error:  # any pass of the pipeline may raise anything
        kind = "its first target" if target is None else f"target kind {target.kind.name!r}"
        raise ValueError(
            f"cannot lower workload {name!r} for {kind}: {first_line(error)}"
        ) from error
    model = workloads.model(name) if workload.kind == "model" else None
    return _Program(functions, model, resolved)


def _lowered_relax(name: str, mod: IRModule, target: Target) -> IRModule:
    try:
        return capture(mod, target)[-1]
    except Exception as error:  # any pass of the pipeline may raise anything
        raise ValueError(
            f"{name}: cannot lower it for target kind {target.kind.name!r}: {first_line(error)}"
        ) from error
