# SPDX-License-Identifier: Apache-2.0
"""The on-chip memories and the pipelines of Ascend NPUs, and the workspace in global memory.

Sources, by the names used below:

- *device table*: AscendNPU-IR, ``NPUTargetSpec.td`` of the HACC dialect
  (state of 22 August 2026), which gives sizes and alignments in bits.
- *PlanMemory guide*: AscendNPU-IR, developer guide, "Plan Memory", section "Hardware background".
- *PlanMemory code*: AscendNPU-IR, ``PlanMemory.cpp`` of the HIVM dialect.
- *perf samples*: CANN, asc-devkit, ``tests/perf/{load_data,mmad,fixpipe}_perf/README_en.md``: what
  the transfer and matrix units do in a cycle at best, and what an instruction takes besides.
- *intrinsics guide*: CANN 8.5, CCE intrinsics, "template parameters of unary and binary
  instructions": a vector instruction computes on 256 bytes at a time.
- *L2 tiling guide*: CANN 8.5, Ascend C best practices, "L2 Cache Tiling": about 1.6 TB/s of global
  memory, shared by 20 cores.
- *transfer guide*: CANN 8.5, Ascend C best practices, "Transferring a Large Data Block at a Time":
  bandwidth is at its best from 16 KB in one transfer.
- *architecture guide*: CANN 8.5, Ascend C, "Basic Architecture".
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from target_hw.machine import Machine, Pipe, Rates
from target_hw.memory import MemoryHierarchy, MemoryScope

_KIB = 1024


def _memory(ub: int, l1: int, l0c: int, workspace: int) -> MemoryHierarchy:
    """Return the memories of one chip, of sizes in KiB; `workspace` is an alignment in bytes."""
    return MemoryHierarchy(
        (
            # Alignments of UB, L1 and L0C: device table, the same for all chips.
            MemoryScope("local.UB", ub * _KIB, alignment=32),
            MemoryScope("local.L1", l1 * _KIB, alignment=32),
            # L0A and L0B: sizes from the device table, the same for all chips; alignments from
            # the PlanMemory guide.
            MemoryScope("local.L0A", 64 * _KIB, alignment=512),
            MemoryScope("local.L0B", 64 * _KIB, alignment=512),
            MemoryScope("local.L0C", l0c * _KIB, alignment=512),
            # Bias table and fixpipe parameters: PlanMemory guide, which gives no sizes.
            MemoryScope("local.BT", alignment=64),
            MemoryScope("local.FP", alignment=64),
            MemoryScope("global.workspace", alignment=workspace),
        )
    )


CHIPS: Mapping[str, MemoryHierarchy] = MappingProxyType(
    {
        # Sizes of UB, L1 and L0C: device table. Workspace: PlanMemory code, which rounds sizes up
        # to 256 bits on the memory-based chips (910B, 910_93) and not on the register-based ones.
        "ascend/910b": _memory(ub=192, l1=512, l0c=128, workspace=32),
        "ascend/910_93": _memory(ub=192, l1=512, l0c=128, workspace=32),
        "ascend/310b": _memory(ub=256, l1=1024, l0c=128, workspace=1),
        # Device table: the compiler keeps 8 KiB of the 256 KiB for itself.
        "ascend/950": _memory(ub=248, l1=512, l0c=256, workspace=1),
    }
)
"""Target tag to memories. See ``docs/targets.md`` for the facts."""


_PERF = "published: perf samples"
_SEPARATE_CORES = (
    ("cube", ("local.L1", "local.L0A", "local.L0B", "local.L0C", "local.BT", "local.FP")),
    ("vector", ("local.UB",)),
)
"""Cube and vector cores, each with transfers of its own: architecture guide."""

_GLOBAL_RATE = 44
"""Bytes a cycle of global memory: one of 20 cores' share of 1.6 TB/s at 1.8 GHz.

Bandwidth: L2 tiling guide. Clock: perf samples. Accesses that hit the L2 cache are several times
faster.
"""
_GLOBAL_STARTUP = 64
"""Cycles: with them a 16 KiB reaches 85% of the rate, in line with the transfer guide."""
_GLOBAL = "estimate: one core's share of global memory without hits in L2, from published figures"


def _pipes(
    l0b: int, startups: tuple[int, int], multiply_adds: Rates, basis: str = _PERF
) -> tuple[Pipe, ...]:
    """Return the pipes of one chip; rates in bytes, elements or multiply-adds a cycle.

    The rate to L0B, the cycles that instructions of MTE1 and FIX take besides, and the matrix
    unit's rates differ from chip to chip.
    """
    mte1, fix = startups
    to_l0 = (("local.L0A", 256), ("local.L0B", l0b), ("local.BT", 32))
    # 64 elements a cycle of a half result within the chip; to global memory, its share.
    from_l0c = (("local.L1", 128), ("local.UB", 128))
    fix_basis = f"within the chip {basis}; to global memory as MTE2"
    widths = (("8", 256), ("16", 128), ("32", 64), ("64", 32))
    v_basis = "256 bytes at a time: intrinsics guide; one such step a cycle and start-up: estimate"
    return (
        Pipe("MTE2", "bytes", _GLOBAL_RATE, _GLOBAL_STARTUP, basis=_GLOBAL),
        Pipe("MTE1", "bytes", 128, mte1, to_scope=to_l0, basis=basis),
        Pipe("M", "multiply-adds", multiply_adds[0][1], at_bits=multiply_adds, basis=basis),
        Pipe("FIX", "bytes", _GLOBAL_RATE, fix, to_scope=from_l0c, basis=fix_basis),
        Pipe("V", "elements", 256, 16, at_bits=widths, basis=v_basis),
        Pipe("MTE3", "bytes", _GLOBAL_RATE, _GLOBAL_STARTUP, basis=_GLOBAL),
        Pipe("S", "elements", 1, basis="estimate"),
    )


_910B = (128, (28, 20), (("8", 8192), ("16", 4096), ("32", 1024)))
_950 = (256, (30, 26), (("8", 8192), ("16", 4096), ("32", 256)))

MACHINES: Mapping[str, Machine] = MappingProxyType(
    {
        "ascend/910b": Machine(_pipes(*_910B), _SEPARATE_CORES),
        "ascend/910_93": Machine(_pipes(*_910B), _SEPARATE_CORES),
        # Nothing published was found.
        "ascend/310b": Machine(_pipes(*_910B, basis="estimate: as 910b")),
        "ascend/950": Machine(_pipes(*_950), _SEPARATE_CORES),
    }
)
"""Target tag to pipes: the matrix and transfer units as published where they are, else estimates.

``Pipe.basis`` says which is which.
"""
