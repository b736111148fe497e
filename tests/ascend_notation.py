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

Ticks are inclusive. `chip 910B` or `chip 950` holds for what follows. Which units use a buffer, in
which loop, and which pairs go in place is worked out from the operations, by the rules of
AscendNPU-IR's PlanMemory; when buffers live is taken from the `B` line. Where the original depends
on a shuffle, the order of the `B` line is taken.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path

SCOPES = {"ub": "local.UB", "cbuf": "local.L1", "cc": "local.L0C"}
CAPACITY = {
    "910B": {"ub": 196608, "cbuf": 524288, "cc": 131072},
    "950": {"ub": 253952, "cbuf": 524288, "cc": 262144},
}
ALIGNMENT = {"ub": 32, "cbuf": 32, "cc": 512}

VIEWS = (
    "subview",
    "view",
    "collapse_shape",
    "expand_shape",
    "reshape",
    "cast",
    "reinterpret_cast",
    "bitcast",
    "transpose",
)


@dataclass
class View:
    """How an operation sees a buffer: the dims and the element type, `?` for what is not static."""

    root: str
    dims: list
    dtype: str
    strides: list = field(default_factory=list)
    offset: str = "0"

    @property
    def bits(self):
        return int(re.search(r"\d+", self.dtype)[0])

    @property
    def is_flat(self):
        """Whether it has one dimension at most, and its elements stand one behind the other."""
        return len(self.dims) <= 1 and (not self.strides or self.strides[-1] == "1")


@dataclass
class Op:
    tick: int
    name: str
    reads: list
    writes: list
    temps: list
    broadcast: bool
    loops: tuple


@dataclass
class Case:
    number: int
    name: str
    tags: list
    chip: str
    capacities: dict
    approvals: dict = field(default_factory=dict)
    buffers: list = field(default_factory=list)
    ops: str = ""
    memory: str = ""
    strategy: str = "default"


@dataclass
class Row:
    """A buffer of a `B` line; `expected` are its offsets, None if the case fails."""

    name: str
    scope: str
    view: View
    size: int
    slots: int
    first: int
    last: int
    expected: tuple


ROW = re.compile(
    r"(\S+)(?: (cbuf|cc|ub|gm))? (\S+?)(?: str\[([^\]]*)\])?(?: off (\S+))?=(\d+)B"
    r"(?: x(\d+))? \[(\d+),(-?\d+)\]→(.+)"
)


def read_cases(text):
    """Return the cases of a text; lines that are none of theirs are passed over."""
    cases, chip = [], "910B"
    for line in text.splitlines():
        line = line.strip().removeprefix("- ")
        head = re.match(r"\W*(\d+)\. (\w+)\W*(.*)", line)
        place = re.match(r"(?:chip |#+ .*Ascend)(910B|950)", line)
        if place:
            chip = place[1]
        elif head:
            tags = re.findall(r"\b[A-Z][A-Z0-9]+\b", head[3])
            cases.append(Case(int(head[1]), head[2], tags, chip, dict(CAPACITY[chip])))
        elif line[:2] in ("B:", "O:", "M:", "V:", "C:", "S:"):
            _add_line(cases[-1], line[0], line[2:].strip())
    return cases


def _add_line(case, kind, text):
    if kind == "B":
        case.buffers = [_row(entry) for entry in text.split("; ")]
    elif kind == "O":
        case.ops = text
    elif kind == "M":
        case.memory = text
    elif kind == "S":
        case.strategy = text
    elif kind == "C":
        scope, size = text.split()
        case.capacities[scope] = int(size)
    else:
        for entry in text.split("; "):
            callee, pairs = entry.split(" ", 1)
            case.approvals[callee] = [tuple(map(int, p.split("<"))) for p in pairs.split(", ")]


def _row(entry):
    match = ROW.fullmatch(entry)
    assert match, f"not a buffer: {entry!r}"
    name, scope, shape, strides, _, size, slots, first, last, offsets = match.groups()
    expected = None if offsets == "-" else tuple(int(o) for o in offsets.split("/"))
    view = _view(name, shape, strides)
    slots = int(slots or 1)
    return Row(name, scope or "ub", view, int(size), slots, int(first), int(last), expected)


def _view(root, shape, strides=None, offset=None):
    *dims, dtype = re.split(r"x(?=[\d?]|[fi]\d|bf\d)", shape)
    return View(root, dims, dtype, strides.split(",") if strides else [], offset or "0")


