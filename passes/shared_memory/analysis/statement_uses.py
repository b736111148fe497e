# SPDX-License-Identifier: Apache-2.0
"""What one statement does with the buffers that the threads of a block share.

Source of alignments: the operand alignments of the PTX ISA for ``ldmatrix``, ``cp.async``,
``cp.async.bulk``, ``cp.async.bulk.tensor`` and ``wgmma``, and of ``nvcuda::wmma`` in the CUDA
programming guide.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from tvm.ir import GlobalVar, Op, TensorLoad, Var
from tvm.ir.expr import Call
from tvm.tirx import IntImm, Let, Ramp

from passes.ir import Callback, LinearAccess, is_dense, nodes_in, structural_visit
from passes.ir.operators import (
    ADDRESS_IN_OTHER_BLOCK,
    ASYNC_COPIES,
    EXTERN_CODE,
    JUMPS,
    STORES,
    buffer_data_var,
    is_address_of,
    is_tvm_access_ptr,
    masked_index,
    operator_name,
    written_operands,
)
from passes.prim_func import is_done_on_return

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
    """What becomes of an address."""

    USED = 1  # Memory is read and written while the statement runs
    COPIED_TO = 2  # And by an asynchronous copy
    KEPT = 3  # By whom is not known, or for how long


@dataclass
class StatementUses:
    """Names of buffers, in the order in which the statement mentions them."""

    reads: dict[str, None] = field(default_factory=dict)
    writes: dict[str, None] = field(default_factory=dict)
    copies: dict[str, None] = field(default_factory=dict)
    kept: dict[str, None] = field(default_factory=dict)
    handed_on: dict[str, None] = field(default_factory=dict)  # Those whose address is an operand
    # Those of which a vector is loaded or stored that are not neighbouring elements.
    scattered: dict[str, None] = field(default_factory=dict)
    jumps: bool = False  # Whether a thread goes on elsewhere than behind the statement

    def add(self, other: StatementUses) -> None:
        """Add the uses of another statement."""
        for name in ("reads", "writes", "copies", "kept", "handed_on", "scattered"):
            getattr(self, name).update(getattr(other, name))
        self.jumps |= other.jumps


def uses_of(
    parts: Any, names: Mapping[int, str], access: LinearAccess, *, lends: bool = False
) -> StatementUses:
    """Return what the expressions of a statement do with buffers that threads share.

    None among them is left out; `names` are by the index of the allocation. An address that `lends`
    is given up when the statement ends, as operands of a call are that is a statement; otherwise it
    may be kept.
    """
    uses = StatementUses()
    walk = _Walk(uses, names, access, _Given.USED if lends else _Given.KEPT)
    callbacks: list[tuple[int, Callback]] = [
        (TensorLoad, walk.visit_load),
        (Call, walk.visit_call),
        (Let, walk.visit_let),
        (Var, walk.visit_var),
    ]
    for part in parts:
        if part is not None:
            structural_visit(part, callbacks)
    return uses


def is_scattered(indices: Any) -> bool:
    """Whether indices are those of a vector of elements that are not all neighbours."""
    return any(
        index.ty.dtype.lanes != 1 and not (type(index) is Ramp and is_dense(index))
        for index in indices
    )


def alignment_of_addresses(kernel: Any, buffer: Var) -> int:
    """Return the bytes that the address of a buffer is a multiple of where it is handed to calls.

    An address may take any way to a call, so it is taken to go to each call of the kernel; the
    strictest counts. Extern code may ask for all that the buffer's declaration promises.
    """
    names = {operator_name(call.op) for call in nodes_in(kernel, Call)}
    promised = int(buffer.ty.data_alignment) if names & EXTERN_CODE else 1
    asked = (
        size for parts, size in _ALIGNMENTS for name in names if any(part in name for part in parts)
    )
    return math.lcm(promised, max(asked, default=_OTHER_ALIGNMENT))


class _Walk:
    def __init__(
        self, uses: StatementUses, names: Mapping[int, str], access: LinearAccess, given: _Given
    ) -> None:
        self._uses, self._names, self._access, self._given = uses, names, access, given

    def _name(self, var: Any) -> str | None:
        known = None if var is None else self._access.buffers.get(var.__chandle__())
        return None if known is None else self._names.get(known.root)

    def visit_load(self, op: TensorLoad, visitor: Any) -> None:
        name = self._name(op.source)
        if name is not None:
            self._uses.reads[name] = None
            if is_scattered(op.indices):
                self._uses.scattered[name] = None
        visitor.visit(op.indices)

    def visit_let(self, op: Let, visitor: Any) -> None:
        given, self._given = self._given, _Given.KEPT
        visitor.visit(op.value)
        self._given = given
        visitor.visit(op.body)

    def visit_var(self, op: Var, _visitor: Any) -> None:
        self._hand_on(op)

    def visit_call(self, op: Call, visitor: Any) -> None:
        given = self._given
        operator = str(op.op.name) if isinstance(op.op, Op) else ""
        self._uses.jumps |= operator in JUMPS
        if operator in ASYNC_COPIES and given is _Given.USED:
            self._given = _Given.COPIED_TO
        elif (
            isinstance(op.op, GlobalVar)  # Copies may go on that a function of the module begins.
            or not is_done_on_return(op)
            or operator.startswith(ADDRESS_IN_OTHER_BLOCK)
        ):
            self._given = _Given.KEPT
        for operand in written_operands(op):
            name = self._name(operand.source)
            if name is not None:
                self._uses.writes[name] = None
        rest = list(op.args)
        at = masked_index(op)
        if at is not None:
            name = self._name(rest.pop(0))
            if name is not None:
                (self._uses.reads if at == 1 else self._uses.writes)[name] = None
        elif is_address_of(op) and type(op.args[0]) is TensorLoad:
            self._hand_on(op.args[0].source)
            rest = list(op.args[0].indices)
        elif is_tvm_access_ptr(op) and isinstance(op.args[4], IntImm):
            self._hand_on(buffer_data_var(op.args[1]), int(op.args[4].value))
            rest = list(op.args[2:4])
        first_stored = STORES.get(operator, len(op.args))
        for number, arg in enumerate(rest, len(op.args) - len(rest)):
            if number >= first_stored:
                self._given = _Given.KEPT
            visitor.visit(arg)
        self._given = given

    def _hand_on(self, var: Any, mask: int = 3) -> None:
        """Note an address; of the mask's bits, the first says that it is read, the second written.

        A mask of neither says nothing.
        """
        name = self._name(var)
        if name is None:
            return
        self._uses.handed_on[name] = None
        if mask & 1 or not mask & 2:
            self._uses.reads[name] = None
        if mask & 2 or not mask & 1:
            self._uses.writes[name] = None
        if self._given is _Given.KEPT:
            self._uses.kept[name] = None
        elif self._given is _Given.COPIED_TO:
            self._uses.copies[name] = None
