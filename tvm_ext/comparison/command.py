# SPDX-License-Identifier: Apache-2.0
"""``tvm-ext compare``: our plans beside those of TVM's passes, as tables."""

from __future__ import annotations

import argparse
import shutil
import textwrap
from collections.abc import Mapping
from typing import Any

from tvm_ext.command_options import (
    PROGRAM,
    TARGET,
    add_json,
    add_sizes,
    check_writable,
)
from tvm_ext.comparison import (
    layer_group_command,
    memories_command,
    order_command,
    planner_command,
    shared_memory_command,
    storage_rewrite_command,
)
from tvm_ext.programs import ASCEND

_DEFAULT_WORKLOAD = "resnet18"
_COMMANDS: Mapping[str, Any] = {
    "--planners": planner_command,
    "--layer-group": layer_group_command,
    "--shared-memory": shared_memory_command,
    "--order": order_command,
    "--memories": memories_command,
    "--storage-rewrite": storage_rewrite_command,
}
"""Modules by the option that makes a command of its own of ``compare``."""
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
    for command in _COMMANDS.values():
        command.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command that the options name; return its exit status."""
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
            raise ValueError(f"--{option.replace('_', '-')} needs {command}")
    chosen = _COMMANDS[commands[0]] if commands else planner_command
    status: int = chosen.run(args)
    return status


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
