# SPDX-License-Identifier: Apache-2.0
"""The stages of a kernel: plain loop nests that each make whole elements of its result.

A group runs a stage over any part of its result, in the order of the result's axes, and for each
element over what is summed, in the order of the kernel's loops; on windows of the buffers. That is
the same where

- buffers are dense, of known extents, and of scalars that fill bytes;
- each variable of a block is one of its loops, which runs from 0 to its extent in steps of one, on
  one thread and without annotations, and there is no other loop and no predicate;
- each variable is an axis of what the block writes, or is summed over after an initial statement;
- a body is a row of stores and bindings, and every store is to the element's own place;
- an element is read again only at its own place and after a store;
- expressions are plain arithmetic on elements, and call nothing that has effects, keeps a state
  or is given an address, from which it could read on;
- each variable is the block's own, and what a block does first knows no variable that it sums over.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from passes.ir import PREORDER, Callbacks, structural_visit, structural_walk, tir
from passes.ir.operators import is_if_then_else, is_pure

_SPATIAL, _SUMMED = int(tir.ThreadAxis.DataPar), int(tir.ThreadAxis.CommReduce)

_PLAIN = (
    *(tir.Binary, tir.Comparison, tir.Logical, tir.Not, tir.BitwiseNot),
    *(tir.Cast, tir.Select, tir.IntConstant, tir.FloatConstant, tir.StringConstant),
)
"""Expressions beside variables, loads and calls."""


class NotSliceableError(ValueError):
    """A kernel that is not a row of plain loop nests; the message says what is in the way."""


NOT_ANALYSED = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""Exceptions, also of TVM, that mean that a kernel cannot be analysed.

Its layer is left ungrouped then: none of them may end a build.
"""


@dataclass(frozen=True, eq=False)
class ElementLoad:
    """One load."""

    buffer: int  # The number of the buffer in its kernel
    indices: tuple[Any, ...]  # In the stage's variables
    guards: tuple[Any, ...]  # The load is executed only where all of these are true
    behind_store: bool  # Whether the block has stored something for the same element before


@dataclass(frozen=True, eq=False)
class Stage:
    """One block: for each element of what it writes, a computation."""

    name: str  # The block's
    spatial: tuple[tir.Var, ...]  # One for each axis of what it writes: the index there
    extents: tuple[int, ...]  # Number of elements of each of those axes
    # The variables that are summed over, with their extents, outermost first.
    inner: tuple[tuple[tir.Var, int], ...]
    init: Any  # The statement for an element before its first summand
    body: Any  # The statement for an element and each value of the inner variables
    writes: tuple[int, ...]  # Numbers of buffers, all of the same shape
    reads: tuple[ElementLoad, ...]  # Of other buffers than those

    @property
    def operations(self) -> int:
        """Executions of the body for all elements."""
        return prod(self.extents) * prod(extent for _, extent in self.inner)

    def reads_in_place(self, buffer: int) -> bool:
        """Return whether each element is read only for that at its place, before its store."""
        once = all(extent == 1 for _, extent in self.inner)
        return all(
            once
            and not access.behind_store
            and at_place(access.indices, self.spatial, self.extents)
            for access in self.reads
            if access.buffer == buffer
        )


def variables_in(expr: Any) -> dict[int, tir.Var]:
    """Return the variables of an expression by their handles."""
    return {var.__chandle__(): var for var in tir.undefined_vars(expr)}


def at_place(indices: Sequence[Any], spatial: Sequence[tir.Var], extents: Sequence[int]) -> bool:
    """Return whether indices are an element's own: the variable of each axis with more than one."""
    return all(
        index.same_as(var) or extent == 1
        for index, var, extent in zip(indices, spatial, extents, strict=True)
    )


def known_shape(buffer: tir.Var) -> tuple[int, ...]:
    """Return the extents of a buffer; NotSliceableError if it breaks the rule for buffers."""
    ty = buffer.ty
    if not all((tir.constant(extent) or 0) > 0 for extent in ty.shape):
        raise NotSliceableError(f"the shape of {buffer.name!r} is not known, or empty")
    if len(ty.strides) or not isinstance(ty.elem_offset, (tir.IntConstant, tir.Var)):
        raise NotSliceableError(f"{buffer.name!r} has strides or an offset")
    element = ty.dtype.dtype
    if element.lanes != 1 or element.bits % 8:
        raise NotSliceableError(f"{buffer.name!r} holds elements of type {element}")
    return tuple(int(extent.value) for extent in ty.shape)


