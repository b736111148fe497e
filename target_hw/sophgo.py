# SPDX-License-Identifier: Apache-2.0
"""The memories and the pipelines of Sophgo TPUs: the lanes' local memory, L2 and global memory.

Sources, by the names used in the comments below:

- *chip header*: tpu-mlir, ``include/tpu_mlir/Backend/BM168x/<chip>.h`` and ``CV18xx/CV184X.h``:
  the constants `NPU_NUM`, `EU_BYTES`, `LMEM_BYTES`, `LMEM_BANKS`, `ALIGNMENT` and the start
  addresses.
- *units*: `IC_PARALLEL` of the chip header, channels of 8 bits; filters of 8 and 16 bits have their
  input channels in whole units (``Conv2D.cpp``, `reshape_coeff_for_3ic`).
- *cores*: BM1688: tpu-mlir's quick start, `num_core` of ``model_deploy``; BM1690: "Core Num" of
  ``python/profile_helper/bm1690_defs.py``.
- *cvikernel*: the chip configurations of the cvikernel library in milkv-duo's
  ``duo-buildroot-sdk-v2``.
- *CV address assignment*: tpu-mlir, ``CVAddressAssign.cpp``.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from target_hw.machine import Machine, Pipe
from target_hw.memory import MemoryHierarchy, MemoryScope

_KIB = 1024
_PAGE = 4096  # Chip header, ALIGNMENT: the same for all chips that have one.


def _local(kib: int, *, lanes: int, eu_bytes: int, banks: int = 16, **facts: int) -> MemoryScope:
    """Return the local memory of one lane; each lane holds its part at the same offset.

    An offset is a multiple of what the execution units of a lane read at once: the local memory
    allocator of tpu-mlir (``LmemAllocator.cpp``) rounds up to `EU_BYTES`.
    """
    facts |= {"lanes": lanes, "eu_bytes": eu_bytes, "banks": banks}
    return MemoryScope("local.LMEM", kib * _KIB, eu_bytes, facts=tuple(facts.items()))


def _global(base: int, alignment: int = _PAGE, **facts: int) -> MemoryScope:
    return MemoryScope("global", alignment=alignment, base=base, facts=tuple(facts.items()))


def _memories(*scopes: MemoryScope) -> MemoryHierarchy:
    return MemoryHierarchy(scopes)


def _cv18xx(start: int, *, lanes: int) -> MemoryHierarchy:
    """Return the memories of a CV18xx chip whose global memory begins at `start`.

    Local memory: cvikernel. Alignment and regions: CV address assignment; `start`: tpu-mlir's
    CV18xx backend.
    """
    # Filters of depthwise convolutions are padded: tpu-mlir, `is_eu_align_cv18xx`.
    local = _local(32, lanes=lanes, eu_bytes=16, banks=8, pads_depthwise=1)
    return _memories(local, _global(start, 16, weight_base=1 << 40, activation_base=0))


CHIPS: Mapping[str, MemoryHierarchy] = MappingProxyType(
    {
        # The BM chips and CV184X: chip header. The bits of an address from 36 (BM1688) or 40 on
        # are the tag of a region. Activations without a base of their own come right after the
        # weights.
        "sophgo/bm1684": _memories(
            # Entries of the batch share these bytes: four of 8 bits, two of 16 (the 4N layout of
            # ``Arch.cpp``).
            _local(512, lanes=64, eu_bytes=128, banks=8, pack_bytes=4),
            _global(0x1_0000_0000, weight_base=0x1_0510_0000),
        ),
        "sophgo/bm1684x": _memories(
            _local(256, lanes=64, eu_bytes=64, channel_unit=64),
            MemoryScope("global.L2", 0x1F_B000, _PAGE, base=0x1000_0000),
            _global(0x1_0000_0000, weight_base=0x1_0000_0000),
        ),
        "sophgo/bm1688": _memories(
            # Each core has lanes and local memory of its own, and all share the bytes a cycle of
            # global memory.
            _local(128, lanes=32, eu_bytes=16, channel_unit=32, cores=2),
            _global(8 << 36, weight_base=9 << 36, activation_base=10 << 36),
        ),
        "sophgo/bm1690": _memories(
            _local(256, lanes=64, eu_bytes=64, channel_unit=64, cores=8),
            # The tag of L2 is 30 << 40.
            MemoryScope("global.L2", 128 << 20, _PAGE, base=(30 << 40) + 0x69_8000_0000),
            _global(0, weight_base=1 << 40, activation_base=2 << 40),
        ),
        "sophgo/cv184x": _memories(
            _local(64, lanes=8, eu_bytes=16, channel_unit=16),
            _global(
                0x8000_0000,
                weight_base=0x8000_0000 + (1 << 40),
                activation_base=0x8000_0000 + (2 << 40),
            ),
        ),
        "sophgo/cv183x": _cv18xx(0x1_0000_0000, lanes=32),
        "sophgo/cv181x": _cv18xx(0, lanes=8),
        "sophgo/cv180x": _cv18xx(0, lanes=2),
    }
)
"""Target tag to memories. See ``docs/targets.md`` for the facts."""


_MACHINE_BASIS = "estimate: from the lanes and their execution units, and the memory's data rate"


def _machine(memory: MemoryHierarchy, global_rate: int) -> Machine:
    """Return the two pipes of a chip: transfers with global memory (GDMA), and the lanes (TIU).

    In a cycle, each execution unit of a lane does one multiply-add of 32 bits. The matrix unit of
    BM1684X does eight times as many of 16 bits and sixteen times as many of 8 bits (SOPHGO
    BM1684X, MICRO 2024: 64 pairs of INT8 each; product brief: 32 TOPS, 16 and 2 TFLOPS). Other
    chips are taken to be alike.

    `global_rate` is in bytes a cycle between global and local memory.
    """
    local = memory["local.LMEM"]
    lane_bytes = local.fact("lanes") * local.fact("eu_bytes")
    rates = (("8", lane_bytes * 4), ("16", lane_bytes * 2), ("32", lane_bytes // 4))
    return Machine(
        (
            Pipe("GDMA", "bytes", global_rate, 100, basis=_MACHINE_BASIS),
            Pipe("TIU", "multiply-adds", rates[-1][1], 32, at_bits=rates, basis=_MACHINE_BASIS),
        )
    )


_GLOBAL_RATES = {
    # Bytes a cycle: the width and rate of the external memory in product briefs, over the clock.
    "sophgo/bm1684": 64,
    "sophgo/bm1684x": 64,
    "sophgo/bm1688": 16,
    "sophgo/bm1690": 8 * 68,  # Of all cores: "DDR Max BW(GB/s/Core)" of ``bm1690_defs.py``.
    "sophgo/cv184x": 8,
    "sophgo/cv183x": 8,
    "sophgo/cv181x": 4,
    "sophgo/cv180x": 4,
}

MACHINES: Mapping[str, Machine] = MappingProxyType(
    {tag: _machine(CHIPS[tag], rate) for tag, rate in _GLOBAL_RATES.items()}
)
"""Target tag to pipes. All figures are estimates: they compare plans, they time nothing."""
