# SPDX-License-Identifier: Apache-2.0
"""Kernels of the vector unit: elementwise chains through UB, scheduled from tensor expressions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm import te, tirx
from tvm.tirx import PrimFunc

from .kernel import Array, Program, ascend, normal, whole
from .schedule import FIRST, cast, lower_blocks, multi_buffer, schedule, tensor

_UB = "local.UB"


def _through_ub(inputs: Sequence[te.Tensor], output: te.Tensor, tile: int, slots: int) -> PrimFunc:
    """Schedule an elementwise chain: a tile at a time, each step an instruction on UB.

    The tiles that are loaded and the one that is stored have `slots` slots, so that loading the
    next tile, computing on this and storing the last can happen at the same time.
    """
    sch = schedule(inputs, output)
    steps = sch.get_child_blocks(sch.get_sblock("root"))
    tiles, _ = sch.split(sch.get_loops(steps[-1])[0], [None, tile])
    store = sch.cache_write(steps[-1], 0, _UB)
    sch.reverse_compute_at(store, tiles)
    for step in reversed(steps[:-1]):
        sch.set_scope(step, 0, _UB)
        sch.compute_at(step, tiles)
    multi_buffer(sch, steps[-1], slots)
    readers = {
        region.source.name: (step, index)
        for step in reversed(steps)
        for index, region in enumerate(sch.get(step).reads)
    }
    for source in inputs:
        step, index = readers[source.op.name]
        load = sch.cache_read(step, index, _UB)
        sch.compute_at(load, tiles, index=FIRST)
        multi_buffer(sch, load, slots)
    return lower_blocks(sch)


@ascend(fits={"tile": 4096}, reuse={"tile": 9216}, lowest={"tile": 14336}, overflow={"tile": 18432})
def vector_add(tile: int, tiles: int = 3, slots: int = 2, dtype: str = "float16") -> Program:
    """Add two vectors, in float32."""
    shape = (tiles * tile,)
    x, y = tensor(shape, dtype, "x"), tensor(shape, dtype, "y")
    wide_x, wide_y = cast(x, "float32", "wide_x"), cast(y, "float32", "wide_y")
    total = te.compute(shape, lambda i: wide_x[i] + wide_y[i], name="total")
    function = _through_ub([x, y], cast(total, dtype, "z"), tile, slots)
    draws = (whole(shape, dtype), whole(shape, dtype))
    return Program(function, draws, lambda x, y: x + y)


@ascend(fits={"tile": 4096}, reuse={"tile": 8192}, lowest={"tile": 18432}, overflow={"tile": 28672})
def gelu(tile: int, tiles: int = 3, slots: int = 2, dtype: str = "float16") -> Program:
    """GELU by its usual approximation with tanh, computed in float32."""
    shape = (tiles * tile,)
    x = tensor(shape, dtype, "x")
    wide = cast(x, "float32", "wide")
    square = te.compute(shape, lambda i: wide[i] * wide[i], name="square")
    cube = te.compute(shape, lambda i: square[i] * wide[i], name="cube")
    inner = te.compute(
        shape, lambda i: cube[i] * tirx.const(0.044715, "float32") + wide[i], name="inner"
    )
    # x * (1 + tanh(c * inner)) / 2 is x / (1 + exp(-2 * c * inner)).
    scaled = te.compute(shape, lambda i: inner[i] * tirx.const(_MINUS_2C, "float32"), name="scaled")
    power = te.compute(shape, lambda i: te.exp(scaled[i]), name="power")
    divisor = te.compute(shape, lambda i: power[i] + tirx.const(1, "float32"), name="divisor")
    result = te.compute(shape, lambda i: wide[i] / divisor[i], name="result")
    function = _through_ub([x], cast(result, dtype, "y"), tile, slots)
    return Program(function, (normal(shape, dtype),), _gelu, tolerance=1e-3)


_MINUS_2C = -2 * float(np.sqrt(2 / np.pi))


def _gelu(x: Array) -> Array:
    wide = x.astype("float64")
    gate: Array = 1 + np.tanh(np.sqrt(2 / np.pi) * (wide + 0.044715 * wide**3))
    return wide / 2 * gate
