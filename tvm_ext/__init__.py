# SPDX-License-Identifier: Apache-2.0
"""Memory planning passes for TVM.

Importing this package imports no TVM. Once TVM is imported, before or after, it knows our pipelines
and chips by name; what needs TVM here is imported when it is first asked for.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"


def _check_own_packages() -> None:
    """Raise ImportError, which names the place, unless our packages are found where `tvm_ext` is.

    A folder or file called ``passes`` or ``target_hw`` in the working directory, or elsewhere early
    on Python's path, is found before ours.
    """
    root = Path(__file__).resolve().parents[1]
    for name in ("passes", "target_hw"):
        spec = find_spec(name)
        found = spec.origin if spec is not None else None
        if found is None or Path(found).resolve().parents[1] != root:
            where = found or next(iter((spec and spec.submodule_search_locations) or ()), "nowhere")
            raise ImportError(
                f"tvm_ext needs its own package {name!r}, but Python finds another one first: "
                f"{where}; rename that, or run Python from another folder",
                name=__name__,
            )


_check_own_packages()

# ruff: noqa: E402 - only then are they ours.
from passes.planning import (
    Budget,
    Buffer,
    MemoriesProblem,
    Penalty,
    PipelineUse,
    Plan,
    PlanError,
    Problem,
    Status,
    Traffic,
    lower_bound,
    planner_names,
    solve,
    verify,
)
from passes.planning import (
    register as register_planner,
)
from target_hw.machine import Machine, Pipe
from target_hw.memory import MemoryHierarchy, MemoryScope
from tvm_ext import known_names
from tvm_ext.report import Report, compare, memory_map

if TYPE_CHECKING:
    from passes.prim_func import ProblemOptions, find_problems
    from target_hw.target import register_chip, with_machine, with_memory
    from tvm_ext import transform
    from tvm_ext.pipeline import use
    from tvm_ext.reading.input_sizes import InputSizes
    from tvm_ext.reading.networks import from_exported_program, from_onnx
    from tvm_ext.relax_passes import relax_pipeline
    from tvm_ext.report.fitting import what_fits
    from tvm_ext.report.readers.groups import layer_groups

_NEED_TVM = {
    "ProblemOptions": "passes.prim_func",
    "find_problems": "passes.prim_func",
    "register_chip": "target_hw.target",
    "with_machine": "target_hw.target",
    "with_memory": "target_hw.target",
    "use": "tvm_ext.pipeline",
    "InputSizes": "tvm_ext.reading.input_sizes",
    "from_exported_program": "tvm_ext.reading.networks",
    "from_onnx": "tvm_ext.reading.networks",
    "relax_pipeline": "tvm_ext.relax_passes",
    "what_fits": "tvm_ext.report.fitting",
    "layer_groups": "tvm_ext.report.readers.groups",
}
"""The module of each name that needs TVM."""

__all__ = [
    "Budget",
    "Buffer",
    "InputSizes",
    "Machine",
    "MemoriesProblem",
    "MemoryHierarchy",
    "MemoryScope",
    "Penalty",
    "Pipe",
    "PipelineUse",
    "Plan",
    "PlanError",
    "Problem",
    "ProblemOptions",
    "Report",
    "Status",
    "Traffic",
    "compare",
    "find_problems",
    "from_exported_program",
    "from_onnx",
    "layer_groups",
    "lower_bound",
    "memory_map",
    "planner_names",
    "register_chip",
    "register_planner",
    "relax_pipeline",
    "solve",
    "transform",
    "use",
    "verify",
    "what_fits",
    "with_machine",
    "with_memory",
]


def __getattr__(name: str) -> Any:
    if name in _NEED_TVM:
        value = getattr(import_module(_NEED_TVM[name]), name)
    elif not name.startswith("_") and find_spec(f"{__name__}.{name}") is not None:
        return import_module(f"{__name__}.{name}")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


known_names.register_with_tvm()
