# SPDX-License-Identifier: Apache-2.0
"""What TVM says of its operators, on which live ranges rest."""

from __future__ import annotations

from tvm.ir import Op
from tvm.tirx import CallEffectKind

from passes.ir import operators

# The operators of TVM 0.27 whose effect is not opaque, by effect. An operator that is not opaque
# counts as done when it returns (`is_synchronous`), so the lives of its operands may end there.
# Where a release of TVM adds an operator here, look whether it waits for what it begins: if not,
# except it in `is_synchronous`.
EFFECTS = """
0: prim.likely
1: prim.ceil prim.clz prim.if_then_else prim.log2 prim.vscale tirx.acos tirx.acosh tirx.address_of
  tirx.asin tirx.asinh tirx.atan tirx.atan2 tirx.atanh tirx.buffer_data tirx.buffer_offset
  tirx.call_llvm_pure_intrin tirx.call_pure_extern tirx.call_spirv_pure_glsl450 tirx.copysign
  tirx.cos tirx.cosh tirx.cuda.__activemask tirx.cuda.any_sync tirx.cuda.fdividef
  tirx.cuda.mov_sreg tirx.cuda.thread_rank tirx.dp4a tirx.end_profile_intrinsic tirx.erf tirx.exp
  tirx.exp10 tirx.exp2 tirx.fabs tirx.filter tirx.floor tirx.fma tirx.fmod
  tirx.get_active_lane_mask tirx.handle_add_byte_offset tirx.hypot tirx.ignore_loop_partition
  tirx.isnan tirx.isnullptr tirx.ldexp tirx.log tirx.log10 tirx.log1p tirx.nearbyint
  tirx.nextafter tirx.popcount tirx.pow tirx.ptr_byte_offset tirx.ptx.addr tirx.q_multiply_shift
  tirx.q_multiply_shift_per_axis tirx.reinterpret tirx.round tirx.rsqrt tirx.s_tir.ldg32
  tirx.sigmoid tirx.sin tirx.sinh tirx.sqrt tirx.start_profile_intrinsic tirx.tan tirx.tanh
  tirx.trunc tirx.tvm_thread_invariant tirx.type_annotation tirx.vectorcombine tirx.vectorhigh
  tirx.vectorlow
2: te.tensor_load tirx.anylist_getitem tirx.masked_load tirx.tvm_context_id
  tirx.tvm_load_matrix_sync tirx.tvm_struct_get tirx.undef
4: tirx.tvm_access_ptr tirx.tvm_static_handle
5: tirx.assume tirx.tvm_tuple
6: tirx.break_loop tirx.continue_loop tirx.thread_return
"""


def known() -> dict[str, int]:
    """Return the effects in the table, by operator."""
    effects: dict[str, int] = {}
    for word in EFFECTS.split():
        if word.endswith(":"):
            effect = int(word[:-1])
        else:
            effects[word] = effect
    return effects


def test_effects_are_those_that_were_looked_at():
    found: dict[str, int] = {}
    for name in map(str, Op.list_op_names()):
        effect = Op.get(name).get_attr("TCallEffectKind")
        if effect is not None and effect != CallEffectKind.Opaque.value:
            found[name] = int(effect)
    assert found == known()


def test_what_is_done_on_return_is_looked_at_or_listed():
    done = {name for name in map(str, Op.list_op_names()) if operators.is_synchronous(name)}
    assert done == operators._SYNCHRONOUS.union(known())
