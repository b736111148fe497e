# SPDX-License-Identifier: Apache-2.0
"""The storages of a function, what stands in them, and what TVM's pool takes for them.

An arena is one storage, a piece. With several pieces, two things become possible:

- A tensor that the function returns must be an allocation of its own, since its caller keeps it.
  Until it is written, its bytes can hold tensors that end before.
- Where a size is known at run time only, padding multiplies too, and slots can take less: pieces in
  which tensors that are never live together take turns, all at offset 0.

The allocator (``src/runtime/memory/pooled_allocator.h``) rounds a request up to pages, and hands
what is given back to a request of as many pages alone. So it takes, of each number of pages, as
many blocks as are in use at one time; calls one after the other take the most that one takes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from passes.planning import Buffer, LiveRange, Plan, Problem, Solver, Status, check
from target_hw.memory import MemoryScope, round_up

PAGE = 4096  # Bytes that TVM's pooled allocator rounds an allocation up to (``kDefaultPageSize``)

MOST_PATHS = 128  # Paths through one function that are followed


@dataclass(frozen=True)
class Piece:
    """One storage."""

    size: int  # Bytes
    offsets: Mapping[str, int]  # Of each buffer in it, by name, in bytes from its start
    scope: str | None = None  # The memory that it is in, where that is not its group's


Pieces = tuple[Piece, ...]

Placement = tuple[Pieces, ...]
"""For each group of a function's tensors, the storages and what stands where in them."""

Path = tuple[tuple[int, int], ...]
"""The branches that lead to where a buffer begins: each `if`, and which branch was taken."""


def checked(name: str, buffers: Sequence[Buffer], pieces: Pieces) -> Pieces:
    """Return the pieces of a function, or raise `PlanError` where two buffers share bytes."""
    known = {buffer.name: buffer for buffer in buffers}
    placed = [inner for piece in pieces for inner in piece.offsets]
    if len(placed) != len(set(placed)):
        raise AssertionError(f"{name}: a buffer is in two pieces: {placed}")
    for piece in pieces:
        inside = tuple(known[inner] for inner in piece.offsets)
        part = Problem(inside, MemoryScope("global", max(piece.size, 1)), name=name)
        peak = max(piece.offsets[buffer.name] + buffer.size for buffer in inside)
        offsets = {inner: (offset,) for inner, offset in piece.offsets.items()}
        check(part, Plan(offsets, peak, 0, "pieces", Status.FEASIBLE))
    return pieces


def each_storage(
    buffers: Sequence[Buffer], pieces: Pieces
) -> Iterator[tuple[int, tuple[Buffer, ...]]]:
    """Yield the bytes of each piece with its buffers, and the buffers in no piece by themselves."""
    known = {buffer.name: buffer for buffer in buffers}
    for piece in pieces:
        yield piece.size, tuple(known.pop(name) for name in piece.offsets)
    for buffer in known.values():
        yield buffer.size, (buffer,)


def in_slots_of(slots: Iterable[Sequence[Buffer]]) -> Pieces:
    """Return pieces that each hold one buffer at a time."""
    return tuple(
        Piece(max(buffer.size for buffer in slot), dict.fromkeys((b.name for b in slot), 0))
        for slot in slots
    )


def in_one_piece(plan: Plan) -> Pieces:
    """Return a plan as one piece; as none where it has no bytes."""
    offsets = {name: offset for name, (offset,) in plan.offsets.items()}
    return (Piece(plan.peak, offsets),) if offsets else ()


def in_slots(problem: Problem, plan: Plan) -> Pieces:
    """Return the slots of a plan in which two buffers begin at one byte or share none."""
    slots: dict[int, list[Buffer]] = {}
    for buffer in problem.buffers:
        slots.setdefault(plan.offsets[buffer.name][0], []).append(buffer)
    return in_slots_of(slots[start] for start in sorted(slots))


def in_given_slots(
    problem: Problem, shared: Sequence[Sequence[str]], paths: Mapping[str, Path]
) -> Pieces:
    """Return slots that another plan shares, as far as that plan is right."""
    slots: list[list[Buffer]] = []
    for names in shared:
        mine: list[list[Buffer]] = []
        for name in names:
            buffer, path = problem.buffers[problem.index[name]], paths[name]
            for slot in mine:
                there = paths[slot[0].name]
                if slot[-1].live[-1][1] <= buffer.live[0][0] and path[: len(there)] == there:
                    slot.append(buffer)
                    break
            else:
                mine.append([buffer])
        slots += mine
    return in_slots_of(slots)


