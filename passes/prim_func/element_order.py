# SPDX-License-Identifier: Apache-2.0
"""Proof that an access to an element comes before all stores to its place.

An access and a store run once for each round of the loops around them. Of the loops around both,
some outer ones are chosen. In different rounds of these the two meet nowhere if what they reach in
one round is a window, and a round moves it by its width at least. In one round, the access comes
first in the program, or stands in another branch, or the other loops keep the two apart. Where that
cannot be shown, but all is known in numbers, the rounds are gone through (`element_rounds`).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from itertools import takewhile

from passes.ir import Around, ElementAccess, Linear, Number, comes_first_in_rounds, plain, tir

_Span = tuple[Number, Number]
"""The first of some elements, and the one after the last."""


def comes_first(other: ElementAccess, store: ElementAccess, ratio: int = 1) -> bool:
    """Say whether `other` comes before `store` wherever they meet, as far as that can be shown.

    An element of the buffer of `other` is `ratio` times as wide as one of that of `store`, and both
    buffers begin at one place. Where rounds of a loop run in any order, they must not meet.
    """
    if not (other.has_known_order and store.has_known_order):
        return False
    common = _loops_around_both(other, store)
    is_first = other.number < store.number or _in_other_branches(other, store)
    one, two = other.linear, store.linear
    if ratio == 1 and one is not None and two is not None:
        with suppress(ValueError):  # A number that the type of an index cannot hold
            if _is_shown(one, two, common, is_first):
                return True
    return comes_first_in_rounds(other, store, common, is_first, ratio)


def _loops_around_both(one: ElementAccess, two: ElementAccess) -> list[Around]:
    """Return the loops whose rounds two accesses have in common, outermost first."""
    pairs = zip(one.around, two.around, strict=False)
    same = takewhile(lambda pair: pair[0][0] is pair[1][0], pairs)
    return [at for (at, _), _ in same if at.is_loop]


def _in_other_branches(one: ElementAccess, two: ElementAccess) -> bool:
    """Return whether two accesses never run in one round of the loops around both."""
    for (at, part), (other, other_part) in zip(one.around, two.around, strict=False):
        if at is not other:
            return False
        if part != other_part:  # The condition is part 0.
            return isinstance(at.statement, tir.If) and 0 not in (part, other_part)
    return False


def _is_shown(one: Linear, two: Linear, common: Sequence[Around], is_first: bool) -> bool:
    between = _difference(one, two)
    for chosen in range(len(common), -1, -1):
        outer = common[:chosen]
        span, other = _span(one, outer), _span(two, outer, between)
        if span is None or other is None:
            continue
        in_one_round = (
            (is_first and chosen == len(common))
            or _is_at_most(span[1], other[0])
            or _is_at_most(other[1], span[0])
        )
        if in_one_round and _moves_by_window(one, two, outer, span, other):
            return True
    return False


def _span(linear: Linear, outer: Sequence[Around], begin: Number = 0) -> _Span | None:
    """Return what an access reaches in one round of outer loops, from `begin`; None if not known.

    The variables in its base do not count.
    """
    last = linear.stride * (linear.lanes - 1)
    low, high = begin + min(last, 0), begin + max(last, 0) + 1
    for loop, move in linear.moves.items():
        if loop in outer or _is(move, 0) or _is(loop.most, 1):
            continue
        if loop.most is None or not isinstance(move, int):
            return None
        if move > 0:
            high = high + move * (loop.most - 1)
        else:
            low = low + move * (loop.most - 1)
    return low, high


def _moves_by_window(
    one: Linear, two: Linear, outer: Sequence[Around], span: _Span, other: _Span
) -> bool:
    """Return whether different rounds of outer loops reach different elements.

    Each loop must move the window by at least all that the loops that move it less reach together,
    as the places of a mixed-radix number do.
    """
    loops = [(one.moves[loop], loop.most) for loop in outer if not _is(loop.most, 1)]
    if not all(_is_equal(one.moves[loop], two.moves[loop]) for loop in outer):
        return False
    low, high = _lower(span[0], other[0]), _lower(span[1], other[1], is_higher=True)
    if low is None or high is None:
        return False
    width: Number | None = high - low
    loops.reverse()
    if all(isinstance(move, int) for move, _ in loops):
        loops = sorted(((abs(move), most) for move, most in loops), key=lambda loop: loop[0])
    for move, most in loops:
        if width is None or not _is_at_most(width, move):
            return False
        width = None if most is None else width + move * (most - 1)
    return True


def _difference(one: Linear, two: Linear) -> Number:
    between = two.base - one.base
    return between if isinstance(between, int) else plain(tir.Analyzer().simplify(between))


def _lower(one: Number, two: Number, *, is_higher: bool = False) -> Number | None:
    """Return the lower, or the higher, of two numbers; None where that is not known."""
    if _is_at_most(one, two):
        return two if is_higher else one
    if _is_at_most(two, one):
        return one if is_higher else two
    return None


def _is(number: Number | None, value: int) -> bool:
    return isinstance(number, int) and number == value


def _is_equal(one: Number, two: Number) -> bool:
    if isinstance(one, int) and isinstance(two, int):
        return one == two
    return bool(tir.Analyzer().can_prove_equal(one, two))


def _is_at_most(one: Number, two: Number) -> bool:
    if isinstance(one, int) and isinstance(two, int):
        return one <= two
    return bool(tir.Analyzer().can_prove(two - one >= 0))
