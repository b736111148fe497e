"""The on-chip memories of Ascend NPUs, and the workspace in global memory.

Sources, by the names used in the comments below:

- *device table*: AscendNPU-IR, ``NPUTargetSpec.td`` of the HACC dialect
  (state of 22 August 2026), which gives sizes and alignments in bits.
- *PlanMemory guide*: AscendNPU-IR, developer guide, "Plan Memory", section "Hardware background".
- *PlanMemory code*: AscendNPU-IR, ``PlanMemory.cpp`` of the HIVM dialect.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from target_hw.memory import Facts, MemoryHierarchy, MemoryScope

_KIB = 1024


def _memory(
    *, ub: int, l1: int, l0c: int, workspace_alignment: int, ub_facts: Facts = ()
) -> MemoryHierarchy:
    """Return the memories of one chip; sizes and alignments in bytes."""
    return MemoryHierarchy(
        (
            # Alignments of UB, L1 and L0C: device table, the same for all chips.
            MemoryScope("local.UB", ub, alignment=32, facts=ub_facts),
            MemoryScope("local.L1", l1, alignment=32),
            # L0A and L0B: sizes from the device table, the same for all chips; alignments from
            # the PlanMemory guide.
            MemoryScope("local.L0A", 64 * _KIB, alignment=512),
            MemoryScope("local.L0B", 64 * _KIB, alignment=512),
            MemoryScope("local.L0C", l0c, alignment=512),
            # Bias table and fixpipe parameters: PlanMemory guide, which gives no sizes.
            MemoryScope("local.BT", alignment=64),
            MemoryScope("local.FP", alignment=64),
            MemoryScope("global.workspace", alignment=workspace_alignment),
        )
    )


CHIPS: Mapping[str, MemoryHierarchy] = MappingProxyType(
    {
        # Sizes of UB, L1 and L0C: device table. Workspace: PlanMemory code, which rounds sizes up
        # to 256 bits on the memory-based chips (910B, 910_93) and not on the register-based ones.
        "ascend/910b": _memory(
            ub=192 * _KIB, l1=512 * _KIB, l0c=128 * _KIB, workspace_alignment=32
        ),
        "ascend/910_93": _memory(
            ub=192 * _KIB, l1=512 * _KIB, l0c=128 * _KIB, workspace_alignment=32
        ),
        "ascend/310b": _memory(
            ub=256 * _KIB, l1=1024 * _KIB, l0c=128 * _KIB, workspace_alignment=1
        ),
        "ascend/950": _memory(
            # Device table: the compiler keeps 8 KiB of the 256 KiB for itself.
            ub=248 * _KIB,
            l1=512 * _KIB,
            l0c=256 * _KIB,
            workspace_alignment=1,
            # Bytes. The data cache of SIMT and mixed functions is carved out of UB. Limits of the
            # cache: device table; what such a function has when nothing is asked for: PlanMemory
            # code, option `simt-vf-dynamic-size`.
            ub_facts=(
                ("data_cache_min", 32 * _KIB),
                ("data_cache_max", 120 * _KIB),
                ("simt_capacity", 216 * _KIB),
            ),
        ),
    }
)
"""Target tag to memories. See ``docs/targets.md`` for the facts."""