def read_stage(
    loops: Sequence[tir.Loop],
    realize: tir.BlockRealize,
    number: Mapping[int, int],
    shapes: Sequence[tuple[int, ...]],
) -> Stage:
    """Read a block, given the number of each buffer by its handle, and their extents by number.

    Raises NotSliceableError when it breaks one of the rules above.
    """
    block = realize.block
    name = str(block.name_hint)
    check_block(name, realize)
    ordered = _in_order_of_loops(name, loops, realize)
    init, body = (_statements(name, root) for root in (block.init, block.body))
    stores = [stmt for stmt in (*body, *init) if isinstance(stmt, tir.Store)]
    if not stores:
        raise NotSliceableError(f"block {name!r} writes nothing")
    writes = tuple(dict.fromkeys(number[store.buffer.__chandle__()] for store in stores))
    shape = shapes[writes[0]]
    spatial = _spatial(name, ordered, stores[0], shape)
    for store in stores:
        same_shape = shapes[number[store.buffer.__chandle__()]] == shape
        if not (same_shape and at_place(store.indices, spatial, shape)):
            raise NotSliceableError(f"block {name!r} does not write at its own place")
    inner = _inner(name, ordered, spatial, block)
    reader = _StatementReader(name, number, writes, spatial, shape)
    variables = {item.var.__chandle__() for item in block.iter_vars}
    reader.read(init, variables.intersection(var.__chandle__() for var in spatial))
    reader.read(body, variables)
    return Stage(name, spatial, shape, inner, block.init, block.body, writes, tuple(reader.reads))


def check_block(name: str, realize: tir.BlockRealize) -> None:
    """Refuse a block that has more to it than variables, an initial statement and a body."""
    block = realize.block
    if block.match_buffers:
        raise NotSliceableError(f"block {name!r} matches buffers")
    if block.alloc_buffers and block.iter_vars:
        raise NotSliceableError(f"block {name!r} has buffers of its own")
    if not tir.constant(realize.predicate):
        raise NotSliceableError(f"block {name!r} has a predicate")
    if any(str(key).startswith("pragma_") for key in block.annotations):
        raise NotSliceableError(f"block {name!r} has a pragma")


def _in_order_of_loops(
    name: str, loops: Sequence[tir.Loop], realize: tir.BlockRealize
) -> list[tuple[Any, int]]:
    """Return a block's variables with their extents, in the order in which its loops run them."""
    at = {loop.loop_var.__chandle__(): depth for depth, loop in enumerate(loops)}
    found: dict[int, tuple[Any, int]] = {}
    alone = []
    for item, value in zip(realize.block.iter_vars, realize.iter_values, strict=True):
        extent = tir.constant(item.dom.extent)
        if tir.constant(item.dom.min) != 0 or extent is None:
            raise NotSliceableError(f"the shape of block {name!r} is not known")
        if extent == 1:
            alone.append((item, extent))
            continue
        depth = at.get(value.__chandle__()) if isinstance(value, tir.Var) else None
        if depth is None or depth in found or not _is_plain(loops[depth], extent):
            raise NotSliceableError(f"the loops of block {name!r} are scheduled")
        found[depth] = (item, extent)
    if any(depth not in found and not _is_plain(loop, 1) for depth, loop in enumerate(loops)):
        raise NotSliceableError(f"the loops of block {name!r} are scheduled")
    return [found[depth] for depth in sorted(found)] + alone


def _is_plain(loop: tir.Loop, extent: int) -> bool:
    return (
        int(loop.kind) == int(tir.LoopKind.SERIAL)
        and not loop.annotations
        and (loop.step is None or tir.constant(loop.step) == 1)
        and tir.constant(loop.min) == 0
        and tir.constant(loop.extent) == extent
    )


def _statements(name: str, root: tir.Statement | None) -> list[Any]:
    """Return the stores and bindings of a block's body or initial statement, in order.

    Raises NotSliceableError when it holds any other statement.
    """
    found: list[Any] = []
    if root is not None:
        structural_walk(root, [(tir.Statement, found.append)], PREORDER)
    for stmt in found:
        if not isinstance(stmt, (tir.Store, tir.Sequence, tir.Binding)):
            raise NotSliceableError(f"block {name!r} holds a {type(stmt).__name__}")
    return [stmt for stmt in found if not isinstance(stmt, tir.Sequence)]


