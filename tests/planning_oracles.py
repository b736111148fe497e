# SPDX-License-Identifier: Apache-2.0
"""Random small problems, and oracles that share no code with what they judge."""

import math
from dataclasses import replace
from functools import cache
from itertools import product

from hypothesis import strategies as st

from passes.planning import Buffer, Penalty, PipelineUse, Problem
from target_hw.memory import MemoryScope

POSITIONS = 7

# A strategy is checked when it is first drawn from, so each is made once and not for every draw.
CAPACITIES = st.one_of(st.none(), st.integers(4, 14))
RESERVED = st.sampled_from([(), (), (), ((0, 1),), ((2, 4),), ((1, 2), (3, 4))])
ALIGNMENTS = st.sampled_from([1, 1, 2, 4])
BUFFER_ALIGNMENTS = st.sampled_from([1, 1, 2, 3])
SLOTS = st.sampled_from([1, 1, 1, 2])
ROLES = st.sampled_from("-----ispq")
ONE_SLOT_COSTS = {cost: st.one_of(st.none(), st.integers(1, cost)) for cost in (1, 2, 3)}


@cache
@st.composite
def live_ranges(draw, most=2):
    points = draw(st.lists(st.integers(0, POSITIONS), min_size=2, max_size=2 * most, unique=True))
    points = sorted(points[: len(points) // 2 * 2])
    return tuple(zip(points[::2], points[1::2], strict=True))


@cache
@st.composite
def memories(draw):
    capacity, reserved, alignment = draw(CAPACITIES), draw(RESERVED), draw(ALIGNMENTS)
    return MemoryScope("local.UB", capacity, alignment, reserved=reserved)


@st.composite
def problems(draw, most_buffers=4, most_slots=5):
    """Problems with every feature, small enough to be solved by trying every offset."""
    buffers = []
    slots_left = most_slots
    for index in range(draw(st.integers(1, most_buffers))):
        slots = draw(SLOTS)
        if slots > slots_left:
            break
        use = draw(uses())
        if slots_left < 2 and use and use.loop is not None:
            use = None  # brute force tries two offsets for it
        slots_left -= slots if use is None or use.loop is None else 2
        alignment = draw(BUFFER_ALIGNMENTS)
        pinned = None
        if draw(st.integers(0, 9)) == 0:
            pinned = tuple(draw(st.integers(0, 3)) * 12 for _ in range(slots))
        size = draw(st.integers(0, 4))
        live = draw(live_ranges())
        buffers.append(Buffer(f"b{index}", size, live, alignment, slots, pinned, use))
    names = [buffer.name for buffer in buffers]
    pairs = [(a, b) for i, a in enumerate(names) for b in names[i + 1 :]]
    roles = draw(st.lists(ROLES, min_size=len(pairs), max_size=len(pairs)))
    try:
        return Problem(
            tuple(buffers),
            draw(memories()),
            in_place=[p for p, role in zip(pairs, roles, strict=True) if role in "iq"],
            separations=[p for p, role in zip(pairs, roles, strict=True) if role == "s"],
            penalties=[
                Penalty(*p, *draw(charges()))
                for p, role in zip(pairs, roles, strict=True)
                if role in "pq"
            ],
        )
    except ValueError:  # pins that contradict each other or a reserved range
        return Problem((Buffer("b0", 1, ((0, 1),)),))


@cache
@st.composite
def uses(draw):
    kind = draw(st.integers(0, 11))
    if kind == 4:
        return PipelineUse()  # It is used, and no loop is around its uses.
    return PipelineUse(loop=max(0, kind - 2)) if kind < 4 else None


@cache
@st.composite
def charges(draw):
    cost = draw(st.integers(1, 3))
    return cost, draw(ONE_SLOT_COSTS[cost])


def rotates(buffer):
    """Whether a buffer may have more offsets than slots."""
    return bool(buffer.use) and buffer.use.loop is not None and not buffer.pinned


def with_counts(problem, counts):
    """Return the problem in which each buffer asks for so many slots."""
    buffers = [replace(b, slots=n) for b, n in zip(problem.buffers, counts, strict=True)]
    return replace(problem, buffers=tuple(buffers))


def blocks_of(problem):
    """Return (buffer index, slot) for each block."""
    return [(i, k) for i, b in enumerate(problem.buffers) for k in range(b.slots)]


def pair_is_right(problem, one, at, two, to):
    """Whether two blocks, (buffer index, slot), may be at these offsets: byte by byte."""
    first, second = problem.buffers[one[0]], problem.buffers[two[0]]
    shared = set(range(at, at + first.size)) & set(range(to, to + second.size))
    if not shared:
        return True
    names = {first.name, second.name}
    if any(set(pair) == names for pair in problem.separations):
        return False
    times = [{p for begin, end in b.live for p in range(begin, end)} for b in (first, second)]
    if not times[0] & times[1]:
        return True
    in_place = first is not second and any(set(pair) == names for pair in problem.in_place)
    if not in_place or at != to or one[1] != two[1] or first.slots != second.slots:
        return False
    loops = {buffer.use.loop for buffer in (first, second) if buffer.use}
    return first.slots == 1 or len(loops) < 2


def place_is_right(problem, block, offset):
    """Whether a block may be at an offset, were it alone: byte by byte."""
    buffer = problem.buffers[block[0]]
    if buffer.pinned is not None and buffer.pinned[block[1]] != offset:
        return False
    if offset % buffer.alignment or offset % problem.memory.alignment:
        return False
    taken = set(range(offset, offset + buffer.size))
    if any(taken & set(range(begin, end)) for begin, end in problem.memory.reserved):
        return False
    capacity = problem.memory.capacity
    return capacity is None or offset + buffer.size <= capacity


def best_by_brute_force(problem):
    """Return the least (penalty, peak) that fits, or None; tries every number of offsets."""
    most = max((b.slots for b in problem.buffers), default=0)
    counts = [range(b.slots, (most if rotates(b) else b.slots) + 1) for b in problem.buffers]
    best = None
    for chosen in product(*counts):
        best = _best_of_all_offsets(with_counts(problem, chosen), best)
    return best


def offsets_to_try(problem):
    """Return for each block offsets among which a best placement takes its own.

    Of all best placements take one of least sum of offsets. Blocks that share an offset in place
    form groups, by the pairs that do: they move together, to multiples of L, the least common
    multiple of their alignments. Say that a group without a pin is at `o`, and that `E` is the
    highest end, at or below `o`, of a reserved range or of a block outside the group; 0 without
    one. Moved to `p`, the lowest multiple of L from `E` up, which is at most `o`, it meets nothing
    new: what was below ends by `E`, what was above begins no lower than it ends. So `p` costs no
    more and is no higher, hence `o` is `p`. And `E` is 0, the end of a reserved range or of a pin,
    or the end of a block that is lower than `o`: so all offsets are found from the fixed ends by
    adding sizes and rounding up to such L. Here L ranges over more: over all subsets of alignments.
    A group with a pin is where that is.
    """
    blocks = blocks_of(problem)
    top = _highest_end(problem)
    alignments = sorted({problem.alignment_of(b) for b in problem.buffers})
    steps = {1}
    for alignment in alignments:
        steps |= {math.lcm(step, alignment) for step in steps}
    sizes = sorted({b.size for b in problem.buffers})
    found = set()
    pins = {offset for b in problem.buffers for offset in b.pinned or ()}
    ends = {0, *pins, *_fixed_ends(problem)}
    for _ in blocks:  # each stands on others, at the end on what is fixed
        starts = {end + -end % step for end in ends for step in steps}
        fresh = {start for start in starts if start <= top} - found
        found |= fresh
        ends = {start + size for start in fresh for size in sizes}
    tried = []
    for index, slot in blocks:
        buffer = problem.buffers[index]
        places = found if buffer.pinned is None else {buffer.pinned[slot]}
        tried.append(sorted(o for o in places if may_stand(problem, buffer, o)))
    return tried


def _fixed_ends(problem):
    yield from (end for _, end in problem.memory.reserved)
    yield from (offset + b.size for b in problem.buffers for offset in b.pinned or ())


def _highest_end(problem):
    """Return an end that a best placement is not above.

    Above all that is fixed there is room for the rest, one after the other, which costs least.
    """
    top = max(_fixed_ends(problem), default=0)
    top += sum(b.slots * (b.size + problem.alignment_of(b)) for b in problem.buffers)
    return top if problem.capacity is None else min(top, problem.capacity)


def may_stand(problem, buffer, offset):
    """Whether a buffer may be at an offset, were it alone."""
    end = offset + buffer.size
    return (
        offset % problem.alignment_of(buffer) == 0
        and (problem.capacity is None or end <= problem.capacity)
        and all(
            end <= low or high <= offset for low, high in problem.memory.reserved if buffer.size
        )
    )


def _relation(problem, one, two):
    """Return how two blocks may share: "free", "in place" or "never"."""
    first, second = problem.buffers[one[0]], problem.buffers[two[0]]
    names = {first.name, second.name}
    if not first.size or not second.size:
        return "free"
    if any(set(pair) == names for pair in problem.separations):
        return "never"
    if not any(a < d and c < b for a, b in first.live for c, d in second.live):
        return "free"
    in_place = first is not second and any(set(pair) == names for pair in problem.in_place)
    if not in_place or one[1] != two[1] or first.slots != second.slots:
        return "never"
    loops = {buffer.use.loop for buffer in (first, second) if buffer.use}
    return "in place" if first.slots == 1 or len(loops) < 2 else "never"


def _best_of_all_offsets(problem, best):
    """Return the least (penalty, peak) that fits, or `best`."""
    blocks, choices = blocks_of(problem), offsets_to_try(problem)
    sizes = [problem.buffers[i].size for i, _ in blocks]
    order = sorted(range(len(blocks)), key=lambda b: (len(choices[b]) > 1, -sizes[b]))
    relation = {(a, b): _relation(problem, blocks[a], blocks[b]) for a in order for b in order}
    owners = {b.name: i for i, b in enumerate(problem.buffers)}
    paid = []  # for each penalty, whether its buffers have equally many slots
    of_pair = {}
    for index, penalty in enumerate(problem.penalties):
        one, two = owners[penalty.first], owners[penalty.second]
        paid.append(problem.buffers[one].slots == problem.buffers[two].slots)
        for a, (i, _) in enumerate(blocks):
            for b, (j, _) in enumerate(blocks):
                if {i, j} == {one, two}:
                    of_pair[a, b] = index
    placed = {}

    def meets(one, at, two, to):
        return at < to + sizes[two] and to < at + sizes[one] and sizes[one] and sizes[two]

    def price(due):
        return sum(
            p.cost if crossed else p.cost_if_slots_match
            for p, crossed in ((problem.penalties[i], due[i]) for i in due)
        )

    def extend(depth, peak, due):
        """Place the rest; `due` is a penalty to whether it is due for more than being in step."""
        nonlocal best
        score = (price(due), peak)
        if best is not None and score >= best:
            return  # neither can fall
        if depth == len(order):
            best = score
            return
        block = order[depth]
        for offset in choices[block]:
            more = dict(due)
            for other, to in placed.items():
                if not meets(block, offset, other, to):
                    continue
                how = relation[block, other]
                if how == "never" or (how == "in place" and offset != to):
                    break
                index = of_pair.get((block, other))
                if index is not None:
                    step = paid[index] and blocks[block][1] == blocks[other][1]
                    more[index] = more.get(index, False) or not step
            else:
                placed[block] = offset
                extend(depth + 1, max(peak, offset + sizes[block]), more)
                del placed[block]

    extend(0, 0, {})
    return best


def is_right(problem, plan):
    """Whether a plan breaks nothing but perhaps the capacity: byte by byte, pair by pair."""
    counts = [len(plan.offsets[b.name]) for b in problem.buffers]
    for buffer, count in zip(problem.buffers, counts, strict=True):
        if count < buffer.slots or (count > buffer.slots and not rotates(buffer)):
            return False
    problem = with_counts(problem, counts)
    placed = {
        (i, slot): offset
        for i, b in enumerate(problem.buffers)
        for slot, offset in enumerate(plan.offsets[b.name])
    }
    pairs = product(placed.items(), placed.items())
    return all(place_is_right(problem, b, o) for b, o in placed.items()) and all(
        one == two or pair_is_right(problem, one, at, two, to) for (one, at), (two, to) in pairs
    )
