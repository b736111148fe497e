# SPDX-License-Identifier: Apache-2.0
"""``tvm-ext map --memories``: several memories side by side, time down, an arrow for each copy.

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

from passes.planning import Budget, MemoriesPlan, MemoriesProblem
from tvm_ext.commands.command_options import check_writable, read_memories
from tvm_ext.commands.plan_command import planned_memories, report
from tvm_ext.reading.programs import problems_of
from tvm_ext.text import format_bytes

COLOURS = ("#ee8866", "#8cc8ee", "#bbcc33", "#eedd88", "#ffaabb")
"""One a memory, the fastest first; after Paul Tol's light colours (SRON/EPS/TN/09-002)."""
WIDTH, GAP, TOP, HEIGHT = 360, 60, 48, 760  # Pixels: of a memory, between two, above, of the time
LABEL_HEIGHT = 11  # Pixels of a box that has room for its name
SECONDS = 10.0  # Time for a plan

_FRAME = """\
<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" role="img">
<title>{title}</title><style>
text{{font:11px system-ui,sans-serif;fill:#1b1f24}} .frame{{fill:#fff;stroke:#5b6470}}
.box{{stroke:#1b1f24;stroke-width:.4}} .end{{stroke:#a01c2c;stroke-dasharray:4 2}}
.copy{{stroke:#0b57d0;stroke-width:1.4;fill:none}}
</style><defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7"
markerHeight="7" orient="auto"><path d="M0,0 L8,4 L0,8 z" fill="#0b57d0"/></marker></defs>
{parts}
</svg>
"""
_PAGE = """\
<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>Memories of {title}</title></head>
<body style="font:13px system-ui,sans-serif"><h1>{title}</h1>{lines}{pictures}</body></html>
"""


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
    if suffix not in (".html", ".svg"):
        raise ValueError(f"{args.output}: with --memories, the name must end in .html or .svg")
    check_writable(args.program, args.output)
    memories = read_memories(args.memories)
    budget = Budget(1 << 60, SECONDS if args.time_limit is None else args.time_limit)
    lines, pictures, fits = [], [], True
    for problem in problems_of(args.program, memories, args.target):
        plan = planned_memories(problem, budget, args.moves)
        fits &= plan.fits
        lines += [f"{problem.name}: {line}" for line in report(problem, plan, [*memories])]
        pictures.append(memories_svg(problem, plan, [*memories]))
    if suffix == ".svg" and len(pictures) > 1:
        raise ValueError(f"{args.output}: {len(pictures)} functions need a page (.html)")
    text = pictures[0]
    if suffix == ".html":
        told = "".join(f"<p>{escape(line)}</p>" for line in lines)
        text = _PAGE.format(title=escape(args.program), lines=told, pictures="".join(pictures))
    Path(args.output).write_text(text, encoding="utf-8")
    print("\n".join([*lines, f"{args.program}: written to {args.output}"]))
    return 0 if fits else 1


def memories_svg(problem: MemoriesProblem, plan: MemoriesPlan, words: Sequence[str]) -> str:
    """Return a picture of a plan; `words` are what the memories are called."""
    boxes = list(_boxes(problem, plan))
    first = min((box.begin for box in boxes), default=0)
    down = HEIGHT / max(1, max((box.end for box in boxes), default=1) - first)
    left = {m.name: GAP + at * (WIDTH + GAP) for at, m in enumerate(problem.memories)}
    across = {m.name: WIDTH / max(m.capacity or 1, plan.peaks[m.name], 1) for m in problem.memories}
    parts = []
    for memory, word, colour in zip(problem.memories, words, cycle(COLOURS), strict=False):
        name, x = memory.name, left[memory.name]
        of = "" if memory.capacity is None else f" of {format_bytes(memory.capacity)}"
        takes = f"{format_bytes(plan.peaks[name])}{of}, {format_bytes(plan.moved[name])} moved"
        parts.append(
            f'<text x="{x}" y="{TOP - 26}" font-weight="bold">{escape(word)}</text>'
            f'<text x="{x}" y="{TOP - 10}">{takes}</text>'
            f'<rect class="frame" x="{x}" y="{TOP}" width="{WIDTH}" height="{HEIGHT}"/>'
        )
        for box in boxes:
            if box.memory == name:
                corner = (x + box.low * across[name], TOP + (box.begin - first) * down)
                extent = (box.size * across[name], (box.end - box.begin) * down)
                parts.append(_rectangle(box, *corner, *extent, colour))
        if memory.capacity is not None:
            end = f"{x + memory.capacity * across[name]:.1f}"
            y = f'y1="{TOP}" y2="{TOP + HEIGHT}"'
            parts.append(f'<line class="end" x1="{end}" x2="{end}" {y}/>')
    for copy in plan.copies:
        ends = []
        for name, position in ((copy.source, copy.begin), (copy.target, copy.end)):
            there = (box for box in boxes if (box.name, box.memory) == (copy.buffer, name))
            box = next(box for box in there if box.begin <= copy.end and copy.begin < box.end)
            middle = left[name] + (box.low + box.size / 2) * across[name]
            ends.append(f"{middle:.1f},{TOP + (position - first) * down:.1f}")
        told = f"copy of {copy.buffer}, {copy.size:,} bytes, from {copy.begin} to {copy.end}"
        parts.append(
            f'<path class="copy" marker-end="url(#tip)" d="M{" L".join(ends)}">'
            f"<title>{escape(told)}</title></path>"
        )
    width = GAP + len(problem.memories) * (WIDTH + GAP)
    return _FRAME.format(
        width=width, height=TOP + HEIGHT + 20, title=escape(problem.name), parts="".join(parts)
    )


def _boxes(problem: MemoriesProblem, plan: MemoriesPlan) -> Iterator[_Box]:
    for buffer in problem.buffers:
        name = buffer.name
        for offset in plan.offsets[name]:
            for live in buffer.live:
                yield _Box(name, plan.memory[name], offset, buffer.size, *live)
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
