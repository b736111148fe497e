# SPDX-License-Identifier: Apache-2.0
"""Sets of elements that stores write for certain, and proofs that an element is in one of them.

A set is the values of an index for all values of its free variables, under conditions. For a proof
it becomes ``base + sum(step * k for 0 <= k < count)`` over *digits* (step, count): of ``S[i * 8 +
j]`` in a loop over 4 values of ``i`` and one over 8 of ``j``, the digits (8, 4) and (1, 8) make
one, (1, 32). An element that cannot be shown to be in a set is not in it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

from passes.ir import tir
from passes.ir.buffers import items
from passes.ir.structural import nodes_in, structural_map
from passes.ir.wide_numbers import Free, WideNumbers, number

_MOST_SPLITS = 16  # Conditions that one proof tells apart


class Condition(NamedTuple):
    """Something that may hold, and its opposite."""

    holds: Any
    fails: Any

    @property
    def opposite(self) -> Condition:
        """The condition that holds where this one fails."""
        return Condition(self.fails, self.holds)


@dataclass(frozen=True, eq=False)
class ElementSet:
    """The values of an index, for all values of the free variables for which conditions hold."""

    index: Any
    free: tuple[Free, ...] = ()  # The innermost loop's first
    when: tuple[Condition, ...] = ()

    def substituted(self, variable: tir.Var, value: Any) -> ElementSet:
        """Return the set with a value in the place of a variable that is not free."""

        def new(expr: Any) -> Any:
            return structural_map(expr, [(tir.Var, lambda v: value if v.same_as(variable) else v)])

        return ElementSet(
            new(self.index),
            tuple(Free(free.variable, new(free.count)) for free in self.free),
            tuple(Condition(new(both.holds), new(both.fails)) for both in self.when),
        )


class Digit(NamedTuple):
    """The multiples of `step` by 0 up to `count`."""

    step: Any
    count: Any


_Digits: TypeAlias = "tuple[Any, list[Digit], tuple[Condition, ...]]"
"""The begin of an index, its digits, the least first, and conditions on other variables."""


class ElementProofs(WideNumbers):
    """Proves that elements are in sets, for all values of variables that are in their ranges."""

    def __init__(self, values: Mapping[int, Any], is_fixed: Callable[[int], bool]) -> None:
        super().__init__(values, is_fixed)
        self._digits: dict[ElementSet, _Digits | None] = {}
        self._unknown: list[tir.Var] = []  # They stand for conditions that read memory
        self._splits = 0  # Conditions by which cases may still be split

    def condition(self, expr: Any) -> Condition:
        """Return a condition of the program; one that reads memory is like no other."""
        holds = self.wide(expr)
        if holds is None:
            holds = tir.Var("unknown", tir.PrimType("bool"))
            self._unknown.append(holds)
        return self._condition(holds)

    def is_known(self, elements: ElementSet) -> bool:
        """Return whether no condition of a set reads memory."""
        named = [var for both in elements.when for var in nodes_in(both.holds, tir.Var)]
        return not any(var.same_as(each) for var in named for each in self._unknown)

    def _condition(self, holds: Any) -> Condition:
        # Where other conditions hold, simpler ones may say as much, but not elsewhere.
        return Condition(holds, tir.Analyzer().simplify(tir.Not(holds)))

    @contextmanager
    def where(self, holding: Sequence[Condition]) -> Iterator[None]:
        """Let some conditions hold; what is found of sets meanwhile need not be so elsewhere."""
        known, self._digits = self._digits, {**self._digits}
        with ExitStack() as scopes:
            scopes.callback(setattr, self, "_digits", known)
            for both in holding:
                scopes.enter_context(self.analyzer.constraint_scope(both.holds))
            yield

    def conjuncts(self, both: Condition) -> tuple[Condition, ...]:
        """Return conditions that hold together if one holds."""
        parts = _operands(tir.And, both.holds)
        return (both,) if len(parts) == 1 else tuple(map(self._condition, parts))

    # Proofs

    def covers(self, index: Any, sets: Sequence[ElementSet]) -> bool:
        """Return whether the element at an index is in one of some sets, whatever variables are."""
        known = [digits for each in sets if (digits := self._digits_of(each)) is not None]
        self._splits = _MOST_SPLITS
        return self._is_in(index, [*self._unrolled(known), *known])

    def _unrolled(self, sets: Sequence[_Digits]) -> Iterator[_Digits]:
        """Yield what the statements of a loop that is unrolled by hand write together."""
        begins: dict[tuple[tuple[int, int], ...], set[int]] = {}
        for base, digits, when in sets:
            parts = [base, *(part for digit in digits for part in digit)]
            if not when and all(isinstance(part, tir.IntConstant) for part in parts):
                key = tuple((int(step.value), int(count.value)) for step, count in digits)
                begins.setdefault(key, set()).add(int(base.value))
        for key, found in begins.items():
            first, *others = sorted(found)
            steps = {new - old for old, new in pairwise([first, *others])}
            if len(steps) == 1:
                moves = [Digit(number(step), number(count)) for step, count in key]
                moves.append(Digit(number(steps.pop()), number(len(found))))
                yield number(first), self._joined(moves), ()

    def _is_in(self, index: Any, sets: Sequence[_Digits]) -> bool:
        cases: list[Condition] = []
        for base, digits, when in sets:
            missing = [both for both in when if not self.analyzer.can_prove(both.holds)]
            if missing and any(self.analyzer.can_prove(both.fails) for both in missing):
                continue
            ends = self._ends_of(index, base, digits)
            if ends is None:
                continue
            if not missing and not ends:
                return True
            cases += [*missing, *ends][:1]
        for case in cases:
            if not self._splits:
                return False
            self._splits -= 1
            if all(self._is_in_where(both, index, sets) for both in (case.holds, case.fails)):
                return True
        return False

    def _is_in_where(self, condition: Any, index: Any, sets: Sequence[Any]) -> bool:
        with self.analyzer.constraint_scope(condition):
            return self._is_in(index, sets)

    def _ends_of(self, index: Any, base: Any, digits: Sequence[Digit]) -> list[Condition] | None:
        """Return the conditions under which an element is in a set; None where none are known.

        A set of one element, or of neighbours, has such: beyond its ends another set may go on.
        """
        prove = self.analyzer.can_prove
        rest = self.analyzer.simplify(index - base)
        is_range = not digits or (len(digits) == 1 and _is_one(digits[0].step))
        for step, count in reversed(digits):
            value = rest if _is_one(step) else self.analyzer.simplify(tir.floordiv(rest, step))
            ends = [Condition(value >= 0, value < 0), Condition(value < count, value >= count)]
            unknown = [end for end in ends if not prove(end.holds)]
            if unknown:
                return unknown if is_range and not any(prove(e.fails) for e in unknown) else None
            rest = number(0) if _is_one(step) else self.analyzer.simplify(tir.floormod(rest, step))
        if prove(rest == 0):
            return []
        return [Condition(rest == 0, rest != 0)] if is_range and not prove(rest != 0) else None

    # From indices to digits

    def _digits_of(self, elements: ElementSet) -> _Digits | None:
        if elements not in self._digits:
            self._digits[elements] = self._find_digits(elements)
        return self._digits[elements]

    def _find_digits(self, elements: ElementSet) -> _Digits | None:
        limited = self._limited(elements)
        if limited is None:
            return None
        base, digits, when = self.analyzer.simplify(limited.index), list[Digit](), [*limited.when]
        waiting = list(limited.free)
        counted = {free.variable.__chandle__() for free in waiting}
        while waiting:
            variable, count = waiting.pop(0)
            if any(v.__chandle__() in counted for v in nodes_in(count, tir.Var)):
                return None  # The loops make a triangle.
            found = items(tir.detect_linear_equation(base, [variable]))
            if not found:
                parts = self._split(base, variable, count)
                if parts is None:
                    return None
                base, free = parts
                counted.update(each.variable.__chandle__() for each in free)
                waiting[:0] = free
                continue
            step, base = found
            if self.analyzer.can_prove(step == 0):
                when += [Condition(each > 0, each <= 0) for each in _operands(tir.Min, count)]
                continue
            if self.analyzer.can_prove(count == 1):
                continue
            if self.analyzer.can_prove(step < 0):
                base, step = base + step * (count - 1), -step
            elif not self.analyzer.can_prove(step > 0):
                return None
            digits.append(Digit(self.analyzer.simplify(step), count))
        return base, self._joined(digits), tuple(when)

    def _split(
        self, base: Any, variable: tir.Var, count: Any
    ) -> tuple[Any, tuple[Free, ...]] | None:
        """Return an index without quotients of a variable, which others stand for."""
        parts = nodes_in(base, tir.FloorDiv, tir.FloorMod)
        divisors = [
            part.b.value
            for part in parts
            if variable.same_as(part.a) and isinstance(part.b, tir.IntConstant) and part.b.value > 0
        ]
        if not isinstance(count, tir.IntConstant):
            return None
        if not divisors:
            rotated = (self._rotated(base, part, variable, int(count.value)) for part in parts)
            return next(filter(None, rotated), None)
        divisor = number(min(divisors))
        inside = Free(self.fresh("inside", divisor), divisor)
        # The rest of the count is no part of the set.
        quotient = number(count.value // divisor.value)
        outside = Free(self.fresh("outside", quotient), quotient)
        value = outside.variable * divisor + inside.variable
        new = ElementSet(base).substituted(variable, value).index
        return self.analyzer.simplify(new), (inside, outside)

    def _rotated(
        self, base: Any, part: Any, variable: tir.Var, count: int
    ) -> tuple[Any, tuple[Free, ...]] | None:
        """Return an index with a variable for ``(variable * factor + shift) % divisor``.

        That takes each value below the divisor, once the variable has taken as many.
        """
        if type(part) is not tir.FloorMod or not isinstance(part.b, tir.IntConstant):
            return None
        divisor, found = int(part.b.value), items(tir.detect_linear_equation(part.a, [variable]))
        if not found or not isinstance(found[0], tir.IntConstant) or count < divisor:
            return None
        if math.gcd(int(found[0].value), divisor) != 1:
            return None
        free = Free(self.fresh("rotated", part.b), part.b)
        new = structural_map(
            base,
            [(tir.FloorMod, lambda op: free.variable if tir.expr_deep_equal(op, part) else op)],
        )
        is_all = not any(variable.same_as(each) for each in nodes_in(new, tir.Var))
        return (new, (free,)) if is_all else None

    def _joined(self, digits: Sequence[Digit]) -> list[Digit]:
        """Return digits, joined where one continues another."""
        prove = self.analyzer.can_prove
        if all(isinstance(digit.step, tir.IntConstant) for digit in digits):
            digits = sorted(digits, key=lambda digit: int(digit.step.value))
        joined: list[Digit] = []
        for step, count in digits:
            if joined:
                lower, below = joined[-1]
                times = tir.floordiv(step, lower)
                goes_on = prove(times == below) and prove(count >= 0)
                overlaps = prove(times <= below) and prove(count > 0)
                if prove(tir.floormod(step, lower) == 0) and (goes_on or overlaps):
                    count = self.analyzer.simplify(times * (count - 1) + below)
                    joined[-1] = Digit(lower, count)
                    continue
            joined.append(Digit(step, count))
        return joined

    def _limited(self, elements: ElementSet) -> ElementSet | None:
        """Return a set, or a part of it, without conditions on its free variables."""
        for both in elements.when:
            names = {v.__chandle__() for v in nodes_in(both.holds, tir.Var)}
            mentioned = [f for f in elements.free if f.variable.__chandle__() in names]
            if not mentioned:
                continue
            rest = replace(elements, when=tuple(c for c in elements.when if c is not both))
            limited = self._limit(rest, both.holds, mentioned)
            return None if limited is None else self._limited(limited)
        return elements

    def _limit(
        self, elements: ElementSet, condition: Any, limiting: Sequence[Free]
    ) -> ElementSet | None:
        """Return the part of a set in which one condition holds.

        The variables that it limits become one: they must count neighbours together, in the
        condition as in the index.
        """
        bounds = _bounds_of(condition)
        if bounds is None:
            return None
        difference, is_upper, is_lower = bounds
        variables = [free.variable for free in limiting]
        simple = self.analyzer.simplify
        found = items(tir.detect_linear_equation(simple(difference), variables))
        index = items(tir.detect_linear_equation(simple(elements.index), variables))
        if not found or not index or not all(isinstance(f, tir.IntConstant) for f in found[:-1]):
            return None
        factors, rest = [int(f.value) for f in found[:-1]], found[-1]
        if all(factor < 0 for factor in factors):
            factors, rest = [-factor for factor in factors], -rest
            is_upper, is_lower = is_lower, is_upper
        if any(factor <= 0 for factor in factors):
            return None
        unit = min(factors)
        together = self._joined(
            [Digit(number(f), free.count) for f, free in zip(factors, limiting, strict=True)]
        )
        if len(together) != 1:
            return None
        # The sum of the variables, in units, is `unit * sum + rest`, below or from 0 on.
        least, beyond = number(0), together[0].count
        if is_upper:
            beyond = tir.least(beyond, tir.floordiv(-rest, number(unit)) + 1)
        if is_lower:
            least = tir.most(least, tir.floordiv(unit - 1 - rest, number(unit)))
        count = simple(beyond - least)
        scale = index[factors.index(unit)]
        if not all(
            self.analyzer.can_prove(part * number(unit) == scale * number(factor))
            for part, factor in zip(index[:-1], factors, strict=True)
        ):
            return None
        one = self.fresh("limited", count)
        chosen = {free.variable.__chandle__() for free in limiting}
        others = tuple(free for free in elements.free if free.variable.__chandle__() not in chosen)
        if any(
            v.__chandle__() in chosen for c in elements.when for v in nodes_in(c.holds, tir.Var)
        ):
            return None  # Another condition limits them, too.
        return ElementSet(
            simple(index[-1] + scale * (one + least)), (*others, Free(one, count)), elements.when
        )


def _is_one(step: Any) -> bool:
    return isinstance(step, tir.IntConstant) and int(step.value) == 1


def _operands(kind: type[Any], expr: Any) -> list[Any]:
    """Return the operands of nested minima or conjunctions; of anything else, itself."""
    if type(expr) is kind:
        return [*_operands(kind, expr.a), *_operands(kind, expr.b)]
    return [expr]


def _bounds_of(condition: Any) -> tuple[Any, bool, bool] | None:
    """Return what a comparison says of a difference: that it is at most 0, at least 0, or both."""
    kind = type(condition)
    if kind not in (tir.LT, tir.LE, tir.GT, tir.GE, tir.EQ):
        return None
    difference = condition.a - condition.b
    if kind is tir.LT:
        difference = difference + 1
    elif kind is tir.GT:
        difference = difference - 1
    return difference, kind in (tir.LT, tir.LE, tir.EQ), kind in (tir.GT, tir.GE, tir.EQ)
