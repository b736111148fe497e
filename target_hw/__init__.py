# SPDX-License-Identifier: Apache-2.0
"""Memories of chips, and the speed of their pipelines.

`MemoryHierarchy` is plain data and needs no TVM, and so is `Machine`, the speed of a chip's
pipelines. The functions that make TVM targets of them, `register_chip`, `with_memory` and
`with_machine`, import TVM when first asked for; ``import target_hw.target`` registers the chips
that we know, such as ``ascend/910b``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from target_hw.machine import Machine, Pipe
from target_hw.memory import MemoryHierarchy, MemoryScope

if TYPE_CHECKING:
    from target_hw.target import register_chip, with_machine, with_memory

__all__ = [
    "Machine",
    "MemoryHierarchy",
    "MemoryScope",
    "Pipe",
    "register_chip",
    "with_machine",
    "with_memory",
]


def __getattr__(name: str) -> Any:
    # Planners import this package and must not wait for TVM.
    if name in ("register_chip", "with_machine", "with_memory"):
        from target_hw import target

        return getattr(target, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
