# SPDX-License-Identifier: Apache-2.0
"""TVM's operators on numbers and memory, by name, and what we know of each.

Source: the operators of ``tvm.ir.Op.list_op_names()`` in apache-tvm 0.27, and for ``ptx`` the
asynchronous operations of the PTX ISA ("Memory Consistency Model", "Asynchronous Operations").
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from tvm import tirx
from tvm.ir import Op
from tvm.tirx import CallEffectKind

from passes.ir import tir
from passes.ir.buffers import array_get

_EFFECT = "TCallEffectKind"
_TIRX = "tirx."


def _names(text: str) -> frozenset[str]:
    return frozenset(_TIRX + name for name in text.split())


def is_call_of(name: str) -> Callable[[Any], bool]:
    """Return what tells the calls of an operator."""
    op = Op.get(name)
    return lambda expr: type(expr) is tir.Call and bool(expr.op.same_as(op))


is_if_then_else = is_call_of("prim.if_then_else")
"""Whether an expression is `if_then_else(condition, one, other)`, which evaluates one."""
is_likely = is_call_of("prim.likely")
"""Whether an expression is `likely(condition)`, which is the condition."""
is_address_of = is_call_of("tirx.address_of")
"""Whether an expression is `address_of(...)`, the address of one element."""
is_buffer_data = is_call_of("tirx.buffer_data")
"""Whether an expression is `buffer_data(...)`, the address of a buffer's memory."""
is_tvm_access_ptr = is_call_of("tirx.tvm_access_ptr")
"""Whether an expression is `tvm_access_ptr(dtype, data, offset, extent, mask)`."""

ABSOLUTE_FLOAT = "tirx.fabs"
REINTERPRET = "tirx.reinterpret"

JUMPS = _names("break_loop continue_loop thread_return ret")
"""After these, a thread continues elsewhere than after the statement."""

MERGES_STATIC_SHARED = "tirx.merge_static_smem"
"""The option of a build in which TVM merges static shared memory, too."""

STORAGE_SYNC = "tirx.tvm_storage_sync"  # The barrier of a storage scope, which its argument names
BARRIERS = _names("cuda.cta_sync ptx.bar_sync ptx.barrier_sync")
"""Barriers for all threads of a block."""
ASYNC_COPY = "tirx.s_tir.cp_async_raw"
"""Takes a buffer and an index in it, twice: where it writes, and where it reads."""
ASYNC_COPIES = frozenset([ASYNC_COPY]) | _names("ptx.cp_async_ca ptx.cp_async_cg")
"""Copies to shared memory that a thread waits for by ``cp.async.wait_group`` or ``wait_all``."""
COMMIT_GROUP = "tirx.ptx.cp_async_commit_group"
WAIT_ALL, WAIT_GROUP = "tirx.ptx.cp_async_wait_all", "tirx.ptx.cp_async_wait_group"
THREAD_INVARIANT = "tirx.tvm_thread_invariant"
"""Says that its operand is the same for all threads of a block."""

TAKE_ANY_ADDRESS = _names(
    "call_extern call_pure_extern call_llvm_intrin call_llvm_pure_intrin handle_add_byte_offset "
    "isnullptr reinterpret tvm_call_cpacked tvm_call_packed tvm_call_packed_lowered "
    "tvm_call_cpacked_lowered tvm_stack_make_array tvm_struct_set"
)
"""Calls for which the address of any element is as good as that of a whole buffer."""

STORES = dict.fromkeys(
    _names(
        "masked_store atomic_add cuda.atomic_add cuda.atomic_cas ptx.st ptx.st_vec ptx.st_vec256 "
        "ptx.red texture2d_store"
    ),
    1,
) | {"tirx.ptx.atom": 2}  # Its first one takes what was there.
"""The number of an operator's leading operands that say where it writes."""

