# SPDX-License-Identifier: Apache-2.0
"""The rounds of loops gone through, where all that says which elements are meant is numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from passes.ir import (
    NotAnIndexError,
    Values,
    items,
    never_wraps,
    nodes_in,
    rounds_products,
    tir,
    values_of,
)
from passes.prim_func.element_accesses import Around, ElementAccess

MOST_ROUNDS = 1 << 18
"""Elements that are looked at for one access, at most."""

_FAR_APART = 1 << 24  # No more elements from the first to the last
_NEVER = np.iinfo(np.int64).max


class _UnknownError(Exception):
    """An expression has no value that is known before the function runs."""


class _Reached(NamedTuple):
    """The elements that an access reaches, in the order of the rounds, and in which round each."""

    elements: np.ndarray
    rounds: np.ndarray  # Those of the loops around both accesses, numbered in their order
    free: Mapping[tir.Var, Any]  # The offset of all elements: variables, each by its factor


def comes_first_in_rounds(
    other: ElementAccess,
    store: ElementAccess,
    common: Sequence[Around],
    is_first: bool,
    ratio: int,
) -> bool:
    """Say whether `other` comes before `store` wherever they meet; False if that is not known.

    `common` are the loops around both; in one round of these, `other` comes first if `is_first`.
    The rest is as in `passes.prim_func.element_order.comes_first`.
    """
    try:
        read, written = _reached(other, common, ratio), _reached(store, common, 1)
    except _UnknownError:
        return False
    if not (len(read.elements) and len(written.elements)):
        return True
    if not _is_same_base(read.free, written.free, ratio):
        return False
    ends = [(at.min(), at.max()) for at in (read.elements, written.elements)]
    begin, end = min(low for low, _ in ends), max(high for _, high in ends) + 1
    if end - begin > _FAR_APART:
        return False
    last = _by_element(read, begin, end, -1)
    first = _by_element(_backward(written), begin, end, _NEVER)
    if np.any(first < last if is_first else first <= last):
        return False
    unordered = [at for at, loop in enumerate(common) if not loop.is_in_order]
    if not unordered:
        return True
    inner = math.prod(int(loop.most or 0) for loop in common[unordered[-1] + 1 :])
    both = (last >= 0) & (first < _NEVER)
    extremes = (
        last,
        first,
        _by_element(_backward(read), begin, end, -1),
        _by_element(written, begin, end, -1),
    )
    parts = [rounds[both] // inner for rounds in extremes]
    return all(np.array_equal(parts[0], part) for part in parts)


def _backward(reached: _Reached) -> _Reached:
    return _Reached(reached.elements[::-1], reached.rounds[::-1], reached.free)


def _by_element(reached: _Reached, begin: int, end: int, never: int) -> np.ndarray:
    """Return the last of the rounds that reach each element."""
    found = np.full(end - begin, never, np.int64)
    found[reached.elements - begin] = reached.rounds
    return found


def _is_same_base(one: Mapping[tir.Var, Any], two: Mapping[tir.Var, Any], ratio: int) -> bool:
    """Return whether the same is to be added to two indices."""
    if not one and not two:
        return True
    factors = [{v.__chandle__(): factor for v, factor in free.items()} for free in (one, two)]
    return (
        ratio == 1
        and factors[0].keys() == factors[1].keys()
        and all(tir.expr_deep_equal(factor, factors[1][key]) for key, factor in factors[0].items())
    )


def _reached(access: ElementAccess, common: Sequence[Around], ratio: int) -> _Reached:
    """Return what an access reaches, in units: an element of its own takes `ratio` of them."""
    loops, index, lanes = access.loops, access.index, [0]
    if isinstance(index, tir.Ramp):
        stride, count = index.stride, index.lanes
        if not isinstance(stride, tir.IntConstant) or not isinstance(count, tir.IntConstant):
            raise _UnknownError
        index, lanes = index.base, [int(stride.value) * at for at in range(int(count.value))]
    counts: list[int] = [loop.most for loop in loops if isinstance(loop.most, int)]
    if index is None or index.ty.dtype.lanes != 1 or len(counts) < len(loops):
        raise _UnknownError
    total = math.prod(counts)
    if total * len(lanes) * ratio > MOST_ROUNDS:
        raise _UnknownError
    numbers = np.unravel_index(np.arange(total), counts) if counts else ()
    values: dict[int, Values] = {}
    for loop, number in zip(loops, numbers, strict=True):
        values[loop.counter.__chandle__()] = number  # type: ignore[union-attr]
    runs = np.ones(total, bool)
    for loop, number in zip(loops, numbers, strict=True):
        if loop.extent is None:
            raise _UnknownError
        runs &= number < _value(loop.extent, values)
    for at, part in access.around:
        if isinstance(at.statement, tir.If) and part:
            runs &= _may_hold(at.statement.condition, part == 1, access, values)
    free, base = _split(index, values)
    elements = np.broadcast_to(np.asarray(_value(base, values), np.int64), (total,))
    rounds = np.arange(total) // max(math.prod(counts[len(common) :]), 1)
    wide = (elements[runs, None] + np.array(lanes)) * ratio
    wide = (wide[:, :, None] + np.arange(ratio)).reshape(-1)
    return _Reached(wide, np.repeat(rounds[runs], len(lanes) * ratio), free)


def _split(index: Any, values: Mapping[int, Values]) -> tuple[dict[tir.Var, Any], Any]:
    """Return the variables in an index that no loop counts, each with its factor; and the rest."""
    free = {v.__chandle__(): v for v in nodes_in(index, tir.Var) if v.__chandle__() not in values}
    if not free:
        return {}, index
    *factors, rest = items(tir.detect_linear_equation(index, [*free.values()])) or [None]
    counted = {v.__chandle__() for factor in factors for v in nodes_in(factor, tir.Var)}
    if rest is None or not counted.isdisjoint(values):
        raise _UnknownError
    simple = (tir.Analyzer().simplify(factor) for factor in factors)
    return dict(zip(free.values(), simple, strict=True)), rest


def _may_hold(
    condition: Any, is_true: bool, access: ElementAccess, values: Mapping[int, Values]
) -> Values:
    """Return in which rounds a condition may hold, or not hold."""
    try:
        if never_wraps(condition):
            holds = np.asarray(_value(access.in_counters(condition), values)) != 0
            return np.asarray(holds == is_true)
    except _UnknownError:
        pass
    return np.ones((), bool)


def _value(expr: Any, values: Mapping[int, Values]) -> Values:
    """Return what an expression of whole numbers is in each round."""
    if rounds_products(expr):
        raise _UnknownError
    try:
        with np.errstate(divide="raise", invalid="raise"):
            return values_of(expr, values)
    except (NotAnIndexError, FloatingPointError, TypeError) as error:
        raise _UnknownError from error
