# SPDX-License-Identifier: Apache-2.0
"""What the planner is to be told of a worked case, by the rules of AscendNPU-IR's PlanMemory."""

from itertools import combinations

from ascend_notation import ALIGNMENT, SCOPES, Reader

from passes.planning import Buffer, Penalty, PipelineUse, Problem
from target_hw.memory import MemoryScope

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
