# SPDX-License-Identifier: Apache-2.0
"""The public passes, named as TVM names its own."""

from __future__ import annotations

from passes.ascend_plan_memory import WORKSPACE_BYTES, AscendPlanMemory
from passes.gmem import GMEMAllocate
from passes.layer_group import LayerGroup
from passes.placement import FORMS, Form
from passes.plan_addresses import DropAddresses, PlanAddresses
from passes.storage_rewrite import StorageRewrite

__all__ = [
    "FORMS",
    "WORKSPACE_BYTES",
    "AscendPlanMemory",
    "DropAddresses",
    "Form",
    "GMEMAllocate",
    "LayerGroup",
    "PlanAddresses",
    "StorageRewrite",
]
