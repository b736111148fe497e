# SPDX-License-Identifier: Apache-2.0
"""Quantised networks: sums in int32 that are scaled where they lie, built on each chip."""

from __future__ import annotations

import numpy as np
import pytest
from fixed_groups import everything, grouped
from operator_modules import arrays, lowered, module, run
from test_layer_group_pass import TINY
from tvm import relax

from passes.layer_group.analysis.read_network import read_networks
from passes.layer_group.planning.cut import Cut
from target_hw.sophgo import CHIPS
from tvm_ext import transform

OP = relax.op
IMAGE, KERNEL = (1, 8, 10, 6), (8, 8, 3, 3)
LIMITS = {"int8": (-128, 127), "uint8": (0, 255), "int16": (-32768, 32767)}


def const(value, dtype="float32"):
    return relax.const(np.asarray(value, dtype), dtype)


def fused(specs, body):
    """Return a fused module whose one input and weights have these shapes and types."""
    shapes, types = zip(*specs, strict=True)
    return lowered(module(shapes, body, dtype=types), fuse=True)


def by_scale(emit, y, dtype, scale=0.01, zero=0.0):
    """Requantise by a factor in floating point, one for all channels or one for each."""
    scale = np.asarray(scale)
    if scale.ndim:
        scale = scale.reshape(1, -1, 1, 1)
    y = emit(OP.multiply(emit(OP.astype(y, "float32")), const(scale)))
    y = emit(OP.add(emit(OP.round(y)), const(zero)))
    return emit(OP.astype(emit(OP.clip(y, *LIMITS[dtype])), dtype))


def by_shift(emit, y, dtype, multiplier=12345, bits=14):
    """Requantise by a multiplication in int64 and a shift that rounds."""
    y = emit(OP.multiply(emit(OP.astype(y, "int64")), const(multiplier, "int64")))
    y = emit(OP.add(y, const(1 << (bits - 1), "int64")))
    y = emit(OP.right_shift(y, const(bits, "int64")))
    return emit(OP.astype(emit(OP.clip(y, *LIMITS[dtype])), dtype))


def conv(emit, x, w, dtype="int32", **options):
    return emit(OP.nn.conv2d(x, w, padding=(1, 1), out_dtype=dtype, **options))


def quantised(emit, x, w, v, bias):
    y = emit(OP.quantize(x, const(0.02), const(3, "int8"), axis=1, out_dtype="int8"))
    y = emit(OP.nn.relu(emit(OP.add(conv(emit, y, w), bias))))
    y = by_scale(emit, y, "int8", np.linspace(0.01, 0.05, 8), 2)
    y = by_shift(emit, conv(emit, y, v, groups=8), "int8")
    return emit(OP.dequantize(y, const(0.02), const(3, "int8"), axis=1, out_dtype="float32"))


def with_zero_points(emit, x, w):
    for zero in (128, 100):
        x = emit(OP.subtract(emit(OP.astype(x, "int32")), const(zero, "int32")))
        y = conv(emit, x, emit(OP.astype(w, "int32")))
        x = emit(OP.nn.max_pool2d(by_scale(emit, y, "uint8", 0.002, 100), (2, 1), (1, 1)))
    return x


def dense(emit, x, w, v):
    y = by_scale(emit, emit(OP.matmul(x, w, out_dtype="int32")), "int8", 0.05, -3)
    return by_shift(emit, emit(OP.matmul(y, v, out_dtype="int32")), "int8", 2345)


def float_in_between(emit, x, w):
    for _ in range(2):
        x = emit(OP.dequantize(x, const([0.02] * 8), const(range(8), "int8"), axis=1))
        x = emit(OP.nn.conv2d(x, w, padding=(1, 1)))
        x = emit(OP.quantize(x, const([0.05] * 8), const(range(8), "int8"), axis=1))
    return x


def wide(emit, x, w):
    return by_scale(emit, conv(emit, by_scale(emit, conv(emit, x, w), "int16", 0.5), w), "int16")


