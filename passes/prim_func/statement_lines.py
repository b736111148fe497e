# SPDX-License-Identifier: Apache-2.0
"""The lines of a function's text that its linear sequence of statements is on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from tvm.tirx import PrimFunc, SeqStmt, Stmt
from tvm_ffi import structural_walk

from passes.ir.script_lines import last_line, printed
from passes.planning.overflow import Places, TextPlaces
from passes.prim_func.function_problems import FunctionProblems


@dataclass(frozen=True)
class StatementLines(TextPlaces):
    """The text of a function, as TVMScript, and where its statements are in it.

    The function's target is left out: it is long and says nothing about memory.
    """

    # By the handle of a statement, the lines on which it begins: several where the function holds
    # one statement several times.
    begins: Mapping[int, tuple[int, ...]]


def statement_lines(func: PrimFunc, found: FunctionProblems) -> StatementLines:
    """Print a flat function, and find the lines of its positions.

    An inner loop of ``T.grid`` is on the line of the loop around it.
    """
    statements: list[Stmt] = []

    def collect(statement: Stmt) -> None:
        if not isinstance(statement, SeqStmt):
            statements.append(statement)

    structural_walk(func.body, ((Stmt, collect),), order="pre")
    shown = func.without_attr("target") if func.attrs and "target" in func.attrs else func
    lines, begins = printed(shown, statements)
    return StatementLines(lines, _lines_of_positions(lines, begins, found), begins)


def _lines_of_positions(
    lines: Sequence[str], begins: Mapping[int, tuple[int, ...]], found: FunctionProblems
) -> tuple[int, ...]:
    seen: defaultdict[int, int] = defaultdict(int)
    line_of: list[int] = []
    line = 0
    for position, entry in enumerate(found.access.sequence):
        if entry.scope_pair_offset < 0:
            # The end of a statement: no position of its body is behind it.
            line = max(line, last_line(lines, line_of[position + entry.scope_pair_offset]))
        elif entry.key in begins:
            places = begins[entry.key]
            line = max(line, places[min(seen[entry.key], len(places) - 1)])
            seen[entry.key] += 1
        line_of.append(line)
    return tuple(line_of)


@dataclass(frozen=True, eq=False)
class Lines(Places):
    """Positions of a PrimFunc as lines of its text, printed when a message needs it."""

    func: PrimFunc  # The function
    found: FunctionProblems  # What was read off it

    @cached_property
    def _text(self) -> StatementLines:
        return statement_lines(self.func, self.found)

    def at(self, position: int) -> str:
        """Return the line and what is written there."""
        return self._text.at(position)

    def during(self, begin: int, end: int) -> str:
        """Return the first and the last line."""
        return self._text.during(begin, end)

    def legend(self) -> str:
        """Say which text the lines are of."""
        return "lines are those of the function's script, as it is planned, without target"
