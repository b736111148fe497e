"""The stages of a kernel: plain loop nests, each of which makes whole elements of its result."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import tvm
from tvm.ir import TensorLoad, Var
from tvm.ir.expr import Call
from tvm.s_tir import SBlock, SBlockRealize
from tvm.tirx import Bind, BufferStore, For, IfThenElse, IntImm, Not, SeqStmt

from passes.ir.structural import structural_visit, type_index

_CALL, _TENSOR_LOAD, _VAR = type_index(Call), type_index(TensorLoad), type_index(Var)
_BUFFER_STORE = type_index(BufferStore)
_IF_THEN_ELSE = type_index(IfThenElse)

_STATEMENTS = (BufferStore, SeqStmt, Bind, IfThenElse)
"""What a block's body may be made of."""


class NotSliceableError(ValueError):
    """A kernel that is not a row of plain loop nests; the message says what is in the way."""


@dataclass(frozen=True, eq=False)
class Access:
    """One load.

    Attributes
    ----------
    buffer : int
        The number of the buffer in its kernel.
    indices : tuple of tvm.ir.Expr
        In the stage's variables.
    guards : tuple of tvm.ir.Expr
        The load is executed only where all of these are true.
    """

    buffer: int
    indices: tuple[Any, ...]
    guards: tuple[Any, ...]


@dataclass(frozen=True, eq=False)
class Stage:
    """One block: for each element of what it writes, a computation.

    Attributes
    ----------
    name : str
        The block's.
    spatial : tuple of tvm.ir.Var
        One for each axis of what it writes: the index there.
    extents : tuple of int
        How many elements each of those axes has.
    inner : tuple of (tvm.ir.Var, int)
        The variables that are summed over, with their extents, outermost first.
    init : tvm.tirx.Stmt or None
        What is done for an element before its first summand.
    body : tvm.tirx.Stmt
        What is done for an element and each value of the inner variables.
    writes : tuple of int
        Numbers of buffers, all of the same shape.
    reads : tuple of Access
        Of other buffers than those.
    """

    name: str
    spatial: tuple[Var, ...]
    extents: tuple[int, ...]
    inner: tuple[tuple[Var, int], ...]
    init: Any
    body: Any
    writes: tuple[int, ...]
    reads: tuple[Access, ...]

    @property
    def operations(self) -> int:
        """Executions of the body for all elements."""
        return prod(self.extents) * prod(extent for _, extent in self.inner)

    def reads_in_place(self, buffer: int) -> bool:
        """Whether each element of a buffer is read for the element at the same place alone."""
        found = [access for access in self.reads if access.buffer == buffer]
        return (
            bool(found)
            and all(extent == 1 for _, extent in self.inner)
            and all(_is_identity(access, self) for access in found)
        )


def known_shape(buffer: Var) -> tuple[int, ...]:
    """Return the extents of a buffer; NotSliceableError if they are not known."""
    ty = buffer.ty
    if not all(isinstance(extent, IntImm) for extent in ty.shape):
        raise NotSliceableError(f"the shape of {buffer.name!r} is not known")
    offset = ty.elem_offset
    if len(ty.strides) or not (offset is None or isinstance(offset, (IntImm, Var))):
        raise NotSliceableError(f"{buffer.name!r} has strides or an offset")
    return tuple(int(extent.value) for extent in ty.shape)


def read_stage(
    loops: Sequence[For], realize: SBlockRealize, number: dict[int, int], buffers: Sequence[Var]
) -> Stage:
    """Read a block.

    Parameters
    ----------
    loops : sequence of tvm.tirx.For
        Around it, outermost first.
    realize : tvm.s_tir.SBlockRealize
        The block.
    number : dict of int to int
        The number of each buffer in its kernel, by handle.
    buffers : sequence of tvm.ir.Var
        The buffers by number.

    Raises
    ------
    NotSliceableError
        When it is no plain loop nest.
    """
    block = realize.block
    name = str(block.name_hint)
    if block.alloc_buffers or block.match_buffers:
        raise NotSliceableError(f"block {name!r} has buffers of its own")
    if not (isinstance(realize.predicate, IntImm) and realize.predicate.value):
        raise NotSliceableError(f"block {name!r} has a predicate")
    _check_loops(name, loops, realize)
    extents = {item.var.__chandle__(): _extent(name, item) for item in block.iter_vars}
    stores = list(_stores(name, block))
    writes = tuple(dict.fromkeys(number[store.buffer.__chandle__()] for store in stores))
    spatial = _spatial(name, block, stores, extents, buffers[writes[0]])
    used = {var.__chandle__() for var in spatial}
    for store in stores:
        if not _same_indices(store.indices, spatial):
            raise NotSliceableError(f"block {name!r} does not write at its own place")
    inner = tuple(
        (item.var, extents[item.var.__chandle__()])
        for item in block.iter_vars
        if item.var.__chandle__() not in used
    )
    _check_inner(name, block, inner, used)
    reads = tuple(a for a in _loads(name, block, number) if a.buffer not in writes)
    return Stage(
        name,
        spatial,
        known_shape(buffers[writes[0]]),
        inner,
        block.init,
        block.body,
        writes,
        reads,
    )


def _check_loops(name: str, loops: Sequence[For], realize: SBlockRealize) -> None:
    """Refuse a block whose variables are not its loops' variables."""
    left = {loop.loop_var.__chandle__(): loop for loop in loops}
    for item, value in zip(realize.block.iter_vars, realize.iter_values, strict=True):
        extent = _extent(name, item)
        if isinstance(value, IntImm) and value.value == 0 and extent == 1:
            continue
        loop = left.pop(value.__chandle__(), None) if isinstance(value, Var) else None
        if loop is None or not _is_range(loop, extent):
            raise NotSliceableError(f"the loops of block {name!r} are scheduled")
    if any(not _is_range(loop, 1) for loop in left.values()):
        raise NotSliceableError(f"the loops of block {name!r} are scheduled")


