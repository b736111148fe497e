# SPDX-License-Identifier: Apache-2.0
"""Shared memory of GPU kernels: planned by the epochs between the barriers of a block."""

from typing import TYPE_CHECKING

from passes.lazy_names import lazy_names

if TYPE_CHECKING:
    from passes.shared_memory.analysis.kernel_memory import SCOPES, KernelMemory
    from passes.shared_memory.analysis.stock_bytes import allocated_bytes
    from passes.shared_memory.planning.epochs import (
        Effect,
        Event,
        ThreadBlock,
        find_epochs,
        shared_memory_problem,
    )
    from passes.shared_memory.transform import (
        Barriers,
        PlanSharedMemory,
        place_shared_memory,
        read_shared_memory,
    )
else:
    __getattr__ = lazy_names(__name__)
