"""Memory planning passes for TVM."""

# The chips of `target_hw` become target tags when `target_hw.target` is imported.
from target_hw.machine import Machine
from target_hw.memory import MemoryHierarchy, MemoryScope
from target_hw.target import register_chip, with_machine, with_memory
from tvm_ext import transform
from tvm_ext.comparison import Allocations, Comparison, FunctionComparison, Totals, compare
from tvm_ext.drawing import memory_map, memory_maps
from tvm_ext.memory_comparison import (
    ActivationMemory,
    AllocatedMemory,
    PlannedMemory,
    activation_memory,
)
from tvm_ext.pipeline import (
    relax_pipeline,
    use_ascend_plan_memory,
    use_plan_addresses,
    use_storage_rewrite,
)
from tvm_ext.timeline import pipeline_timeline, pipeline_timelines

__all__ = [
    "ActivationMemory",
    "AllocatedMemory",
    "Allocations",
    "Comparison",
    "FunctionComparison",
    "Machine",
    "MemoryHierarchy",
    "MemoryScope",
    "PlannedMemory",
    "Totals",
    "activation_memory",
    "compare",
    "memory_map",
    "memory_maps",
    "pipeline_timeline",
    "pipeline_timelines",
    "register_chip",
    "relax_pipeline",
    "transform",
    "use_ascend_plan_memory",
    "use_plan_addresses",
    "use_storage_rewrite",
    "with_machine",
    "with_memory",
]
