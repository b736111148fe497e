# SPDX-License-Identifier: Apache-2.0
"""The names by which ``tvm.tirx.build(mod, target, pipeline=...)`` knows our pipelines.

``tvm_ext`` has our `StorageRewrite`; ``tvm_ext.address`` and ``tvm_ext.arena`` have `PlanAddresses`
in either form, and ``tvm_ext.ascend`` has `AscendPlanMemory`. Importing this module registers them;
`tvm_ext.pipeline`, which makes them, is imported when TVM first asks for one of them.
"""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import Any

from tvm import tirx


def _made(function: str, *args: Any, **options: Any) -> Any:
    return getattr(import_module("tvm_ext.pipeline"), function)(*args, **options)


for _name, *_maker in (
    ("tvm_ext", "tir_pipeline"),
    ("tvm_ext.address", "address_pipeline", "address"),
    ("tvm_ext.arena", "address_pipeline", "arena"),
    ("tvm_ext.ascend", "ascend_pipeline"),
):
    tirx.compilation_pipeline.register_tir_pipeline(_name, partial(_made, *_maker))
