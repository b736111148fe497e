"""The memories of Sophgo TPUs: the lanes' local memory, L2 and global memory.

Sources, by the names used in the comments below:

- *chip header*: tpu-mlir, ``include/tpu_mlir/Backend/BM168x/<chip>.h`` and ``CV18xx/CV184X.h``:
  the constants `NPU_NUM`, `EU_BYTES`, `LMEM_BYTES`, `LMEM_BANKS`, `DMA_ALGN_BYTES`, `ALIGNMENT`
  and the start addresses.
- *cvikernel*: the chip configurations of the cvikernel library in milkv-duo's
  ``duo-buildroot-sdk-v2``.
- *CV address assignment*: tpu-mlir, ``CVAddressAssign.cpp``.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from target_hw.memory import Facts, MemoryHierarchy, MemoryScope

_KIB = 1024
_PAGE = 4096  # Chip header, ALIGNMENT: the same for all chips that have one.


def _local(kib: int, *, banks: int, lanes: int, eu_bytes: int) -> MemoryScope:
    """Return the local memory of one lane; each lane holds its part at the same offset.

    An offset is a multiple of what the execution units of a lane read at once: the local memory
    allocator of tpu-mlir (``LmemAllocator.cpp``) rounds up to `EU_BYTES`.
    """
    return MemoryScope(
        "local.LMEM",
        kib * _KIB,
        alignment=eu_bytes,
        bank_count=banks,
        bank_bytes=kib * _KIB // banks,
        facts=(("lanes", lanes), ("eu_bytes", eu_bytes)),
    )


def _tagged(start: int, unit: int, io_start: int) -> Facts:
    """Return the regions of a chip that gives each its own tag in the address: chip header.

    Weights are at 1, activations at 2, inputs and outputs at 3 to 7 units of `unit` bytes, from
    the addresses `start` and `io_start`.
    """
    return (
        ("weight_base", start + unit),
        ("activation_base", start + 2 * unit),
        ("io_base", io_start + 3 * unit),
        ("io_stride", unit),
        ("io_count", 5),
    )


def _cv18xx(start: int, *, lanes: int) -> MemoryHierarchy:
    """Return the memories of a CV18xx chip whose global memory begins at `start`."""
    return MemoryHierarchy(
        (
            # cvikernel.
            _local(32, banks=8, lanes=lanes, eu_bytes=16),
            # Alignment and regions: CV address assignment; `start`: tpu-mlir's CV18xx backend.
            MemoryScope(
                "global",
                alignment=16,
                base=start,
                facts=(
                    ("weight_base", 1 << 40),
                    ("activation_base", 0),
                    ("private_base", 2 << 40),
                    ("io_base", 3 << 40),
                    ("io_stride", 1 << 40),
                    ("io_count", 5),
                ),
            ),
        )
    )


CHIPS: Mapping[str, MemoryHierarchy] = MappingProxyType(
    {
        # The BM chips and CV184X: chip header. Activations without a base of their own come
        # right after the weights.
        "sophgo/bm1684": MemoryHierarchy(
            (
                _local(512, banks=8, lanes=64, eu_bytes=128),
                MemoryScope(
                    "global",
                    alignment=_PAGE,
                    base=0x1_0000_0000,
                    facts=(("weight_base", 0x1_0510_0000), ("dma_alignment", 512)),
                ),
            )
        ),
        "sophgo/bm1684x": MemoryHierarchy(
            (
                _local(256, banks=16, lanes=64, eu_bytes=64),
                MemoryScope("global.L2", 0x1F_B000, alignment=_PAGE, base=0x1000_0000),
                MemoryScope(
                    "global",
                    alignment=_PAGE,
                    base=0x1_0000_0000,
                    facts=(("weight_base", 0x1_0000_0000), ("dma_alignment", 512)),
                ),
            )
        ),
        "sophgo/bm1688": MemoryHierarchy(
            (
                _local(128, banks=16, lanes=32, eu_bytes=16),
                MemoryScope(
                    "global",
                    alignment=_PAGE,
                    base=1 << 39,
                    facts=(*_tagged(1 << 39, 1 << 36, 1 << 39), ("dma_alignment", 512)),
                ),
            )
        ),
        "sophgo/bm1690": MemoryHierarchy(
            (
                _local(256, banks=16, lanes=64, eu_bytes=64),
                # The tag of L2 is 30 << 40.
                MemoryScope(
                    "global.L2",
                    128 * _KIB * _KIB,
                    alignment=_PAGE,
                    base=(30 << 40) + 0x69_8000_0000,
                ),
                MemoryScope(
                    "global",
                    alignment=_PAGE,
                    facts=(
                        ("weight_base", 1 << 40),
                        ("activation_base", 2 << 40),
                        ("dma_alignment", 256),
                    ),
                ),
            )
        ),
        "sophgo/cv184x": MemoryHierarchy(
            (
                _local(64, banks=16, lanes=8, eu_bytes=16),
                MemoryScope(
                    "global",
                    alignment=_PAGE,
                    base=0x8000_0000,
                    facts=(*_tagged(0x8000_0000, 1 << 40, 0), ("dma_alignment", 256)),
                ),
            )
        ),
        "sophgo/cv183x": _cv18xx(0x1_0000_0000, lanes=32),
        "sophgo/cv181x": _cv18xx(0, lanes=8),
        "sophgo/cv180x": _cv18xx(0, lanes=2),
    }
)
"""Target tag to memories. See ``docs/targets.md`` for the facts."""
