"""The command line: ``python -m tvm_ext``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from tvm_ext import compare_command, plan_command

_PROG = "tvm_ext"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Say in one line what is wrong, where argparse would add the usage."""
        raise ValueError(f"{message} (see 'python -m {self.prog} --help')")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Parameters
    ----------
    argv : sequence of str, optional
        The arguments after the program's name; those of the process by default.

    Returns
    -------
    int
        The exit status: 0; 1 when the command found what it looks for; 2 on bad input, with one
        line on the standard error stream.
    """
    parser = _Parser(prog=_PROG, description="Memory planning passes for TVM.")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for add_command in (_add_compare, _add_plan):
        add_command(commands)
    try:
        args = parser.parse_args(argv)
        status: int = args.run(args)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader, `head` for one, has seen enough. Python would fail once more on leaving.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + 13  # as a shell says that SIGPIPE ended it
    except (OSError, ValueError) as error:
        print(f"{_PROG}: error: {_one_line(error)}", file=sys.stderr)
        return 2
    return status


def _one_line(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).split())


def _add_plan(commands: Any) -> None:
    parser = commands.add_parser(
        "plan",
        help="place the buffers of a CSV file",
        description="Give each buffer of a CSV file an offset, so that no two share bytes while "
        "both are live.",
        epilog="Exit status: 0 when the plan fits, 1 when it does not, 2 on bad input.",
    )
    plan_command.add_arguments(parser)
    parser.set_defaults(run=plan_command.run)


def _add_compare(commands: Any) -> None:
    parser = commands.add_parser(
        "compare",
        help="hold our StorageRewrite against the stock one",
        description="Run TVM's StorageRewrite and ours on each PrimFunc of a program, and show "
        "side by side the allocations and bytes by storage scope, whether the IR is equal, and "
        "the time of both passes. Of a Relax program, show what its tensors take too, with "
        "operators fused and not: without reuse, by StaticPlanBlockMemory, by each of our "
        "planners, and the lower bound.",
        epilog="Exit status: 0 when all functions are equal, 1 when one is not, 2 on bad input. "
        "A .py file is run, as Python runs it: give only files that you trust.",
    )
    compare_command.add_arguments(parser)
    parser.set_defaults(run=compare_command.run)


if __name__ == "__main__":
    sys.exit(main())
