# SPDX-License-Identifier: Apache-2.0
"""The one walk that lists each access of a function to memory."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

from passes.ir import tir
from passes.ir.accesses import (
    AllocationUses,
    Enclosure,
    Enclosures,
    FunctionAccesses,
    MemoryAccess,
)
from passes.ir.carried_values import carrying_loop, elements_in_rounds
from passes.ir.linear_access import LinearAccess
from passes.ir.operators import (
    ASYNC_COPIES,
    ASYNCHRONOUS_SCOPES,
    JUMPS,
    STORES,
    buffer_data_var,
    is_address_of,
    is_done_on_return,
    is_tvm_access_ptr,
    masked_index,
    operator_name,
    written_operands,
)
from passes.ir.statements import (
    PARALLEL_REGION,
    NodeVisitor,
    begins_threads,
    is_choice,
    nodes_of,
    parts_of,
)
from passes.ir.uniform import Uniformity

_PARALLEL_LOOP, _THREAD_LOOP = int(tir.LoopKind.PARALLEL), int(tir.LoopKind.THREAD_BINDING)
_LEND = (tir.Assertion, tir.Evaluation, tir.Loop, tir.If, tir.While)
"""Statements that lend an address for the time that they take; others may keep it."""

_READ, _WRITE = 1, 2  # The bits of what a pointer is for


def find_accesses(access: LinearAccess, lasting: frozenset[str] = frozenset()) -> FunctionAccesses:
    """List the accesses to each allocation of a function, by its own and by its other names.

    A pointer that is an argument of a call in an `Evaluate` statement, or in the bounds or the
    condition of a statement, is lent for the time of that statement: extern code keeps no
    pointers. Anywhere else, in a `Bind`, a `Return`, the value of a store, an attribute, a `Let`,
    or a buffer declared on a computed address, it may be kept, and the memory *escapes*. So does
    what is given to a call whose effect may end after it returns, such as an asynchronous copy,
    what is read or written where TVM makes such copies of loads and stores, and in what all threads
    of a CPU run. `lasting` is that of `is_done_on_return`.

    ValueError is raised when one name is declared for the memory of two allocations, a thread
    extent begins inside another scope of threads, or a loop is still bound to a thread.
    """
    return _AccessWalk(access, lasting).find()


class _AccessWalk(NodeVisitor):
    def __init__(self, access: LinearAccess, lasting: frozenset[str]) -> None:
        self._access, self._lasting = access, lasting
        made = enumerate(zip(access.alloc_stmts, access.allocs, strict=True))
        self._of = tuple(AllocationUses(index, *each) for index, each in made)
        self._found = FunctionAccesses(self._of, {}, {}, {}, {}, set(), set())
        self._around: Enclosures = ()
        self._statement: Any = None
        self._visits = self._order = 0
        self._owners: list[int] = []
        self._in_thread_env = False
        # Whether the expression that the walk is in may keep an address that it is given, or copies
        # there until a thread waits.
        self._keeps = self._copies = False
        # Whether the statement that the walk is in may still read or write after it is done.
        self._goes_on = False

    def find(self) -> FunctionAccesses:
        self._visit(nodes_of(self._access.body))
        uniformity = cache(lambda kernel: Uniformity(kernel, self._access, self._found))
        elements = cache(partial(elements_in_rounds, self._found))
        for uses in self._of:
            uses.by_threads = uses.owner in self._found.threaded
            uses.carrying = carrying_loop(self._found, uses, elements, uniformity)
        return self._found

    def _of_buffer(self, buffer: Any) -> AllocationUses | None:
        """Return what is known of the memory that a variable names."""
        entry = None if buffer is None else self._access.buffers.get(buffer.__chandle__())
        return self._of[entry.root] if entry is not None and entry.root >= 0 else None

    def _visit_parts(self, op: Any) -> None:
        outer = self._keeps, self._statement
        if isinstance(op, tir.Statement):
            self._keeps, self._statement = not isinstance(op, _LEND), op
        super()._visit_parts(op)
        if type(op) is tir.Store:
            self._note(op.buffer, op, _WRITE, _flat(op.buffer, op.indices))
        self._keeps, self._statement = outer

    # Statements with a body, and choices

    def _visit_body(self, op: Any, is_owner: bool = False) -> None:
        outer, number = (self._around, self._keeps, self._statement), self._visits
        self._visits += 1
        self._keeps, self._statement = not isinstance(op, _LEND), op
        if is_owner:
            self._owners.append(op.__chandle__())
        for part, nodes in enumerate(parts_of(op)):
            self._around = (*outer[0], Enclosure(op, part, number))
            self._visit(nodes)
        if is_owner:
            self._owners.pop()
        self._around, self._keeps, self._statement = outer
        self._found.ends[number] = self._order

    _visit_if = _visit_while = _visit_other = _visit_body

    def _visit_loop(self, op: tir.Loop) -> None:
        if op.kind == _THREAD_LOOP:
            raise ValueError(
                f"loop {op.loop_var.name!r} is bound to a thread; run LowerOpaqueBlock first"
            )
        is_parallel = op.kind == _PARALLEL_LOOP
        if is_parallel and self._owners and self._owners[-1] in self._found.threaded:
            self._found.threaded.add(op.__chandle__())
        self._visit_body(op, is_parallel)

    def _visit_attribute(self, op: tir.Attribute) -> None:
        name, before = op.attr_key, (self._in_thread_env, self._goes_on)
        is_thread = name == "thread_extent" and not self._in_thread_env
        if name == "virtual_thread" and self._in_thread_env:
            raise ValueError("a virtual thread begins inside a thread extent")
        self._in_thread_env |= is_thread
        self._goes_on |= name in ASYNCHRONOUS_SCOPES or name == PARALLEL_REGION
        is_owner = is_thread or name in ("virtual_thread", PARALLEL_REGION)
        if begins_threads(op):
            self._found.threaded.update((*self._owners, op.__chandle__()))
        self._visit_body(op, is_owner)
        self._in_thread_env, self._goes_on = before

    def _visit_choice(self, op: Any) -> None:
        # Without recursion: they nest as deep as a concatenation has tensors.
        outer = self._around
        waiting = [(op, outer)]
        while waiting:
            node, self._around = waiting.pop()
            if not is_choice(node):
                self._visit([node])
                continue
            number = self._visits
            self._visits += 1
            parts = [
                (inner, (*self._around, Enclosure(node, part, number)))
                for part, nodes in enumerate(parts_of(node))
                for inner in nodes
            ]
            waiting += reversed(parts)
        self._around = outer

    # Definitions

    def _visit_allocation(self, op: tir.Allocation) -> None:
        of = self._of_buffer(op.buffer)
        if of is None:
            raise ValueError(f"buffer {op.buffer.name!r} is both allocated and declared")
        of.made.append(self._around)
        of.owner = self._owners[-1] if self._owners else None
        self._visit_parts(op)

    def _visit_declaration(self, op: tir.Declaration) -> None:
        of, source = self._of_buffer(op.buffer), buffer_data_var(op.data)
        if source is None or not tir.is_buffer(source):
            if of is not None:
                raise ValueError(f"buffer {op.buffer.name!r} is both allocated and declared")
            self._visit_parts(op)
        elif self._of_buffer(source) is not of:
            raise ValueError(
                f"buffer {op.buffer.name!r} is declared as a name of different memory in "
                "different places"
            )
        elif of is not None:
            of.aliases.append(op.buffer)

    def _bind(self, op: tir.Binding | tir.Let) -> None:
        key, values, bound_in = op.var.__chandle__(), self._found.values, self._found.bound_in
        if not op.value.same_as(values.setdefault(key, op.value)):
            values[key] = None
        if bound_in.setdefault(key, self._around) != self._around:
            bound_in[key] = None

    def _note_jump(self) -> None:
        self._found.jumps.update(enclosure.number for enclosure in self._around)

    def _visit_return(self, op: tir.Return) -> None:
        self._note_jump()
        self._visit_parts(op)

    def _visit_binding(self, op: tir.Binding) -> None:
        self._bind(op)
        self._visit_parts(op)

    def _visit_let(self, op: tir.Let) -> None:
        self._bind(op)
        value, body = parts_of(op)
        # Uses of its variable are not followed.
        outer, self._keeps = self._keeps, True
        self._visit(value)
        self._keeps = outer
        self._visit(body)

    # Accesses

    def _note(
        self,
        buffer: Any,
        op: Any,
        mask: int,
        index: Any = None,
        *,
        extent: Any = None,
        dtype: Any = None,
        is_whole: bool = True,
        is_address: bool = False,
    ) -> None:
        entry = None if buffer is None else self._access.buffers.get(buffer.__chandle__())
        if entry is None and (is_address or buffer is None):
            return  # A pointer that the function has from outside
        dtype = buffer.ty.dtype.dtype if dtype is None else dtype
        fate = is_address and self._keeps, is_address and self._copies, self._goes_on
        what = buffer, op, bool(mask & _READ), bool(mask & _WRITE), index, extent, dtype
        where = self._around, self._statement, self._order
        found = MemoryAccess(*what, *where, is_whole, is_address, *fate)
        self._order += 1
        self._found.by_statement.setdefault(self._statement.__chandle__(), []).append(found)
        if entry is not None and entry.root >= 0:
            self._of[entry.root].accesses.append(found)

    def _visit_load(self, op: tir.Load) -> None:
        self._visit_parts(op)
        self._note(op.source, op, _READ, _flat(op.source, op.indices))

    def _visit_var(self, buffer: tir.Var) -> None:
        """Note a buffer that is handed on as a whole, so that any element may be accessed."""
        self._note_address(buffer, buffer)

    def _note_address(self, buffer: tir.Var, op: Any) -> None:
        self._note(buffer, op, _READ | _WRITE, is_whole=False, is_address=True)

    def _visit_call(self, op: tir.Call) -> None:
        name, outer = operator_name(op.op), (self._keeps, self._copies)
        if name in JUMPS:
            self._note_jump()
        if name in ASYNC_COPIES:
            self._keeps, self._copies = False, True
        elif not is_done_on_return(op, self._lasting):
            self._keeps, self._copies = True, False
        for operand in written_operands(op):
            self._visit_var(operand.source)
        parts, at = parts_of(op), masked_index(op)
        if at is not None:
            self._keeps = self._copies = False  # A value is accessed, and no address is kept.
            parts[0] = []
        elif is_address_of(op) and type(op.args[0]) is tir.Load:
            self._visit_parts(op.args[0])
            self._note_address(op.args[0].source, op.args[0])
            parts = []
        elif is_tvm_access_ptr(op) and buffer_data_var(op.args[1]) is not None:
            parts[1] = []
        first_stored = STORES.get(name, len(parts))
        for number, part in enumerate(parts):
            if number >= first_stored:
                self._keeps, self._copies = True, False
            self._visit(part)
        if at is not None:
            mask = _READ if at == 1 else _WRITE
            self._note(op.args[0], op, mask, op.args[at], is_whole=False, is_address=True)
        elif is_tvm_access_ptr(op):
            self._note_pointer(op)
        self._keeps, self._copies = outer

    def _note_pointer(self, op: tir.Call) -> None:
        dtype, data, offset, extent, mask = op.args
        said = mask.value & (_READ | _WRITE) if isinstance(mask, tir.IntConstant) else 0
        self._note(
            buffer_data_var(data),
            op,
            said or _READ | _WRITE,  # A mask of neither says nothing.
            offset,
            extent=extent,
            dtype=dtype.ty.dtype,
            is_whole=bool(said),
            is_address=True,
        )


def _flat(buffer: tir.Var, indices: Any) -> Any:
    """Return the one index of an access to flat memory; None where it says not which element.

    `FlattenBuffer` adds the offset of a name to its indices, and leaves it none.
    """
    is_flat = len(indices) == 1 and not len(buffer.ty.strides)
    return indices[0] if is_flat and tir.constant(buffer.ty.elem_offset) == 0 else None
