# SPDX-License-Identifier: Apache-2.0
"""Relax's operators and packed functions by name, and what we know of each: apache-tvm 0.27."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

PREFIX = "relax."

TAKE = "relax.take"
INDEX_TENSOR = "relax.index_tensor"
FULL = ("relax.full", "relax.full_like")

CALL_TIR = "relax.call_tir"
CALL_TIR_DYN = "relax.vm.call_tir_dyn"

ALLOC_TENSOR = "relax.builtin.alloc_tensor"  # Makes a tensor whose memory is not planned
ALLOC_PLANNED_STORAGE = "relax.memory.alloc_storage"
ALLOC_PLANNED_TENSOR = "relax.memory.alloc_tensor"
# The functions that the virtual machine runs for the two.
ALLOC_STORAGE_AT_RUN_TIME = "relax.vm.alloc_storage"
ALLOC_TENSOR_AT_RUN_TIME = "relax.vm.alloc_tensor"

KERNELS_OF_NEW_MEMORY = (CALL_TIR, "relax.call_tir_with_grad")
"""Calls of kernels that write new memory alone; one of a single tensor may become a view of it."""
OVERWRITE_ARGUMENTS = ("relax.call_tir_inplace", "relax.call_inplace_packed")
MOVE_OR_HINT = ("relax.hint_on_device", "relax.to_vdevice")
"""Operators that can be legalized, and still mean something by their place."""

RESHAPES = ("relax.reshape", "vm.builtin.reshape")
"""Operators that return a tensor of the same memory and offset; one is a packed function."""


VIEWS = (*RESHAPES, "relax.expand_dims", "relax.flatten", "relax.squeeze")
"""Operators whose result TVM's pipelines make a view of the operand."""

UNFOLDED = tuple(
    f"relax.{name}" for name in ("arange", "argsort", "cumprod", "cumsum", "sort", "topk")
)
"""Operators that TVM's `FoldConstant` does not run, also where all that they read is constant."""


class Callee(Enum):
    """The effects of a callee on its arguments."""

    ALLOCATES = "makes a new tensor"
    ALIASES = "returns its first argument, seen otherwise"
    READS = "reads and writes them, and is done with them when it returns"
    FREES = "ends them"
    CALLS = "hands them to another Relax function"
    KEEPS = "may keep them"
    PLANNED = "memory that is planned already"
    HIGH_LEVEL = "has yet to be lowered"


# Operators and packed functions are identified by their whole name; whatever is not in the list may
# keep what it is given.
CALLEES: Mapping[str, Callee] = {
    ALLOC_TENSOR: Callee.ALLOCATES,
    "relax.reshape": Callee.ALIASES,
    "relax.memory.view": Callee.ALIASES,
    # These return the same tensor where there is nothing to do.
    "relax.memory.ensure_zero_offset": Callee.ALIASES,
    "relax.to_vdevice": Callee.ALIASES,
    "relax.hint_on_device": Callee.ALIASES,
    "relax.builtin.stop_lift_params": Callee.ALIASES,
    CALL_TIR_DYN: Callee.READS,
    "relax.null_value": Callee.READS,
    "relax.shape_of": Callee.READS,
    "relax.tensor_to_shape": Callee.READS,
    "relax.memory.kill_tensor": Callee.FREES,
    "relax.vm.kill_object": Callee.FREES,
    ALLOC_PLANNED_STORAGE: Callee.PLANNED,
    ALLOC_PLANNED_TENSOR: Callee.PLANNED,
    "relax.memory.kill_storage": Callee.PLANNED,
    ALLOC_STORAGE_AT_RUN_TIME: Callee.PLANNED,
    ALLOC_TENSOR_AT_RUN_TIME: Callee.PLANNED,
    # Calls of kernels for which no memory is allocated yet.
    CALL_TIR: Callee.HIGH_LEVEL,
    "relax.call_tir_inplace": Callee.HIGH_LEVEL,
    "relax.call_tir_with_grad": Callee.HIGH_LEVEL,
    "relax.call_dps_packed": Callee.HIGH_LEVEL,
    # Packed functions.
    "vm.builtin.reshape": Callee.ALIASES,
    # The operators that `LegalizeOps` makes of `R.print` and `R.assert_op`.
    # The machine's own, which copy, or read and write what they are given (``builtin.cc``,
    # ``lm_support.cc`` and ``rnn_state.cc`` of its runtime).
    "vm.builtin.copy": Callee.ALIASES,
    **{
        f"vm.builtin.{name}": Callee.READS
        for name in (
            "rnn_state_set",
            "rnn_state_get",
            "sample_top_p_from_logits",
            "sample_top_p_from_prob",
            "multinomial_from_uniform",
            "apply_repetition_penalty",
            "apply_presence_and_frequency_penalty",
            "apply_softmax_with_temperature",
        )
    },
    # Workers of one model send to each other in the order of the device's kernels.
    **{
        f"runtime.disco.{name}": Callee.READS
        for name in (
            "allreduce",
            "allgather",
            "broadcast_from_worker0",
            "scatter_from_worker0",
            "gather_to_worker0",
            "recv_from_worker0",
            "send_to_next_group",
            "recv_from_prev_group",
            "send_to_worker",
            "recv_from_worker",
        )
    },
    "relax.run.print": Callee.READS,
    "relax.run.assert_op": Callee.READS,
    # TVM's caches of keys and values copy what they are given into memory of their own
    # (`src/runtime/vm/lm_support.cc`, `src/runtime/vm/kv_state.cc`).
    **{
        f"vm.builtin.attention_kv_cache_{name}": Callee.READS
        for name in (
            "create",
            "update",
            "append",
            "window_override",
            "window_override_with_sinks",
            "attention_with_fused_qkv",
            "attention_with_shared_kv",
            "self_attention",
            "cross_attention",
            "append_mla_kv",
            "merge_attn_output_inplace",
            "debug_get_kv",
            "debug_get_kv_mla",
        )
    },
}

RETURNED_ARGUMENTS: Mapping[str, tuple[int, ...]] = {
    "vm.builtin.attention_kv_cache_merge_attn_output_inplace": (1, 2),
}
"""Packed functions that return a tuple of some of their arguments, which these are."""