CALL_OUT = _names(
    "call_extern tvm_call_packed tvm_call_cpacked tvm_call_packed_lowered "
    "tvm_call_cpacked_lowered tvm_call_trace_packed tvm_call_trace_packed_lowered print_buffer"
)
"""Calls of code that may do anything; that of `call_pure_extern` computes a value alone."""

EXTERN_CODE = _names("call_extern call_pure_extern")
"""Calls of code that is known only by its name."""

_PURE_WITHOUT_SAYING = _names("isfinite isinf")
"""Operators that TVM declares no effect of and that have none."""

# A copy that runs by itself may read or write its operands until something waits for it. TVM's
# operators do not say which of them begin such a thing, so those that do not are listed here, and
# whatever is not listed is taken to go on.

# Extern code and packed functions: what they begin, they end, and they keep no pointers.
_SYNCHRONOUS = CALL_OUT | _names(
    "anylist_setitem_call_packed anylist_setitem_call_cpacked anylist_resetitem"
)
# Addresses, lists of arguments, and numbers.
_SYNCHRONOUS |= _names(
    "tvm_stack_alloca tvm_stack_make_array tvm_stack_make_shape cuda.cvta_generic_to_shared "
    "cuda.smem_addr_from_uint64 ptx.cvta ptx.cvta_generic ctpop isinf isfinite "
    "lookup_param tvm_throw_last_error"
)
# Single accesses.
_SYNCHRONOUS |= _names(
    "masked_store atomic_add cuda.atomic_add cuda.atomic_cas cuda.ldg ptx.ld ptx.ld_vec "
    "ptx.ld_vec256 ptx.ldu ptx.ldu_vec ptx.st ptx.st_vec ptx.st_vec256 ptx.atom ptx.red "
    "texture2d_load texture2d_store prefetch"
)
# Barriers, and what threads do together.
_SYNCHRONOUS |= _names(
    "tvm_storage_sync tvm_thread_allreduce tvm_warp_shuffle tvm_warp_shuffle_up "
    "tvm_warp_shuffle_down tvm_warp_shuffle_xor tvm_warp_activemask cuda.cta_sync cuda.warp_sync "
    "ptx.bar_sync"
)
# Products in registers.
_SYNCHRONOUS |= _names(
    "tvm_fill_fragment tvm_load_matrix_sync tvm_store_matrix_sync tvm_mma_sync tvm_bmma_sync "
    "mma_fill mma_fill_legacy mma_store mma_store_legacy ptx_legacy.mma ptx_legacy.ldmatrix "
    "ptx.ldmatrix ptx.stmatrix ptx.mma ptx.mma_f16acc ptx.mma_f16c_f32d ptx.mma_f64 ptx.mma_int "
    "make_filled_simdgroup_matrix simdgroup_load simdgroup_store simdgroup_multiply_accumulate "
    "cooperative_tensor_fill cooperative_tensor_load cooperative_tensor_store "
    "cooperative_tensor_multiply_accumulate"
)


ASYNCHRONOUS_SCOPES = ("async_scope", "async_commit_queue_scope")
"""Attributes whose body TVM turns into copies that run by themselves, after storage planning."""


def operator_name(op: Any) -> str:
    """Return the name of what a call calls if that is an operator of TVM's, and else nothing."""
    return str(op.name) if isinstance(op, Op) else ""


def legalization(op: Any) -> Any:
    """Return the function that lowers an operator of Relax; None where there is none."""
    return op.get_attr("FLegalize") if isinstance(op, Op) else None


def is_instruction(name: str) -> bool:
    """Return whether an operator computes a value by itself: calls of other code by name do not."""
    if name.startswith(_TIRX):
        return not name.startswith(_TIRX + "call_")
    return name == "prim.if_then_else"


def is_pure(call: tir.Call) -> bool:
    """Return whether a call is known to read and change no state."""
    name = operator_name(call.op)
    if not name or name in _PURE_WITHOUT_SAYING:
        return bool(name)
    effect = call.op.get_attr(_EFFECT)
    return effect is not None and int(effect) <= int(CallEffectKind.Pure.value)


