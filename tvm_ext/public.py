# SPDX-License-Identifier: Apache-2.0
"""Everything that a user needs, importable from ``tvm_ext`` itself.

Problems, planners and chips are imported at once, and the module of any other name when the name is
first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

# Planners and pipelines become known by name when these are imported.
import passes.ascend  # noqa: F401
import passes.gmem  # noqa: F401
import passes.storage_rewrite  # noqa: F401
import tvm_ext.named_pipelines  # noqa: F401
from passes.lazy_names import lazy_names
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

if TYPE_CHECKING:
    from passes.gmem import ServedMemory
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
    from tvm_ext.drawing.picture import save_picture
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
else:
    __getattr__ = lazy_names(
        "tvm_ext",
        {
            "comparison.memory_comparison": "ActivationMemory AllocatedMemory ServedMemory "
            "activation_memory",
            "comparison.planner_results": "PlannerComparison render_planners",
            "comparison.planners": "compare_planners",
            "comparison.storage_rewrite": "Allocations Comparison "
            "FunctionComparison Totals compare",
            "drawing.memory_map": "memory_map memory_maps",
            "drawing.picture": "save_picture",
            "drawing.timeline": "pipeline_timeline pipeline_timelines",
            "fitting_plans": "FittingMemory FittingPlan what_fits",
            "importers": "from_exported_program from_onnx",
            "input_sizes": "InputSizes",
            "layer_group_report": "LayerGroupReport LayerGroupSummary LeftLayer layer_groups",
            "map": "MapOptions MemoryMap map_of_module map_of_problem memory_map_of write_map",
            "pipeline": "use_ascend_plan_memory use_plan_addresses "
            "use_plan_shared_memory use_storage_rewrite",
            "planned_memory": "PlannedMemory",
            "relax_passes": "relax_pipeline",
        },
    )

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
    "ServedMemory",
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
