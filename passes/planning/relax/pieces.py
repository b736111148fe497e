"""Cut a plan into pieces: the allocations that a program makes at run time.

An arena is one piece. A chip has one memory, but a program that a runtime serves may allocate
several pieces, and two things become possible:

- A tensor that the function returns must be an allocation of its own, since its caller keeps it.
  Until it is written, its bytes can hold tensors that end before. TVM's own plan gets the same by
  chance, where its pooled allocator hands a freed storage of the same size out again.
- Where a size is known at run time only, offsets are multiples of an unknown unit, and padding
  multiplies too. There, pieces of one slot each can take less than one piece with offsets.

All sizes are in bytes of a problem, which may itself count bytes for each of an unknown unit.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from passes.planning.plan import Plan, Status
from passes.planning.problem import Buffer, Problem
from passes.planning.verify import check
from target_hw.memory import MemoryScope

PAGE = 4096
"""Bytes that TVM's pooled allocator rounds an allocation up to (``kDefaultPageSize``)."""

Solver = Callable[[Problem], Plan]


@dataclass(frozen=True)
class Piece:
    """One allocation.

    Parameters
    ----------
    size : int
        Bytes.
    offsets : mapping of str to int
        Of each buffer in it, by name, in bytes from its start.
    """

    size: int
    offsets: Mapping[str, int]


def in_one_piece(plan: Plan) -> tuple[Piece, ...]:
    """Return a plan as one piece; as none where it has no bytes."""
    offsets = {name: offset for name, (offset,) in plan.offsets.items()}
    return (Piece(plan.peak, offsets),) if offsets else ()


def constant_pieces(
    problem: Problem, returned: Sequence[Buffer], plan: Plan, solver: Solver
) -> tuple[Piece, ...]:
    """Return the pieces for which TVM's pooled allocator hands out the fewest bytes.

    Only those are looked at that ask for no more bytes than slots do, which need no padding.

    Parameters
    ----------
    problem : Problem
        Without a capacity.
    returned : sequence of Buffer
        Tensors that are allocated by themselves, unless a piece has room for something else.
    plan : Plan
        Of the problem.
    solver : callable
        From a problem with pinned buffers and reserved ranges to a plan.
    """
    slots = [in_growing_slots(problem, returned, PAGE), in_slots_of_one_size(problem, returned)]
    most = min(_bytes(pieces, returned) for pieces in slots)
    candidates = [in_one_piece(plan), *slots]
    if can_gain(problem, returned, plan.peak):
        candidates += (with_returned(problem, returned, solver, room) for room in (1, PAGE))
    few = [pieces for pieces in candidates if _bytes(pieces, returned) <= most]
    best = min(few, key=lambda pieces: _handed_out(pieces, returned))
    return _checked(problem, returned, best)


def symbolic_pieces(
    problem: Problem, returned: Sequence[Buffer], plan: Plan, solver: Solver
) -> tuple[Piece, ...]:
    """Return the pieces that take the fewest bytes, where one byte stands for an unknown unit.

    Parameters
    ----------
    problem, returned, plan, solver
        As `constant_pieces` takes them.
    """
    if not problem.buffers:
        return ()
    slots = [in_growing_slots(problem, returned), in_slots_of_one_size(problem, returned)]
    candidates = [in_one_piece(plan), *slots]
    if can_gain(problem, returned, plan.peak):
        candidates.append(with_returned(problem, returned, solver))
    best = min(candidates, key=lambda pieces: (_bytes(pieces, returned), len(pieces)))
    return _checked(problem, returned, best)


