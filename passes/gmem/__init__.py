# SPDX-License-Identifier: Apache-2.0
"""GMEMAllocate: global memory planned as Sophgo's tpu-mlir does it, for Relax and PrimFuncs."""

from passes.planning.planner import declare

declare("rec_tbl", "passes.gmem.planning.rec_tbl")
