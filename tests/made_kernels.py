# SPDX-License-Identifier: Apache-2.0
"""The Ascend kernels, each built and lowered once: to parse one takes longer than to plan it."""

from __future__ import annotations

from functools import cache

import tvm

from tvm_ext import workloads


@cache
def made(name: str, size: workloads.ascend.Size, **parameters: int) -> workloads.AscendKernel:
    return workloads.ascend_kernel(name, size, **parameters)


@cache
def lowered(name: str, size: workloads.ascend.Size, **parameters: int) -> tvm.IRModule:
    return made(name, size, **parameters).lower()
