# SPDX-License-Identifier: Apache-2.0
"""PlanAddresses: byte offsets for the buffers of any PrimFunc, as addresses or in an arena."""

from passes.addresses.tile_problems import has_tiles, tile_problems
from passes.addresses.transform import (
    DropAddresses,
    PlanAddresses,
    drop_for_kernels,
    naive_bytes,
)
