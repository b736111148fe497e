# SPDX-License-Identifier: Apache-2.0
"""The command line: ``tvm-ext``, or ``python -m tvm_ext``."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from tvm_ext import __version__, progress

COMMANDS = {
    "compare": ("report_command", "hold our plans against TVM's own, in bytes"),
    "map": ("report_command", "show where each buffer lies in memory, beside the program"),
    "fit": ("fit_command", "make a .tflite model take a smaller arena"),
    "plan": ("plan_command", "place the buffers of a CSV file"),
}
"""By name: the module, in which ``add_NAME`` makes a parser, and a line that says what it does."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Say in one line what is wrong, where argparse would add the usage."""
        raise ValueError(f"{message} (see '{self.prog} --help')")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command, by default with the arguments of the process; return its exit status.

    That is 0; 1 when the command found what it looks for; 2 on bad input, with one line on the
    standard error stream.
    """
    given, prog = sys.argv[1:] if argv is None else list(argv), _typed()
    with ExitStack() as around:
        if not {"-v", "--verbose"} & {*given}:
            around.enter_context(progress.without_warnings())
        if argv is None:  # Nobody waits at a terminal for a call from Python.
            around.enter_context(progress.shown())
        return _run(given, prog)


def _run(given: Sequence[str], prog: str) -> int:
    args = argparse.Namespace(verbose=False)
    try:
        if not given:
            _parser(given, prog).print_help()
            return 0
        _, unknown = _parser(given, prog).parse_known_args(given, args)
        if unknown:
            args.refuse(f"unrecognized arguments: {' '.join(unknown)}")
        status: int = args.run(args)
        print(end="", flush=True)  # Of a stream that the caller has closed, Python has None.
    except BrokenPipeError:
        # The reader, `head` for one, has seen enough. Python would fail once more on leaving.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + 13  # as a shell says that SIGPIPE ended it
    except KeyboardInterrupt:
        print(f"{prog}: interrupted", file=sys.stderr)
        return 128 + 2  # as a shell says that SIGINT ended it
    except (OSError, ValueError, ImportError) as error:
        if args.verbose:
            traceback.print_exception(error)
        print(f"{prog}: error: {_one_line(error)}", file=sys.stderr)
        return 2
    return status


def _typed() -> str:
    """Return how the user called the command."""
    is_module = Path(sys.argv[0]).resolve() == Path(__file__).resolve()
    return "python -m tvm_ext" if is_module else "tvm-ext"


def _parser(given: Sequence[str], prog: str) -> _Parser:
    """Return a parser of the command that is asked for, which alone is imported."""
    parser = _Parser(prog=prog, description="Memory planning passes for TVM.")
    parser.add_argument(
        "-v",
        "--verbose",
        action="store_true",
        help="show TVM's warnings, and where an error comes from",
    )
    parser.add_argument("--version", action="version", version=f"tvm-ext {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    chosen = next((word for word in given if not word.startswith("-")), None)
    for name, (module, summary) in COMMANDS.items():
        command = commands.add_parser(name, help=summary)
        if name == chosen:
            getattr(import_module(f"tvm_ext.commands.{module}"), f"add_{name}")(command)
            command.set_defaults(refuse=command.error, prog=prog)
    return parser


def _one_line(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename or 'standard output'}: {error.strerror}"
    return " ".join(str(error).split())


if __name__ == "__main__":
    sys.exit(main())
