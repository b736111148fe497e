# SPDX-License-Identifier: Apache-2.0
"""AscendPlanMemory: byte offsets in the memories of an Ascend core, as HIVM plans them."""
