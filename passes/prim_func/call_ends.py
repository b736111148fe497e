# SPDX-License-Identifier: Apache-2.0
"""Which calls are done with the memory that they are given once they return.

A copy that runs by itself may read or write its operands until something waits for it.
`passes.ir.operators` says which operators begin no such thing.
"""

from __future__ import annotations

from tvm.ir import GlobalVar, Op, PointerType, StringImm
from tvm.ir.expr import Call
from tvm.tirx import BufferStore, PrimFunc
from tvm.tirx.stmt import AttrStmt

from passes.ir.operators import is_synchronous
from passes.ir.structural import nodes_in

ASYNCHRONOUS_SCOPES = ("async_scope", "async_commit_queue_scope")
"""Attributes whose body TVM turns into copies that run by themselves, behind storage planning."""


def is_done_on_return(call: Call, lasting: frozenset[str] = frozenset()) -> bool:
    """Whether a call is done with its operands when it returns.

    `lasting` has the functions of the module that may not be; see `goes_on`.
    """
    if isinstance(call.op, GlobalVar):
        return str(call.op.name_hint) not in lasting
    if not isinstance(call.op, Op) or not is_synchronous(str(call.op.name)):
        return False
    return not lasting or not any(
        isinstance(arg, StringImm) and str(arg.value) in lasting for arg in call.args
    )


def goes_on(func: PrimFunc) -> bool:
    """Whether something in a function may go on with memory after the function has returned."""
    body = func.body
    return (
        not all(map(is_done_on_return, nodes_in(body, Call)))
        or any(isinstance(store.value.ty, PointerType) for store in nodes_in(body, BufferStore))
        or any(attr.attr_key in ASYNCHRONOUS_SCOPES for attr in nodes_in(body, AttrStmt))
    )
