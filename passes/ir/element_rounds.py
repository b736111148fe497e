# SPDX-License-Identifier: Apache-2.0
"""The elements that accesses reach in each round of loops, where numbers alone decide which."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from passes.ir import tir
from passes.ir.element_accesses import Around, ElementAccess
from passes.ir.index_values import NotAnIndexError, Values, rounds_products, values_of
from passes.ir.structural import nodes_in, outermost_nodes, structural_map

MOST_ROUNDS = 1 << 18
"""The most elements of one access that are gone through where their order counts."""

MOST_UNITS = 1 << 21
"""The most units of one access that are gone through where only which they are counts."""

_FAR_APART = 1 << 24  # No more elements from the first to the last
_NEVER = np.iinfo(np.int64).max


class _UnknownError(Exception):
    """An expression has no value that is known before the function runs."""


class _Reached(NamedTuple):
    """The elements that an access reaches, in the order of the rounds, and in which round each."""

    elements: np.ndarray
    rounds: np.ndarray  # Those of the loops around both accesses, numbered in their order


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
    return _Reached(reached.elements[::-1], reached.rounds[::-1])


def _by_element(reached: _Reached, begin: int, end: int, never: int) -> np.ndarray:
    """Return the last of the rounds that reach each element."""
    found = np.full(end - begin, never, np.int64)
    found[reached.elements - begin] = reached.rounds
    return found


def _reached(access: ElementAccess, common: Sequence[Around], ratio: int) -> _Reached:
    """Return what an access may reach, in units: an element of its own takes `ratio` of them."""
    loops, index = access.loops, access.index
    if index is not None and index.ty.dtype.lanes != 1 and not isinstance(index, tir.Ramp):
        raise _UnknownError  # A code generator may go through the lanes one by one.
    elements, runs = _go_through(access, loops, ratio, MOST_ROUNDS)
    inner = math.prod(int(loop.most or 0) for loop in loops[len(common) :])
    rounds = np.arange(len(runs)) // max(inner, 1)
    return _Reached(elements[runs].ravel(), np.repeat(rounds[runs], elements.shape[1]))


def reached_in(
    outer: Sequence[Around],
    own: Sequence[Around],
    access: ElementAccess,
    ratio: int,
    count: int,
    *,
    is_certain: bool,
) -> np.ndarray | None:
    """Return the units that an access reaches in each round of outer loops; None if not known.

    Of the round with number `r`, unit `u` is ``r * count + u``. `own` are the loops around the
    access whose rounds count together. With `is_certain` they are some of the units that are
    reached whatever conditions are that are not known, else all that may be.
    """
    named = {var.__chandle__() for var in nodes_in(access.index, tir.Var)}
    others = [at for at in own if at.counter.__chandle__() not in named]
    own = [at for at in own if at not in others]
    firsts = others if is_certain else None
    try:
        elements, runs = _go_through(access, (*outer, *own), ratio, MOST_UNITS, firsts)
    except _UnknownError:
        return None
    begins = np.arange(len(runs)) // max(math.prod(int(loop.most or 0) for loop in own), 1) * count
    is_inside = (elements >= 0) & (elements < count) & runs[:, None]
    inside: np.ndarray = (elements + begins[:, None])[is_inside]
    return inside


def _go_through(
    access: ElementAccess,
    loops: Sequence[Around],
    ratio: int,
    most: int,
    firsts: Sequence[Around] | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the units that an access reaches in each round of some loops, and if it is executed.

    An element of the access takes `ratio` units. Conditions that are not known may hold; not so
    with `firsts`, the loops that are in their first rounds.
    """
    index, extent = access.index, access.access.extent
    counts = [loop.most for loop in loops if isinstance(loop.most, int)]
    width = 1 if extent is None else tir.constant(extent)
    if index is None or len(counts) < len(loops) or width is None or index.ty.dtype.lanes < 1:
        raise _UnknownError
    total = math.prod(counts)
    if total * index.ty.dtype.lanes * width * ratio > most:
        raise _UnknownError
    begin = np.zeros((1, 1), np.int64)
    values = {loop.counter.__chandle__(): begin for loop in firsts or ()}
    for loop, number in zip(loops, np.unravel_index(np.arange(total), counts or 1), strict=False):
        values[loop.counter.__chandle__()] = number[:, None]
    runs = np.ones((total, 1), bool)
    for loop in (*loops, *(firsts or ())):
        if loop.extent is None:
            raise _UnknownError
        runs &= values[loop.counter.__chandle__()] < _value(loop.extent, values)
    for _, condition in access.conditions:
        holds = _holds(condition, values)
        runs &= firsts is None if holds is None else holds
    elements = _value(index, values) + np.zeros((total, 1), np.int64)
    within = (np.arange(width)[:, None] * ratio + np.arange(ratio)).ravel()
    wide = elements[:, :, None] * ratio + within
    return wide.reshape(total, elements.shape[1] * len(within)), runs[:, 0]


def _holds(condition: Any, values: Mapping[int, Values]) -> Values | None:
    """Return in which rounds a condition holds; None where that is not known."""
    try:
        return np.asarray(_value(condition, values) != 0)
    except _UnknownError:
        return None


def _value(expr: Any, values: Mapping[int, Values]) -> Values:
    """Return what an expression of whole numbers is in each round."""
    if rounds_products(expr):
        raise _UnknownError
    try:
        with np.errstate(divide="raise", invalid="raise"):
            found = values_of(*_by_lane(expr, values))
    except (NotAnIndexError, FloatingPointError, TypeError) as error:
        raise _UnknownError from error
    if found.dtype.kind == "f":
        raise _UnknownError  # For numpy, of signed and unsigned numbers of 64 bits
    return found


def _by_lane(expr: Any, values: Mapping[int, Values]) -> tuple[Any, Mapping[int, Values]]:
    """Return a vector with variables for its parts, whose values for the lanes are in each row."""
    known, parts = dict(values), outermost_nodes(expr, tir.Ramp, tir.Broadcast)
    variables: dict[int, tir.Var] = {}
    for part in parts:
        variable = variables[part.__chandle__()] = tir.Var("lanes", "int64")
        if isinstance(part, tir.Broadcast):
            known[variable.__chandle__()] = _value(part.value, values)
        else:
            lanes = np.arange(int(part.ty.dtype.lanes))
            begin, stride = (_value(each, values) for each in (part.base, part.stride))
            known[variable.__chandle__()] = begin + stride * lanes
    if not parts:
        return expr, values

    def variable_of(part: Any) -> tir.Var:
        return variables[part.__chandle__()]

    return structural_map(expr, [(tir.Ramp, variable_of), (tir.Broadcast, variable_of)]), known