def _checked(
    problem: Problem, returned: Sequence[Buffer], pieces: tuple[Piece, ...]
) -> tuple[Piece, ...]:
    """Return pieces, or raise `PlanError` where two buffers of one piece share bytes."""
    buffers = {buffer.name: buffer for buffer in (*problem.buffers, *returned)}
    placed = [name for piece in pieces for name in piece.offsets]
    missing = {buffer.name for buffer in problem.buffers} - set(placed)
    if missing or len(placed) != len(set(placed)):
        raise AssertionError(f"{problem.name}: buffers are in no piece or in two: {placed}")
    for piece in pieces:
        part = Problem(
            tuple(buffers[name] for name in piece.offsets),
            MemoryScope(problem.memory.name, max(piece.size, 1)),
            name=problem.name,
        )
        peak = max(offset + buffers[name].size for name, offset in piece.offsets.items())
        offsets = {name: (offset,) for name, offset in piece.offsets.items()}
        check(part, Plan(offsets, peak, 0, "pieces", Status.FEASIBLE))
    return pieces


def _handed_out(pieces: Sequence[Piece], returned: Sequence[Buffer]) -> tuple[int, int, int]:
    """Return the bytes that the allocator hands out, those that are asked for, and how often."""
    sizes = [piece.size for piece in pieces] + _alone(pieces, returned)
    return sum(-(-size // PAGE) * PAGE for size in sizes), sum(sizes), len(sizes)


def _bytes(pieces: Sequence[Piece], returned: Sequence[Buffer]) -> int:
    """Return the bytes that are asked for."""
    return sum(piece.size for piece in pieces) + sum(_alone(pieces, returned))


def _alone(pieces: Sequence[Piece], returned: Sequence[Buffer]) -> list[int]:
    """Return the sizes of the returned tensors that are in no piece."""
    placed = {name for piece in pieces for name in piece.offsets}
    return [buffer.size for buffer in returned if buffer.name not in placed]


# ---------------------------------------------------------------- in the memory of what is returned


def with_returned(
    problem: Problem, returned: Sequence[Buffer], solver: Solver, room: int = 1
) -> tuple[Piece, ...]:
    """Place buffers in one piece, and in the pieces of returned tensors until those begin.

    Each returned tensor is pinned in a range of its own, and a reserved range between two ranges
    keeps every buffer within one of them. So any planner that knows pinned buffers and reserved
    ranges decides.

    Parameters
    ----------
    problem : Problem
        Without a capacity and reserved ranges.
    returned : sequence of Buffer
        Live from their first touch to the end.
    solver : callable
        From a problem to a plan.
    room : int
        The range of a returned tensor is as large as the tensor, rounded up to this many bytes.

    Returns
    -------
    tuple of Piece
        That of the problem's own buffers, then those of returned tensors in which something else
        is, too. A returned tensor without a piece is to be allocated by itself.
    """
    unit = problem.memory.alignment
    starts, reserved, pinned = [], [], []
    end = 0
    for buffer in returned:
        starts.append(end)
        pinned.append(replace(buffer, pinned=(end,)))
        inner = end + -(-buffer.size // room) * room
        end = -(-inner // unit) * unit + unit
        reserved.append((inner, end))
    ranged = replace(
        problem,
        buffers=(*pinned, *problem.buffers),
        memory=replace(problem.memory, reserved=tuple(reserved)),
    )
    plan = solver(ranged)
    check(ranged, plan)
    inside: dict[int, dict[str, int]] = defaultdict(dict)
    own: dict[str, int] = {}
    size_of = {buffer.name: buffer.size for buffer in ranged.buffers}
    for buffer in problem.buffers:
        (offset,) = plan.offsets[buffer.name]
        if offset >= end:
            own[buffer.name] = offset - end
        else:
            number = max(n for n, start in enumerate(starts) if start <= offset)
            inside[number][buffer.name] = offset - starts[number]
    pieces = [Piece(max(own[name] + size_of[name] for name in own), own)] if own else []
    for number, offsets in sorted(inside.items()):
        offsets[returned[number].name] = 0
        pieces.append(Piece(max(at + size_of[name] for name, at in offsets.items()), offsets))
    return tuple(pieces)


def can_gain(problem: Problem, returned: Sequence[Buffer], peak: int) -> bool:
    """Whether placing buffers in what is returned can lower a peak, as far as a bound tells."""
    if not returned or not problem.buffers:
        return False
    first = min(buffer.live[0][0] for buffer in returned)
    room = sum(buffer.size for buffer in returned)
    before, behind = _most_live(problem, first)
    return max(behind, before - room) < peak


def _most_live(problem: Problem, position: int) -> tuple[int, int]:
    """Return the most bytes live before a position, and from it on."""
    change: dict[int, int] = defaultdict(int)
    for buffer in problem.buffers:
        for begin, end in buffer.live:
            change[begin] += buffer.size
            change[end] -= buffer.size
    live, before, behind = 0, 0, 0
    for at in sorted(change):
        if at > position:
            behind = max(behind, live)
        live += change[at]
        if at < position:
            before = max(before, live)
        else:
            behind = max(behind, live)
    return before, behind


# --------------------------------------------------------------------------- as other programs do

LEAST_SHARED = 16 * PAGE
"""Bytes of the smallest piece that functions are made to have in common."""


def divided(
    problem: Problem, piece: Piece, sizes: Sequence[int], solver: Solver
) -> tuple[Piece, ...] | None:
    """Divide a piece, so that it begins with pieces of given sizes.

    TVM's pooled allocator hands a freed piece out again to a request of the same pages. Functions
    of one module that run one after another then share pieces of equal size.

    Parameters
    ----------
    problem : Problem
        The buffers in the piece.
    piece : Piece
        What is divided.
    sizes : sequence of int
        Bytes of the first pieces; their sum is at most the piece's size.
    solver : callable
        From a problem with reserved ranges to a plan.

    Returns
    -------
    tuple of Piece or None
        None where the pieces would take more bytes than the whole.
    """
    unit = problem.memory.alignment
    starts, reserved, end = [0], [], 0
    for size in sizes:
        inner = end + size
        end = -(-inner // unit) * unit + unit
        reserved.append((inner, end))
        starts.append(end)
    ranged = replace(problem, memory=replace(problem.memory, reserved=tuple(reserved)))
    plan = solver(ranged)
    check(ranged, plan)
    inside: list[dict[str, int]] = [{} for _ in starts]
    for name, (offset,) in plan.offsets.items():
        number = max(n for n, start in enumerate(starts) if start <= offset)
        inside[number][name] = offset - starts[number]
    size_of = {buffer.name: buffer.size for buffer in problem.buffers}
    rest = max((offset + size_of[name] for name, offset in inside[-1].items()), default=0)
    pieces = [Piece(size, offsets) for size, offsets in zip((*sizes, rest), inside, strict=True)]
    used = tuple(piece for piece in pieces if piece.offsets)
    return used if sum(piece.size for piece in used) <= piece.size else None


def with_common_sizes(
    parts: Sequence[tuple[Problem, tuple[Piece, ...]]], solver: Solver
) -> list[tuple[Piece, ...]]:
    """Divide the pieces of functions, so that they have pieces of equal size.

    Parameters
    ----------
    parts : sequence of (Problem, tuple of Piece)
        Of each function, the problem and its pieces. The largest piece that is not returned is
        divided.
    solver : callable
        As `divided` takes it.

    Returns
    -------
    list of tuple of Piece
        For each function, in the order of `parts`.
    """
    result = [pieces for _, pieces in parts]
    there = _common_sizes([problem for problem, _ in parts])
    for number in sorted(range(len(parts)), key=lambda n: _largest(parts[n][1])):
        problem, pieces = parts[number]
        own = [piece for piece in pieces if piece.offsets.keys() <= problem.index.keys()]
        mine = max(own, key=lambda piece: piece.size, default=None)
        common: list[int] = []
        for size in sorted(there, reverse=True):
            if mine is not None and sum(common) + size <= mine.size:
                common.append(size)
        for sizes in (common, common[:1]):
            if mine is None or not sizes or sizes == [mine.size]:
                break
            inside = tuple(b for b in problem.buffers if b.name in mine.offsets)
            part = replace(problem, buffers=inside)
            found = divided(part, mine, sizes, solver)
            if found is not None:
                others = tuple(piece for piece in pieces if piece is not mine)
                result[number] = _checked(part, (), found) + others
                break
        for piece in result[number]:
            if piece.size >= LEAST_SHARED and there.count(piece.size) < _count(
                result[number], piece.size
            ):
                there.append(piece.size)
    return result


def _common_sizes(problems: Sequence[Problem]) -> list[int]:
    """Return the size of the largest buffer that two functions have, in a list; else none.

    In a network that is called by several functions that is, as a rule, a transposed weight.
    """
    functions = Counter(
        size for problem in problems for size in {buffer.size for buffer in problem.buffers}
    )
    common = [size for size, count in functions.items() if count > 1 and size >= LEAST_SHARED]
    return [max(common)] if common else []


def _largest(pieces: Sequence[Piece]) -> int:
    return max((piece.size for piece in pieces), default=0)


def _count(pieces: Sequence[Piece], size: int) -> int:
    return sum(piece.size == size for piece in pieces)


# ---------------------------------------------------------------------------------------- in slots


@dataclass
class _Slot:
    """A piece that holds one buffer at a time."""

    size: int
    buffers: list[Buffer]

    @property
    def end(self) -> int:
        """The position from which on it is free."""
        return max(buffer.live[-1][1] for buffer in self.buffers)

    def piece(self) -> Piece:
        return Piece(self.size, {buffer.name: 0 for buffer in self.buffers})


REACH = 16
"""A slot is given to a buffer of at most so many times its size, or at least that part of it."""


def in_growing_slots(
    problem: Problem, returned: Sequence[Buffer] = (), page: int = 1
) -> tuple[Piece, ...]:
    """Return slots by the rule of TVM's own plan, `StaticPlanBlockMemory`.

    In the order in which buffers begin, each takes the smallest free slot that is large enough, or
    else the largest of those that are not, which grows; within `REACH`. A returned tensor takes a
    slot that is free by then and has as many pages, as TVM's pooled allocator would hand it out
    again.
    """
    slots: list[_Slot] = []
    for buffer in sorted(problem.buffers, key=lambda buffer: buffer.live[0][0]):
        free = [slot for slot in slots if slot.end <= buffer.live[0][0]]
        larger = [slot for slot in free if buffer.size <= slot.size <= buffer.size * REACH]
        smaller = [slot for slot in free if buffer.size // REACH <= slot.size < buffer.size]
        if larger or smaller:
            slot = min(larger, key=_size) if larger else max(smaller, key=_size)
            slot.size = max(slot.size, buffer.size)
            slot.buffers.append(buffer)
        else:
            slots.append(_Slot(buffer.size, [buffer]))
    _give_to_returned(slots, returned, page)
    return tuple(slot.piece() for slot in slots)


def _size(slot: _Slot) -> int:
    return slot.size


def _give_to_returned(slots: Sequence[_Slot], returned: Sequence[Buffer], page: int) -> None:
    taken: set[int] = set()
    for buffer in returned:
        for number, slot in enumerate(slots):
            pages = -(-slot.size // page), -(-buffer.size // page)
            if number not in taken and slot.end <= buffer.live[0][0] and pages[0] == pages[1]:
                taken.add(number)
                slot.size = max(slot.size, buffer.size)
                slot.buffers.append(buffer)
                break


def in_slots_of_one_size(problem: Problem, returned: Sequence[Buffer] = ()) -> tuple[Piece, ...]:
    """Return slots that only buffers of equal size share, each with at most one returned tensor.

    There are as few of each size as can be, so these never take more than TVM's own plan of
    symbolic sizes, which shares a storage among tensors of one size alone.
    """
    names = {buffer.name for buffer in returned}
    slots: list[_Slot] = []
    for buffer in sorted((*problem.buffers, *returned), key=lambda buffer: buffer.live[0][0]):
        begin = buffer.live[0][0]
        same = (slot for slot in slots if slot.size == buffer.size and slot.end <= begin)
        slot = next(same, None)
        if slot is None:
            slots.append(_Slot(buffer.size, [buffer]))
        else:
            slot.buffers.append(buffer)
    pieces = (slot.piece() for slot in slots)
    return tuple(piece for piece in pieces if not piece.offsets.keys() <= names)
