# SPDX-License-Identifier: Apache-2.0
"""Kernels with several results, and accesses that would leave what local memory holds."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from fixed_groups import LANES, chip
from operator_modules import arrays, build_guarded, call, lowered, module, run
from sweeps import sample
from test_group_kernels import chain
from tvm import relax

from passes.layer_group.analysis.read_network import read_networks
from passes.layer_group.planning.cut import Cut
from passes.layer_group.planning.network import NetworkIndex
from passes.layer_group.planning.planned_group import plan_group
from passes.layer_group.planning.spans import AxisPart, Spans
from passes.layer_group.rewrite import group_function as writer
from passes.layer_group.rewrite import local_buffers
from passes.layer_group.rewrite.group_calls import GroupCall, call_groups
from passes.layer_group.rewrite.group_function import group_kernel

CHIPS = ("bm1684x", "bm1688", "cv181x")
SHAPES = ((16, 6, 2), (40, 5, 3))


def shuffle(channels, size, blocks):
    """Half of the channels pass a depthwise convolution, then channels of both are interleaved."""
    half = channels // 2
    weights = [(half, 1, 3, 3)] * blocks + [(half,)] * 4 * blocks

    def body(emit, x, *params):
        def interleaved(a, b):
            y = emit(relax.op.concat([a, b], axis=1))
            y = emit(relax.op.reshape(y, (1, 2, half, size, size)))
            y = emit(relax.op.permute_dims(y, [0, 2, 1, 3, 4]))
            return emit(relax.op.reshape(y, (1, channels, size, size)))

        for at in range(blocks):
            parts = emit(relax.op.split(x, 2, axis=1))
            a, b = (emit(relax.TupleGetItem(parts, i)) for i in (0, 1))
            b = emit(relax.op.nn.conv2d(b, params[at], padding=1, groups=half))
            norm = params[blocks + 4 * at : blocks + 4 * at + 4]
            b = emit(relax.op.nn.batch_norm(b, *norm, axis=1, training=False))
            x = interleaved(a, emit(relax.TupleGetItem(b, 0)))
        return x

    return module([(1, channels, size, size), *weights], body)


def positive(args):
    """Return arguments of which those of one axis are variances or the like: above zero."""
    return [abs(arg) + 0.5 if arg.ndim == 1 else arg for arg in args]


def shuffled(x, *params):
    """Return what `shuffle` computes, by numpy in double precision."""
    blocks = len(params) // 5
    x = x.astype(float)
    _, channels, size, _ = x.shape
    for at in range(blocks):
        a, b = np.split(x, 2, axis=1)
        b = np.pad(b, ((0, 0), (0, 0), (1, 1), (1, 1)))
        weight = params[at].astype(float)
        b = sum(
            b[:, :, i : i + size, j : j + size] * weight[None, :, 0, i, j, None, None]
            for i in range(3)
            for j in range(3)
        )
        gamma, beta, mean, var = (
            p[None, :, None, None] for p in params[blocks + 4 * at : blocks + 4 * at + 4]
        )
        b = (b - mean) / np.sqrt(var + 1e-5) * gamma + beta
        x = np.stack([a, b], axis=2).reshape(1, channels, size, size)
    return x


@pytest.mark.parametrize("case", sample(product(CHIPS, SHAPES), ("cv181x", SHAPES[0])))
def test_channels_that_are_shuffled_give_the_same(case):
    name, shape = case
    mod = shuffle(*shape)
    args = positive(arrays(mod))
    grouped, count = build_guarded(mod, f"sophgo/{name}-llvm")
    assert count > 0
    (result,) = call(grouped, args)
    np.testing.assert_array_equal(result, run(mod, args)[0])
    np.testing.assert_allclose(result, shuffled(*args), rtol=1e-4, atol=1e-4)


def a_row_short(planned, name):
    """Return a planned group that says of each slice of a tensor that it holds a row less."""
    tensor = planned.slices.tensors[name]
    holds = tuple(
        AxisPart(letter, Spans(spans.begin + 1, spans.end) if letter else spans)
        for letter, spans in tensor.holds
    )
    tensors = {**planned.slices.tensors, name: replace(tensor, holds=holds)}
    return replace(planned, slices=replace(planned.slices, tensors=tensors))


def written_a_row_short(mod, at):
    """Return a module whose group holds too little of what a layer reads."""
    (block,) = read_networks(mod)
    index = NetworkIndex(block.network)
    planned = plan_group(index.group(0, len(index.network.layers) - 1), Cut(h=4), chip())
    assert planned is not None
    layers = planned.group.layers
    wrong = a_row_short(planned, layers[at].inputs[0])
    kernel = group_kernel(wrong, block.calls, LANES, "arena")
    return call_groups(mod, [(block, [GroupCall("group", planned.group, kernel)])])


@pytest.mark.parametrize("at", [0, 2])
def test_a_slice_that_would_leave_its_buffer_is_not_written(at):
    with pytest.raises(ValueError, match=r"axis 2 .*needs elements \d+ to \d+, holds \d+ to \d+"):
        written_a_row_short(lowered(chain()), at)


def test_memory_beyond_what_was_planned_or_can_be_counted_is_refused(monkeypatch):
    mod = lowered(module([(1, 2, 6, 8)], lambda emit, x: emit(relax.op.nn.softmax(x, axis=3))))
    (block,) = read_networks(mod)
    planned = plan_group(NetworkIndex(block.network).group(0, 0), Cut(), chip())
    none = replace(planned.local, sizes=dict.fromkeys(planned.local.sizes, 1))
    with pytest.raises(ValueError, match="'softmax:lv': 8 bytes to work in are planned, not"):
        group_kernel(replace(planned, local=none), block.calls, LANES, "arena")
    monkeypatch.setattr(local_buffers, "INT32_MAX", planned.plan.peak * LANES - 1)
    with pytest.raises(ValueError, match="beyond int32"):
        group_kernel(planned, block.calls, LANES, "arena")


@pytest.mark.parametrize("at", [0, 2])
def test_a_slice_that_leaves_its_buffer_is_seen_when_it_runs(at, monkeypatch):
    monkeypatch.setattr(writer.LayerPart, "check", lambda *_args: None)
    monkeypatch.setattr(writer, "check_covers", lambda *_args: None)
    mod = lowered(chain())
    args = arrays(mod)
    (wrong,), (right,) = run(written_a_row_short(mod, at), args), run(mod, args)
    assert (wrong != right).any()
