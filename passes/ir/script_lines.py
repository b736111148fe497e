# SPDX-License-Identifier: Apache-2.0
"""Text for users: names, errors in one line, and a function's script by statements.

TVM's printer can write a comment beside any object. Each statement gets one that holds its number;
the comments are read off the text and taken out of it again.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from traceback import extract_tb
from typing import Any

_MARK = "tvm_ext.statement"
_ALONE = re.compile(rf"^\s*# {re.escape(_MARK)} (\d+)$")
_BESIDE = re.compile(rf"\s*# {re.escape(_MARK)} (\d+)$")
_HEADER = "# from "


def unique_name(name: str, taken: set[str], mark: str = ".") -> str:
    """Return `name`, with a number after `mark` where it is among `taken`, and take it."""
    chosen, count = name, 0
    while chosen in taken:
        count += 1
        chosen = f"{name}{mark}{count}"
    taken.add(chosen)
    return chosen


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, or its type and where it was raised."""
    if text := next(filter(None, map(str.strip, str(error).splitlines())), ""):
        return text
    name, stack = type(error).__name__, extract_tb(error.__traceback__)
    if not stack:
        return name
    file, line, _, source = stack[-1]
    where = "/".join(Path(file).parts[-3:])
    return f"{name} in {where}:{line}{f', {source!r}' if source else ''}"


def printed(
    function: Any, statements: Iterable[Any]
) -> tuple[tuple[str, ...], Mapping[int, tuple[int, ...]]]:
    """Print a function, and find where some of its statements or bindings stand in the text.

    The lines are without ends, and without the imports above the function. The map has, by the
    handle of a statement, the lines on which it begins, from 0, in order: several if the function
    holds it several times. A loop that is printed on the line of the loop around it (``T.grid``) is
    not in it.
    """
    marks: dict[Any, str] = {}
    handles: list[int] = []
    for statement in statements:
        if statement not in marks:
            marks[statement] = f"{_MARK} {len(handles)}"
            handles.append(statement.__chandle__())
    text = function.script(obj_to_annotate=marks, show_meta=False)
    lines: list[str] = []
    found: defaultdict[int, list[int]] = defaultdict(list)
    for line in text.split("\n"):
        if not lines and (line.startswith(_HEADER) or not line.strip()):
            continue
        if alone := _ALONE.match(line):
            found[handles[int(alone[1])]].append(len(lines))
            continue
        while beside := _BESIDE.search(line):
            found[handles[int(beside[1])]].append(len(lines))
            line = line[: beside.start()]
        lines.append(line)
    while lines and not lines[-1].strip():
        lines.pop()
    return tuple(lines), {handle: tuple(at) for handle, at in found.items()}
