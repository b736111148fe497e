# SPDX-License-Identifier: Apache-2.0
"""Everything that a user needs, importable from ``tvm_ext`` itself."""

from __future__ import annotations

from passes.planning import (
    Budget,
    Buffer,
    MemoriesPlan,
    MemoriesProblem,
    Penalty,
    Plan,
    PlanError,
    Problem,
    Status,
    Traffic,
    check,
    lower_bound,
    planner_names,
    register,
    solve,
    verify,
)

# The chips of `target_hw` become target tags when `target_hw.target` is imported.
from target_hw.machine import Machine, Pipe
from target_hw.memory import MemoryHierarchy, MemoryScope
from target_hw.target import register_chip, with_machine, with_memory
from tvm_ext import transform
from tvm_ext.comparison.memory_comparison import (
    ActivationMemory,
    AllocatedMemory,
    activation_memory,
)
from tvm_ext.comparison.planner_results import PlannerComparison, render_planners
from tvm_ext.comparison.planners import compare_planners
from tvm_ext.comparison.storage_rewrite import (
    Allocations,
    Comparison,
    FunctionComparison,
    Totals,
    compare,
)
from tvm_ext.drawing.memory_map import memory_map, memory_maps
from tvm_ext.drawing.picture import save as save_picture
from tvm_ext.drawing.timeline import pipeline_timeline, pipeline_timelines
from tvm_ext.fitting_plans import FittingMemory, FittingPlan, what_fits
from tvm_ext.importers import from_exported_program, from_onnx
from tvm_ext.input_sizes import InputSizes
from tvm_ext.layer_group_report import (
    LayerGroupReport,
    LayerGroupSummary,
    LeftLayer,
    layer_groups,
)
from tvm_ext.map import (
    MapOptions,
    MemoryMap,
    map_of_module,
    map_of_problem,
    memory_map_of,
    write_map,
)
from tvm_ext.pipeline import (
    use_ascend_plan_memory,
    use_plan_addresses,
    use_plan_shared_memory,
    use_storage_rewrite,
)
from tvm_ext.planned_memory import PlannedMemory
from tvm_ext.relax_passes import relax_pipeline

__all__ = [
    "ActivationMemory",
    "AllocatedMemory",
    "Allocations",
    "Budget",
    "Buffer",
    "Comparison",
    "FittingMemory",
    "FittingPlan",
    "FunctionComparison",
    "InputSizes",
    "LayerGroupReport",
    "LayerGroupSummary",
    "LeftLayer",
    "Machine",
    "MapOptions",
    "MemoriesPlan",
    "MemoriesProblem",
    "MemoryHierarchy",
    "MemoryMap",
    "MemoryScope",
    "Penalty",
    "Pipe",
    "Plan",
    "PlanError",
    "PlannedMemory",
    "PlannerComparison",
    "Problem",
    "Status",
    "Totals",
    "Traffic",
    "activation_memory",
    "check",
    "compare",
    "compare_planners",
    "from_exported_program",
    "from_onnx",
    "layer_groups",
    "lower_bound",
    "map_of_module",
    "map_of_problem",
    "memory_map",
    "memory_map_of",
    "memory_maps",
    "pipeline_timeline",
    "pipeline_timelines",
    "planner_names",
    "register",
    "register_chip",
    "relax_pipeline",
    "render_planners",
    "save_picture",
    "solve",
    "transform",
    "use_ascend_plan_memory",
    "use_plan_addresses",
    "use_plan_shared_memory",
    "use_storage_rewrite",
    "verify",
    "what_fits",
    "with_machine",
    "with_memory",
    "write_map",
]
