# SPDX-License-Identifier: Apache-2.0
"""The public passes, named as TVM names its own."""

from __future__ import annotations

from passes.addresses import DropAddresses, PlanAddresses
from passes.ascend import WORKSPACE_BYTES, AscendPlanMemory
from passes.driver import FORMS, Form
from passes.gmem import GMEMAllocate
from passes.layer_group import LayerGroup
from passes.order import OrderForMemory
from passes.shared_memory import Barriers, PlanSharedMemory
from passes.storage_rewrite import StorageRewrite

__all__ = [
    "FORMS",
    "WORKSPACE_BYTES",
    "AscendPlanMemory",
    "Barriers",
    "DropAddresses",
    "Form",
    "GMEMAllocate",
    "LayerGroup",
    "OrderForMemory",
    "PlanAddresses",
    "PlanSharedMemory",
    "StorageRewrite",
]
