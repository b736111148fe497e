# SPDX-License-Identifier: Apache-2.0
"""What users call by name: importing this makes planners, chips and pipelines known.

Pipelines are what ``tvm.tirx.build(mod, target, pipeline=...)`` takes. `tvm_ext.pipeline`, which
makes them, is imported when TVM first asks for one.
"""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import Any

from tvm import tirx

import target_hw.target  # noqa: F401
import tvm_ext.named_planners  # noqa: F401


def _made(function: str, *args: Any, **options: Any) -> Any:
    return getattr(import_module("tvm_ext.pipeline"), function)(*args, **options)


for _name, *_maker in (
    ("tvm_ext", "tir_pipeline"),
    ("tvm_ext.address", "address_pipeline", "address"),
    ("tvm_ext.arena", "address_pipeline", "arena"),
    ("tvm_ext.ascend", "ascend_pipeline"),
):
    tirx.compilation_pipeline.register_tir_pipeline(_name, partial(_made, *_maker))
