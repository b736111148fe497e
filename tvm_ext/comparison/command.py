# SPDX-License-Identifier: Apache-2.0
"""``tvm-ext compare``: ours against the stock passes, as tables."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import textwrap
import time
from collections.abc import Mapping
from typing import Any

from tvm_ext.command_options import (
    PROGRAM,
    TARGET,
    add_json,
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
    planner_command,
    shared_memory_command,
)
from tvm_ext.comparison.planners import tensors_of
from tvm_ext.comparison.storage_rewrite import Comparison, FunctionComparison, compare_function
from tvm_ext.named_planners import EVERY
from tvm_ext.programs import ASCEND, load_program

_DEFAULT_WORKLOAD = "resnet18"
_COMMANDS: Mapping[str, Any] = {
    "--planners": planner_command,
    "--layer-group": layer_group_command,
    "--shared-memory": shared_memory_command,
    "--order": order_command,
    "--memories": memories_command,
}
"""Modules by the option that makes a command of its own of ``compare``."""
_NEED = {
    "search": "--layer-group",
    "halo": "--layer-group",
    "markdown": "--planners",
    "jobs": "--planners",
}
"""Options that mean something with one of these only."""


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
        metavar="WHAT",
        help=f"{PROGRAM}; with --planners also a table of buffers (.csv) or a folder of such "
        f"files; {_DEFAULT_WORKLOAD} by default",
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
    parser.add_argument(
        "--fail-on-difference",
        action="store_true",
        help="stop at the first function that differs and print the difference in full",
    )
    for command in _COMMANDS.values():
        command.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command; return 0 if all functions are equal, 1 if one is not."""
    if args.list:
        _print_workloads()
        return 0
    check_writable(args.program, args.json)
    given = {name for name, value in vars(args).items() if value not in (None, False)}
    commands = [option for option in sorted(_COMMANDS) if option[2:].replace("-", "_") in given]
    if len(commands) > 1:
        raise ValueError(f"{' and '.join(commands)} are commands of their own; give one of them")
    for option, command in _NEED.items():
        if option in given and command not in commands:
            raise ValueError(f"--{option} needs {command}")
    if commands:
        status: int = _COMMANDS[commands[0]].run(args)
        return status
    planner_command.check_unused(args)
    begin = time.perf_counter()
    program = load_program(args.program, args.target, sizes_of(args))
    seconds = time.perf_counter() - begin if program.target is not None else None
    rows: list[FunctionComparison] = []
    try:
        with progress_line("functions") as show:
            for function in program.functions.items():
                rows.append(compare_function(*function))
                show(len(rows), len(program.functions))
                if args.fail_on_difference and not rows[-1].equal:
                    break
        memories = list(tensors_of(program, (EVERY,)))
    except ValueError as error:
        raise ValueError(f"{args.program}: {error}") from error
    comparison = Comparison(tuple(rows))
    data = json.loads(comparison.to_json())
    if memories:
        data["activation_memory"] = [memory.to_dict() for memory in memories]
    write_json(args.json, data)
    # A file or a pipe has room for whole names.
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    if program.assumed:
        print(f"{program.title}\n")
    print("\n".join(comparison.table(seconds).text(width)))
    for memory in sorted(memories, key=lambda memory: memory.function):
        print("\n" + "\n".join(memory.table().text(width)))
    if args.fail_on_difference and not comparison.equal:
        print(f"\nthe first function that differs: {rows[-1].name}\n{rows[-1].difference}")
    return 0 if comparison.equal else 1


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
