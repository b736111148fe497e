# SPDX-License-Identifier: Apache-2.0
"""A microcontroller: its RAM as the local memory of one lane, its flash as global memory.

Source of the sizes: STMicroelectronics, data sheet DS10916 of the STM32F745 and STM32F746, section
"Embedded SRAM": 320 KiB of system memory (SRAM1 240, SRAM2 16, DTCM 64). The work of a core in a
cycle is an estimate: one instruction of the Cortex-M7 does two multiply-adds of 16 bits, to which
numbers of 8 bits are widened.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from target_hw.machine import Machine, Pipe
from target_hw.memory import MemoryHierarchy, MemoryScope

_KIB = 1024

CHIPS: Mapping[str, MemoryHierarchy] = MappingProxyType(
    {
        "st/stm32f746": MemoryHierarchy(
            (
                MemoryScope("local.LMEM", 320 * _KIB, facts=(("lanes", 1), ("eu_bytes", 1))),
                MemoryScope("global"),
            )
        )
    }
)
"""Target tag to memories."""

_BASIS = "estimate: from the instructions of the core and the width of its buses"

_RATES = (("8", 2), ("16", 2), ("32", 1))

MACHINES: Mapping[str, Machine] = MappingProxyType(
    {
        "st/stm32f746": Machine(
            (
                Pipe("GDMA", "bytes", 8, basis=_BASIS),
                Pipe("TIU", "multiply-adds", 1, at_bits=_RATES, basis=_BASIS),
            )
        )
    }
)
"""Target tag to pipes. All figures are estimates."""
