# SPDX-License-Identifier: Apache-2.0
"""Quicker ways to look through the stack and to convert syntax trees, for TVMScript's parser."""

from __future__ import annotations

import inspect
import linecache
import traceback
from functools import lru_cache
from types import EllipsisType, FrameType
from typing import Any


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


_PLAIN = frozenset((type(None), EllipsisType, bool, int, float, complex, str, bytes))


def _converted(node: Any, way: str, table: Any) -> Any:
    """Return Python's syntax tree as TVM's (``to_doc``), or the other way (``from_doc``).

    TVM's own functions are the same, but for their questions to each leaf; they are a tenth of what
    it takes to parse.
    """
    kind = type(node)
    if kind in _PLAIN:
        return node
    if kind in (list, tuple):
        return kind([_converted(each, way, table) for each in node])
    made = getattr(table[kind.__name__], way)
    fields = {name: _converted(getattr(node, name, None), way, table) for name in made.fields}
    return made.doc_cls(**fields)


def install() -> None:
    """Let `inspect` take stacks, and TVM convert syntax trees, so in this process."""
    from tvm.script.parser.core import diagnostics, doc

    inspect.getouterframes = outer_frames
    table = doc.Registry._inst.table
    doc.to_doc = lambda node: _converted(node, "to_doc", table)
    doc.from_doc = lambda node: _converted(node, "from_doc", table)
    # A module's text is parsed once more, for messages that its check may have.
    diagnostics.Source.as_ast = lru_cache(1)(lambda source: doc.parse(source.source))
