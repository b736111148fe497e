# SPDX-License-Identifier: Apache-2.0
"""Kernels for the memories of an Ascend core, as a kernel writer leaves them.

A loop runs over tiles; in it, buffers are allocated in the memories of the chip, and each loop nest
is one instruction of one pipe: a transfer between two memories, or a computation in one.
"""

from __future__ import annotations

from . import units
from .kernels import CHIP, SIZES, AscendKernel, Size, ascend_kernel, ascend_kernels

__all__ = ["CHIP", "SIZES", "AscendKernel", "Size", "ascend_kernel", "ascend_kernels"]
