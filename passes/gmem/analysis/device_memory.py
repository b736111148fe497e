# SPDX-License-Identifier: Apache-2.0
"""What a device keeps a tensor of a scope of its own in, as TVM's own passes ask it.

A texture on an Adreno is a view of plain memory, which has rows of a certain pitch. TVM's
`StaticPlanBlockMemory` and `LowerAllocTensor` ask the device for both, by functions that its
backend registers: ``DeviceGetMemSize.<kind>`` and ``DeviceScopeCompatibility.<kind>``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm.ir import IRModule
from tvm.tirx import IntImm

from passes.gmem.analysis.facts import SCOPE


def device_memory(
    mod: IRModule, device: int, scope: str, shape: Sequence[Any], dtype: Any
) -> tuple[int, str, int | None] | None:
    """Return the device and the scope of a tensor's memory, and its bytes.

    The bytes are None where they are those of the shape. The whole is None where nothing is known
    of the scope, or the bytes cannot be known: those of a shape that the running program decides.
    """
    devices = mod.global_infos.get("vdevice", ())
    own = devices[device] if device < len(devices) else None
    if own is None or str(own.memory_scope) == SCOPE:
        return (device, scope, None) if scope == SCOPE else None
    kind = str(own.target.kind.name)
    size_of = tvm.get_global_func(f"DeviceGetMemSize.{kind}", allow_missing=True)
    scope_of = tvm.get_global_func(f"DeviceScopeCompatibility.{kind}", allow_missing=True)
    nbytes = None
    if size_of is not None:
        if not all(isinstance(extent, IntImm) for extent in shape):
            return None
        nbytes = int(size_of(list(shape), dtype, own))
    if scope_of is not None:
        scope = str(scope_of(own.target, own.memory_scope))
    if scope == SCOPE:
        # All that is in the plain memory of one device can share it, by whichever index.
        same = [
            index
            for index, other in enumerate(devices)
            if other.vdevice_id == own.vdevice_id
            and tvm_ffi.structural_equal(other.target, own.target)
        ]
        plain = (index for index in same if str(devices[index].memory_scope) == SCOPE)
        device = next(plain, same[0])
    return device, scope, nbytes
