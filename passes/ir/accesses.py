# SPDX-License-Identifier: Apache-2.0
"""One use of a buffer, as `StorageRewrite` looks for results in place."""

from __future__ import annotations

from dataclasses import dataclass

from tvm.ir import TensorLoad
from tvm.tirx import BufferStore


@dataclass(slots=True, eq=False)
class Access:
    """One use of a buffer, or of something that forbids sharing in place."""

    buffer: int  # Handle of the buffer variable; 0 stands for all buffers
    load: TensorLoad | None  # The load that reads it; None where it is used in any other way
    store: BufferStore | None  # The store for whose value it is read


ANY_BUFFER = Access(0, None, None)
"""What forbids sharing in place for all buffers: extern code, ``A[B[i]]``, volatile memory."""
