# SPDX-License-Identifier: Apache-2.0
"""The fewest bytes that several memories can move, by trying everything."""

from itertools import permutations, product
from math import lcm


def has_room(pieces, memory):
    """Whether (size, alignment, live ranges, pinned) fit a memory, in any order of offsets."""
    if memory.capacity is None:
        return True
    for order in permutations(pieces):
        placed = []
        for size, alignment, live, pinned in order:
            taken = [(low, high) for low, high, other in placed if _meet(live, other)]
            offset = _lowest(size, lcm(alignment, memory.alignment), taken, memory) if (
                pinned is None
            ) else pinned  # fmt: skip
            if any(low < offset + size and offset < high for low, high in taken):
                break
            placed.append((offset, offset + size, live))
        else:
            if all(high <= memory.capacity for _, high, _ in placed):
                return True
    return False


def _meet(one, two):
    return any(a < d and c < b for a, b in one for c, d in two)


def _lowest(size, step, taken, memory):
    offset = 0
    while any(a < offset + size and offset < b for a, b in (*taken, *memory.reserved)):
        offset += step
    return offset


def lives(problem, buffer, moves):
    """Yield (pieces by memory, bytes by memory) for each way in which one buffer can live."""
    traffic = problem.traffic.get(buffer.name)
    uses = 1 if traffic is None else traffic.uses
    names = [memory.name for memory in problem.memories]
    allowed = names if traffic is None or traffic.memories is None else traffic.memories
    whole = [(buffer.size, buffer.alignment, buffer.live, (buffer.pinned or (None,))[0])]
    for name in allowed:
        default = 0 if name == names[0] else uses * buffer.size
        cost = default if traffic is None else traffic.costs.get(name, default)
        yield {name: whole * buffer.slots}, {name: cost}
    touches = () if traffic is None else traffic.touches
    if not moves or len(touches) < 2 or traffic.costs:
        return
    if traffic.stored_in is None and (touches[0], touches[-1] + 1) != buffer.live[0]:
        return
    for home in allowed:
        if traffic.stored_in not in (None, home):
            continue
        faster = [name for name in allowed if names.index(name) < names.index(home)]
        for where in product([None, *faster], repeat=len(touches)):
            for kept in product([False, True], repeat=len(touches) - 1):
                found = _life(buffer, traffic, home, where, kept)
                if found is not None:
                    pieces, cost = found
                    pieces.setdefault(home, []).extend(whole)
                    yield pieces, {home: cost}


def _life(buffer, traffic, home, where, kept):
    """One way to move: where each touch happens (None is home), and which gaps are bridged."""
    touches = traffic.touches
    pieces, cost, begin, end = {}, 0, None, None
    is_stored = traffic.stored_in is not None
    arrives = -1 if is_stored else touches[0] + 1  # When home has the value
    for at, touch in enumerate(touches):
        bridged = at > 0 and kept[at - 1]
        if bridged and (where[at] is None or where[at] != where[at - 1]):
            return None
        if where[at] is None:
            if touch < arrives and at > 0:
                return None
            cost += buffer.size
        elif not bridged:
            begin = touch
            if at > 0 or is_stored:
                begin, cost = touch - 1, cost + buffer.size
                previous = touches[at - 1] + 1 if at else buffer.live[0][0]
                if begin < max(previous, arrives):
                    return None
        if where[at] is not None and (at == len(touches) - 1 or not kept[at]):
            end = touch + 1
            if touches[at] == begin and at == 0:
                return None  # What is made and leaves at once is as well made at home
            pieces.setdefault(where[at], []).append(
                (buffer.size, buffer.alignment, ((begin, end),), None)
            )
            if begin == touches[0] and not is_stored:
                arrives, cost = end, cost + buffer.size
    if not is_stored and all(where) and all(kept):
        cost = buffer.size
    return pieces, cost


def least_moved(problem, moves=False):
    """Return the fewest bytes over each bus, the last memory's first; None if nothing fits."""
    names = [memory.name for memory in reversed(problem.memories)]
    best = None
    ways = [list(lives(problem, buffer, moves)) for buffer in problem.buffers]
    for chosen in product(*ways):
        moved = tuple(sum(cost.get(name, 0) for _, cost in chosen) for name in names)
        if best is not None and moved >= best:
            continue
        if all(
            has_room([p for pieces, _ in chosen for p in pieces.get(memory.name, ())], memory)
            for memory in problem.memories
        ):
            best = moved
    return best
