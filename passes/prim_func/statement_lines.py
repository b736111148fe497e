# SPDX-License-Identifier: Apache-2.0
"""On which lines of a function's text the statements of its linear sequence stand."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from passes.ir import PREORDER, PrimFunc, printed, structural_walk, tir
from passes.planning import Overflow, TextPlaces, does_not_fit
from passes.prim_func.function_problems import FunctionProblems


@dataclass(frozen=True)
class StatementLines(TextPlaces):
    """The text of a function, as TVMScript, and where its statements are in it.

    The function's target is left out: it is long and says nothing about memory.
    """

    # By the handle of a statement, the lines on which it begins: several where the function holds
    # one statement several times.
    begins: Mapping[int, tuple[int, ...]]

    def legend(self) -> str:
        """Say which text the lines are of."""
        return "lines are those of the function's script, as it is planned, without target"


def statement_lines(func: PrimFunc, found: FunctionProblems) -> StatementLines:
    """Print a flat function, and find the lines of its positions.

    An inner loop of ``T.grid`` is on the line of the loop around it.
    """
    found_in: list[tir.Statement] = []
    structural_walk(func.body, [(tir.Statement, found_in.append)], PREORDER)
    statements = [statement for statement in found_in if not isinstance(statement, tir.Sequence)]
    shown = func.without_attr("target") if func.attrs and "target" in func.attrs else func
    lines, begins = printed(shown, statements)
    seen: defaultdict[int, int] = defaultdict(int)
    line_of: list[int] = []
    line = 0
    for position, entry in enumerate(found.access.sequence):
        if entry.scope_pair_offset < 0:
            # The end of a statement: no position of its body is after it.
            line = max(line, _last_line(lines, line_of[position + entry.scope_pair_offset]))
        elif entry.key in begins:
            places = begins[entry.key]
            line = max(line, places[min(seen[entry.key], len(places) - 1)])
            seen[entry.key] += 1
        line_of.append(line)
    return StatementLines(lines, tuple(line_of), begins)


def _last_line(lines: Sequence[str], first: int) -> int:
    """Return the last line of the statement that begins on line `first`.

    A body is indented deeper than its statement. A statement whose body is not (TVM prints some
    that way where they are the last of a block) reaches to the end of its block.
    """
    depth = _depth(lines[first])
    has_body = lines[first].rstrip().endswith(":")
    last = first
    for at in range(first + 1, len(lines)):
        if not lines[at].strip():
            continue
        here = _depth(lines[at])
        goes_on = here == depth and lines[at].lstrip().startswith(("else:", "elif "))
        if here < depth or (has_body and here == depth and not goes_on):
            break
        last = at
    return last


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip())


def overflow_in(func: PrimFunc, found: FunctionProblems) -> Overflow:
    """Return what to say of a plan for a flat function that does not fit, by lines of its text."""
    # The function is printed when the text is asked for.
    return lambda problem, plan, base: does_not_fit(
        problem, plan, base, places=statement_lines(func, found)
    )
