"""What memory a chip has.

`MemoryHierarchy` is plain data and needs no TVM. What makes TVM targets of it, `register_chip` and
`with_memory`, imports TVM when first asked for; ``import target_hw.target`` registers the chips
that we know, such as ``ascend/910b``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from target_hw.memory import MemoryHierarchy, MemoryScope

if TYPE_CHECKING:
    from target_hw.target import register_chip, with_memory

__all__ = ["MemoryHierarchy", "MemoryScope", "register_chip", "with_memory"]


def __getattr__(name: str) -> Any:
    # Planners import this package and must not wait for TVM.
    if name in ("register_chip", "with_memory"):
        from target_hw import target

        return getattr(target, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
