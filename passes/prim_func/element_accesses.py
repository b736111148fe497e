# SPDX-License-Identifier: Apache-2.0
"""The loads and stores in a statement, with their indices as sums over the rounds of its loops.

A loop is counted from 0 in steps of 1, by a variable of its own; an index is written in these. The
threads of an extent count as the rounds of a loop that runs in any order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from passes.ir import has_any, items, never_wraps, nodes_in, structural_map, tir
from passes.ir.statements import has_body, parts_of

_THREADS = ("thread_extent", "virtual_thread")
_NO_ORDER = "pragma_"  # Hints to a code generator, but for those of parallel regions
_PARALLEL = "pragma_parallel"

Number = Any
"""An integer, or an expression of what does not change while the statement runs."""

_Known = Mapping[int, Any]
"""Variables of the statement, by handle, as expressions of counters; None where they are not."""


@dataclass(frozen=True, eq=False)
class Around:
    """One statement around accesses."""

    statement: Any
    counter: tir.Var | None = None  # Counts the rounds, where it is a loop or threads
    extent: Any = None  # Of the rounds, in counters around it; None where that is not known
    most: Number | None = None  # So many rounds at most; None where that is not known
    is_in_order: bool = True

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

    number: int  # Its place in the order of the program; a store comes after the loads of its value
    op: Any  # The load or the store
    around: tuple[tuple[Around, int], ...]  # And in which part of each it stands
    known: _Known
    is_repeated: bool  # Whether the bound of a loop is evaluated once more, after an iteration
    statement: Any  # The statement that does it: a store, or what encloses, for its bounds

    @property
    def buffer(self) -> tir.Var:
        """The buffer that is loaded or stored to."""
        return self.op.buffer if isinstance(self.op, tir.Store) else self.op.source

    @cached_property
    def loops(self) -> tuple[Around, ...]:
        """The loops around it, outermost first."""
        return tuple(at for at, _ in self.around if at.is_loop)

    @cached_property
    def has_known_order(self) -> bool:
        """Whether the execution order of everything that encloses it is known."""
        return all(
            at.is_loop or isinstance(at.statement, tir.If) or _is_hint(at.statement)
            for at, _ in self.around
        )

    @cached_property
    def index(self) -> Any:
        """Its index in counters; None where that is not known, or rests on memory or a call."""
        return _arithmetic(items(self.op.indices)[0], self.known)

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


def _is_hint(statement: Any) -> bool:
    if not isinstance(statement, tir.Attribute):
        return False
    return statement.attr_key.startswith(_NO_ORDER) and not statement.attr_key.startswith(_PARALLEL)


def plain(number: Any) -> Number:
    """Return a constant as an integer, and another expression as it is."""
    return int(number.value) if isinstance(number, tir.IntConstant) else number


def ranged(loops: Sequence[Around]) -> tir.Analyzer:
    """Return an analyzer that knows how far the counters of loops go."""
    analyzer = tir.Analyzer()
    for loop in loops:
        if isinstance(loop.most, int) and loop.most > 0:
            dtype = loop.counter.ty  # type: ignore[union-attr]
            analyzer.bind(
                loop.counter,
                tir.Range(tir.IntConstant(dtype, 0), tir.IntConstant(dtype, loop.most)),
            )
    return analyzer


def in_counters(expr: Any, known: _Known) -> Any:
    """Return an expression in counters; None where a variable in it is not known."""
    named = [known[key] for v in nodes_in(expr, tir.Var) if (key := v.__chandle__()) in known]
    if any(value is None for value in named):
        return None
    if not named:
        return expr
    return structural_map(expr, [(tir.Var, lambda var: known.get(var.__chandle__(), var))])


def element_accesses(
    root: Any, is_fixed: Callable[[Any], bool] = lambda _statement: False
) -> list[ElementAccess]:
    """Return the loads and stores in a statement, in the order of the program.

    A loop that `is_fixed` counts as if it were around the statement: what is asked is what happens
    in one of its rounds.
    """
    found: list[ElementAccess] = []
    for op, *rest in _walk([root], (), {}, is_fixed, None):
        found.append(ElementAccess(len(found), op, *rest))
    return found


_Found = tuple[Any, tuple[tuple[Around, int], ...], _Known, bool, Any]


def _walk(
    nodes: Sequence[Any],
    around: tuple[tuple[Around, int], ...],
    known: _Known,
    is_fixed: Callable[[Any], bool],
    owner: Any,
    is_repeated: bool = False,
) -> Iterator[_Found]:
    """Yield the loads and stores in some nodes of a statement, the owner.

    A statement counts as around what stands in it, unless it is a leaf. Reads in the bounds of a
    loop come before the loop and, as `is_repeated`, after its body: C asks for the extent then, and
    each task of a parallel loop evaluates all bounds.
    """
    for op in nodes:
        parts, owner = parts_of(op), op if isinstance(op, tir.Statement) else owner
        if isinstance(op, tir.Loop):
            *bounds, body = parts
            fixed = is_fixed(op)
            loop, inner = (None, known) if fixed else _loop(op, around, known)
            inside = around if loop is None else (*around, (loop, 0))
            for bound in bounds:
                yield from _walk(bound, around, known, is_fixed, op, is_repeated)
            yield from _walk(body, inside, inner, is_fixed, op, is_repeated)
            for bound in bounds:
                yield from _walk(bound, inside, inner, is_fixed, op, True)
            continue
        enclosing = _enclosing(op, known) if has_body(op) and not is_fixed(op) else None
        if isinstance(op, tir.Attribute) and enclosing is not None and enclosing.is_loop:
            known = {**known, op.node.var.__chandle__(): enclosing.counter}
        elif isinstance(op, tir.Let):
            known = {**known, op.var.__chandle__(): None}
        for number, part in enumerate(parts):
            inside = around if enclosing is None else (*around, (enclosing, number))
            yield from _walk(part, inside, known, is_fixed, owner, is_repeated)
        if isinstance(op, (tir.Load, tir.Store)):
            yield op, around, known, is_repeated, owner
        elif isinstance(op, tir.Binding):
            known = {**known, op.var.__chandle__(): _arithmetic(op.value, known)}


def _arithmetic(value: Any, known: _Known) -> Any:
    """Return an expression in counters if it is no more than arithmetic that does not wrap."""
    if has_any(value, tir.Load, tir.Call, tir.Let) or not never_wraps(value):
        return None
    return in_counters(value, known)


def _enclosing(op: Any, known: _Known) -> Around:
    """Return what encloses, other than a `For`."""
    if isinstance(op, tir.While):
        return Around(op, tir.Var("round", "int32"))
    if isinstance(op, tir.Attribute) and op.attr_key in _THREADS and hasattr(op.node, "var"):
        counter = tir.Var(op.node.var.name, op.node.var.ty)
        extent = _arithmetic(op.value, known)
        return Around(op, counter, extent, _most(extent, ()), is_in_order=False)
    return Around(op)


def _loop(
    op: tir.Loop, around: tuple[tuple[Around, int], ...], known: _Known
) -> tuple[Around, _Known]:
    """Return a loop, and what is known inside of it."""
    counter = tir.Var(op.loop_var.name, op.loop_var.ty)
    step = 1 if op.step is None else plain(op.step)
    first, extent = (_arithmetic(bound, known) for bound in (op.min, op.extent))
    if not isinstance(step, int) or step < 1 or first is None:
        first = extent = None
    elif extent is not None and step > 1:
        extent = (extent + (step - 1)) // step
    loops = tuple(at for at, _ in around if at.is_loop)
    is_in_order = op.kind in (tir.LoopKind.SERIAL, tir.LoopKind.UNROLLED)
    loop = Around(op, counter, extent, _most(extent, loops), is_in_order)
    moved = counter if step == 1 else counter * step
    value = None if first is None else moved if plain(first) == 0 else first + moved
    return loop, {**known, op.loop_var.__chandle__(): value}


def _most(extent: Any, loops: Sequence[Around]) -> Number | None:
    """Return the most rounds of a loop inside of others."""
    if extent is None:
        return None
    if isinstance(extent, tir.IntConstant):
        return max(int(extent.value), 0)
    counted = {loop.counter.__chandle__(): loop for loop in loops}  # type: ignore[union-attr]
    named = [counted.get(var.__chandle__()) for var in nodes_in(extent, tir.Var)]
    if all(loop is not None and isinstance(loop.most, int) for loop in named):
        return max(int(ranged(loops).const_int_bound(extent).max_value), 0)
    return None if any(named) else extent
