# SPDX-License-Identifier: Apache-2.0
"""Numbers and tables as people read and write them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from passes.planning import html_table
from passes.planning.files import UNITS
from passes.planning.files import parse_bytes as parse_bytes

_TYPED = re.compile(r"T\.u?int\d+\((-?\d+)\)")


@dataclass(frozen=True)
class Table:
    """A title, and rows of cells of one or more lines; columns without content are not shown."""

    title: str
    rows: Sequence[Sequence[str]]  # Equally long; the first names the columns
    notes: Sequence[str] = ()  # Lines below
    left: Sequence[int] = (0,)  # These columns are flush left, the others flush right

    def text(self) -> list[str]:
        """Return lines, in which columns are two spaces apart."""
        rows, left = self._filled()
        lines = [
            line
            for row in rows
            for line in zip_longest(*(cell.split("\n") for cell in row), fillvalue="")
        ]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        shown = [
            "  ".join(
                cell.ljust(widths[at]) if at in left else cell.rjust(widths[at])
                for at, cell in enumerate(line)
            ).rstrip()
            for line in lines
        ]
        return [self.title, "", *shown, *(["", *self.notes] if self.notes else [])]

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
    """Return a question with the known names that a name is close to; empty where none is."""
    close = difflib.get_close_matches(name, sorted(known), n=3)
    return f"did you mean {' or '.join(map(repr, close))}? " if close else ""


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
