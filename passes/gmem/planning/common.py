# SPDX-License-Identifier: Apache-2.0
"""Give the functions of one module pieces of equal size."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from passes.gmem.planning.piece import PAGE, Piece, Solver, checked
from passes.planning.problem import Problem
from passes.planning.verify import check

LEAST_SHARED = 16 * PAGE
"""Bytes of the smallest piece that functions are made to have in common."""


def divided(
    problem: Problem, most: int, sizes: Sequence[int], solver: Solver
) -> tuple[Piece, ...] | None:
    """Place the buffers of a piece in pieces of given sizes, and the rest in one more.

    TVM's pooled allocator hands a freed piece out again to a request of the same pages. Functions
    of one module that run one after another then share pieces of equal size.
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
    return used if sum(piece.size for piece in used) <= most else None


def with_common_sizes(
    parts: Sequence[tuple[Problem, tuple[Piece, ...]]], solver: Solver
) -> list[tuple[Piece, ...]]:
    """Divide the pieces of functions, so that they have pieces of equal size."""
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
            found = divided(part, mine.size, sizes, solver)
            if found is not None:
                others = tuple(piece for piece in pieces if piece is not mine)
                result[number] = checked(part.name, part.buffers, found) + others
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
