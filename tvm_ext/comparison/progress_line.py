# SPDX-License-Identifier: Apache-2.0
"""A line on a terminal that says how far long work is, and goes when the work is done."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress_line(things: str) -> Iterator[Callable[[int, int], object]]:
    """Give what is told how many of how many things are done; nothing is shown but on a terminal.

    The line is written where errors are, so that what is piped holds the results alone.
    """

    def show(done: int, total: int) -> None:
        print(f"\r{done} of {total} {things}\033[K", end="", file=sys.stderr, flush=True)

    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    try:
        yield show
    finally:
        print("\r\033[K", end="", file=sys.stderr, flush=True)
