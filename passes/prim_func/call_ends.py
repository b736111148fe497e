# SPDX-License-Identifier: Apache-2.0
"""Which calls are done with the memory that they are given once they return.

A copy that runs by itself may read or write its operands until something waits for it. TVM's
operators do not say which of them begin such a thing, so those that do not are listed here, and
whatever is not listed is taken to go on.

Source: the operators of ``tvm.ir.Op.list_op_names()`` in apache-tvm 0.27, and for ``ptx`` the
asynchronous operations of the PTX ISA ("Memory Consistency Model", "Asynchronous Operations").
"""

from __future__ import annotations

from functools import cache
from typing import Any

from tvm.ir import GlobalVar, Op, PointerType, StringImm
from tvm.ir.expr import Call
from tvm.tirx import BufferStore, CallEffectKind, PrimFunc
from tvm.tirx.stmt import AttrStmt
from tvm_ffi import structural_walk

ASYNCHRONOUS_SCOPES = ("async_scope", "async_commit_queue_scope")
"""Attributes whose body TVM turns into copies that run by themselves, behind storage planning."""


def _names(text: str) -> frozenset[str]:
    return frozenset(f"tirx.{name}" for name in text.split())


# Extern code and packed functions: what they begin, they end, and they keep no pointers.
_DONE = _names(
    "call_extern tvm_call_packed tvm_call_cpacked tvm_call_packed_lowered "
    "tvm_call_cpacked_lowered tvm_call_trace_packed tvm_call_trace_packed_lowered "
    "anylist_setitem_call_packed anylist_setitem_call_cpacked anylist_resetitem"
)
# Addresses, lists of arguments, and numbers.
_DONE |= _names(
    "tvm_stack_alloca tvm_stack_make_array tvm_stack_make_shape cuda.cvta_generic_to_shared "
    "cuda.smem_addr_from_uint64 ptx.cvta ptx.cvta_generic ptx.mapa ctpop isinf isfinite "
    "lookup_param tvm_throw_last_error"
)
# Single accesses.
_DONE |= _names(
    "masked_store atomic_add cuda.atomic_add cuda.atomic_cas cuda.ldg ptx.ld ptx.ld_vec "
    "ptx.ld_vec256 ptx.ldu ptx.ldu_vec ptx.st ptx.st_vec ptx.st_vec256 ptx.atom ptx.red "
    "texture2d_load texture2d_store prefetch print_buffer"
)
# Barriers, and what threads do together.
_DONE |= _names(
    "tvm_storage_sync tvm_thread_allreduce tvm_warp_shuffle tvm_warp_shuffle_up "
    "tvm_warp_shuffle_down tvm_warp_shuffle_xor tvm_warp_activemask cuda.cta_sync cuda.warp_sync "
    "ptx.bar_sync"
)
# Products in registers.
_DONE |= _names(
    "tvm_fill_fragment tvm_load_matrix_sync tvm_store_matrix_sync tvm_mma_sync tvm_bmma_sync "
    "mma_fill mma_fill_legacy mma_store mma_store_legacy ptx_legacy.mma ptx_legacy.ldmatrix "
    "ptx.ldmatrix ptx.stmatrix ptx.mma ptx.mma_f16acc ptx.mma_f16c_f32d ptx.mma_f64 ptx.mma_int "
    "make_filled_simdgroup_matrix simdgroup_load simdgroup_store simdgroup_multiply_accumulate "
    "cooperative_tensor_fill cooperative_tensor_load cooperative_tensor_store "
    "cooperative_tensor_multiply_accumulate"
)


def is_done_on_return(call: Call, lasting: frozenset[str] = frozenset()) -> bool:
    """Whether a call is done with its operands when it returns.

    `lasting` has the functions of the module that may not be; see `goes_on`.
    """
    if isinstance(call.op, GlobalVar):
        return str(call.op.name_hint) not in lasting
    if not isinstance(call.op, Op) or not _operator_is_done(str(call.op.name)):
        return False
    return not lasting or not any(
        isinstance(arg, StringImm) and str(arg.value) in lasting for arg in call.args
    )


@cache
def _operator_is_done(name: str) -> bool:
    effect = Op.get(name).get_attr("TCallEffectKind")
    # Others return a value, and a value is there when it is returned.
    return name in _DONE or (effect is not None and effect != CallEffectKind.Opaque.value)


def goes_on(func: PrimFunc) -> bool:
    """Whether something in a function may go on with memory after the function has returned."""
    found: list[Any] = []

    def note_call(call: Call) -> None:
        if not is_done_on_return(call):
            found.append(call)

    def note_store(store: BufferStore) -> None:
        if isinstance(store.value.ty, PointerType):
            found.append(store)

    def note_attr(attr: AttrStmt) -> None:
        if attr.attr_key in ASYNCHRONOUS_SCOPES:
            found.append(attr)

    notes = [(Call, note_call), (BufferStore, note_store), (AttrStmt, note_attr)]
    structural_walk(func.body, notes)
    return bool(found)
