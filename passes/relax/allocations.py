# SPDX-License-Identifier: Apache-2.0
"""What an ``R.builtin.alloc_tensor`` asks for: bytes, on which device, in which scope.

A texture on an Adreno is a view of plain memory, which has rows of a certain pitch. TVM's
`StaticPlanBlockMemory` and `LowerAllocTensor` ask the device for both, by functions that its
backend registers: ``DeviceGetMemSize.<kind>`` and ``DeviceScopeCompatibility.<kind>``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import relax
from tvm.ir import IRModule, StringImm
from tvm.tirx import IntImm

from passes.relax.facts import SCOPE
from passes.relax.sizes import Size, Sizes, UnknownSizeError
from passes.relax.tensors import NO_BYTES, Tensor


def fill_in(tensor: Tensor, call: Any, mod: IRModule, sizes: Sizes) -> None:
    """Note what the call that allocates a tensor says, or why the tensor cannot be planned."""
    shape, dtype, device, scope = call.args
    extents = shape.values if isinstance(shape, relax.ShapeExpr) else None
    if extents is None and isinstance(shape.ty, relax.ShapeType):
        extents = shape.ty.values
    if extents is None:
        tensor.left = "its shape is known at run time only"
        return
    try:
        tensor.size = sizes.of(extents, dtype.value)
    except UnknownSizeError as error:
        tensor.left = str(error)
    if tensor.variable is None:
        tensor.left = "it is not bound to a variable"
    elif not isinstance(scope, StringImm) or not isinstance(device, IntImm):
        tensor.left = f"its device, {device}, or its scope is known at run time only"
    elif tensor.size is not None and tensor.size.count == 0:
        tensor.left = NO_BYTES
    else:
        where = int(device.value), str(scope.value)
        memory = _device_memory(mod, *where, extents, dtype.value)
        if memory is None:
            tensor.left = f"it is in scope {where[1]!r}, not in {SCOPE!r}"
            return
        tensor.device, tensor.scope, nbytes = memory
        tensor.dtype = "uint8" if tensor.scope == SCOPE else str(dtype.value)
        tensor.is_texture = where[1] != SCOPE or nbytes is not None
        if tensor.size is not None and nbytes is not None:
            tensor.size = Size(nbytes)


def _device_memory(
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