def _is_range(loop: For, extent: int) -> bool:
    return (
        isinstance(loop.min, IntImm)
        and loop.min.value == 0
        and isinstance(loop.extent, IntImm)
        and loop.extent.value == extent
    )


def _extent(name: str, item: Any) -> int:
    domain = item.dom
    if not (
        isinstance(domain.min, IntImm)
        and domain.min.value == 0
        and isinstance(domain.extent, IntImm)
    ):
        raise NotSliceableError(f"the shape of block {name!r} is not known")
    return int(domain.extent.value)


def _stores(name: str, block: SBlock) -> Iterator[BufferStore]:
    for root in (block.init, block.body):
        if root is not None:
            _check_statements(name, root)
    found: list[BufferStore] = []

    def on_store(store: BufferStore, _visitor: Any) -> None:
        found.append(store)

    for root in (block.body, block.init):
        if root is not None:
            structural_visit(root, [(_BUFFER_STORE, on_store)])
    return iter(found)


def _check_statements(name: str, stmt: Any) -> None:
    if not isinstance(stmt, _STATEMENTS):
        raise NotSliceableError(f"block {name!r} holds a {type(stmt).__name__}")
    if isinstance(stmt, SeqStmt):
        for part in stmt.seq:
            _check_statements(name, part)
    elif isinstance(stmt, IfThenElse):
        for part in (stmt.then_case, stmt.else_case):
            if part is not None:
                _check_statements(name, part)


def _spatial(
    name: str, block: SBlock, stores: Sequence[BufferStore], extents: dict[int, int], buffer: Var
) -> tuple[Var, ...]:
    """Return the variable of each axis that a block writes along."""
    chosen = []
    taken: set[int] = set()
    for axis, (index, extent) in enumerate(
        zip(stores[0].indices, known_shape(buffer), strict=True)
    ):
        if isinstance(index, IntImm) and index.value == 0 and extent == 1:
            chosen.append(Var(f"unit_{axis}", index.ty))
            continue
        key = index.__chandle__() if isinstance(index, Var) else None
        if key is None or key in taken or extents.get(key) != extent:
            raise NotSliceableError(f"block {name!r} does not write one whole element at a time")
        taken.add(key)
        chosen.append(index)
    return tuple(chosen)


def _check_inner(
    name: str, block: SBlock, inner: Sequence[tuple[Var, int]], spatial: set[int]
) -> None:
    """Refuse variables that are neither an axis of the result nor summed over."""
    for item in block.iter_vars:
        summed = int(item.iter_type) == int(tvm.tirx.IterVar.CommReduce)
        if (item.var.__chandle__() in spatial) == summed and _extent(name, item) != 1:
            raise NotSliceableError(f"block {name!r} writes an element more than once")
    if block.init is None and any(extent != 1 for _, extent in inner):
        raise NotSliceableError(f"block {name!r} sums into what was there before")


def _same_indices(indices: Sequence[Any], spatial: Sequence[Var]) -> bool:
    return all(
        index.same_as(var) or (isinstance(index, IntImm) and var.name.startswith("unit_"))
        for index, var in zip(indices, spatial, strict=True)
    )


def _is_identity(access: Access, stage: Stage) -> bool:
    return len(access.indices) == len(stage.spatial) and all(
        index.same_as(var) or (isinstance(index, IntImm) and index.value == 0 and extent == 1)
        for index, var, extent in zip(access.indices, stage.spatial, stage.extents, strict=True)
    )


def _loads(name: str, block: SBlock, number: dict[int, int]) -> Iterator[Access]:
    """Return the loads of a block's body, each with the conditions under which it happens."""
    found: list[Access] = []
    guards: list[Any] = []

    def on_load(load: TensorLoad, visitor: Any) -> None:
        buffer = number.get(load.source.__chandle__())
        if buffer is None:
            raise NotSliceableError(
                f"block {name!r} reads {load.source.name!r}, which is not its own"
            )
        found.append(Access(buffer, tuple(load.indices), tuple(guards)))
        visitor.visit(load.indices)

    def on_call(call: Call, visitor: Any) -> None:
        operator = str(getattr(call.op, "name", call.op))
        if operator != "prim.if_then_else":
            visitor.default_visit(call)
            return
        condition, then, otherwise = call.args
        visitor.visit(condition)
        _under(condition, lambda: visitor.visit(then))
        _under(Not(condition), lambda: visitor.visit(otherwise))

    def on_branch(branch: IfThenElse, visitor: Any) -> None:
        visitor.visit(branch.condition)
        _under(branch.condition, lambda: visitor.visit(branch.then_case))
        if branch.else_case is not None:
            _under(Not(branch.condition), lambda: visitor.visit(branch.else_case))

    def _under(guard: Any, visit: Any) -> None:
        guards.append(guard)
        visit()
        guards.pop()

    def on_var(var: Var, _visitor: Any) -> None:
        if var.__chandle__() in number:
            raise NotSliceableError(
                f"block {name!r} uses {var.name!r} otherwise than by its elements"
            )

    def on_store(store: BufferStore, visitor: Any) -> None:
        visitor.visit(store.value)

    callbacks = [
        (_TENSOR_LOAD, on_load),
        (_CALL, on_call),
        (_IF_THEN_ELSE, on_branch),
        (_BUFFER_STORE, on_store),
        (_VAR, on_var),
    ]
    structural_visit(block.body, callbacks)
    if block.init is not None:
        structural_visit(block.init, callbacks)
    return iter(found)
