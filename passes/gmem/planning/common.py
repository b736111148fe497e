# SPDX-License-Identifier: Apache-2.0
"""Give the functions of one module pieces of equal size."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from passes.gmem.planning.piece import PAGE, Piece, Solver, checked
from passes.gmem.planning.ranges import divided
from passes.planning.problem import Problem

LEAST_SHARED = 16 * PAGE
"""Bytes of the smallest piece that functions are made to have in common."""


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