def with_returned(
    problem: Problem, returned: Sequence[Buffer], solver: Solver, room: int = 1
) -> Pieces:
    """Place buffers in one piece, and in the pieces of returned tensors until those begin.

    Such a piece has the tensor's bytes, rounded up to a multiple of `room`; it is left out where
    nothing else is in it.
    """
    # The pieces are ranges of one memory. A reserved range after each keeps buffers within one.
    starts, reserved, pinned = [0], [], []
    for buffer in returned:
        end = starts[-1] + round_up(buffer.size, room)
        pinned.append(replace(buffer, pinned=(starts[-1],)))
        starts.append(round_up(end, problem.memory.alignment) + problem.memory.alignment)
        reserved.append((end, starts[-1]))
    memory = replace(problem.memory, reserved=tuple(reserved))
    ranged = replace(problem, buffers=(*pinned, *problem.buffers), memory=memory)
    plan = solver(ranged)
    check(ranged, plan)
    inside: list[dict[str, int]] = [{} for _ in starts]
    sizes = [0] * len(starts)
    for buffer in ranged.buffers:
        (offset,) = plan.offsets[buffer.name]
        number = bisect_right(starts, offset) - 1
        inside[number][buffer.name] = offset - starts[number]
        sizes[number] = max(sizes[number], offset - starts[number] + buffer.size)
    *results, own = map(Piece, sizes, inside)
    pieces = [own] if own.offsets else []
    return (*pieces, *(piece for piece in results if len(piece.offsets) > 1))


Pool = tuple[int, str]
"""A device, and a scope whose memory is not in the device's own pool; empty for that."""

Blocks = Counter[tuple[Pool, int]]
"""By pool and bytes of whole pages, how many such blocks there are."""


@dataclass(frozen=True)
class PoolAllocation:
    """One allocation of a function: a storage, or a tensor by itself."""

    pool: Pool
    count: int  # Bytes, or bytes for each of the unit
    unit: int  # Number of the symbolic product that `count` is multiplied with; 0 is the number 1
    begin: int  # The position of the binding that allocates it
    end: int  # The position from which on nothing in the function refers to it
    returned: bool = False  # Whether the caller gets it, or a tensor in it


def blocks_taken(
    allocations: Iterable[PoolAllocation],
    units: Sequence[int] = (1,),
    skipped: Sequence[LiveRange] = (),
    page: int = PAGE,
) -> Blocks:
    """Return the blocks that one call takes from an empty pool.

    The call does not make what is allocated in the `skipped` positions. `units` are the values of
    the symbolic products, 1 first.
    """
    changes: defaultdict[tuple[Pool, int], list[tuple[int, int]]] = defaultdict(list)
    for one in allocations:
        if not any(begin <= one.begin < end for begin, end in skipped):
            size = -(-one.count * units[one.unit] // page) * page
            changes[one.pool, size] += [(one.begin, 1), (one.end, -1)]
    # At one position, ends come first.
    most = {key: max(accumulate(by for _, by in sorted(all_))) for key, all_ in changes.items()}
    return Counter(most)


def bytes_of_blocks(blocks: Blocks) -> int:
    """Return the bytes that pools take from devices for some blocks."""
    return sum(size * count for (_, size), count in blocks.items())


def cost(buffers: Sequence[Buffer], pieces: Pieces, page: int) -> tuple[int, int, int]:
    """Return the bytes that are taken, those that are asked for, and how many pieces there are."""
    made = [
        PoolAllocation(
            (0, ""), size, 0, min(b.live[0][0] for b in inside), max(b.live[-1][1] for b in inside)
        )
        for size, inside in each_storage(buffers, pieces)
    ]
    taken = bytes_of_blocks(blocks_taken(made, page=page))
    return taken, sum(one.count for one in made), len(pieces)


def skipped_on_paths(
    branches: Mapping[int, tuple[LiveRange, LiveRange]],
) -> list[tuple[LiveRange, ...]] | None:
    """Return for each path the branches that it does not take; None above `MOST_PATHS` paths.

    `branches` has the two sides of each `if`, by its position.
    """
    paths: list[tuple[LiveRange, ...]] = [()]
    for position in sorted(branches):
        longer = []
        for path in paths:
            if any(begin <= position < end for begin, end in path):
                longer.append(path)
            else:
                longer += [(*path, side) for side in branches[position]]
        paths = longer
        if len(paths) > MOST_PATHS:
            return None
    return paths
