# SPDX-License-Identifier: Apache-2.0
"""TVM's storage scopes: a rank that TVM knows, and a tag that a chip adds."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property

# In the order in which TVM tries them (`StorageScope::Create` in its
# `runtime/thread_storage_scope.h`); a rank is the place in this list.
_RANKS = (
    "global",
    "shared",
    "warp",
    "local",
    "wmma.matrix_a",
    "wmma.matrix_b",
    "wmma.accumulator",
    "texture",
    "amx.tmm",
    "m16n8k8.matrixA",
    "m16n8k8.matrixB",
    "m16n8k8.matrixC",
    "metal.simdgroup",
    "metal.cooperative_tensor",
    "trn.sbuf",
    "trn.psum",
)
_WARP = _RANKS.index("warp")

# Scopes that all threads of a block, or of a warp, see; the rest are registers.
_SHARED_BY_THREADS = ("global", "shared", "warp", "texture", "trn.sbuf", "trn.psum")

# Tags that TVM itself gives a meaning to: memory whose allocations stay apart.
_OWN_TAGS = ("", ".dyn", ".workspace", ".vtcm")


@dataclass(frozen=True)
class StorageScope:
    """A parsed storage scope such as ``global``, ``shared.dyn`` or ``local.UB``."""

    rank: str  # The part that TVM knows: ``global``, ``shared``, ``warp``, ``local``, ...
    tag: str  # The rest, with its leading dot: ``.UB``; empty for none

    def __str__(self) -> str:
        """Return the scope as TVM spells it."""
        return self.rank + self.tag

    @cached_property
    def is_register_like(self) -> bool:
        """Whether the memory is of ``warp`` rank or nearer to the core than that."""
        return _RANKS.index(self.rank) >= _WARP

    @cached_property
    def is_shared_by_threads(self) -> bool:
        """Whether a thread of a block sees what another has written, whatever the tag."""
        return self.rank in _SHARED_BY_THREADS

    @cached_property
    def is_special(self) -> bool:
        """Whether the tag names a special memory, one whose allocations TVM packs into one."""
        return self.tag not in _OWN_TAGS


@cache
def parse_storage_scope(text: str) -> StorageScope:
    """Split a storage scope, as TVM spells it, into rank and tag; empty text means ``global``.

    Raises ValueError when no rank that TVM knows begins the text.
    """
    if not text:
        return StorageScope("global", "")
    for rank in _RANKS:
        if text.startswith(rank):
            return StorageScope(rank, text[len(rank) :])
    raise ValueError(f"unknown storage scope {text!r}: it begins with none of {', '.join(_RANKS)}")
