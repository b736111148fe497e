# SPDX-License-Identifier: Apache-2.0
"""Standard error while a command works: what it is at, and none of TVM's warnings."""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

FIRST, LATER = 1.0, 5.0
"""Seconds after which a terminal shows what is done, and elsewhere a first line says it.

Each further line elsewhere comes after twice the time.
"""

_WARNING = ": Warning: "
"""The mark of lines of TVM's log that are no errors."""

_stage = ""


def say(stage: str) -> None:
    """Name what is done from here on, such as ``3 of 20 layers``."""
    global _stage
    _stage = stage


@contextmanager
def stage(name: str) -> Iterator[None]:
    """Name what is done while a block runs; then planning goes on."""
    say(name)
    yield
    say("planning")


class _Output:
    """A stream that calls a function before anything is written to it."""

    def __init__(self, stream: Any, before: Callable[[], object]) -> None:
        self._stream, self._before = stream, before

    def write(self, text: str) -> Any:
        self._before()
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def shown() -> Iterator[None]:
    """Show on standard error what is done while a block runs, until it prints something.

    A terminal has one line that changes and is gone in the end; elsewhere lines are written, ever
    more rarely, if the block takes long.
    """
    errors, output = sys.stderr, sys.stdout
    if errors is None or output is None:
        yield
        return
    say("importing TVM")
    is_terminal, begin, done = errors.isatty(), time.monotonic(), threading.Event()

    def show() -> None:
        wait = FIRST if is_terminal else LATER
        while not done.wait(wait):
            seconds = time.monotonic() - begin
            passed = f"{_stage}, {seconds:.0f} s"
            if is_terminal:
                print(f"\r{passed}\033[K", end="", file=errors, flush=True)
            else:
                print(f"{passed} so far", file=errors, flush=True)
                wait = seconds  # As long again: a log gets few lines.
        if is_terminal:
            print("\r\033[K", end="", file=errors, flush=True)

    thread = threading.Thread(target=show, daemon=True)

    def end() -> None:
        if not done.is_set():
            done.set()
            thread.join()

    thread.start()
    sys.stdout, sys.stderr = _Output(output, end), _Output(errors, end)
    try:
        yield
    finally:
        end()
        sys.stdout, sys.stderr = output, errors


@contextmanager
def without_warnings() -> Iterator[None]:
    """Keep the warnings of TVM's C++ from standard error; what else it writes there comes later.

    They go past Python to the file descriptor 2, which leads to a file while the block runs.
    """
    try:
        kept = os.dup(2)
    except OSError:  # There is no standard error stream.
        yield
        return
    own = sys.stderr
    with (
        tempfile.TemporaryFile() as log,
        open(kept, "w", buffering=1, errors="backslashreplace", closefd=True) as stream,
    ):
        os.dup2(log.fileno(), 2)
        if own is not None and _descriptor(own) == 2:
            sys.stderr = stream
        try:
            yield
        finally:
            sys.stderr = own
            os.dup2(kept, 2)
            log.seek(0)
            for line in log.read().decode(errors="replace").splitlines():
                if _WARNING not in line:
                    print(line, file=own)


def _descriptor(stream: Any) -> int | None:
    try:
        return int(stream.fileno())
    except (AttributeError, OSError, ValueError):
        return None
