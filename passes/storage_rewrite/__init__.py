# SPDX-License-Identifier: Apache-2.0
"""StorageRewrite, mirrored: the same steps and the same IR as TVM's own pass."""

from typing import TYPE_CHECKING

from passes.lazy_names import lazy_names
from passes.planning import declare

if TYPE_CHECKING:
    from passes.storage_rewrite.analysis.inplace import InplaceOpVerifier
    from passes.storage_rewrite.analysis.liveness import liveness_analysis
    from passes.storage_rewrite.planning.plan_memory import PlanMemory
    from passes.storage_rewrite.transform import StorageRewrite, plan_storage, storage_rewrite
else:
    __getattr__ = lazy_names(__name__)

declare("storage_rewrite", "passes.storage_rewrite.planning.sharing")
