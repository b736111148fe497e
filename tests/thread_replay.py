# SPDX-License-Identifier: Apache-2.0
"""Whether two threads of a block meet in a byte, whatever they write there.

Threads run at their own pace, so nothing orders two accesses between the same barriers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from block_replay import replay
from tagged_bytes import FaultError, SharedMemory
from tvm import tirx

ROOM = 1 << 12
"""Elements of each array that a kernel is given."""


class _Touched(SharedMemory):
    """Memory without values, which knows who touched each byte since the last barrier."""

    def read(self, thread: int, memory: Any, at: int, width: int, name: str) -> int:
        self.note_read(thread, memory, range(at, at + width), name)
        return 0

    def read_all(self, size: int, thread: int, memory: Any, at: int, _width: int, name: str) -> int:
        return self.read(thread, memory, at, size, name)

    def write(self, thread: int, memory: Any, at: int, width: int, name: str, _value: Any) -> None:
        self.note_write(thread, memory, range(at, at + width), name, is_same=False)


def races(func: tirx.PrimFunc) -> bool:
    """Whether two threads touch one byte between the same barriers, and one of them writes it."""
    arguments = {str(p.name).removesuffix("_ptr"): np.zeros(ROOM) for p in func.params}
    try:
        replay(func, arguments, (1,), memory=_Touched)
    except FaultError:
        return True
    return False
