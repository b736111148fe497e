# SPDX-License-Identifier: Apache-2.0
"""Kernels of the cube unit: products through L1, L0A, L0B and L0C, scheduled tile by tile."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import te, tirx
from tvm.s_tir import Schedule

from .kernel import Array, Program, ascend, parts, whole
from .schedule import FIRST, cast, lower_blocks, multi_buffer, schedule, tensor

_HALVES = 2


def _product(a: te.Tensor, b: te.Tensor) -> te.Tensor:
    """Multiply matrices, and sum in float32."""
    axis = te.reduce_axis((0, a.shape[1]), "k")
    return te.compute(
        (a.shape[0], b.shape[1]),
        lambda i, j: te.sum(a[i, axis].astype("float32") * b[axis, j].astype("float32"), axis),
        name="product",
    )


def _multiply_at(sch: Schedule, tile: Any, tile_k: int, step_k: int, slots: int) -> None:
    """Compute the block ``product`` within the loop `tile`, its sums in L0C.

    `tile_k` columns of the first operand at a time are brought to L1, and `step_k` of those to
    L0A; likewise rows of the second operand, to L1 and L0B.
    """
    product = sch.get_sblock("product")
    sch.set_scope(product, 0, "local.L0C")
    sch.compute_at(product, tile)
    i, j, k = sch.get_loops(product)[-3:]
    in_l1, in_l0, inner = sch.split(k, [None, tile_k // step_k, step_k])
    sch.reorder(in_l1, in_l0, i, inner, j)
    for operand, scope in enumerate(("local.L0A", "local.L0B")):
        near = sch.cache_read(product, operand, scope)
        far = sch.cache_read(near, 0, "local.L1")
        sch.compute_at(near, in_l0)
        sch.compute_at(far, in_l1, index=FIRST)
        multi_buffer(sch, near, slots)
        multi_buffer(sch, far, slots)


_MATMUL = {"tile_m": 64, "tile_k": 64, "step_k": 32}


@ascend(
    fits={**_MATMUL, "half_n": 128},
    reuse={"tile_m": 64, "tile_k": 128, "step_k": 64, "half_n": 160},
    lowest={**_MATMUL, "half_n": 384},
    overflow={**_MATMUL, "half_n": 384, "tile_m": 96},
)
def matmul(
    tile_m: int,
    half_n: int,
    tile_k: int,
    step_k: int,
    tiles: int = 2,
    slots: int = 2,
    dtype: str = "float16",
) -> Program:
    """Multiply matrices; a tile is done in two halves with sums of their own."""
    parts("matmul", tile_k, step_k, "tile_k")
    m, n, k = tile_m, tiles * _HALVES * half_n, 2 * tile_k
    a, b = tensor((m, k), dtype, "a"), tensor((k, n), dtype, "b")
    sch = schedule([a, b], cast(_product(a, b), dtype, "c"))
    i, j = sch.get_loops("c")
    tile, half, inner = sch.split(j, [None, _HALVES, half_n])
    sch.reorder(tile, half, i, inner)
    _multiply_at(sch, half, tile_k, step_k, slots)
    sch.unroll(half)
    # The sums are whole numbers of at most 4 * k, exact in float16 up to 2048.
    draws = (whole((m, k), dtype, 2), whole((k, n), dtype, 2))
    return Program(lower_blocks(sch), draws, _matmul)


def _matmul(a: Array, b: Array) -> Array:
    product: Array = a.astype("float32") @ b.astype("float32")
    return product


_FUSED = {"tile_m": 64, "tile_k": 64, "step_k": 32}


@ascend(
    fits={**_FUSED, "tile_n": 256, "rows": 16},
    reuse={**_FUSED, "tile_n": 240, "rows": 32},
    lowest={**_FUSED, "tile_n": 384, "rows": 32},
    overflow={**_FUSED, "tile_n": 320, "rows": 64, "slots": 1},
)
def matmul_add_relu(
    tile_m: int,
    tile_n: int,
    tile_k: int,
    step_k: int,
    rows: int,
    tiles: int = 2,
    slots: int = 2,
    dtype: str = "float16",
) -> Program:
    """Multiply matrices, add one and clip at zero: the sums go to the vector unit by a workspace.

    The cube unit has `slots` slots for its operands and for a tile in the workspace; the vector
    unit takes `rows` rows of the tile at a time.
    """
    parts("matmul_add_relu", tile_k, step_k, "tile_k")
    parts("matmul_add_relu", tile_m, rows, "tile_m")
    m, n, k = tile_m, tiles * tile_n, 2 * tile_k
    a, b = tensor((m, k), dtype, "a"), tensor((k, n), dtype, "b")
    residual = tensor((m, n), dtype, "residual")
    product = _product(a, b)
    sums = te.compute((m, n), lambda *at: product(*at), name="sums")
    wide = cast(residual, "float32", "wide")
    total = te.compute((m, n), lambda *at: sums(*at) + wide(*at), name="total")
    zero = tirx.const(0, "float32")
    clipped = te.compute((m, n), lambda *at: te.max(total(*at), zero), name="clipped")
    sch = schedule([a, b, residual], cast(clipped, dtype, "c"))

    i, j = sch.get_loops("c")
    tile, inner_j = sch.split(j, [None, tile_n])
    part, inner_i = sch.split(i, [None, rows])
    sch.reorder(tile, part, inner_i, inner_j)
    store = sch.cache_write("c", 0, "local.UB")
    sch.reverse_compute_at(store, part)
    multi_buffer(sch, "c", slots)
    for step in ("clipped", "total", "wide"):
        sch.set_scope(step, 0, "local.UB")
        sch.compute_at(step, part)
    for step, operand in (("wide", 0), ("total", 0)):
        load = sch.cache_read(step, operand, "local.UB")
        sch.compute_at(load, part, index=FIRST)
        multi_buffer(sch, load, slots)
    sch.set_scope("sums", 0, "global.workspace")
    sch.compute_at("sums", tile)
    multi_buffer(sch, "sums", slots)
    _multiply_at(sch, tile, tile_k, step_k, slots)
    draws = (whole((m, k), dtype, 2), whole((k, n), dtype, 2), whole((m, n), dtype))
    return Program(lower_blocks(sch), draws, _matmul_add_relu)


def _matmul_add_relu(a: Array, b: Array, residual: Array) -> Array:
    clipped: Array = np.maximum(_matmul(a, b) + residual, 0)
    return clipped


_TAPS = 3
"""Rows and columns of a convolution's filter."""

