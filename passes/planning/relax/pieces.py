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

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from passes.planning.plan import Plan
from passes.planning.planner import Budget
from passes.planning.problem import Buffer, Problem
from passes.planning.sophgo.rec_tbl import rec_tbl
from passes.planning.verify import check

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
    candidates = [in_one_piece(plan)]
    if can_gain(problem, returned, plan.peak):
        candidates += (with_returned(problem, returned, solver, room) for room in (1, PAGE))
    return min(candidates, key=lambda pieces: _handed_out(pieces, returned))


def symbolic_pieces(
    problem: Problem, returned: Sequence[Buffer], solver: Solver, short_solver: Solver
) -> tuple[Piece, ...]:
    """Return the pieces that take the fewest bytes, where one byte stands for an unknown unit.

    Parameters
    ----------
    problem, returned : Problem, sequence of Buffer
        As `constant_pieces` takes them.
    solver : callable
        From the problem to a plan.
    short_solver : callable
        The same, for a second way to solve it.
    """
    if not problem.buffers:
        return ()
    slots = in_slots_of_one_size(problem, returned)
    plan = solver(problem)
    check(problem, plan)
    candidates = [in_one_piece(plan), in_slots(problem), slots]
    if can_gain(problem, returned, plan.peak):
        candidates.append(with_returned(problem, returned, short_solver))
    return min(candidates, key=lambda pieces: _bytes(pieces, returned))


def _handed_out(pieces: Sequence[Piece], returned: Sequence[Buffer]) -> tuple[int, int, int]:
    """Return the bytes that the allocator hands out, those that are asked for, and how often."""
    sizes = [piece.size for piece in pieces] + _alone(pieces, returned)
    return sum(-(-size // PAGE) * PAGE for size in sizes), sum(sizes), len(sizes)


def _bytes(pieces: Sequence[Piece], returned: Sequence[Buffer]) -> tuple[int, int]:
    sizes = [piece.size for piece in pieces] + _alone(pieces, returned)
    return sum(sizes), len(sizes)


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


# ---------------------------------------------------------------------------------------- in slots


def in_slots(problem: Problem) -> tuple[Piece, ...]:
    """Return pieces of one slot each, in which buffers that are never live together take turns.

    A slot is as large as the first buffer in it; the strategy is `rec_tbl`.
    """
    packed = replace(problem, memory=replace(problem.memory, alignment=1))
    plan = rec_tbl(packed, Budget())
    check(packed, plan)
    slots: dict[int, list[Buffer]] = defaultdict(list)
    for buffer in problem.buffers:
        slots[plan.offsets[buffer.name][0]].append(buffer)
    return tuple(
        Piece(max(buffer.size for buffer in slot), {buffer.name: 0 for buffer in slot})
        for _, slot in sorted(slots.items())
    )


def in_slots_of_one_size(problem: Problem, returned: Sequence[Buffer] = ()) -> tuple[Piece, ...]:
    """Return slots that only buffers of equal size share, each with at most one returned tensor.

    There are as few of each size as can be, so these never take more than TVM's own plan, which
    shares a storage of a symbolic size among tensors of that size alone.
    """
    names = {buffer.name for buffer in returned}
    by_size: dict[int, list[Buffer]] = defaultdict(list)
    for buffer in (*problem.buffers, *returned):
        by_size[buffer.size].append(buffer)
    pieces = []
    for _, buffers in sorted(by_size.items(), reverse=True):
        found = in_slots(Problem(tuple(buffers), problem.memory, name=problem.name))
        pieces += [piece for piece in found if not piece.offsets.keys() <= names]
    return tuple(pieces)
