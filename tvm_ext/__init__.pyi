# SPDX-License-Identifier: Apache-2.0
"""What can be imported from `tvm_ext`: ``__init__.py`` finds each name by the imports here."""

from passes.gmem import ServedMemory as ServedMemory
from passes.ir import find_linear_access as find_linear_access
from passes.planning import (
    Budget as Budget,
    Buffer as Buffer,
    MemoriesPlan as MemoriesPlan,
    MemoriesProblem as MemoriesProblem,
    Penalty as Penalty,
    PipelineUse as PipelineUse,
    Plan as Plan,
    PlanError as PlanError,
    Problem as Problem,
    Status as Status,
    Traffic as Traffic,
    check as check,
    lower_bound as lower_bound,
    planner_names as planner_names,
    register as register,
    solve as solve,
    verify as verify,
)
from passes.prim_func import (
    ProblemOptions as ProblemOptions,
    find_problems as find_problems,
)
from passes.simulation import (
    Cause as Cause,
    Loop as Loop,
    Statement as Statement,
    simulate as simulate,
    simulate_transfers as simulate_transfers,
)
from passes.storage_rewrite import (
    InplaceOpVerifier as InplaceOpVerifier,
    PlanMemory as PlanMemory,
    liveness_analysis as liveness_analysis,
)
from target_hw.machine import (
    Machine as Machine,
    Pipe as Pipe,
)
from target_hw.memory import (
    MemoryHierarchy as MemoryHierarchy,
    MemoryScope as MemoryScope,
)
from target_hw.target import (
    register_chip as register_chip,
    with_machine as with_machine,
    with_memory as with_memory,
)
from tvm_ext.comparison.memory_comparison import (
    ActivationMemory as ActivationMemory,
    AllocatedMemory as AllocatedMemory,
    activation_memory as activation_memory,
)
from tvm_ext.comparison.planners import (
    PlannerComparison as PlannerComparison,
    compare_planners as compare_planners,
)
from tvm_ext.comparison.storage_rewrite import (
    Allocations as Allocations,
    Comparison as Comparison,
    FunctionComparison as FunctionComparison,
    compare as compare,
)
from tvm_ext.drawing.map_picture import (
    memory_map as memory_map,
    memory_maps as memory_maps,
)
from tvm_ext.drawing.picture import save_picture as save_picture
from tvm_ext.drawing.timeline import (
    pipeline_timeline as pipeline_timeline,
    pipeline_timelines as pipeline_timelines,
)
from tvm_ext.fitting_plans import (
    FittingMemory as FittingMemory,
    FittingPlan as FittingPlan,
    what_fits as what_fits,
)
from tvm_ext.reading.networks import (
    from_exported_program as from_exported_program,
    from_onnx as from_onnx,
)
from tvm_ext.reading.input_sizes import InputSizes as InputSizes
from tvm_ext.layer_group_report import (
    LayerGroupReport as LayerGroupReport,
    LayerGroupSummary as LayerGroupSummary,
    LeftLayer as LeftLayer,
    layer_groups as layer_groups,
)
from tvm_ext.map import (
    MapOptions as MapOptions,
    MemoryMap as MemoryMap,
    map_of_module as map_of_module,
    map_of_problem as map_of_problem,
    memory_map_of as memory_map_of,
    write_map as write_map,
)
from tvm_ext.pipeline import (
    use_ascend_plan_memory as use_ascend_plan_memory,
    use_plan_addresses as use_plan_addresses,
    use_plan_shared_memory as use_plan_shared_memory,
    use_storage_rewrite as use_storage_rewrite,
)
from tvm_ext.planned.placements import PlannedMemory as PlannedMemory
from tvm_ext.relax_passes import relax_pipeline as relax_pipeline
from tvm_ext import transform as transform

__version__: str

def check_own_packages() -> None: ...