_CONV = {"rows": 4, "width": 32, "channels": 16}


@ascend(
    fits={**_CONV, "half_out": 64},
    reuse={"rows": 1, "width": 16, "channels": 64, "half_out": 256},
    lowest={**_CONV, "half_out": 192},
    overflow={**_CONV, "half_out": 288},
)
def conv2d(
    rows: int,
    width: int,
    channels: int,
    half_out: int,
    tiles: int = 2,
    slots: int = 2,
    dtype: str = "float16",
) -> Program:
    """Convolve with 3x3 filters, padded with zeros, as a product: im2col on the way to L0A.

    Tiles of `rows` rows of the image, and two halves of the filters with sums of their own; L1
    holds the rows with their neighbours, for `channels` channels, and one row of the filters.
    """
    height, depth, out = tiles * rows, 2 * channels, _HALVES * half_out
    image = tensor((height, width, depth), dtype, "image")
    filters = tensor((_TAPS, _TAPS, depth, out), dtype, "filters")

    def pad(y: Any, x: Any, c: Any) -> Any:
        inside = tirx.all(y >= 1, y <= height, x >= 1, x <= width)
        return tirx.if_then_else(inside, image[y - 1, x - 1, c], tirx.const(0, dtype))

    padded = te.compute((height + 2, width + 2, depth), pad, name="padded")
    columns = te.compute(
        (height, width, _TAPS, _TAPS, depth),
        lambda y, x, dy, dx, c: padded[y + dy, x + dx, c],
        name="columns",
    )
    dy, dx = te.reduce_axis((0, _TAPS), "dy"), te.reduce_axis((0, _TAPS), "dx")
    c = te.reduce_axis((0, depth), "c")
    product = te.compute(
        (height, width, out),
        lambda y, x, o: te.sum(
            columns[y, x, dy, dx, c].astype("float32") * filters[dy, dx, c, o].astype("float32"),
            [dy, dx, c],
        ),
        name="product",
    )
    sch = schedule([image, filters], cast(product, dtype, "result"))

    loop_y, loop_x, loop_o = sch.get_loops("result")
    tile, inner_y = sch.split(loop_y, [None, rows])
    half, inner_o = sch.split(loop_o, [_HALVES, None])
    sch.reorder(tile, half, inner_y, loop_x, inner_o)
    sch.set_scope("product", 0, "local.L0C")
    sch.compute_at("product", half, preserve_unit_loops=True)
    y, x, o, loop_dy, loop_dx, loop_c = sch.get_loops("product")[-6:]
    in_l1, inner_c = sch.split(loop_c, [None, channels])
    sch.reorder(in_l1, loop_dy, loop_dx, y, x, inner_c, o)
    sch.set_scope("columns", 0, "local.L0A")
    sch.compute_at("columns", loop_dx)
    sch.set_scope("padded", 0, "local.L1")
    sch.compute_at("padded", in_l1)
    filters_l0b = sch.cache_read("product", 1, "local.L0B")
    filters_l1 = sch.cache_read(filters_l0b, 0, "local.L1")
    sch.compute_at(filters_l0b, loop_dx)
    sch.compute_at(filters_l1, loop_dy, index=FIRST)
    for block in ("padded", "columns", filters_l1, filters_l0b):
        multi_buffer(sch, block, slots)
    sch.unroll(half)
    draws = (whole((height, width, depth), dtype, 1), whole((_TAPS, _TAPS, depth, out), dtype, 1))
    return Program(lower_blocks(sch), draws, _conv2d)


def _conv2d(image: Array, filters: Array) -> Array:
    height, width, _ = image.shape
    padded = np.pad(image.astype("float32"), ((1, 1), (1, 1), (0, 0)))
    total: Array = sum(
        padded[dy : dy + height, dx : dx + width] @ filters[dy, dx].astype("float32")
        for dy in range(_TAPS)
        for dx in range(_TAPS)
    )
    return total