def _spatial(
    name: str, ordered: Sequence[tuple[Any, int]], store: tir.Store, shape: Sequence[int]
) -> tuple[tir.Var, ...]:
    """Return the variable of each axis that a block writes along; a new one for a constant."""
    extents = {item.var.__chandle__(): extent for item, extent in ordered}
    chosen: list[tir.Var] = []
    for axis, (index, extent) in enumerate(zip(store.indices, shape, strict=True)):
        if isinstance(index, tir.IntConstant):
            chosen.append(tir.Var(f"unit_{axis}", index.ty))
        elif extents.get(index.__chandle__()) == extent and not any(
            index.same_as(var) for var in chosen
        ):
            chosen.append(index)
        else:
            raise NotSliceableError(f"block {name!r} does not write one whole element at a time")
    return tuple(chosen)


def _inner(
    name: str, ordered: Sequence[tuple[Any, int]], spatial: Sequence[tir.Var], block: tir.Block
) -> tuple[tuple[tir.Var, int], ...]:
    """Return the variables that are no axis of the result, with their extents, outermost first."""
    inner = []
    for item, extent in ordered:
        kind = int(item.iter_type)
        is_axis = any(item.var.same_as(var) for var in spatial)
        if kind not in (_SPATIAL, _SUMMED) or (is_axis == (kind == _SUMMED) and extent != 1):
            raise NotSliceableError(f"block {name!r} writes an element more than once")
        if not is_axis:
            inner.append((item.var, extent))
    if block.init is None and any(extent != 1 for _, extent in inner):
        raise NotSliceableError(f"block {name!r} sums into what was there before")
    return tuple(inner)


@dataclass(eq=False)
class _StatementReader:
    """Reads a block's initial statement, and then its body."""

    name: str  # The block's
    number: Mapping[int, int]  # The number of each buffer in its kernel, by handle
    writes: Collection[int]  # The buffers that the block writes
    # The variable and the extent of each axis of those.
    spatial: Sequence[tir.Var]
    extents: Sequence[int]
    reads: list[ElementLoad] = field(default_factory=list)  # Of other buffers, in order
    _guards: list[Any] = field(default_factory=list)
    _stored: set[int] = field(default_factory=set)  # Buffers that have been stored to so far

    def read(self, statements: Sequence[Any], variables: set[int]) -> None:
        """Read statements that know these variables; NotSliceableError where a rule is broken."""
        for stmt in statements:
            self._expression(stmt.value, variables)
            if isinstance(stmt, tir.Binding):
                variables.add(stmt.var.__chandle__())
            else:
                self._stored.add(self.number[stmt.buffer.__chandle__()])

    def _expression(self, expr: Any, variables: Collection[int]) -> None:
        broken: list[str] = []  # An error in a callback would lose its type on its way out.

        def on_load(load: tir.Load, visitor: Any) -> None:
            broken.extend(self._load(load))
            visitor.visit(load.indices)

        def on_call(call: tir.Call, visitor: Any) -> None:
            operator = str(getattr(call.op, "name", call.op))
            if not is_pure(call):
                broken.append(f"calls {operator!r}, which is not known to be pure")
            elif not isinstance(call.ty, tir.PrimType):
                broken.append(f"takes an address by {operator!r}")
            if not is_if_then_else(call):
                for argument in call.args:
                    visitor.visit(argument)
                return
            condition, then, otherwise = call.args
            visitor.visit(condition)
            for guard, case in ((condition, then), (tir.Not(condition), otherwise)):
                self._guards.append(guard)
                visitor.visit(case)
                self._guards.pop()

        def on_var(var: tir.Var, _visitor: Any) -> None:
            if var.__chandle__() in self.number:
                broken.append(f"uses {var.name!r} otherwise than by its elements")
            elif var.__chandle__() not in variables:
                broken.append(f"uses {var.name!r}, which is not its own")

        def on_other(other: tir.Expr, visitor: Any) -> None:
            if not isinstance(other, _PLAIN):
                broken.append(f"holds a {type(other).__name__}")
            visitor.default_visit(other)

        callbacks: Callbacks = [
            (tir.Load, on_load),
            (tir.Call, on_call),
            (tir.Var, on_var),
            (tir.Expr, on_other),
        ]
        structural_visit(expr, callbacks)
        if broken:
            raise NotSliceableError(f"block {self.name!r} {broken[0]}")

    def _load(self, load: tir.Load) -> list[str]:
        """Take a load down; return what is wrong with it."""
        buffer = self.number[load.source.__chandle__()]
        if buffer not in self.writes:
            indices, guards = tuple(load.indices), tuple(self._guards)
            self.reads.append(ElementLoad(buffer, indices, guards, bool(self._stored)))
        elif not at_place(load.indices, self.spatial, self.extents):
            return [f"reads its own result {load.source.name!r} at another place"]
        elif buffer not in self._stored:
            return [f"reads its own result {load.source.name!r} before it is written"]
        return []
