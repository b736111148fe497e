# SPDX-License-Identifier: Apache-2.0
"""Effects of statements on the buffers that the threads of a block share.

Source of alignments: the operand alignments of the PTX ISA for ``ldmatrix``, ``cp.async``,
``cp.async.bulk``, ``cp.async.bulk.tensor`` and ``wgmma``, and of ``nvcuda::wmma`` in the CUDA
programming guide.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

from passes.ir import LinearAccess, is_dense, nodes_in, tir
from passes.ir.operators import (
    ADDRESS_IN_OTHER_BLOCK,
    ASYNC_COPIES,
    EXTERN_CODE,
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
from passes.ir.statements import NodeVisitor, parts_of
from passes.shared_memory.planning.epochs import Effect

_ALIGNMENTS = (
    # Tensor copies and descriptors of matrices may ask for a swizzle, whose pattern is so long.
    (("bulk_tensor", "wgmma", "tcgen05"), 1024),
    (("bulk", "multimem", "mbarrier"), 128),
    (("matrix_sync", "simdgroup", "cooperative_tensor"), 32),
)
"""Parts of the names of operators, and the alignment of an address in bytes; strictest first."""

_OTHER_ALIGNMENT = 16
"""Bytes that anything else asks for: ``ldmatrix``, ``cp.async``, a vector of extern code."""


class _Given(Enum):
    """The fate of an address."""

    USED = 1  # Memory is read and written while the statement runs
    COPIED_TO = 2  # And by an asynchronous copy
    KEPT = 3  # By whom is not known, or for how long


class BufferUses(NodeVisitor):
    """Goes through the expressions of a kernel, and gathers what they do with buffers, by name.

    `names` are those of the buffers that are planned, by the index of the allocation.
    """

    def __init__(self, names: Mapping[int, str], access: LinearAccess) -> None:
        self._names, self._access = names, access
        self._given = _Given.USED
        self._events: dict[Effect, dict[str, None]] = {}
        # Of all statements so far. Of these buffers not all uses are known.
        self.kept: set[str] = set()
        self.handed_on: set[str] = set()  # Their address is an operand
        self.written_by_calls: set[str] = set()  # Or read by them, of a mask
        # Of these a vector is loaded or stored that is not of neighbouring elements.
        self.scattered: set[str] = set()
        self.jumps = False  # Whether a thread goes on elsewhere than after a statement

    def name_of(self, buffer: Any) -> str | None:
        """Return the name of the planned buffer whose memory a variable names, if it is one."""
        known = None if buffer is None else self._access.buffers.get(buffer.__chandle__())
        return None if known is None else self._names.get(known.root)

    def events_of(self, parts: list[list[Any]], lends: bool) -> dict[Effect, dict[str, None]]:
        """Return the buffers that parts of a statement read, write and copy to, in order.

        An address that the statement `lends` is given up when it ends, as operands of a call are
        that is a statement; otherwise it may be kept.
        """
        self._events = {Effect.READ: {}, Effect.WRITE: {}, Effect.COPY: {}}
        self._given = _Given.USED if lends else _Given.KEPT
        for part in parts:
            self._visit(part)
        return self._events

    def note(self, what: Effect, buffer: Any, indices: Sequence[Any] = ()) -> None:
        """Note that a buffer is read or written, of a vector at an index."""
        name = self.name_of(buffer)
        if name is not None:
            self._events[what][name] = None
            if any(map(_is_scattered, indices)):
                self.scattered.add(name)

    def _visit_load(self, op: tir.Load) -> None:
        self.note(Effect.READ, op.source, op.indices)
        self._visit_parts(op)

    def _visit_let(self, op: tir.Let) -> None:
        value, body = parts_of(op)
        given, self._given = self._given, _Given.KEPT
        self._visit(value)
        self._given = given
        self._visit(body)

    def _visit_call(self, op: tir.Call) -> None:
        given, operator = self._given, operator_name(op.op)
        self.jumps |= operator in JUMPS
        if operator in ASYNC_COPIES:
            self._given = _Given.COPIED_TO
        elif (
            isinstance(
                op.op, tir.GlobalVar
            )  # Copies may go on that a function of the module begins.
            or not is_done_on_return(op)
            or operator.startswith(ADDRESS_IN_OTHER_BLOCK)
        ):
            self._given = _Given.KEPT
        by_call = [operand.source for operand in written_operands(op)]
        for buffer in by_call:
            self.note(Effect.WRITE, buffer)
        parts, at = parts_of(op), masked_index(op)
        if at is not None:
            self.note(Effect.READ if at == 1 else Effect.WRITE, op.args[0])
            by_call.append(op.args[0])
            parts[0] = []
        elif is_address_of(op) and type(op.args[0]) is tir.Load:
            self._visit_var(op.args[0].source)
            parts = parts_of(op.args[0])
        elif is_tvm_access_ptr(op) and isinstance(op.args[4], tir.IntConstant):
            self._visit_var(buffer_data_var(op.args[1]), int(op.args[4].value))
            parts[1] = []
        self.written_by_calls |= set(filter(None, map(self.name_of, by_call)))
        first_stored = STORES.get(operator, len(op.args))
        for number, part in enumerate(parts):
            if number >= first_stored:
                self._given = _Given.KEPT
            self._visit(part)
        self._given = given

    def _visit_var(self, buffer: Any, mask: int = 3) -> None:
        """Note an address; of the mask's bits, the first says that it is read, the second written.

        A mask of neither says nothing.
        """
        name = self.name_of(buffer)
        if name is None:
            return
        self.handed_on.add(name)
        if mask & 1 or not mask & 2:
            self._events[Effect.READ][name] = None
        if mask & 2 or not mask & 1:
            self._events[Effect.WRITE][name] = None
        if self._given is _Given.KEPT:
            self.kept.add(name)
        elif self._given is _Given.COPIED_TO:
            self._events[Effect.COPY][name] = None


def _is_scattered(index: Any) -> bool:
    """Return whether an index is that of a vector of elements that are not all neighbours."""
    return index.ty.dtype.lanes != 1 and not (type(index) is tir.Ramp and is_dense(index))


def alignment_of_addresses(kernel: Any, buffer: tir.Var) -> int:
    """Return the bytes that the address of a buffer is a multiple of where it is handed to calls.

    An address may take any way to a call, so it is taken to go to each call of the kernel; the
    strictest counts. Extern code may ask for all that the buffer's declaration promises.
    """
    names = {operator_name(call.op) for call in nodes_in(kernel, tir.Call)}
    promised = int(buffer.ty.data_alignment) if names & EXTERN_CODE else 1
    asked = (
        size for parts, size in _ALIGNMENTS for name in names if any(part in name for part in parts)
    )
    return math.lcm(promised, max(asked, default=_OTHER_ALIGNMENT))
