"""Memory planning passes for TVM."""

# The chips of `target_hw` become target tags when `target_hw.target` is imported.
from target_hw.memory import MemoryHierarchy, MemoryScope
from target_hw.target import register_chip, with_memory
from tvm_ext import transform
from tvm_ext.comparison import Allocations, Comparison, FunctionComparison, Totals, compare
from tvm_ext.drawing import memory_map, memory_maps
from tvm_ext.memory_comparison import (
    ActivationMemory,
    AllocatedMemory,
    PlannedMemory,
    activation_memory,
)
from tvm_ext.pipeline import relax_pipeline, use_plan_addresses, use_storage_rewrite

__all__ = [
    "ActivationMemory",
    "AllocatedMemory",
    "Allocations",
    "Comparison",
    "FunctionComparison",
    "MemoryHierarchy",
    "MemoryScope",
    "PlannedMemory",
    "Totals",
    "activation_memory",
    "compare",
    "memory_map",
    "memory_maps",
    "register_chip",
    "relax_pipeline",
    "transform",
    "use_plan_addresses",
    "use_storage_rewrite",
    "with_memory",
]
