# SPDX-License-Identifier: Apache-2.0
"""Loops over slices, and numbers that differ from slice to slice as expressions of its number."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from passes.ir import tir
from passes.layer_group.planning.cut import CHANNELS, LETTERS, Cut
from passes.layer_group.planning.spans import AxisPart

INDEX = "int64"
"""The type of all indices."""

INT32_MAX = 2**31 - 1
"""The largest number that functions of layers can be given."""


def number(value: int) -> tir.IntConstant:
    """Return a constant index."""
    return tir.IntConstant(INDEX, value)


class SliceValues:
    """The slice, or the part of it, that a statement works on, and the numbers that it needs."""

    def __init__(self, cut: Cut, slice_number: Any, part: Any = None) -> None:
        self.number = slice_number
        self.bindings: list[Any] = []
        self.index: dict[str, Any] = {}
        self._known: dict[tuple[tuple[int, ...], str], Any] = {}
        if part is not None:
            self.index[CHANNELS] = part
        rest = slice_number
        for letter in reversed(LETTERS):
            count = cut.counts[letter]
            if count == 1:
                self.index[letter] = number(0)
                continue
            # There may be slices along an axis outside of this one.
            at = rest if letter == cut.outermost else tir.floormod(rest, number(count))
            self.index[letter] = self._bound(f"{letter}_slice", at)
            rest = tir.floordiv(rest, number(count))

    def _bound(self, name: str, value: Any) -> Any:
        if isinstance(value, (tir.Var, tir.IntConstant)):
            return value
        var = tir.Var(name, tir.PrimType(INDEX))
        self.bindings.append(tir.Binding(var, value))
        return var

    def begin(self, part: AxisPart) -> Any:
        """Return the first element of the slice's range; see `_value`."""
        return self._value([begin for begin, _ in part.spans.ranges], part.letter, "begin")

    def count(self, part: AxisPart) -> Any:
        """Return how many elements the slice's range has; see `_value`."""
        return self._value(part.spans.sizes.tolist(), part.letter, "extent")

    def _value(self, values: Sequence[int], letter: str, name: str) -> Any:
        """Return a number that is one of `values` for each slice along an axis.

        Without a letter there is one value. Raises ValueError when a value is beyond int32, as
        which functions of layers are given it.
        """
        if max(values) > INT32_MAX:
            raise ValueError(f"element {max(values)} of a sliced axis is beyond int32")
        if not letter:
            (value,) = values
            return number(value)
        key = (tuple(values), letter)
        if key not in self._known:
            value = piecewise(values, self.index[letter])
            self._known[key] = self._bound(f"{letter}_{name}", value)
        return self._known[key]


def piecewise(values: Sequence[int], index: Any) -> Any:
    """Return an expression that has the given values at 0, 1, 2, ...

    Bounds of even slices are linear but where slices become smaller, and are clipped at the ends.
    """
    pieces = _linear_pieces(values)
    expr = _linear(pieces[-1], index)
    for begin, piece in zip([piece[0] for piece in pieces[:0:-1]], pieces[-2::-1], strict=True):
        expr = tir.Select(index < number(begin), _linear(piece, index), expr)
    return expr


def _linear_pieces(values: Sequence[int]) -> list[tuple[int, int, int]]:
    """Return the first index, the first value and the step of each run of equal steps."""
    pieces = []
    at = 0
    while at < len(values):
        end = at + 1
        step = values[end] - values[at] if end < len(values) else 0
        while end < len(values) and values[end] - values[end - 1] == step:
            end += 1
        if end - at == 2 and end < len(values):
            end, step = at + 1, 0  # A step that does not last is two pieces, not a run.
        pieces.append((at, values[at], step))
        at = end
    return pieces


def _linear(piece: tuple[int, int, int], index: Any) -> Any:
    begin, value, step = piece
    if step == 0:
        return number(value)
    return index * number(step) + number(value - begin * step)


Write = Callable[[SliceValues], Any]
"""Writes a statement for a slice, or for a part of it."""


def in_turns(
    name: str, count: int, work: Sequence[tuple[int, Write]], values: Callable[[Any], SliceValues]
) -> Any:
    """Return a loop in which each stage of `work` is done for `count` slices or parts, one a turn.

    A stage begins as many turns later as its number says; `values` gives what is known of a slice
    or part by its number. A single one passes through the stages without a loop.
    """
    stage_of = itemgetter(0)
    if count == 1:
        work = sorted(work, key=stage_of)
    last = max(map(stage_of, work))
    turn, turns = tir.Var(name, tir.PrimType(INDEX)), count + last
    statements = []
    for stage, together in groupby(work, stage_of):
        at = values(number(0) if count == 1 else turn - number(stage) if stage else turn)
        done = [write(at) for _, write in together]  # They add to the bindings.
        conditions = [turn >= number(stage)] if stage else []
        if stage < last:
            conditions.append(turn <= number(stage + count - 1))
        statement = in_order([*at.bindings, *done])
        statements.append(where(conditions if count > 1 else [], statement))
    body = in_order(statements)
    return (
        body if count == 1 else tir.Loop(turn, number(0), number(turns), tir.LoopKind.SERIAL, body)
    )


def where(conditions: Sequence[Any], statement: Any) -> Any:
    """Return a statement that runs where all conditions hold."""
    for condition in reversed(conditions):
        statement = tir.If(condition, statement, None)
    return statement


def in_order(statements: Sequence[Any]) -> Any:
    """Return one statement that is all of these, one after the other."""
    return tir.Sequence(statements) if len(statements) > 1 else statements[0]
