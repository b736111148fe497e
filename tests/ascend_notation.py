# SPDX-License-Identifier: Apache-2.0
"""Reads kernels in the notation of `ascend_cases.txt`.

A case is a heading and lines that begin with a letter:

    12. name [TAGS]
    B: buffer [scope] SHAPExTYPE=BYTESB [xSLOTS] [first,last]→offset/offset; ...
    O: tTICK op(reads)→writes tmp temporaries brc[dim]; tTICK for{; ... }tTICK; ...
    M: scope sequential, sum N bits | scope multi-level, level-3 demand N bits | FAILS, requires N
    V: @callee written<read, ...; ...      what a called vector function may write over, by operand
    C: scope BYTES                         a capacity that is not the chip's
    S: largest-first                       the strategy, if it is not the default one

Ticks are inclusive. `chip 910B` or `chip 950` holds for what follows. Vector functions are in no
kernel, so that what their callers may write over is not read.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path

SCOPES = {"ub": "local.UB", "cbuf": "local.L1", "cc": "local.L0C"}
CAPACITY = {
    "910B": {"ub": 196608, "cbuf": 524288, "cc": 131072},
    "950": {"ub": 253952, "cbuf": 524288, "cc": 262144},
}


@dataclass
class Case:
    number: int
    name: str
    capacities: dict
    buffers: list = field(default_factory=list)
    ops: str = ""
    memory: str = ""
    strategy: str = "default"


@dataclass
class Row:
    """A buffer of a `B` line; `expected` are its offsets, None if the case fails."""

    name: str
    scope: str
    dims: list  # Extents as they are written, `?` for what is not static
    dtype: str
    strides: str
    size: int
    slots: int
    expected: tuple

    @property
    def elements(self):
        return self.size * 8 // int(re.search(r"\d+", self.dtype)[0])


ROW = re.compile(
    r"(\S+)(?: (cbuf|cc|ub|gm))? (\S+?)(?: str\[([^\]]*)\])?(?: off \S+)?=(\d+)B"
    r"(?: x(\d+))? \[\d+,-?\d+\]→(.+)"
)


def read_cases(text):
    """Return the cases of a text; lines that are none of theirs are passed over."""
    cases, chip = [], "910B"
    for line in text.splitlines():
        kind, _, rest = line.strip().partition(": ")
        if place := re.match(r"chip (910B|950)", line):
            chip = place[1]
        elif head := re.match(r"(\d+)\. (\w+)", line):
            cases.append(Case(int(head[1]), head[2], dict(CAPACITY[chip])))
        elif kind == "B":
            cases[-1].buffers = [_row(entry) for entry in rest.split("; ")]
        elif kind == "C":
            scope, size = rest.split()
            cases[-1].capacities[scope] = int(size)
        elif kind in ("O", "M", "S"):
            setattr(cases[-1], {"O": "ops", "M": "memory", "S": "strategy"}[kind], rest)
    return cases


def _row(entry):
    match = ROW.fullmatch(entry)
    assert match, f"not a buffer: {entry!r}"
    name, scope, shape, strides, size, slots, offsets = match.groups()
    expected = None if offsets == "-" else tuple(int(o) for o in offsets.split("/"))
    *dims, dtype = re.split(r"x(?=[\d?]|[fi]\d|bf\d)", shape)
    return Row(name, scope or "ub", dims, dtype, strides, int(size), int(slots or 1), expected)


CASES = read_cases(Path(__file__).with_name("ascend_cases.txt").read_text())
"""The worked cases, in the order of their numbers."""
