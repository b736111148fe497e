"""The lines of a function's text that its linear sequence of statements is on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from tvm.tirx import PrimFunc, SeqStmt, Stmt
from tvm_ffi import structural_walk

from passes.analysis.tir.function_problems import FunctionProblems
from passes.ir.script_lines import last_line, printed
from passes.planning.overflow import Places


@dataclass(frozen=True)
class StatementLines:
    """The text of a function, and where its statements are in it.

    Attributes
    ----------
    lines : tuple of str
        The function as TVMScript, without its target, which is long and says nothing about memory.
    line_of : tuple of int
        For each position of the linear sequence its line, from 0. It never goes back. A statement
        with a body has two positions: its first line, and the last line of its body.
    begins : mapping of int to tuple of int
        By the handle of a statement, the lines on which it begins: several where the function
        holds one statement several times.
    """

    lines: tuple[str, ...]
    line_of: tuple[int, ...]
    begins: Mapping[int, tuple[int, ...]]

    def span(self, begin: int, end: int) -> tuple[int, int]:
        """Return the first and the last line of the positions ``[begin, end)``."""
        last = len(self.line_of) - 1
        return self.line_of[max(0, min(begin, last))], self.line_of[max(0, min(end - 1, last))]


def statement_lines(func: PrimFunc, found: FunctionProblems) -> StatementLines:
    """Print a function, and find the lines of its positions.

    Parameters
    ----------
    func : tvm.tirx.PrimFunc
        Flat.
    found : FunctionProblems
        What was read off it.

    Returns
    -------
    StatementLines
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
    """The positions of a PrimFunc are lines of its text, which is printed when a message needs it.

    Parameters
    ----------
    func : tvm.tirx.PrimFunc
        The function.
    found : FunctionProblems
        What was read off it.
    """

    func: PrimFunc
    found: FunctionProblems

    @cached_property
    def _text(self) -> StatementLines:
        return statement_lines(self.func, self.found)

    def at(self, position: int) -> str:
        """Return the line and what is written there."""
        line, _ = self._text.span(position, position + 1)
        return f"line {line + 1} ({self._text.lines[line].strip()})"

    def during(self, begin: int, end: int) -> str:
        """Return the first and the last line."""
        first, last = self._text.span(begin, end)
        if first == last:
            return f"on line {first + 1}"
        return f"on lines {first + 1} to {last + 1}"

    def legend(self) -> str:
        """Say which text the lines are of."""
        return "lines are those of the function's script, as the pass is given it, without target"
