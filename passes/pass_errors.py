# SPDX-License-Identifier: Apache-2.0
"""Errors of passes with the names of the pass and the function, and Python set up for a pass."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import ContextDecorator, contextmanager
from threading import Lock

_FRAMES = 10_000
"""The recursion limit while a pass runs: about 1,000 nested statements, as of a long ``elif``."""


class _DeepStack(ContextDecorator):
    """Raises Python's recursion limit, which all threads share, while any of them needs it.

    It also stops the search for cyclic garbage: a pass makes some millions of facts, which are no
    garbage before it ends, and looking for it took a seventh of the time of the largest kernels.
    """

    def __init__(self) -> None:
        self._lock, self._users, self._before, self._collects = Lock(), 0, 0, False

    def __enter__(self) -> None:
        with self._lock:
            if not self._users:
                self._before = sys.getrecursionlimit()
                sys.setrecursionlimit(max(self._before, _FRAMES))
                self._collects = gc.isenabled()
                gc.disable()
            self._users += 1

    def __exit__(self, *_error: object) -> None:
        with self._lock:
            self._users -= 1
            if not self._users:
                sys.setrecursionlimit(self._before)
                if self._collects:
                    gc.enable()


deep_stack = _DeepStack()
"""The context in which every pass plans; as a decorator, that of a function that plans."""


@contextmanager
def error_context(
    pass_name: str, function: str | Callable[[], str] | None = None
) -> Iterator[None]:
    """Let a `ValueError` raised within name the pass, and the function where one is given.

    `function` is a name, or a callable that returns the name when an error needs it. Python's
    recursion limit is raised within, because the walks recurse into nested statements; statements
    that nest deeper still are a `ValueError`.
    """
    try:
        with deep_stack:
            yield
    except (ValueError, RecursionError) as error:
        name = function() if callable(function) else function
        said, called = str(error), f"function {name!r}"
        is_named = name is None or said.startswith(f"{called}: ")
        where = pass_name if is_named else f"{pass_name}: {called}"
        if isinstance(error, RecursionError):
            frames = max(sys.getrecursionlimit(), _FRAMES)
            said = f"its statements nest deeper than {frames} frames of Python go"
        raise ValueError(f"{where}: {said}") from error
