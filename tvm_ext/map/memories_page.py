# SPDX-License-Identifier: Apache-2.0
"""Several memories side by side: time goes down, bytes go right, an arrow is a copy.

All memories have one axis of time, so that an arrow goes from where a copy may start to where it
has to be over. Each memory has a colour of its own.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from html import escape
from itertools import cycle
from pathlib import Path
from typing import NamedTuple

from passes.planning import Budget, Copy, MemoriesPlan, MemoriesProblem, check, solve
from tvm_ext.commands.command_options import check_writable
from tvm_ext.commands.memories_option import check_alone, read_memories, report
from tvm_ext.reading.programs import problems_of
from tvm_ext.text import format_bytes

COLOURS = ("#ee8866", "#8cc8ee", "#bbcc33", "#eedd88", "#ffaabb")
"""One a memory, the fastest first; after Paul Tol's light colours (SRON/EPS/TN/09-002)."""
WIDTH, GAP, TOP, HEIGHT = 360, 60, 48, 760  # Pixels: of a memory, between two, above, of the time
LABEL_HEIGHT = 11  # Pixels of a box that has room for its name
SUFFIXES = (".html", ".svg")
SECONDS = 10.0  # Time for a plan

_STYLE = (
    "text{font:11px system-ui,sans-serif;fill:#1b1f24}"
    ".box{stroke:#1b1f24;stroke-width:.4}.frame{fill:#fff;stroke:#5b6470}"
    ".end{stroke:#a01c2c;stroke-dasharray:4 2}.copy{stroke:#0b57d0;stroke-width:1.4;fill:none}"
)


class _Box(NamedTuple):
    """A buffer, or a stay of it, in one memory."""

    name: str
    memory: str
    low: int  # Bytes from the start of the memory
    size: int
    begin: int
    end: int


def run(args: argparse.Namespace) -> int:
    """Run ``map --memories``; return 0 if every plan fits, 1 if one does not."""
    suffix = Path(args.output).suffix.lower()
    if suffix not in SUFFIXES:
        raise ValueError(f"{args.output}: with --memories, the name must end in .html or .svg")
    check_alone(args, "planners", "capacity", "alignment")
    check_writable(args.program, args.output)
    memories = read_memories(args.memories)
    seconds = SECONDS if args.time_limit is None else args.time_limit
    found = []
    for problem in problems_of(args.program, memories, args.target):
        plan = solve(problem, budget=Budget(1 << 60, seconds), moves=args.moves)
        if plan.fits:
            check(problem, plan)
        found.append((problem, plan))
    words = [*memories]
    pictures = [memories_svg(problem, plan, words) for problem, plan in found]
    lines = [f"{p.name}: {line}" for p, plan in found for line in report(p, plan, words)]
    if suffix == ".svg" and len(pictures) > 1:
        raise ValueError(f"{args.output}: {len(pictures)} functions need a page (.html)")
    text = pictures[0] if suffix == ".svg" else _page(args.program, lines, pictures)
    Path(args.output).write_text(text, encoding="utf-8")
    print("\n".join([*lines, f"{args.program}: written to {args.output}"]))
    return 0 if all(plan.fits for _, plan in found) else 1


def _page(title: str, lines: Sequence[str], pictures: Sequence[str]) -> str:
    told = "".join(f"<p>{escape(line)}</p>" for line in lines)
    return (
        f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>Memories of '
        f"{escape(title)}</title></head><body style='font:13px system-ui,sans-serif'>"
        f"<h1>{escape(title)}</h1>{told}{''.join(pictures)}</body></html>\n"
    )


