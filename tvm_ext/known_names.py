# SPDX-License-Identifier: Apache-2.0
"""Names that users give to TVM: chips as targets, and pipelines.

Pipelines are what ``tvm.tirx.build(mod, target, pipeline=...)`` takes, and ``tvm.compile(mod,
target, relax_pipeline="tvm_ext")``. The code that makes them is imported when TVM first asks for
one.
"""

from __future__ import annotations

import sys
from functools import partial
from importlib import import_module, util
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_PIPELINES: dict[str, tuple[Any, ...]] = {
    "tvm_ext": ("tir_pipeline",),
    "tvm_ext.sound": ("tir_pipeline", True),
    "tvm_ext.address": ("address_pipeline", "address"),
    "tvm_ext.arena": ("address_pipeline", "arena"),
    "tvm_ext.ascend": ("ascend_pipeline",),
}
"""By name: the function that makes it, and its first arguments."""


def register_with_tvm() -> None:
    """Make our chips and pipelines known to TVM: now where it is imported, else when it is."""
    if sys.modules.get("tvm") is not None:
        _register()
    else:
        sys.meta_path.insert(0, _WhenImported())


class _WhenImported(MetaPathFinder):
    """Finds TVM as Python does, and makes our names known to it once it has been imported."""

    def find_spec(self, name: str, _path: Any = None, _target: Any = None) -> ModuleSpec | None:
        if name != "tvm":
            return None
        sys.meta_path.remove(self)
        spec = util.find_spec(name)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def run_and_register(module: ModuleType) -> None:
                run(module)
                _register()

            setattr(spec.loader, "exec_module", run_and_register)  # noqa: B010
        return spec


def _register() -> None:
    from tvm import relax, tirx

    import_module("target_hw.target")
    for name, maker in _PIPELINES.items():
        tirx.compilation_pipeline.register_tir_pipeline(name, partial(_made, *maker))
    relax.register_pipeline("tvm_ext")(_relax_pipeline)


def _made(function: str, *args: Any, **options: Any) -> Any:
    return getattr(import_module("tvm_ext.pipeline"), function)(*args, **options)


def _relax_pipeline(**options: Any) -> Any:
    """Return `relax_pipeline` for the target that is current when it runs, by default ``llvm``."""
    from passes.ir import current_target, make_pass
    from tvm_ext.relax_passes import relax_pipeline

    def lower(mod: Any) -> Any:
        return relax_pipeline(current_target() or "llvm", **options)(mod)

    return make_pass("relax_pipeline", lower)
