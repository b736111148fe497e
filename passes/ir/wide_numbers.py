# SPDX-License-Identifier: Apache-2.0
"""Whole numbers of a program, all in 64 bits, so that expressions of several types compare."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from passes.ir import tir
from passes.ir.operators import is_likely
from passes.ir.symbolic_bounds import does_not_wrap

_OPERATIONS = frozenset(
    [
        tir.Add,
        tir.Sub,
        tir.Mul,
        tir.FloorDiv,
        tir.FloorMod,
        tir.Min,
        tir.Max,
        tir.LT,
        tir.LE,
        tir.GT,
        tir.GE,
        tir.EQ,
        tir.NE,
        tir.And,
        tir.Or,
    ]
)


class Free(NamedTuple):
    """A variable that takes each value from 0 up to `count`, which may be 0 or less."""

    variable: tir.Var
    count: Any


class WideNumbers:
    """Makes numbers of 64 bits of a program's, and knows the ranges of their variables.

    A variable of the program is replaced by one of its own. `values` are what variables are bound
    to, by handle; of one that `is_fixed` the value is the same wherever it is used.
    """

    def __init__(self, values: Mapping[int, Any], is_fixed: Callable[[int], bool]) -> None:
        self.analyzer = tir.Analyzer()
        self._values, self._is_fixed = values, is_fixed
        self._wide: dict[
            int, tuple[tir.Var, tir.Var]
        ] = {}  # With the variables that they stand for
        self._lane: tir.Var | None = None  # That of the vector index that is read

    def fresh(self, name: str, count: Any) -> tir.Var:
        """Return a new variable that takes each value from 0 up to a count."""
        variable = tir.Var(name, tir.PrimType("int64"))
        self.analyzer.bind(variable, tir.Range(number(0), count))
        return variable

    def wide(self, expr: Any) -> Any:
        """Return an expression of numbers of 64 bits; None if it may wrap, or reads memory."""
        kind = type(expr)
        if kind is tir.Broadcast:
            return self.wide(expr.value)
        if kind is tir.Ramp:
            return self._wide_ramp(expr)
        if kind is tir.IntConstant:
            return number(expr.value) if str(expr.ty.dtype) != "bool" else expr
        if kind is tir.Var:
            return self._wide_variable(expr)
        if kind is tir.Cast:
            old, new = expr.value.ty.dtype, expr.ty.dtype
            is_kept = does_not_wrap(old) and does_not_wrap(new) and old.bits <= new.bits
            return self.wide(expr.value) if is_kept else None
        if kind is tir.Not:
            inside = self.wide(expr.a)
            return None if inside is None else tir.Not(inside)
        if kind is tir.Call and is_likely(expr):
            return self.wide(expr.args[0])
        if kind not in _OPERATIONS:
            return None
        if str(expr.a.ty.dtype) != "bool" and not does_not_wrap(expr.a.ty.dtype):
            return None
        parts = self.wide(expr.a), self.wide(expr.b)
        return None if any(part is None for part in parts) else kind(*parts)

    def _wide_ramp(self, ramp: tir.Ramp) -> Any:
        parts = [self.wide(part) for part in (ramp.base, ramp.stride)]
        if self._lane is None or any(part is None for part in parts):
            return None
        return parts[0] + parts[1] * self._lane

    def _wide_variable(self, variable: tir.Var) -> Any:
        key = variable.__chandle__()
        if key in self._values:
            value = self.wide(self._values[key])
            if value is not None or not self._is_fixed(key):
                return value
        if type(variable.ty) is not tir.PrimType:
            return None
        is_bool = str(variable.ty.dtype) == "bool"
        if not is_bool and (variable.ty.dtype.lanes != 1 or not does_not_wrap(variable.ty.dtype)):
            return None
        if key not in self._wide:
            new = variable if is_bool else tir.Var(variable.name, tir.PrimType("int64"))
            self._wide[key] = variable, new
        return self._wide[key][1]

    def elements(self, index: Any) -> tuple[Any, tuple[Free, ...]] | None:
        """Return a scalar index, and the variables that give it a value for each lane of a vector.

        None if the index is not known.
        """
        lanes = index.ty.dtype.lanes
        if lanes < 1:
            return None
        count = number(lanes)
        self._lane = None if lanes == 1 else self.fresh("lane", count)
        first, lane = self.wide(index), self._lane
        self._lane = None
        if first is None:
            return None
        return first, () if lane is None else (Free(lane, count),)


def fills(index: Any, counters: Sequence[tuple[tir.Var, int]], size: int) -> bool:
    """Return whether an index takes each number below `size` as counters run below their counts.

    This quick look is at sums of multiples alone; it is False where it tells nothing.
    """
    digits: list[tuple[int, int]] = []
    if type(index) is tir.Ramp:
        if not isinstance(index.stride, tir.IntConstant) or not isinstance(
            index.lanes, tir.IntConstant
        ):
            return False
        digits.append((index.stride.value, index.lanes.value))
        index = index.base
    moves: dict[int, int] = {}
    if _sum_of_multiples(index, 1, moves) != 0:
        return False
    for variable, count in counters:
        digits.append((moves.pop(variable.__chandle__(), 0), count))
    end = 1
    for move, count in sorted(digits):
        if count < 1 or move < 0 or move > end:
            return False
        end += move * (count - 1)
    return not moves and end == size


def _sum_of_multiples(index: Any, factor: int, moves: dict[int, int]) -> int | None:
    """Add the factors of variables to `moves`, by handle, and return the constant summand."""
    kind = type(index)
    if kind is tir.IntConstant:
        return factor * int(index.value)
    if kind is tir.Var:
        key = index.__chandle__()
        moves[key] = moves.get(key, 0) + factor
        return 0 if does_not_wrap(index.ty.dtype) else None
    if kind is tir.Mul and type(index.b) is tir.IntConstant:
        return _sum_of_multiples(index.a, factor * int(index.b.value), moves)
    if kind is tir.Add:
        parts = [_sum_of_multiples(part, factor, moves) for part in (index.a, index.b)]
        return None if None in parts else sum(part or 0 for part in parts)
    return None


def number(value: int) -> tir.IntConstant:
    """Return a constant of 64 bits."""
    return tir.IntConstant("int64", value)