def memories_svg(problem: MemoriesProblem, plan: MemoriesPlan, words: Sequence[str]) -> str:
    """Return a picture of a plan; `words` are what the memories are called."""
    boxes = list(_boxes(problem, plan))
    first = min((box.begin for box in boxes), default=0)
    last = max((box.end for box in boxes), default=1)
    down = HEIGHT / max(1, last - first)
    left = {m.name: GAP + at * (WIDTH + GAP) for at, m in enumerate(problem.memories)}
    room = {m.name: max(m.capacity or 1, plan.peaks[m.name]) for m in problem.memories}
    parts = []
    for memory, word, colour in zip(problem.memories, words, cycle(COLOURS), strict=False):
        x, across = left[memory.name], WIDTH / room[memory.name]
        used, moved = (format_bytes(count[memory.name]) for count in (plan.peaks, plan.moved))
        of = "" if memory.capacity is None else f" of {format_bytes(memory.capacity)}"
        parts.append(
            f'<text x="{x}" y="{TOP - 26}" font-weight="bold">{escape(word)}</text>'
            f'<text x="{x}" y="{TOP - 10}">{used}{of}, {moved} moved</text>'
            f'<rect class="frame" x="{x}" y="{TOP}" width="{WIDTH}" height="{HEIGHT}"/>'
        )
        for box in boxes:
            if box.memory == memory.name:
                corner = (x + box.low * across, TOP + (box.begin - first) * down)
                extent = (box.size * across, (box.end - box.begin) * down)
                parts.append(_rectangle(box, *corner, *extent, colour))
        if memory.capacity is not None:
            end = x + memory.capacity * across
            parts.append(
                f'<line class="end" x1="{end:.1f}" x2="{end:.1f}" y1="{TOP}" y2="{TOP + HEIGHT}"/>'
            )

    def middle(copy: Copy, memory: str) -> float:
        """Return where the bytes of a copy are, from left to right."""
        there = (box for box in boxes if (box.name, box.memory) == (copy.buffer, memory))
        box = next(box for box in there if box.begin <= copy.end and copy.begin < box.end)
        return left[memory] + (box.low + box.size / 2) * WIDTH / room[memory]

    for copy in plan.copies:
        x1, x2 = middle(copy, copy.source), middle(copy, copy.target)
        y1, y2 = (TOP + (position - first) * down for position in (copy.begin, copy.end))
        told = f"copy of {copy.buffer}, {copy.size:,} bytes, from {copy.begin} to {copy.end}"
        parts.append(
            f'<path class="copy" marker-end="url(#tip)" d="M{x1:.1f},{y1:.1f} L{x2:.1f},{y2:.1f}">'
            f"<title>{escape(told)}</title></path>"
        )
    width = GAP + len(problem.memories) * (WIDTH + GAP)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{TOP + HEIGHT + 20}" '
        f'role="img"><title>{escape(problem.name)}</title><style>{_STYLE}</style>'
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
        'markerHeight="7" orient="auto"><path d="M0,0 L8,4 L0,8 z" fill="#0b57d0"/></marker>'
        f"</defs>{''.join(parts)}</svg>\n"
    )


def _boxes(problem: MemoriesProblem, plan: MemoriesPlan) -> Iterator[_Box]:
    for buffer in problem.buffers:
        name = buffer.name
        for offset in plan.offsets[name]:
            for begin, end in buffer.live:
                yield _Box(name, plan.memory[name], offset, buffer.size, begin, end)
        for stay in plan.stays.get(name, ()):
            yield _Box(name, stay.memory, stay.offsets[0], buffer.size, *stay.live)


def _rectangle(box: _Box, x: float, y: float, width: float, height: float, colour: str) -> str:
    told = f"{box.name}: {box.size:,} bytes at {box.low:,}, positions [{box.begin}, {box.end})"
    shape = (
        f'<rect class="box" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" '
        f'fill="{colour}"><title>{escape(told)}</title></rect>'
    )
    if height < LABEL_HEIGHT or width < 7 * len(box.name):
        return shape
    return shape + f'<text x="{x + 3:.1f}" y="{y + LABEL_HEIGHT:.1f}">{escape(box.name)}</text>'
