# SPDX-License-Identifier: Apache-2.0
"""`GMEMAllocate`: the pass, and what it does to each kind of function."""

from passes.gmem.allocate import GMEMAllocate
from passes.gmem.options import RUNTIME_ALIGNMENT, GMEMOptions
from passes.gmem.relax_functions import plan_gmem
from passes.gmem.storages import FunctionPlan

__all__ = ["RUNTIME_ALIGNMENT", "FunctionPlan", "GMEMAllocate", "GMEMOptions", "plan_gmem"]
