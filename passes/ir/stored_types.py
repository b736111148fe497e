# SPDX-License-Identifier: Apache-2.0
"""Widths of elements once TVM has replaced the types that a target has no arithmetic for.

`BF16ComputeLegalize` and `FP8ComputeLegalize` make wider elements of what a function allocates,
unless its target computes with them. The second stands after storage planning in TVM's pipelines,
and both do where planning runs before a pipeline.
"""

from __future__ import annotations

from functools import lru_cache

import tvm
from tvm import tirx

from passes.ir import tir
from passes.ir.modules import IRModule, Target
from passes.ir.structural import nodes_in
from passes.ir.tir import PrimFunc

_REPLACED = ("bfloat", "float8")  # Beginnings of the names of types that TVM may replace

_NOT_BUILT_BY_TVM = "ext_dev"
"""Targets that TVM generates no code for: who does takes a function as it is."""


def stored_bits(dtype: tvm.DataType, target: Target | None) -> int:
    """Return the bits of one lane of an allocation's elements when a function is built.

    `dtype` is as declared. Where the function is bound to no target, TVM's default holds.
    """
    if not str(dtype).startswith(_REPLACED):
        return int(dtype.bits)
    if target is not None and target.kind.name == _NOT_BUILT_BY_TVM:
        return int(dtype.bits)
    return _legalized_bits(str(dtype.with_lanes(1)), target)


def is_widened_later(dtype: tvm.DataType, target: Target | None) -> bool:
    """Return whether TVM makes wider elements of a type after storage planning.

    It does so only of memory that has one name, and computes nothing in between in the narrow type.
    """
    return str(dtype).startswith("float8") and stored_bits(dtype, target) > dtype.bits


@lru_cache(maxsize=64)
def _legalized_bits(dtype: str, target: Target | None) -> int:
    """Let TVM replace the type of one buffer, and look."""
    buffer, at = tir.new_buffer([1], dtype, "probe"), tirx.const(0)
    body = [
        tir.Allocation(buffer),
        tir.Store(buffer, tir.new_load(buffer, [at]), [at]),
    ]
    func = PrimFunc([], tir.Sequence(body))
    mod = IRModule({"probe": func if target is None else func.with_attr("target", target)})
    for legalize in (tirx.transform.BF16ComputeLegalize, tirx.transform.FP8ComputeLegalize):
        mod = legalize()(mod)
    (alloc,) = nodes_in(mod["probe"].body, tir.Allocation)
    return int(alloc.buffer.ty.dtype.dtype.bits)
