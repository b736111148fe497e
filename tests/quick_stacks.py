# SPDX-License-Identifier: Apache-2.0
"""A quicker way to look through the stack, for TVMScript's parser."""

from __future__ import annotations

import inspect
import linecache
import traceback
from types import FrameType


def outer_frames(frame: FrameType, context: int = 1) -> list[inspect.FrameInfo]:
    """Return a stack as `inspect` does, with the source line for the innermost frames alone.

    TVMScript takes one for each function that it parses and each call of an inlined one, and reads
    the line of the third frame at most. Under pytest a stack has a hundred frames, in a notebook
    fifty: to look up the lines of all takes milliseconds. So does `inspect` for one, which asks
    first for its module.
    """
    found = []
    for at, (outer, line) in enumerate(traceback.walk_stack(frame)):
        code = outer.f_code
        text = linecache.getline(code.co_filename, line, outer.f_globals) if at < 3 else ""
        lines, index = ([text], 0) if text else (None, None)
        found.append(inspect.FrameInfo(outer, code.co_filename, line, code.co_name, lines, index))
    return found


def install() -> None:
    """Let `inspect` take stacks so in this process."""
    inspect.getouterframes = outer_frames
