# SPDX-License-Identifier: Apache-2.0
"""Reads kernels in the notation of `ascend_cases.txt` and says what the planner is to be told.

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
from itertools import combinations
from pathlib import Path

from passes.planning import Buffer, Penalty, PipelineUse, Problem
from target_hw.memory import MemoryScope

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
OVER_ANY_INPUT = ("vadd", "vsub", "vmul", "vmax", "vmin", "vor", "vand")
NOT_ELEMENTWISE = (
    "vbrc",
    "vreduce",
    "vtranspose",
    "varange",
    "vconcat",
    "vgather",
    "vsort",
    "vcumsum",
    "vcumprod",
    "vinterleave",
    "vdeinterleave",
    "vflip",
    "vpad",
)
WIDTHS_MATTER = ("vcast", "vcmp", "visinf", "visnan")
NO_SCALAR_TEMP = ("vsel", "vcast", "vbrc", "vreduce", "vtranspose", "vcustom")
SCALAR_LOOPS = (
    "vadd",
    "vsub",
    "vmul",
    "vdiv",
    "vmin",
    "vmax",
    "vabs",
    "vshl",
    "vshr",
    "vinterleave",
    "vdeinterleave",
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


def problems_of(case):
    """Return a `Problem` for each scope of a case, in the order in which they are met."""
    reader = Reader(case)
    pairs, stalls = _in_place(case, reader)
    end = max(max(row.first, row.last) for row in case.buffers) + 1
    uses = _uses(reader)
    order = _gen_order(reader)
    found = []
    for scope in dict.fromkeys(row.scope for row in case.buffers):
        rows = [row for row in case.buffers if row.scope == scope]
        rows.sort(key=lambda row: (row.first, order[row.name]))
        here = {row.name for row in rows}
        buffers = []
        for row in rows:
            last = row.last if row.last >= 0 else end
            live = ((row.first, last + 1),)
            buffers.append(Buffer(row.name, row.size, live, slots=row.slots, use=uses[row.name]))
        memory = MemoryScope(SCOPES[scope], case.capacities[scope], ALIGNMENT[scope])
        found.append(
            Problem(
                tuple(buffers),
                memory,
                in_place=[p for p in [*pairs, *stalls] if set(p) <= here],
                separations=[
                    (one.name, two.name)
                    for one, two in combinations(buffers, 2)
                    if reader.unique & {one.name, two.name}
                ],
                penalties=[Penalty(*p, 1) for p in stalls if set(p) <= here],
                name=case.name,
            )
        )
    return found


def expected_of(case, problem):
    """Return the offsets that a case gives for the buffers of one scope."""
    return {row.name: row.expected for row in case.buffers if row.name in problem.index}


def _gen_order(reader):
    """Return for each buffer its rank among those that are first written at one tick."""
    order = {}
    for op in reader.ops:
        operands = op.reads + op.writes if op.name.startswith("@") else op.writes
        for name in [v.root for views in operands for v in views] + op.temps:
            order.setdefault((op.tick, name), len(order))
    rank = {}
    for at, row in enumerate(reader.rows.values()):
        rank[row.name] = order.get((row.first, row.name), len(order) + at)
    return rank


def _uses(reader):
    dma, scalar = set(), set()
    for op in reader.ops:
        reads = {v.root for views in op.reads for v in views[:1]}
        writes = {v.root for views in op.writes for v in views[:1]}
        first = next((v for views in op.reads for v in views[:1]), None)
        if op.name in ("scalar_load", "scalar_store"):
            scalar |= reads | writes
        elif _is_scalar_loop(op, first):
            scalar |= reads | writes | set(op.temps)
        elif op.name in ("load", "nd2nz", "load_scale"):
            dma |= writes
        elif op.name in ("store", "nz2nd", "fixpipe"):
            dma |= reads
        elif op.name == "copy":
            source, target = _scope_of(reader, reads), _scope_of(reader, writes)
            dma |= writes if source == "gm" else set()
            dma |= reads if source == "cc" or target in ("gm", "cbuf") else set()
        elif op.name == "vbrc" and _scope_of(reader, writes) == "cbuf":
            dma |= writes
    return {
        row.name: PipelineUse(
            dma=row.name in dma,
            scalar=row.name in scalar,
            loop=_loop(reader, row),
        )
        for row in reader.rows.values()
    }


def _scope_of(reader, names):
    """Return the scope of what an operation reads or writes; "gm" if none of it is planned."""
    return next((reader.rows[name].scope for name in sorted(names)), "gm")


def _is_scalar_loop(op, first):
    """Whether there is no vector instruction for an operation on its type."""
    if first is None:
        return False
    if op.name in SCALAR_LOOPS:
        return first.dtype == "i64"
    return op.name == "vmod" and first.dtype in ("i32", "i64")


def _loop(reader, row):
    """Return the innermost loop around an allocation: one that its life is within."""
    if row.name in reader.preload:
        return reader.preload[row.name]
    around = [
        number
        for number, (begin, end) in enumerate(reader.loops)
        if begin < row.first and 0 <= row.last < end
    ]
    return max(around, key=lambda number: reader.loops[number][0], default=None)


def _in_place(case, reader):
    """Return (source, destination) of the pairs that are merged, and of the stall pairs."""
    rows, pairs, stalls = reader.rows, [], []
    ignored = set(reader.selected)
    for first, second in _forced_pairs(reader):
        pairs.append((second, first))
        ignored |= {first, second}
    ignored.update(name for op in reader.ops for name in op.temps)
    ignored |= reader.unique
    met = set()
    for op in sorted(reader.ops, key=lambda op: op.tick):
        if op.tick in met:
            continue
        met.add(op.tick)
        order = _gen_order(reader)
        gens = [n for n in sorted(rows, key=order.get) if rows[n].first == op.tick]
        kills = [n for n, row in rows.items() if row.last == op.tick]
        used = set()
        for gen in sorted(gens, key=lambda n: -rows[n].size):
            if gen in ignored:
                continue
            # A result that nobody reads dies where it is written, and meets itself first.
            for kill in sorted(kills, key=lambda n: n != gen):
                if kill in ignored or kill in used or rows[kill].size < rows[gen].size:
                    continue
                verdict = _accepts(case, reader, op, gen, kill, pairs)
                if verdict == "stall":
                    stalls.append((kill, gen))
                elif verdict:
                    used.add(kill)
                    if kill != gen and frozenset((kill, gen)) not in map(frozenset, pairs):
                        pairs.append((kill, gen))
                    break
    return pairs, stalls


def _forced_pairs(reader):
    """Return (first, second) for each two buffers that one value always stands for."""
    group = {name: {name} for name in reader.rows}
    for roots in reader.aliases:
        joined = set().union(*(group[root] for root in roots)) if roots else set()
        for name in joined:
            group[name] = joined
    names = list(reader.rows)
    return [
        (one, two)
        for at, one in enumerate(names)
        for two in names[at + 1 :]
        if two in group[one] and not {one, two} & reader.unique
    ]


def _accepts(case, reader, op, gen, kill, pairs):
    """Whether an operation may write one buffer over another; "stall" if it would wait."""
    if op.name.startswith("@"):
        return _callee_accepts(case, reader, op, gen, kill, pairs)
    if not _operation_accepts(op, gen, kill):
        return False
    are_multi = _is_multi(reader, gen, pairs) and _is_multi(reader, kill, pairs)
    stored = _reaches(reader, gen, "store", pairs)
    return "stall" if are_multi and stored and _reaches(reader, kill, "load", pairs) else True


def _operation_accepts(op, gen, kill):
    inputs = [view for views in op.reads for view in views[:1]]
    output = next((views[0] for views in op.writes if views), None)
    if not op.name.startswith("v") or output is None:
        return False
    if any(view.offset != output.offset for view in inputs):
        return False
    if op.name in OVER_ANY_INPUT and not op.broadcast:
        return True
    if len(op.temps) > 1 or (op.temps and op.name in NO_SCALAR_TEMP):
        return False
    if op.name in NOT_ELEMENTWISE or not 1 <= len(inputs) <= 3:
        return False
    source = next((view for view in inputs if view.root == kill), output)
    if op.broadcast and source.dims != output.dims:
        return False
    if op.name == "vsel":
        return not (output.bits == 64 and source.bits == 1)
    if op.name not in WIDTHS_MATTER:
        return True
    for view in inputs:
        if view.bits == output.bits:
            return True
        if view.bits % output.bits == 0:
            return op.name != "vcast" or (view.is_flat and output.is_flat)
    return False


def _callee_accepts(case, reader, op, gen, kill, pairs):
    operands = [views[0].root for views in op.reads]
    if len(set(operands)) < len(operands) or not {gen, kill} <= set(operands):
        return False
    pair = operands.index(gen), operands.index(kill)
    if pair not in case.approvals.get(op.name, []):
        return False
    stored = _reaches(reader, gen, "store", pairs)
    return not (stored and _reaches(reader, kill, "load", pairs) and op.loops)


def _is_multi(reader, name, pairs):
    partners = [n for pair in pairs if name in pair for n in pair]
    return any(reader.rows[n].slots > 1 for n in [name, *partners])


def _reaches(reader, name, operation, pairs):
    """Whether a buffer, or one in place with it, over others, meets such an operation."""
    group, grown = {name}, True
    while grown:
        more = {n for pair in pairs if group & set(pair) for n in pair}
        grown = not more <= group
        group |= more
    return any(
        op.name == operation and view.root in group
        for op in reader.ops
        for views in [*op.reads, *op.writes]
        for view in views
    )


CASES = read_cases(Path(__file__).with_name("ascend_cases.txt").read_text())
"""The worked cases, in the order of their numbers."""
