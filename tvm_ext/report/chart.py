# SPDX-License-Identifier: Apache-2.0
"""Charts in SVG: rectangles, lines and names on two scales.

A picture has no ground of its own, and ink that can be read on white and on black.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

Box = tuple[float, float, float, float]
"""Left, bottom, right and top, in the numbers of a chart's scales."""

PALETTE = (
    *("#77aadd", "#eedd88", "#ee8866", "#99ddff", "#44bb99"),
    *("#ffaabb", "#aaaa00", "#dddddd", "#bbcc33"),
)
"""Paul Tol's light colours (SRON/EPS/TN/09-002), which carry black text and are distinct to
colour-blind readers. Dark and light ones take turns, so that neighbours differ in grey."""

INK, EDGE = "#777c85", "#333333"
"""Text and axes, and the edges of rectangles."""
HATCHES = {"rising": "M-1 8L8 -1", "falling": "M-1 -1L8 8"}
"""Patterns, which a rectangle may be filled with: ``url(#rising)``."""
LINE = 15
"""Pixels from one line of text to the next."""
_LETTER = 0.61
"""The width of a letter as a part of its height: names are in a font in which all are as wide."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
"""Signs that XML has no way to write."""
_FONTS = "system-ui, 'DejaVu Sans', sans-serif", "ui-monospace, 'DejaVu Sans Mono', monospace"


@dataclass(frozen=True, repr=False)
class Picture:
    """A picture, which a notebook shows."""

    svg: str

    def __repr__(self) -> str:
        return "<Picture>"

    def _repr_svg_(self) -> str:
        return self.svg

    def save(self, path: str | Path) -> None:
        """Write it to a file; ValueError unless the name ends in ``.svg``."""
        if Path(path).suffix.lower() != ".svg":
            raise ValueError(f"{path}: the name of a picture must end in .svg")
        Path(path).write_text(self.svg, encoding="utf-8")


def picture(width: float, height: float, parts: Iterable[str]) -> Picture:
    """Return a picture of so many pixels."""
    hatches = "".join(
        f'<pattern id="{name}" width="7" height="7" patternUnits="userSpaceOnUse">'
        f'<path d="{path}" stroke="{EDGE}" stroke-width=".7"/></pattern>'
        for name, path in HATCHES.items()
    )
    size = f'width="{width:g}" height="{height:g}" viewBox="0 0 {width:g} {height:g}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="{_FONTS[0]}">'
    return Picture("\n".join([head, f"<defs>{hatches}</defs>", *parts, "</svg>\n"]))


def words(
    x: float, y: float, text: str, *, colour: str = INK, size: float = 11, **more: str
) -> str:
    """Write a text at a place; `more` are attributes of SVG, with ``_`` for ``-``."""
    place = f'x="{x:.1f}" y="{y:.1f}" fill="{colour}" font-size="{size:g}"'
    return f"<text {place}{_attributes(more)}>{escape(_CONTROL.sub('�', text))}</text>"


def _cut(text: str, room: float, size: float) -> str:
    """Return a text, cut in its middle where it has no room."""
    letters = int(room / (_LETTER * size))
    head = letters // 3
    return text if len(text) <= letters else f"{text[:head]}…{text[head + 1 - letters :]}"


def _attributes(given: Mapping[str, str]) -> str:
    return "".join(f' {name.replace("_", "-")}="{value}"' for name, value in given.items())


def legend(x: float, y: float, entries: Iterable[tuple[str, str, str]]) -> Iterator[str]:
    """Write lines of a legend: a label, the fill of its swatch, and the colour of its edge."""
    for at, (label, fill, edge) in enumerate(entries):
        top = y + at * LINE
        yield (
            f'<rect x="{x:.1f}" y="{top:.1f}" width="20" height="9" fill="{fill}" stroke="{edge}"/>'
        )
        yield words(x + 26, top + 9, label)


def steps(end: float, most: int, *, binary: bool = False) -> list[int]:
    """Return up to so many multiples of a round number, from 0 to an end: powers of two, or ten."""
    step, factors = 1, (2,) if binary else (2, 2.5, 2)
    turn = 0
    while end / step > most:
        step = int(step * factors[turn % len(factors)])
        turn += 1
    return list(range(0, int(end) + 1, step))


class Chart:
    """A part of a picture with two scales. Parts are drawn in the order in which they are added."""

    def __init__(self, place: Box, across: tuple[float, float], up: tuple[float, float]) -> None:
        """Take the pixels ``left, top, right, bottom``, and the ends of both scales."""
        self.place, self.across, self.up = place, across, up
        self.parts: list[str] = []

    def pixels(self, x: float, y: float) -> tuple[float, float]:
        """Return the place of two numbers of the scales."""
        left, top, right, bottom = self.place
        (begin, end), (low, high) = self.across, self.up
        along, above = (x - begin) / ((end - begin) or 1), (y - low) / ((high - low) or 1)
        return left + along * (right - left), bottom - above * (bottom - top)

    def boxes(self, boxes: Iterable[Box], fill: str, edge: str = EDGE, **more: str) -> None:
        """Draw rectangles, all of one kind, as one path; nothing where there are none."""
        shapes = []
        for left, bottom, right, top in boxes:
            (x, y), (end, low) = self.pixels(left, top), self.pixels(right, bottom)
            shapes.append(f"M{x:.1f} {y:.1f}H{end:.1f}V{low:.1f}H{x:.1f}z")
        width = min(0.8, 12 / (1 + len(shapes)) ** 0.5)
        more = {"fill": fill, "stroke": edge, "stroke_width": f"{width:.2g}", **more}
        if shapes:
            self.parts.append(f'<path{_attributes(more)} d="{"".join(shapes)}"/>')

    def line(self, ends: Box, colour: str, dashes: str = "none", width: float = 1.5) -> None:
        """Draw a straight line from the left bottom to the right top of a box."""
        (x, y), (end, top) = self.pixels(*ends[:2]), self.pixels(*ends[2:])
        style = {"stroke": colour, "stroke_width": f"{width:g}", "stroke_dasharray": dashes}
        self.parts.append(f'<path d="M{x:.1f} {y:.1f}L{end:.1f} {top:.1f}"{_attributes(style)}/>')

    def name(self, box: Box, texts: Iterable[Sequence[str]], size: float = 9) -> None:
        """Write the first of some texts that fits into a box, upright where that is higher.

        A text has one or more lines. Nothing is written where none fits.
        """
        (x, y), (end, low) = self.pixels(box[0], box[3]), self.pixels(box[2], box[1])
        wide, high = end - x, low - y
        if min(wide, high) < size + 2:
            return
        for lines in texts:
            length = _LETTER * size * max(map(len, lines)) + 4
            if length > max(wide, high) or len(lines) * (size + 2) > min(wide, high):
                continue
            turn = ' transform="rotate(-90)"' if wide < high else ""
            first = 0.35 * size - (len(lines) - 1) * (size + 2) / 2
            written = "".join(
                words(0, first + at * (size + 2), text, colour="#000000", size=size)
                for at, text in enumerate(lines)
            )
            place = f'transform="translate({(x + end) / 2:.1f} {(y + low) / 2:.1f})"'
            group = f'{place} text-anchor="middle" font-family="{_FONTS[1]}"'
            self.parts.append(f"<g {group}><g{turn}>{written}</g></g>")
            return

    def frame(
        self,
        title: str,
        summary: str,
        label: str,
        ticks: Iterable[tuple[float, str]],
        rows: Iterable[tuple[float, str]],
    ) -> None:
        """Write a title and a line above, ticks and a label below, and rows on the left."""
        left, top, right, bottom = self.place
        room = right - left
        above = words(left, top - 24, _cut(title, room, 14), size=14, font_weight="bold")
        self.parts += [above, words(left, top - 8, _cut(summary, room, 10))]
        axis = f"M{left} {top}V{bottom}H{right}"
        for at, text in ticks:
            x, _ = self.pixels(at, self.up[0])
            axis += f"M{x:.1f} {bottom}v4"
            self.parts.append(words(x, bottom + LINE, text, text_anchor="middle"))
        for at, text in rows:
            _, y = self.pixels(self.across[0], at)
            axis += f"M{left} {y:.1f}h-4"
            for number, line in enumerate(lines := text.split("\n")):
                down = y + 4 + (number - (len(lines) - 1) / 2) * 12
                self.parts.append(words(left - 7, down, line, text_anchor="end"))
        middle = (left + right) / 2
        self.parts.append(words(middle, bottom + 2 * LINE, label, text_anchor="middle"))
        self.parts.append(f'<path d="{axis}" fill="none" stroke="{INK}"/>')
