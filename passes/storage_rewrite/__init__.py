# SPDX-License-Identifier: Apache-2.0
"""StorageRewrite, mirrored: the same steps and the same IR as TVM's own pass."""

from passes.planning.planner import declare

declare("storage_rewrite", "passes.storage_rewrite.planning.sharing")
