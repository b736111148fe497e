"""Memory planning passes for TVM."""

# The chips of `target_hw` become target tags when `target_hw.target` is imported.
from target_hw.memory import MemoryHierarchy, MemoryScope
from target_hw.target import register_chip, with_memory
from tvm_ext import transform
from tvm_ext.comparison import Allocations, Comparison, FunctionComparison, Totals, compare
from tvm_ext.drawing import memory_map, memory_maps
from tvm_ext.pipeline import use_plan_addresses, use_storage_rewrite

__all__ = [
    "Allocations",
    "Comparison",
    "FunctionComparison",
    "MemoryHierarchy",
    "MemoryScope",
    "Totals",
    "compare",
    "memory_map",
    "memory_maps",
    "register_chip",
    "transform",
    "use_plan_addresses",
    "use_storage_rewrite",
    "with_memory",
]
