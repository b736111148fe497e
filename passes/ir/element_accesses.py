# SPDX-License-Identifier: Apache-2.0
"""Loads and stores in a statement, with their indices as sums over the rounds of its loops.

A loop is counted from 0 in steps of 1, by a variable of its own; an index is written in these. The
threads of an extent count as the rounds of a loop that runs in any order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from passes.ir import tir
from passes.ir.accesses import Enclosures, FunctionAccesses, MemoryAccess
from passes.ir.buffers import items
from passes.ir.operators import is_likely
from passes.ir.structural import has_any, nodes_in, structural_map
from passes.ir.symbolic_bounds import never_wraps

_THREADS = ("thread_extent", "virtual_thread")
_NO_ORDER = "pragma_"  # Hints to a code generator, but for those of parallel regions
_PARALLEL = "pragma_parallel"
_COMPARE = (tir.EQ, tir.NE, tir.LT, tir.LE, tir.GT, tir.GE)

Number = Any
"""An integer, or an expression of what does not change while the statement runs."""


@dataclass(frozen=True, eq=False)
class Around:
    """One statement or choice around accesses."""

    statement: Any
    counter: Any = None  # A variable that counts the rounds, where it is a loop or threads
    variable: int | None = None  # The handle of the program's own variable
    value: Any = None  # That variable in counters; None where that is not known
    extent: Any = None  # Of the rounds, in counters around it; None where that is not known
    most: Number | None = None  # So many rounds at most; None where that is not known
    is_in_order: bool = True
    condition: Any = None  # Of a branch or a choice: part 1 is where it holds, part 2 where not

    @property
    def is_loop(self) -> bool:
        """Whether it has rounds."""
        return self.counter is not None


@dataclass(frozen=True, eq=False)
class Linear:
    """An index as a sum: a base, and for each round of a loop a move."""

    base: Number
    moves: Mapping[Around, Number]
    # Elements between the lanes of a vector, and how many these are.
    stride: int
    lanes: int


@dataclass(frozen=True, eq=False)
class ElementAccess:
    """One load or store."""

    access: MemoryAccess
    number: int  # Its place in the order of the program
    around: tuple[tuple[Around, int], ...]  # And in which part of each it stands
    is_repeated: bool  # Whether the bound of a loop is evaluated once more, after an iteration
    in_counters: Callable[[Any], Any]  # An expression that stands there; None if it is not known

    @property
    def op(self) -> Any:
        """The load or the store."""
        return self.access.op

    @cached_property
    def loops(self) -> tuple[Around, ...]:
        """The loops around it, outermost first."""
        return tuple(at for at, _ in self.around if at.is_loop)

    @cached_property
    def has_known_order(self) -> bool:
        """Whether the execution order of everything that encloses it is known."""
        return all(
            at.is_loop or at.condition is not None or _is_hint(at.statement)
            for at, _ in self.around
        )

    @cached_property
    def index(self) -> Any:
        """Its index in counters; None where that is not known, or rests on memory or a call."""
        return _arithmetic(self.access.index, self.in_counters)

    @cached_property
    def conditions(self) -> tuple[tuple[Around, Any], ...]:
        """The branches and choices around it, with what holds in its part; None as for `index`."""
        return tuple(
            (at, self._holding(at, part))
            for at, part in self.around
            if at.condition is not None and part
        )

    def _holding(self, at: Around, part: int) -> Any:
        condition = structural_map(at.condition, [(tir.Call, _without_likely)])
        if condition.ty.dtype.lanes != 1 or any(map(_is_of_floats, nodes_in(condition, *_COMPARE))):
            return None  # It differs between lanes, or no number may be: neither less nor not less.
        holds = _arithmetic(condition, self.in_counters)
        return holds if holds is None or part == 1 else tir.Analyzer().simplify(tir.Not(holds))

    @cached_property
    def linear(self) -> Linear | None:
        """Its index as a sum; None if it is not a sum."""
        base, stride, lanes = self.index, 1, 1
        if isinstance(base, tir.Ramp):
            if not isinstance(base.stride, tir.IntConstant) or not isinstance(
                base.lanes, tir.IntConstant
            ):
                return None
            base, stride, lanes = base.base, int(base.stride.value), int(base.lanes.value)
        if base is None or base.ty.dtype.lanes != 1 or not stride:
            return None
        counters = [loop.counter for loop in self.loops]
        if isinstance(base, tir.Var) and any(base.same_as(counter) for counter in counters):
            # The most common of all; TVM's analyzer takes long to answer.
            moves = {loop: int(base.same_as(loop.counter)) for loop in self.loops}
            return Linear(0, moves, stride, lanes)
        found = items(tir.detect_linear_equation(ranged(self.loops).simplify(base), counters))
        if not found:
            return None
        moves = {loop: plain(move) for loop, move in zip(self.loops, found[:-1], strict=True)}
        return Linear(plain(found[-1]), moves, stride, lanes)


def _without_likely(call: tir.Call) -> Any:
    return call.args[0] if is_likely(call) else call


def _is_of_floats(comparison: Any) -> bool:
    return not str(comparison.a.ty.dtype).startswith(("int", "uint", "bool"))


def _is_hint(statement: Any) -> bool:
    if not isinstance(statement, tir.Attribute):
        return False
    return statement.attr_key.startswith(_NO_ORDER) and not statement.attr_key.startswith(_PARALLEL)


def is_of_threads(op: Any) -> bool:
    """Return whether a statement is executed by each of some threads, or blocks of them."""
    is_extent = isinstance(op, tir.Attribute) and op.attr_key in _THREADS
    return is_extent and hasattr(op.node, "var")


def plain(number: Any) -> Number:
    """Return a constant as an integer, and another expression as it is."""
    return int(number.value) if isinstance(number, tir.IntConstant) else number


def ranged(loops: Sequence[Around]) -> tir.Analyzer:
    """Return an analyzer that knows how far the counters of loops go."""
    analyzer = tir.Analyzer()
    for loop in loops:
        if isinstance(loop.most, int) and loop.most > 0:
            dtype = loop.counter.ty
            analyzer.bind(
                loop.counter,
                tir.Range(tir.IntConstant(dtype, 0), tir.IntConstant(dtype, loop.most)),
            )
    return analyzer


class ElementAccesses:
    """The loads and stores in one statement of a function.

    `depth` is the number of enclosures around the statement. A loop that `is_fixed` counts as if it
    were around the statement: what is asked is what happens in one of its rounds.
    """

    def __init__(
        self,
        found: FunctionAccesses,
        depth: int,
        is_fixed: Callable[[Any], bool] = lambda _statement: False,
    ) -> None:
        self._found, self._depth, self._is_fixed = found, depth, is_fixed
        self._known: dict[int, Around | None] = {}  # By the numbers of enclosures

    def of(self, accesses: Iterable[MemoryAccess]) -> Iterator[ElementAccess]:
        """Yield some accesses in the statement.

        Reads in the bounds of a loop come before the loop and, as `is_repeated`, after its body: C
        asks for the extent then, and each task of a parallel loop evaluates all bounds.
        """
        for access in accesses:
            loop = access.loop_of_bounds
            outer = access.around if loop is None else access.around[:loop]
            in_counters = partial(self._in_counters, around=outer)
            around = tuple(self._statements(outer))
            yield ElementAccess(access, 2 * access.order, around, False, in_counters)
            if loop is not None:
                around = tuple(self._statements(access.around))
                last = 2 * self._found.ends[access.around[loop].number] - 1
                yield ElementAccess(access, last, around, True, in_counters)

    def _statements(self, around: Enclosures) -> Iterator[tuple[Around, int]]:
        """Yield the statements around an access within this one, and its part of each."""
        for at in range(self._depth, len(around)):
            known = self.statement(around, at)
            if known is not None:
                each = around[at]
                yield known, 0 if isinstance(each.op, tir.Loop) else each.part

    def statement(self, enclosures: Enclosures, at: int) -> Around | None:
        """Return an enclosure as a statement around accesses; None for one that is fixed."""
        enclosure = enclosures[at]
        number, op = enclosure.number, enclosure.op
        if number not in self._known:
            self._known[number] = None
            if not self._is_fixed(op):
                self._known[number] = self._new_around(op, enclosures[:at])
        return self._known[number]

    def _new_around(self, op: Any, outer: Enclosures) -> Around:
        in_counters = partial(self._in_counters, around=outer)
        if isinstance(op, tir.Loop):
            return self._loop(op, outer)
        if isinstance(op, tir.While):
            return Around(op, tir.Var("round", "int32"))
        if isinstance(op, (tir.If, tir.Select, tir.Call)):
            return Around(op, condition=op.args[0] if isinstance(op, tir.Call) else op.condition)
        if is_of_threads(op):
            variable = op.node.var
            counter = tir.Var(variable.name, variable.ty)
            extent = _arithmetic(op.value, in_counters)
            known = variable.__chandle__(), counter, extent
            return Around(op, counter, *known, _most(extent, ()), is_in_order=False)
        return Around(op)

    def _loop(self, op: tir.Loop, outer: Enclosures) -> Around:
        in_counters = partial(self._in_counters, around=outer)
        counter = tir.Var(op.loop_var.name, op.loop_var.ty)
        step = 1 if op.step is None else plain(op.step)
        first, extent = (_arithmetic(bound, in_counters) for bound in (op.min, op.extent))
        if not isinstance(step, int) or step < 1 or first is None:
            first = extent = None
        elif extent is not None and step > 1:
            extent = (extent + (step - 1)) // step
        loops = tuple(at for at, _ in self._statements(outer) if at.is_loop)
        is_in_order = op.kind in (tir.LoopKind.SERIAL, tir.LoopKind.UNROLLED)
        moved = counter if step == 1 else counter * step
        value = None if first is None else moved if plain(first) == 0 else first + moved
        known = op.loop_var.__chandle__(), value, extent
        return Around(op, counter, *known, _most(extent, loops), is_in_order)

    def _in_counters(self, expr: Any, around: Enclosures) -> Any:
        """Return an expression in counters; None where a variable in it is not known."""
        new: dict[int, Any] = {}
        for key, variable in {v.__chandle__(): v for v in nodes_in(expr, tir.Var)}.items():
            value = self._value(variable, around)
            if value is None:
                return None
            if not value.same_as(variable):
                new[key] = value
        if not new:
            return expr
        return structural_map(expr, [(tir.Var, lambda var: new.get(var.__chandle__(), var))])

    def _value(self, variable: tir.Var, around: Enclosures) -> Any:
        """Return a variable in counters: itself where it does not change in the statement."""
        key = variable.__chandle__()
        for at in range(len(around) - 1, self._depth - 1, -1):
            known = self.statement(around, at)
            if known is not None and known.variable == key:
                return known.value
        bound = self._found.bound_in.get(key, ())
        if bound is None or (key in self._found.values and self._found.values[key] is None):
            return None  # It is bound to several values, or to one in several places.
        places, here = (
            [(e.number, e.part) for e in each[self._depth :]] for each in (bound, around)
        )
        if not places or not here or places[0][0] != here[0][0]:
            return variable  # It is bound outside of the statement.
        if places != here[: len(places)]:
            return None
        return _arithmetic(self._found.values[key], partial(self._in_counters, around=bound))


def _arithmetic(value: Any, in_counters: Callable[[Any], Any]) -> Any:
    """Return an expression in counters if it is no more than arithmetic that does not wrap."""
    if value is None or has_any(value, tir.Load, tir.Call, tir.Let) or not never_wraps(value):
        return None
    return in_counters(value)


def _most(extent: Any, loops: Sequence[Around]) -> Number | None:
    """Return the most rounds of a loop inside of others."""
    if extent is None:
        return None
    if isinstance(extent, tir.IntConstant):
        return max(int(extent.value), 0)
    counted = {loop.counter.__chandle__(): loop for loop in loops}
    named = [counted.get(var.__chandle__()) for var in nodes_in(extent, tir.Var)]
    if all(loop is not None and isinstance(loop.most, int) for loop in named):
        return max(int(ranged(loops).const_int_bound(extent).max_value), 0)
    return None if any(named) else extent
