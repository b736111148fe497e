# SPDX-License-Identifier: Apache-2.0
"""Accesses that would leave what local memory holds, and memory that was not planned."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fixed_groups import LANES, chip
from operator_modules import arrays, lowered, module, run
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