class Reader:
    """Walks the operations of one case and notes what they do to the buffers.

    Attributes
    ----------
    ops : list of Op
        With operands as lists of views: all that a value may be.
    loops : list of (int, int)
        For each loop its first and last tick.
    aliases : list of (list of str, list of str)
        Buffers that one value stands for, always.
    selected : set of str
        Buffers that a select chooses from.
    preload, unique : dict of str to int, set of str
        Marked buffers; the former with the loop around the mark.
    """

    def __init__(self, case):
        self.rows = {row.name: row for row in case.buffers}
        self.env = {row.name: [row.view] for row in case.buffers}
        self._always = {row.name: [row.name] for row in case.buffers}
        self.ops, self.loops, self.aliases = [], [], []
        self.selected, self.unique, self.preload = set(), set(), {}
        self._open = []  # (kind, loop number, results, first names)
        self._jumps = []
        for text in re.split(r"; (?=[t}])", case.ops):
            self._step(text)

    def _step(self, text):
        closing = re.match(r"\}t(\d+)( else\{)?$", text)
        if closing:
            if not closing[2]:
                self._close(int(closing[1]))
            return
        tick, rest = re.match(r"t(\d+) (.*)", text).groups()
        tick = int(tick)
        opening = re.match(r"(for|while|if|scope)\b(.*)\{$", rest)
        if opening:
            self._enter(opening[1], tick, opening[2])
            return
        word = rest.split(" ")[0].split("(")[0]
        names = re.findall(r"[\w#.]+", rest[len(word) :])
        defined = re.match(
            r"(\w+)=(\w+)\(([^)]*)\)(?::(\S+)(?: str\[([^\]]*)\])?(?: off (\S+))?)?", rest
        )
        if defined and defined[2] == "select":
            self._select(defined[1], defined[3].split(","))
        elif defined:
            self._define_view(*defined.groups())
        elif word == "mark":
            self._mark(names[0], rest)
        elif word in ("yield", "condition"):
            self._yield(names)
        elif word in ("br", "cond_br"):
            self._jump(rest)
        elif word != "return":
            self._operate(tick, rest)

    def _enter(self, kind, tick, rest):
        loop = -1
        if kind in ("for", "while"):
            loop = len(self.loops)
            self.loops.append((tick, -1))
        results = re.search(r"→([\w,#.]+)", rest)
        names = results[1].split(",") if results else []
        for name in names:
            self.env.setdefault(name, [])
        starts = re.findall(r"([\w#.]+)=([\w#.]+)", rest)
        for name, start in starts:
            self.env[name] = list(self._views(start))
            self._always[name] = list(self._always.get(start, []))
        for result, (name, _) in zip(names, starts, strict=False):
            self._alias(result, name)
        self._open.append((kind, loop, names))

    def _close(self, tick):
        _, loop, _ = self._open.pop()
        if loop >= 0:
            self.loops[loop] = (self.loops[loop][0], tick)

    def _yield(self, names):
        _, _, results = self._open[-1]
        for result, name in zip(results, names, strict=False):
            if name in self.env:
                self._alias(result, name)

    def _alias(self, result, name):
        """Let a result stand for a value, too, and all that both stand for be one memory."""
        views = self.env[result]
        views += [view for view in self._views(name) if view not in views]
        # What a select may stand for, a value made of it does not always stand for.
        roots = self._always.setdefault(result, [])
        roots += [root for root in self._always.get(name, []) if root not in roots]
        self.aliases.append(list(roots))

    def _select(self, name, sources):
        self.env[name] = [view for source in sources for view in self._views(source)]
        self.selected.update(view.root for view in self.env[name])

    def _define_view(self, name, operation, sources, shape, strides, offset):
        assert operation in VIEWS, f"not a view: {operation}"
        views = self._views(sources.split(",")[0])
        self._always[name] = self._always.get(sources.split(",")[0], [])
        self.env[name] = [_view(v.root, shape, strides, offset) if shape else v for v in views]

    def _mark(self, name, text):
        for view in self._views(name):
            if "mem_unique" in text:
                self.unique.add(view.root)
            if "preload_local_buffer" in text:
                self.preload[view.root] = [o[1] for o in self._open if o[1] >= 0][-1]

    def _jump(self, text):
        """Note what a branch passes on; arguments of blocks have no names where blocks begin."""
        for block, names in re.findall(r"bb(\d+)\(([^)]*)\)", text):
            self._jumps.append((int(block), names.split(",")))

    def _views(self, name):
        if name not in self.env:
            self.env[name] = self._argument_of_block(name)
        return self.env[name]

    def _argument_of_block(self, name):
        """Return what the next argument of a block without a name may be; [] outside of blocks."""
        slots = sorted({(b, k) for b, names in self._jumps for k in range(len(names))})
        known = [n for n in self.env if n in getattr(self, "_arguments", [])]
        if len(known) >= len(slots):
            return []
        self._arguments = [*known, name]
        block, at = slots[len(known)]
        passed = [names[at] for b, names in self._jumps if b == block]
        return [view for one in passed for view in self._views(one)]

    def _operate(self, tick, text):
        name = re.match(r"\w+", text)[0]
        inside = re.search(r"\(([^)]*)\)", text)
        arrow = re.search(r"→([\w,#.]+)", text)
        temps = re.search(r" tmp ([\w,]+)", text)
        reads = inside[1].split(",") if inside else re.findall(r"scalar_load (\w+)", text)
        if name == "call":
            name = re.search(r"@\w+", text)[0]
        loops = tuple(o[1] for o in self._open if o[1] >= 0)
        self.ops.append(
            Op(
                tick,
                name,
                [self._views(n) for n in reads if n and n != "gm"],
                [self._views(n) for n in (arrow[1].split(",") if arrow else []) if n != "gm"],
                temps[1].split(",") if temps else [],
                " brc[" in text,
                loops,
            )
        )


CASES = read_cases(Path(__file__).with_name("ascend_cases.txt").read_text())
"""The worked cases, in the order of their numbers."""
