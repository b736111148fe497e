"""Random small problems, and oracles that share no code with what they judge."""

from dataclasses import replace
from itertools import product

from hypothesis import strategies as st

from passes.planning import Buffer, Penalty, PipelineUse, Problem
from target_hw.memory import MemoryScope

POSITIONS = 7


@st.composite
def live_ranges(draw, most=2):
    points = draw(st.lists(st.integers(0, POSITIONS), min_size=2, max_size=2 * most, unique=True))
    points = sorted(points[: len(points) // 2 * 2])
    return tuple(zip(points[::2], points[1::2], strict=True))


@st.composite
def memories(draw):
    capacity = draw(st.one_of(st.none(), st.integers(4, 14)))
    reserved = draw(st.sampled_from([(), (), (), ((0, 1),), ((2, 4),), ((1, 2), (3, 4))]))
    alignment = draw(st.sampled_from([1, 1, 2, 4]))
    return MemoryScope("local.UB", capacity, alignment, reserved=reserved)


@st.composite
def problems(draw, most_buffers=4, most_slots=5):
    """Problems with every feature, small enough to be solved by trying every offset."""
    buffers = []
    slots_left = most_slots
    for index in range(draw(st.integers(1, most_buffers))):
        slots = draw(st.sampled_from([1, 1, 1, 2]))
        if slots > slots_left:
            break
        use = draw(uses())
        if slots_left < 2 and use and use.loop is not None:
            use = None  # brute force tries two offsets for it
        slots_left -= slots if use is None or use.loop is None else 2
        alignment = draw(st.sampled_from([1, 1, 2, 3]))
        pinned = None
        if draw(st.integers(0, 9)) == 0:
            pinned = tuple(draw(st.integers(0, 3)) * 12 for _ in range(slots))
        size = draw(st.integers(0, 4))
        live = draw(live_ranges())
        buffers.append(Buffer(f"b{index}", size, live, alignment, slots, pinned, use))
    names = [buffer.name for buffer in buffers]
    pairs = [(a, b) for i, a in enumerate(names) for b in names[i + 1 :]]
    roles = draw(st.lists(st.sampled_from("-----ispq"), min_size=len(pairs), max_size=len(pairs)))
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


@st.composite
def uses(draw):
    kind = draw(st.integers(0, 11))
    return PipelineUse(loop=max(0, kind - 2)) if kind < 4 else None


@st.composite
def charges(draw):
    cost = draw(st.integers(1, 3))
    return cost, draw(st.one_of(st.none(), st.integers(1, cost)))


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


def penalty_of(problem, placed):
    """Return what a complete placement, block to offset, costs: byte by byte."""
    total = 0
    for penalty in problem.penalties:
        taken = [
            {
                slot: set(range(offset, offset + problem.buffers[i].size))
                for (i, slot), offset in placed.items()
                if problem.buffers[i].name == name
            }
            for name in (penalty.first, penalty.second)
        ]
        met = [(a, b) for a, b in product(*taken) if taken[0][a] & taken[1][b]]
        if not met:
            continue
        in_step = len(taken[0]) == len(taken[1]) and all(a == b for a, b in met)
        total += penalty.in_step if in_step and penalty.in_step else penalty.cost
    return total


def best_by_brute_force(problem):
    """Return the least (penalty, peak) that fits, or None; tries every number of offsets."""
    most = max((b.slots for b in problem.buffers), default=0)
    counts = [range(b.slots, (most if rotates(b) else b.slots) + 1) for b in problem.buffers]
    best = None
    for chosen in product(*counts):
        best = _best_of_all_offsets(with_counts(problem, chosen), best)
    return best


def _best_of_all_offsets(problem, best):
    """Return the least (penalty, peak) that fits, or `best`; tries every offset of every block."""
    blocks = blocks_of(problem)
    # Above all that is fixed there is room for the rest, one after the other.
    fixed = [end for _, end in problem.memory.reserved]
    fixed += [offset + b.size for b in problem.buffers for offset in b.pinned or ()]
    top = max(fixed, default=0)
    top += sum(b.slots * (b.size + problem.alignment_of(b)) for b in problem.buffers)
    if problem.capacity is not None:
        top = min(top, problem.capacity)
    choices = [[o for o in range(top + 1) if place_is_right(problem, b, o)] for b in blocks]

    def extend(placed, peak):
        nonlocal best
        if best is not None and best[0] == 0 and peak >= best[1]:
            return  # nothing costs less than nothing
        if len(placed) == len(blocks):
            score = (penalty_of(problem, placed), peak)
            best = score if best is None else min(best, score)
            return
        block = blocks[len(placed)]
        for offset in choices[len(placed)]:
            if all(pair_is_right(problem, block, offset, b, o) for b, o in placed.items()):
                end = offset + problem.buffers[block[0]].size
                extend({**placed, block: offset}, max(peak, end))

    extend({}, 0)
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
