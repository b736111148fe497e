"""The public passes, named as TVM names its own."""

from __future__ import annotations

from passes.gmem import GMEMAllocate
from passes.plan_addresses import FORMS, DropAddresses, Form, PlanAddresses
from passes.storage_rewrite import StorageRewrite

__all__ = ["FORMS", "DropAddresses", "Form", "GMEMAllocate", "PlanAddresses", "StorageRewrite"]
