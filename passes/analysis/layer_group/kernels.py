"""A kernel as stages: plain loop nests, each of which makes whole elements of what it writes.

A kernel as TVM's legalization and fusion make it is a row of blocks in S-TIR. Blocks that only move
elements (padding, reshaping, the dilation of a transposed convolution) are computed where they are
read, by `s_tir.Schedule.compute_inline`: local memory holds no copy of an input with its border.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import tvm
import tvm_ffi
from tvm.ir import TensorLoad, Var
from tvm.ir.expr import Call
from tvm.s_tir import SBlock, SBlockRealize, Schedule
from tvm.tirx import Bind, BufferStore, For, IfThenElse, IntImm, Not, PrimFunc, SeqStmt

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


@dataclass(frozen=True, eq=False)
class Kernel:
    """One kernel.

    Attributes
    ----------
    func : tvm.tirx.PrimFunc
        What it was read from, with its moving blocks inlined.
    buffers : tuple of tvm.ir.Var
        The parameters in order, then the buffers that the kernel allocates.
    parameters : int
        How many parameters there are.
    stages : tuple of Stage
        In program order.
    """

    func: PrimFunc
    buffers: tuple[Var, ...]
    parameters: int
    stages: tuple[Stage, ...]

    def shape(self, buffer: int) -> tuple[int, ...]:
        """Return the extents of a buffer."""
        return _shape(self.buffers[buffer])

    def bits(self, buffer: int) -> int:
        """Return the bits of one element of a buffer."""
        return element_bits(self.buffers[buffer])

    def producer(self, buffer: int) -> int | None:
        """Return the number of the one stage that writes a buffer, or None."""
        found = [i for i, stage in enumerate(self.stages) if buffer in stage.writes]
        return found[0] if len(found) == 1 else None

    def stages_for(self, output: int) -> tuple[int, ...]:
        """Return the numbers of the stages that a buffer is computed by, in program order."""
        needed, wanted = [], {output}
        for i in reversed(range(len(self.stages))):
            stage = self.stages[i]
            if wanted & set(stage.writes):
                needed.append(i)
                wanted |= {access.buffer for access in stage.reads}
        return tuple(reversed(needed))

    def memory(self, output: int, like_output: Collection[int]) -> dict[int, int]:
        """Say which buffers can share memory while an output is computed.

        Parameters
        ----------
        output : int
            The number of a parameter that is written.
        like_output : collection of int
            Buffers of which a slice of the output needs that slice alone, so that they can lie in
            the output's memory.

        Returns
        -------
        dict of int to int
            For the output and each allocated buffer on the way to it, the buffer in whose memory
            it lies: one that takes its place element by element.
        """
        stages = [self.stages[i] for i in self.stages_for(output)]
        made = [buffer for stage in reversed(stages) for buffer in stage.writes]
        home: dict[int, int] = {}
        for head in made:
            if head in home:
                continue
            home[head] = head
            current: int | None = head
            while current is not None:
                allowed = like_output if head == output else None
                current = self._taken_over(current, stages, home, allowed)
                if current is not None:
                    home[current] = head
        return home

    def _taken_over(
        self,
        buffer: int,
        stages: list[Stage],
        home: dict[int, int],
        allowed: Collection[int] | None,
    ) -> int | None:
        """Return the allocated buffer whose elements a buffer can replace one by one."""
        at = next(i for i, stage in enumerate(stages) if buffer in stage.writes)
        stage = stages[at]
        if stage.writes != (buffer,):
            return None
        for access in stage.reads:
            source = access.buffer
            if (
                source >= self.parameters
                and source not in home
                and (allowed is None or source in allowed)
                and self.shape(source) == self.shape(buffer)
                and self.bits(source) == self.bits(buffer)
                and stage.reads_in_place(source)
                and not any(a.buffer == source for later in stages[at + 1 :] for a in later.reads)
            ):
                return source
        return None


def read_kernel(func: PrimFunc) -> Kernel:
    """Read a kernel, and compute the blocks that only move elements where they are read.

    Parameters
    ----------
    func : tvm.tirx.PrimFunc
        In S-TIR, not scheduled; it stays as it is.

    Returns
    -------
    Kernel
        With its stages.

    Raises
    ------
    NotSliceableError
        When it is anything else than a row of plain loop nests over buffers of known shapes.
    """
    kernel = _read(func)
    moved = [stage.name for i, stage in enumerate(kernel.stages) if _only_moves(kernel, i)]
    if not moved:
        return kernel
    schedule = Schedule(tvm.IRModule({"main": func}))
    for name in moved:
        schedule.compute_inline(schedule.get_sblock(name, "main"))
    return _read(schedule.mod["main"])


def element_bits(buffer: Var) -> int:
    """Return the bits of one element of a buffer."""
    dtype = buffer.ty.dtype.dtype
    return 8 if str(dtype) == "bool" else int(dtype.bits * dtype.lanes)


def _read(func: PrimFunc) -> Kernel:
    root = func.body
    if not isinstance(root, SBlockRealize) or root.block.iter_vars:
        raise NotSliceableError("it is not in S-TIR with a root block")
    if root.block.match_buffers:
        raise NotSliceableError("it matches buffers")
    parameters = [param for param in func.params if tvm.tirx.is_buffer_var(param)]
    if len(parameters) != len(func.params):
        raise NotSliceableError("it has parameters that are not buffers")
    buffers = (*parameters, *root.block.alloc_buffers)
    for buffer in buffers:
        _shape(buffer)
    number = {buffer.__chandle__(): i for i, buffer in enumerate(buffers)}
    stages = tuple(
        _read_stage(loops, realize, number, buffers)
        for loops, realize in _nests(root.block.body, ())
    )
    written = [buffer for stage in stages for buffer in stage.writes]
    if len(set(written)) != len(written):
        raise NotSliceableError("a buffer is written by more than one block")
    _check_order(stages, len(parameters))
    return Kernel(func, buffers, len(parameters), stages)


def _check_order(stages: Sequence[Stage], parameters: int) -> None:
    made = {buffer: i for i, stage in enumerate(stages) for buffer in stage.writes}
    for i, stage in enumerate(stages):
        for access in stage.reads:
            if access.buffer >= parameters and made.get(access.buffer, i) >= i:
                raise NotSliceableError(f"block {stage.name!r} reads what a later block writes")


def _shape(buffer: Var) -> tuple[int, ...]:
    ty = buffer.ty
    if not all(isinstance(extent, IntImm) for extent in ty.shape):
        raise NotSliceableError(f"the shape of {buffer.name!r} is not known")
    offset = ty.elem_offset
    if len(ty.strides) or not (offset is None or isinstance(offset, (IntImm, Var))):
        raise NotSliceableError(f"{buffer.name!r} has strides or an offset")
    return tuple(int(extent.value) for extent in ty.shape)


def _nests(stmt: Any, loops: tuple[For, ...]) -> Iterator[tuple[tuple[For, ...], SBlockRealize]]:
    """Yield each block with the loops around it."""
    if isinstance(stmt, SeqStmt):
        if loops:
            raise NotSliceableError("blocks share a loop")
        for part in stmt.seq:
            yield from _nests(part, loops)
    elif isinstance(stmt, For):
        if int(stmt.kind) != 0:
            raise NotSliceableError("a loop of it is scheduled")
        yield from _nests(stmt.body, (*loops, stmt))
    elif isinstance(stmt, SBlockRealize):
        yield loops, stmt
    else:
        raise NotSliceableError(f"it holds a {type(stmt).__name__} outside of a block")


def _read_stage(
    loops: Sequence[For], realize: SBlockRealize, number: dict[int, int], buffers: Sequence[Var]
) -> Stage:
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
        _shape(buffers[writes[0]]),
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
    for axis, (index, extent) in enumerate(zip(stores[0].indices, _shape(buffer), strict=True)):
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


def _only_moves(kernel: Kernel, at: int) -> bool:
    """Whether a stage is to be computed where its result is read.

    Either it computes nothing (its value is one load, or a constant where a condition fails), or
    one stage reads each of its elements once.
    """
    stage = kernel.stages[at]
    if (
        stage.inner
        or len(stage.writes) != 1
        or stage.writes[0] < kernel.parameters
        or not isinstance(stage.body, BufferStore)
        or len({other.name for other in kernel.stages}) != len(kernel.stages)
    ):
        return False
    if _is_movement(stage.body.value):
        return True
    (made,) = stage.writes
    readers = [(s, a) for s in kernel.stages for a in s.reads if a.buffer == made]
    return (
        len(readers) == 1
        and not readers[0][0].reads_in_place(made)
        and readers[0][0].operations == stage.operations
    )


def _is_movement(value: Any) -> bool:
    if isinstance(value, TensorLoad):
        return True
    if not isinstance(value, Call) or str(getattr(value.op, "name", "")) != "prim.if_then_else":
        return False
    return all(
        _is_movement(part) or not _holds_loads(part) for part in value.args[1:]
    ) and not _holds_loads(value.args[0])


def _holds_loads(expr: Any) -> bool:
    found = structural_visit(
        expr, [(_TENSOR_LOAD, lambda _load, _visitor: tvm_ffi.VisitInterrupt(None))]
    )
    return found is not None