def of_two_types(dtype):
    """Sums in float32 between tensors of half the bits."""

    def body(emit, x, w):
        for _ in range(2):
            x = emit(OP.astype(emit(OP.nn.relu(conv(emit, x, w, "float32"))), dtype))
        return x

    return body


def chosen(emit, x, w):
    """A sum and a condition on it, and half precision on the way."""
    for _ in range(2):
        y = conv(emit, x, w)
        y = emit(OP.where(emit(OP.greater(y, const(0, "int32"))), y, emit(OP.negative(y))))
        y = emit(OP.multiply(emit(OP.astype(y, "float16")), const(0.01, "float16")))
        x = emit(OP.astype(emit(OP.multiply(emit(OP.tanh(y)), const(100, "float16"))), "int8"))
    return x


BIAS = ((1, 8, 1, 1), "int32")
NETWORKS = {
    "zero points": ([(IMAGE, "uint8"), (KERNEL, "uint8")], with_zero_points),
    "dense": ([((1, 24, 16), "int8"), ((16, 20), "int8"), ((20, 8), "int8")], dense),
    "float in between": ([(IMAGE, "int8"), (KERNEL, "float32")], float_in_between),
    "int16": ([(IMAGE, "int16"), (KERNEL, "int16")], wide),
    "float16": ([(IMAGE, "float16"), (KERNEL, "float16")], of_two_types("float16")),
    "bfloat16": ([(IMAGE, "bfloat16"), (KERNEL, "bfloat16")], of_two_types("bfloat16")),
    "conditions": ([(IMAGE, "int8"), (KERNEL, "int8")], chosen),
}
QUANTISED = ([(IMAGE, "float32"), (KERNEL, "int8"), ((8, 1, 3, 3), "int8"), BIAS], quantised)


@pytest.fixture(scope="module")
def network():
    """A fused network with its arguments and its result without groups."""
    mod = fused(*QUANTISED)
    args = arrays(mod)
    args[0] *= 2
    (expected,) = run(mod, args)
    assert len(np.unique(expected)) > 20
    return mod, args, expected


def calls(mod):
    return [binding.value.args[0].name_hint for binding in mod["main"].body.blocks[0].bindings]


RUN = (TINY, "sophgo/cv181x", "sophgo/bm1684x")
"""On a chip with room for all, groups are cut alike."""


@pytest.mark.parametrize("chip", [TINY, *CHIPS])
def test_a_quantised_network_is_one_group_on_each_chip(chip, network):
    mod, args, expected = network
    new = transform.LayerGroup(f"{chip}-llvm")(mod)
    assert len(calls(new)) == 1
    if chip not in RUN:
        return
    np.testing.assert_array_equal(run(new, args)[0], expected)


@pytest.mark.parametrize("form", ["arena", pytest.param("address", marks=pytest.mark.slow)])
def test_sums_in_slices_are_scaled_where_they_lie(form, network):
    mod, args, expected = network
    (block,) = read_networks(mod)
    in_one_place = {
        tuple(str(call.kernel.buffers[b].ty.dtype.dtype) for b in pair)
        for call in block.calls.values()
        for pair in call.memory.items()
    }
    assert ("int32", "float32") in in_one_place
    new, _ = grouped(mod, {everything(mod): Cut(h=3, keep_rows=True)}, form=form)
    np.testing.assert_array_equal(run(new, args)[0], expected)


IN_SWEEPS = ("dense", "float in between", "int16", "float16")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n in IN_SWEEPS else n for n in NETWORKS]
)
def test_networks_of_mixed_types_are_grouped(name):
    mod = fused(*NETWORKS[name])
    args = arrays(mod)
    new = transform.LayerGroup(f"{TINY}-llvm")(mod)
    assert len(calls(new)) < len(calls(mod))
    (expected,) = run(mod, args)
    assert len(np.unique(expected)) > 8
    np.testing.assert_array_equal(run(new, args)[0], expected)
