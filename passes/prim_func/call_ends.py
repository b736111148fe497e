# SPDX-License-Identifier: Apache-2.0
"""Which calls are done with the memory that they are given once they return.

A copy that runs by itself may read or write its operands until something waits for it.
`passes.ir.operators` says which operators begin no such thing.
"""

from __future__ import annotations

from typing import Any

from tvm.ir import GlobalVar, Op, PointerType, StringImm
from tvm.ir.expr import Call
from tvm.tirx import AttrStmt, BufferStore

from passes.ir import nodes_in
from passes.ir.operators import REINTERPRET, is_synchronous

ASYNCHRONOUS_SCOPES = ("async_scope", "async_commit_queue_scope")
"""Attributes whose body TVM turns into copies that run by themselves, behind storage planning."""


def is_done_on_return(call: Call, lasting: frozenset[str] = frozenset()) -> bool:
    """Whether a call is done with its operands when it returns.

    `lasting` has the functions of the module that may not be; see `goes_on`. Nothing says what
    becomes of an address that is a number.
    """
    if isinstance(call.op, GlobalVar):
        return str(call.op.name_hint) not in lasting
    if not isinstance(call.op, Op) or not is_synchronous(str(call.op.name)):
        return False
    if call.op.name == REINTERPRET and isinstance(call.args[0].ty, PointerType):
        return isinstance(call.ty, PointerType)
    return not lasting or not any(
        isinstance(arg, StringImm) and str(arg.value) in lasting for arg in call.args
    )


def goes_on(body: Any) -> bool:
    """Whether something in statements may go on with memory when they are done."""
    return any(map(_goes_on, nodes_in(body, Call, BufferStore, AttrStmt)))


def _goes_on(node: Any) -> bool:
    if isinstance(node, BufferStore):
        return isinstance(node.value.ty, PointerType)
    if isinstance(node, AttrStmt):
        return node.attr_key in ASYNCHRONOUS_SCOPES
    return not is_done_on_return(node)
