# SPDX-License-Identifier: Apache-2.0
"""Random small problems, and oracles that share no code with what they judge."""

import math
from dataclasses import replace
from itertools import combinations, product
from random import Random

from hypothesis import strategies as st

from passes.planning import Buffer, Penalty, PipelineUse, Problem
from target_hw.memory import MemoryScope

COSTS = (1, 2, 3)


def written(text, memory=None, **fields):
    """Return the problem of lines such as ``a 8 0 4; b 8 3 6 slots=2 align=4 pin=0,8 loop=0``.

    These are a name, the size, and one live range; `memory` may be a capacity, and pairs of one
    letter each may be written as words.
    """
    buffers = []
    for line in text.split(";") if text else ():
        name, size, begin, end, *more = line.split()
        given = dict(word.split("=") for word in more)
        pins = tuple(int(at) for at in given["pin"].split(",")) if "pin" in given else None
        slots = int(given.get("slots", len(pins or (0,))))
        loop = given.get("loop")
        use = None if loop is None else PipelineUse(loop=int(loop) if loop else None)
        live, alignment = ((int(begin), int(end)),), int(given.get("align", 1))
        buffers.append(Buffer(name, int(size), live, alignment, slots, pins, use))
    for name in ("in_place", "separations"):
        if isinstance(fields.get(name), str):
            fields[name] = [tuple(pair) for pair in fields[name].split()]
    if not isinstance(memory, MemoryScope):
        memory = MemoryScope("local.UB", memory)
    return Problem(tuple(buffers), memory, **fields)


def parts(rng, most_buffers=4, most_slots=5, roles=None, pins=None, first=0, costs=COSTS):
    """Return small buffers with every feature, and what else a problem of them has.

    Parameters
    ----------
    rng : random.Random
        What everything is drawn from.
    most_buffers, most_slots : int
        How many buffers there are at most, and how many slots they have together.
    roles : str, optional
        What pairs are drawn from: nothing (``-``), in place (``i``), separated (``s``), at a cost
        (``p``), and both in place and at a cost (``q``).
    pins : int, optional
        Of ten buffers, how many are pinned.
    first : int
        The first position.
    costs : tuple of int
        What pairs may cost.
    """
    unit = rng.choice((1, 1, 2, 4))
    alignments = rng.choice(((1,), (1, 2, 4), (4, 8, 16), (1, 2, 3), (3, 5, 7), (2, 4, 6)))
    pins = rng.choice((0, 0, 1, 3)) if pins is None else pins
    buffers, left, most = [], rng.randint(1, most_slots), rng.randint(1, most_buffers)
    while left > 0 and len(buffers) < most:
        use = _use(rng) if rng.random() < 0.3 else None
        slots = min(left, rng.choice((1, 1, 1, 1, 2)))
        left -= slots
        alignment = rng.choice(alignments)
        pinned = None
        if rng.randrange(10) < pins:
            places = range(0, 25, alignment)
            pinned = tuple(0 if rng.random() < 0.5 else rng.choice(places) for _ in range(slots))
        size = unit * rng.randint(0 if rng.random() < 0.2 else 1, 5)
        points = sorted(rng.sample(range(first, first + 7), 4 if rng.random() < 0.25 else 2))
        live = tuple(zip(points[::2], points[1::2], strict=True))
        buffers.append(Buffer(f"b{len(buffers)}", size, live, alignment, slots, pinned, use))
    pairs = list(combinations([buffer.name for buffer in buffers], 2))
    weights = roles or rng.choice(("-", "---i", "-iii", "---s", "--pp", "-ispqq", "-iiqpp", "iiq"))
    chosen = {pair: rng.choice(weights) for pair in pairs}
    in_place = [pair[:: rng.choice((1, -1))] for pair in pairs if chosen[pair] in "iq"]
    rng.shuffle(in_place)
    reserved = rng.choice(((), (), (), ((0, unit),), ((2, 4),), ((1, 2), (unit + 4, unit + 8))))
    return buffers, {
        "memory": MemoryScope("local.UB", None, rng.choice((1, 1, 1, 2, 4)), reserved=reserved),
        "in_place": in_place,
        "separations": [pair for pair in pairs if chosen[pair] == "s"],
        "penalties": [_penalty(rng, pair, costs) for pair in pairs if chosen[pair] in "pq"],
    }


def _use(rng):
    loop = rng.choice((None, 0, 0, 1))
    return PipelineUse(rng.random() < 0.5, rng.random() < 0.3, loop, rng.choice((1, 4)))


def _penalty(rng, pair, costs):
    cost = rng.choice(costs)
    return Penalty(*pair, cost, rng.choice((None, 1, cost, rng.randint(1, cost))))


def random_problem(rng, *args, capacity_of=None, **options):
    """Return a problem of `parts`; its capacity is any, or what a function says of it."""
    while True:
        try:
            buffers, fields = parts(rng, *args, **options)
            problem = Problem(tuple(buffers), **fields)
            capacity = rng.choice((None, rng.randint(8, 28)))
            capacity = capacity_of(rng, problem) if capacity_of else capacity
            return replace(problem, memory=replace(problem.memory, capacity=capacity))
        except ValueError:  # pins or a capacity that contradict each other or a reserved range
            continue


def problems(most_buffers=4, most_slots=5, **options):
    """Problems with every feature, small enough to be solved by trying every offset."""
    seeds = st.integers(0, 1 << 32)
    return seeds.map(lambda s: random_problem(Random(s), most_buffers, most_slots, **options))


def table(seed, count, share=0.1, alignments=(1,), reserved=(), separated=0):
    """Return many buffers, of which about `share` are live at once."""
    rng = Random(seed)
    buffers = []
    for index in range(count):
        begin = rng.randrange(10 * count)
        live = ((begin, begin + 1 + int(rng.expovariate(1 / (10 * count * share)))),)
        size = int(2 ** rng.uniform(4, 16))
        buffers.append(Buffer(str(index), size, live, rng.choice(alignments)))
    pairs = {tuple(sorted(rng.sample(range(count), 2))) for _ in range(separated)}
    separations = [(str(one), str(two)) for one, two in sorted(pairs)]
    memory = MemoryScope("global", reserved=reserved)
    return Problem(tuple(buffers), memory, separations=separations)


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
    """Whether a plan breaks no rule of a problem: block by block, and pair by pair."""
    counts = [len(plan.offsets[b.name]) for b in problem.buffers]
    for buffer, count in zip(problem.buffers, counts, strict=True):
        if count < buffer.slots or (count > buffer.slots and not rotates(buffer)):
            return False
        if buffer.pinned is not None and buffer.pinned != tuple(plan.offsets[buffer.name]):
            return False
    problem = with_counts(problem, counts)
    placed = [((i, k), plan.offsets[problem.buffers[i].name][k]) for i, k in blocks_of(problem)]
    if not all(may_stand(problem, problem.buffers[i], at) for (i, _), at in placed):
        return False
    for (one, at), (two, to) in combinations(placed, 2):
        end, limit = at + problem.buffers[one[0]].size, to + problem.buffers[two[0]].size
        how = _relation(problem, one, two) if at < limit and to < end else "free"
        if how == "never" or (how == "in place" and at != to):
            return False
    return True