@cache
def is_same_for_all_threads(name: str) -> bool:
    """Return whether the result depends only on the operands, not on the thread."""
    namespace, _, rest = name.partition(".")
    if namespace not in ("prim", "tirx") or "." in rest or rest.startswith(("call_", "tvm_")):
        return name == THREAD_INVARIANT
    effect = Op.get(name).get_attr(_EFFECT)
    same = (CallEffectKind.ExprAnnotation.value, CallEffectKind.Pure.value)
    return effect is not None and effect in same


@cache
def is_synchronous(name: str) -> bool:
    """Return whether an operator is done with its operands when it returns."""
    effect = Op.get(name).get_attr(_EFFECT)
    # Others return a value, and a value is there when it is returned.
    return name in _SYNCHRONOUS or (effect is not None and effect != CallEffectKind.Opaque.value)


def is_done_on_return(call: tir.Call, lasting: frozenset[str] = frozenset()) -> bool:
    """Return whether a call is done with its operands when it returns.

    `lasting` names the functions of the module that may not be done; see `goes_on`. A call that
    makes a number of an address is not done: nothing says what becomes of the number.
    """
    if isinstance(call.op, tir.GlobalVar):
        return str(call.op.name_hint) not in lasting
    name = operator_name(call.op)
    if not is_synchronous(name):
        return False
    if name == REINTERPRET and isinstance(call.args[0].ty, tir.PointerType):
        return isinstance(call.ty, tir.PointerType)
    names = (str(arg.value) for arg in call.args if isinstance(arg, tir.StringConstant))
    return lasting.isdisjoint(names)


@cache
def _writes_operands(name: str) -> bool:
    namespace = name.removeprefix(_TIRX).partition(".")[0]
    return namespace == "ptx" or name == "tirx.tvm_thread_allreduce" or not is_synchronous(name)


def written_operands(call: tir.Call) -> list[tir.Load]:
    """Return the elements that a call may write although they stand for values among its operands.

    The instructions of PTX name the registers of their results so.
    """
    name = operator_name(call.op)
    if not name or not _writes_operands(name):
        return []
    return [arg for arg in call.args if type(arg) is tir.Load]


def is_predicated(call: tir.Call) -> bool:
    """Return whether a PTX instruction does nothing where its last operand, a condition, fails.

    That is a list of words, in one string.
    """
    last = call.args[-1] if len(call.args) else None
    return isinstance(last, tir.StringConstant) and "pred" in str(last.value).split(",")


address_of, access_pointer = tirx.address_of, tirx.tvm_access_ptr
"""Calls that give the address of one element; and that of several, with what is done there."""
new_call, type_annotation = tirx.call_intrin, tirx.type_annotation
"""Calls of operators by name, and of the one that stands for a type among operands."""


def reinterpreted(number: Any) -> tir.Call:
    """Return a number, reinterpreted as its own type.

    That is no instruction, and TVM's simplification of indices does not look into it.
    """
    return tir.Call(Op.get(REINTERPRET), [number], ret_ty=number.ty)


_is_masked_load = is_call_of("tirx.masked_load")
_is_masked_store = is_call_of("tirx.masked_store")


def masked_index(expr: Any) -> int | None:
    """Return which argument of a masked access is its index; None for other expressions.

    The first argument of `masked_load(buffer, index, mask)` and of
    `masked_store(buffer, value, index, mask)` is a buffer of one dimension.
    """
    index = 1 if _is_masked_load(expr) else 2 if _is_masked_store(expr) else None
    return index if index is not None and len(expr.args) == index + 2 else None


def buffer_data_var(data: Any) -> tir.Var | None:
    """Return the variable whose memory an expression plainly points to, or None."""
    if type(data) is tir.Var:
        return data
    source = array_get(data.args, 0) if is_buffer_data(data) else None
    return source if type(source) is tir.Var else None
