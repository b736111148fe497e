# SPDX-License-Identifier: Apache-2.0
"""Relax's operators by name, and what we know of each: those of apache-tvm 0.27."""

from __future__ import annotations

PREFIX = "relax."

CALL_TIR = "relax.call_tir"
CALL_TIR_DYN = "relax.vm.call_tir_dyn"

ALLOC_TENSOR = "relax.builtin.alloc_tensor"  # Makes a tensor whose memory is not planned
ALLOC_PLANNED_STORAGE = "relax.memory.alloc_storage"
ALLOC_PLANNED_TENSOR = "relax.memory.alloc_tensor"
# What the virtual machine runs for the two.
ALLOC_STORAGE_AT_RUN_TIME = "relax.vm.alloc_storage"
ALLOC_TENSOR_AT_RUN_TIME = "relax.vm.alloc_tensor"

ON_PLANNED_MEMORY = (
    ALLOC_PLANNED_STORAGE,
    ALLOC_PLANNED_TENSOR,
    "relax.memory.kill_storage",
    ALLOC_STORAGE_AT_RUN_TIME,
    ALLOC_TENSOR_AT_RUN_TIME,
)
END_A_TENSOR = ("relax.memory.kill_tensor", "relax.vm.kill_object")

KERNELS_OF_NEW_MEMORY = (CALL_TIR, "relax.call_tir_with_grad")
"""Calls of kernels that write new memory alone; one of a single tensor may become a view of it."""
OVERWRITE_ARGUMENTS = ("relax.call_tir_inplace", "relax.call_inplace_packed")
MOVE_OR_HINT = ("relax.hint_on_device", "relax.to_vdevice")
"""Operators that can be legalized, and still mean something by their place."""

RESHAPES = ("relax.reshape", "vm.builtin.reshape")
"""What makes a tensor of the same memory, at the same offset; one is a packed function."""

RETURN_THEIR_ARGUMENT = (
    "relax.reshape",
    "relax.memory.view",
    # These return the same tensor where there is nothing to do.
    "relax.memory.ensure_zero_offset",
    "relax.to_vdevice",
    "relax.hint_on_device",
    "relax.builtin.stop_lift_params",
)
READ_AND_KEEP_NOTHING = (
    CALL_TIR_DYN,
    "relax.null_value",
    "relax.shape_of",
    "relax.tensor_to_shape",
)
CALL_WITHOUT_RESULTS_IN_MEMORY = (
    CALL_TIR,
    "relax.call_tir_inplace",
    "relax.call_tir_with_grad",
    "relax.call_dps_packed",
)
"""Calls of kernels for which no memory is allocated yet."""
