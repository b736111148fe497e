# SPDX-License-Identifier: Apache-2.0
"""Options that mean the same for every command, and what a command reports."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from passes.planning import Budget, planner_names
from target_hw.memory import MemoryScope
from tvm_ext import progress
from tvm_ext.named_planners import EVERY
from tvm_ext.text import parse_bytes

if TYPE_CHECKING:
    from tvm_ext.reading.input_sizes import InputSizes

_COLUMNS = 120


def columns() -> int:
    """Return the characters of a line: those of the terminal, or 120 where none shows the text."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else _COLUMNS


def add_planners(parser: argparse._ActionsContainer, what: str) -> None:
    """Add ``--planners``; `what` says what the command does with them."""
    parser.add_argument(
        "--planners",
        metavar="NAME[,NAME...]",
        help=f"{what}; there are: {', '.join(planner_names())}; {EVERY!r} stands for those that "
        "are made for such buffers, module:function for one of your own",
    )


def add_memories(parser: argparse._ActionsContainer, moves: bool = True) -> None:
    """Add ``--memories``, and ``--moves`` where that is asked for."""
    parser.add_argument(
        "--memories",
        metavar="NAME[:BYTES[:ALIGNMENT]],...",
        help="choose among these memories, the fastest first, so that the fewest bytes move over "
        "the bus of the last one: sram:1MiB,dram; one without bytes has no end",
    )
    if moves:
        parser.add_argument(
            "--moves",
            action="store_true",
            help="with --memories: let a buffer leave a fast memory and come back before a read",
        )


def read_memories(text: str) -> dict[str, MemoryScope]:
    """Return the memories that a user lists, by word, the fastest first; ValueError on others."""
    found: dict[str, MemoryScope] = {}
    for entry in text.split(","):
        word, *numbers = (part.strip() for part in entry.split(":"))
        if not word or len(numbers) > 2:
            raise ValueError(f"--memories: expected NAME[:BYTES[:ALIGNMENT]], got {entry!r}")
        if word in found:
            raise ValueError(f"--memories: {word!r} is given twice")
        scope = word if word == "global" or "." in word else f"global.{word}"
        try:
            given = (*(parse_bytes(number) if number else None for number in numbers), None, None)
            found[word] = MemoryScope(scope, given[0], given[1] or 1)
        except ValueError as error:
            raise ValueError(f"--memories: {entry!r}: {error}") from error
    if len(found) < 2:
        raise ValueError(f"--memories: needs two memories or more, got {text!r}")
    return found


_ONE_MEMORY = {"planners": None, "capacity": None, "alignment": 1, "scopes": "", "functions": ""}
_ONE_MEMORY |= {"view": None, "onnxruntime": False, "executorch": False}
"""Options that mean nothing with ``--memories``, and their defaults."""


def check_memories(arguments: argparse.Namespace) -> None:
    """Raise ValueError for options that mean nothing with ``--memories``, or without."""
    if arguments.memories is None:
        if getattr(arguments, "moves", False):
            raise ValueError("--moves needs --memories")
        return
    for option, default in _ONE_MEMORY.items():
        if getattr(arguments, option, default) != default:
            raise ValueError(f"--{option.replace('_', '-')} means nothing with --memories")


def add_limits(
    parser: argparse.ArgumentParser,
    limited: str = "for each planner and memory (default: a number of placements)",
    seconds: float | None = None,
) -> None:
    """Add ``--capacity``, ``--alignment`` and ``--time-limit``, by default so many `seconds`."""
    add = parser.add_argument
    end = "what the offsets of a table's buffers must not exceed (default: none)"
    unit = "of the offsets of a table's buffers, a power of two (default: 1)"
    add("--capacity", type=byte_count, metavar="BYTES", help=end)
    add("--alignment", type=byte_count, default=1, metavar="BYTES", help=unit)
    add("--time-limit", type=float, default=seconds, metavar="SECONDS", help=limited)


def budget_of(arguments: argparse.Namespace) -> Budget | None:
    """Return what ``--time-limit`` gives a planner, if it is given."""
    seconds = arguments.time_limit
    if seconds is not None and not seconds >= 0:
        raise ValueError(f"--time-limit must be seconds from 0 up, got {seconds:g}")
    return None if seconds is None else Budget(1 << 60, seconds)


def sizes_of(arguments: argparse.Namespace) -> InputSizes:
    """Return what ``--shape`` and ``--bind`` say; ValueError where that cannot be read."""
    # Imports TVM, which other commands do without.
    from tvm_ext.reading.input_sizes import InputSizes

    return InputSizes.parse(arguments.shape or (), arguments.bind or ())


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add ``--json``."""
    parser.add_argument("--json", metavar="OUT", type=Path, help="write the data to this file too")


def write_json(path: Path | None, data: object) -> None:
    """Write plain data, or what a call gives, to the file that ``--json`` names, if it does."""
    if path is not None:
        with naming(path):
            path.write_text(
                json.dumps(data() if callable(data) else data, indent=2) + "\n", encoding="utf-8"
            )


@contextmanager
def naming(path: Path | str) -> Iterator[None]:
    """Name a file in an error of writing it: that of a full disk names none."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def check_writable(read: str, *written: Path | str | None) -> None:
    """Refuse, before the work, a file that cannot be written, or is what is read: ValueError.

    A program may be a workload, a file, ``FILE.py:NAME`` or a folder, but no empty name: as a path,
    that would be the folder that the command runs in.
    """
    if not read:
        raise ValueError("the name of what is to be read is empty")
    file = read.rpartition(":")[0]
    source = Path(file if Path(file).is_file() else read).resolve()
    before: set[Path] = set()
    for path in (Path(path) for path in written if path is not None):
        place, reason = path.resolve(), ""
        if path.is_dir():
            reason = "it is a directory"
        elif not path.parent.is_dir():
            reason = f"there is no directory {path.parent}"
        elif path.exists() and (
            place.is_relative_to(source) or (source.exists() and path.samefile(source))
        ):
            reason = f"it would overwrite what is read, {read}"
        elif place in before:
            reason = "it is to be written twice"
        elif not os.access(path if path.exists() else path.parent, os.W_OK):
            reason = "permission denied"
        if reason:
            raise ValueError(f"cannot write {path}: {reason}")
        before.add(place)


def byte_count(text: str) -> int:
    """Read an argument in bytes, for argparse."""
    try:
        return parse_bytes(text)
    except ValueError as error:  # Of this, argparse would show the text alone.
        raise argparse.ArgumentTypeError(str(error)) from error


@contextmanager
def progress_line(things: str) -> Iterator[Callable[[int, int], object]]:
    """Yield a function that says how many things are done, while the command shows what it does."""
    yield lambda done, total: progress.say(f"{done} of {total} {things}")
    progress.say("planning")
