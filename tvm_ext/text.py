# SPDX-License-Identifier: Apache-2.0
"""Numbers and tables as people read and write them."""

from __future__ import annotations

import difflib
import re
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from passes.planning import html_table
from passes.planning.files import UNITS
from passes.planning.files import parse_bytes as parse_bytes

_FEW = 8  # Names that a question has at most
_LEAST = 16
"""Characters of a column of text that is folded, at least."""

_PIECES = re.compile(r".+?(?:[\s:./_]+|$)")
"""Pieces of a name, at whose ends it is folded."""

_TYPED = re.compile(r"T\.u?int\d+\((-?\d+)\)")


@dataclass(frozen=True)
class Table:
    """A title, and rows of cells of one or more lines; columns without content are not shown."""

    title: str
    rows: Sequence[Sequence[str]]  # Equally long; the first names the columns
    notes: Sequence[str] = ()  # Lines below
    left: Sequence[int] = (0,)  # These columns are flush left, the others flush right

    def text(self, width: int | None = None) -> list[str]:
        """Return lines, in which columns are two spaces apart.

        Lines of more than `width` characters are folded: the names of the columns, then the
        columns that are flush left, the widest first. Numbers are never folded.
        """
        rows, left = self._filled()
        lines = [
            line
            for row in rows
            for line in zip_longest(*(cell.split("\n") for cell in row), fillvalue="")
        ]
        widths = _widths(lines, left, width)
        folds = [textwrap.wrap, *[_folded_cell] * (len(lines) - 1)]  # Names of columns have words.
        parts = [
            part
            for line, fold in zip(lines, folds, strict=True)
            for part in zip_longest(*map(fold, line, widths), fillvalue="")
        ]
        shown = [
            "  ".join(
                cell.ljust(widths[at]) if at in left else cell.rjust(widths[at])
                for at, cell in enumerate(part)
            ).rstrip()
            for part in parts
        ]
        title, *notes = (folded(line, width) for line in (self.title, *self.notes))
        return [title, "", *shown, *(["", *notes] if notes else [])]

    def html(self) -> str:
        """Return an element of HTML."""
        (header, *rows), _ = self._filled()
        return html_table(self.title, header, rows, notes=self.notes)

    def _filled(self) -> tuple[list[list[str]], list[int]]:
        kept = [
            i for i in range(len(self.rows[0])) if not i or any(row[i] for row in self.rows[1:])
        ]
        rows = [[row[i] for i in kept] for row in self.rows]
        return rows, [at for at, i in enumerate(kept) if i in self.left]


def _widths(lines: Sequence[Sequence[str]], left: Sequence[int], most: int | None) -> list[int]:
    """Return the width of each column; all columns have room within `most`, if they can."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]

    room = None if most is None else most - 2 * (len(widths) - 1)
    if room is None or sum(widths) <= room:
        return widths
    names, *rest = lines
    words = [max(name.split(), key=len, default="") for name in names]
    widths = [max(map(len, column)) for column in zip(words, *rest, strict=True)]
    while sum(widths) > room:
        widest = max(left, key=lambda at: widths[at])
        if widths[widest] <= _LEAST:
            break
        widths[widest] -= 1
    return widths


def _folded_cell(text: str, width: int) -> list[str]:
    """Return a cell in lines of at most `width` characters, folded after a word or a sign."""
    lines = [""]
    for piece in _PIECES.findall(text):
        if len(lines[-1]) + len(piece.rstrip()) > width and lines[-1].strip():
            lines.append("  ")
        lines[-1] += piece
        while len(lines[-1].rstrip()) > width:
            lines[-1:] = [lines[-1][:width], "  " + lines[-1][width:]]
    return [line.rstrip() for line in lines]


def folded(text: str, width: int | None) -> str:
    """Return a text whose lines are folded at words, as far as they have any, within a width."""
    if width is None:
        return text
    return "\n".join(
        textwrap.fill(
            line,
            width,
            subsequent_indent=" " * (len(line) - len(line.lstrip()) + 2),
            break_long_words=False,
            break_on_hyphens=False,
        )
        for line in text.split("\n")
    )


class Tabular:
    """A result that is shown as a table, printed and in a notebook."""

    def table(self) -> Table:
        """Return what is shown."""
        raise NotImplementedError

    def __str__(self) -> str:
        """Return it as text."""
        return "\n".join(self.table().text())

    def _repr_html_(self) -> str:
        """Return it for a notebook."""
        return self.table().html()


def counted(number: int, thing: str) -> str:
    """Return a number with what it counts: ``1 buffer``, ``2,000 buffers``."""
    return f"{number:,} {thing}{'s' * (number != 1)}"


def formula(expression: object) -> str:
    """Write an expression of TVM's as people do, ``batch * (length + 1)``, without types."""
    return _TYPED.sub(r"\1", str(expression))


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a question with known names that have a name as a word, or else are close to it.

    It is empty where there are none, and has `_FEW` names at most.
    """
    names = sorted(known)
    words = [one for one in names if name.lower() in re.split(r"[\W_]", one)]
    said = [*map(repr, words[:_FEW] or difflib.get_close_matches(name, names, n=3))]
    if len(words) > _FEW:
        said.append(f"one of {len(words) - _FEW:,} others")
    return f"did you mean {' or '.join(said)}? " if said else ""


def format_bytes(*nbytes: int) -> str:
    """Write numbers of bytes, rounded, in the one unit that suits the largest: ``1.5/2/0 MiB``."""
    return _scaled(nbytes, 1024, UNITS)


def format_seconds(*seconds: float) -> str:
    """Write times in the one unit that suits the longest: ``12/9.5 ms``."""
    return _scaled([t * 1e6 for t in seconds], 1000, ("us", "ms", "s"))


def _scaled(values: Sequence[float], step: int, units: Sequence[str]) -> str:
    def written(value: float, power: int) -> str:
        scaled = value / step**power
        return f"{scaled:.0f}" if scaled >= 100 else f"{scaled:.3g}"  # Three digits say enough.

    power = 0
    while float(written(max(values), power)) >= step and power + 1 < len(units):
        power += 1
    return f"{'/'.join(written(value, power) for value in values)} {units[power]}"
