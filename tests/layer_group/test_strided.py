# SPDX-License-Identifier: Apache-2.0
"""Tensors of which no more is loaded than every second row, or every third."""

from __future__ import annotations

from math import gcd

import numpy as np
import pytest
from fixed_groups import LANES, chip, everything, grouped
from hypothesis import given, settings
from hypothesis import strategies as st
from operator_modules import arrays, lowered, module, run
from replay import check_replay, read_by
from tvm import relax

from passes.layer_group.analysis.networks import read_networks
from passes.layer_group.planning.group import NetworkIndex
from passes.layer_group.planning.network import AxisMap, Tensor
from passes.layer_group.planning.planned_group import plan_group
from passes.layer_group.planning.slicing import Cut
from passes.layer_group.planning.strided import loaded_maps, loaded_tensor, steps_of

OP = relax.op


def shortcut(emit, x, w, v):
    y = emit(OP.nn.relu(emit(OP.nn.conv2d(x, w, strides=(2, 2)))))
    return emit(OP.nn.conv2d(y, v, padding=(1, 1)))


def every_other(emit, x, w):
    # Rows 1, 5, 9 and rows 3, 7, 11: what is loaded is every second row, from the second one on.
    y, z = (emit(OP.strided_slice(x, [2], [at], [at + 9], [4])) for at in (1, 3))
    return emit(OP.nn.conv2d(emit(OP.add(y, z)), w, padding=(1, 1)))


def dense(emit, x, w, v):
    y = emit(OP.nn.conv2d(x, w, strides=(2, 2)))
    return emit(OP.add(y, emit(OP.nn.conv2d(x, v, strides=(2, 2), padding=(1, 1)))))


NETWORKS = {
    "shortcut": (shortcut, [(1, 12, 11, 8), (20, 12, 1, 1), (5, 20, 3, 3)]),
    "every_other": (every_other, [(2, 9, 12, 6), (7, 9, 3, 3)]),
    "dense": (dense, [(1, 5, 10, 6), (6, 5, 1, 1), (6, 5, 3, 3)]),
}

LOADED = {"shortcut": (1, 12, 6, 4), "every_other": (2, 9, 6, 6), "dense": (1, 5, 10, 6)}
"""Elements of the first parameter that are there at once if it is not cut."""

MOVED = {"shortcut": 12 * 6 * 8, "every_other": 2 * 9 * 6 * 6, "dense": 5 * 10 * 6}
"""Elements that pass: along the last axis, what lies between is read with the others."""

CUTS = (Cut(), Cut(h=2, w=2), Cut(h=3, part_bytes=1, sums=1))


def network(name):
    body, shapes = NETWORKS[name]
    return lowered(module(shapes, body), fuse=name != "every_other")  # Two layers read it.


def planned(name, cut, keep=""):
    mod = network(name)
    (block,) = read_networks(mod)
    return plan_group(NetworkIndex(block.network).group(everything(mod)), cut, chip(), keep)


@pytest.mark.parametrize("name", NETWORKS)
def test_what_lies_between_stays_outside(name):
    group = planned(name, Cut())
    first = group.group.inputs[0]
    assert group.slices.window(first) == LOADED[name]
    others = (n for n in group.group.names if n in group.group.outputs or n in group.group.weights)
    elements = sum(np.prod(group.group.tensor(n).shape) for n in others)
    assert group.cost.moved == 4 * (MOVED[name] + elements)


@pytest.mark.parametrize("name", NETWORKS)
def test_the_numbers_are_the_same(name):
    mod = network(name)
    args = arrays(mod)
    expected = run(mod, args)
    for cut in CUTS[1:]:
        found = grouped(mod, {everything(mod): cut}, keep="h")
        if cut.w == 1:
            assert found is not None
        if found is not None:
            for ours, theirs in zip(run(found[0], args), expected, strict=True):
                np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("name", NETWORKS)
def test_replay_finds_each_element(name):
    for cut in CUTS:
        for keep in ("", "h"):
            group = planned(name, cut, keep)
            if group is not None:
                check_replay(group, LANES)


def test_replay_sees_wrong_rows():
    for wrong in ((2, 0), (4, 1)):
        group = planned("every_other", Cut())
        ((name, steps),) = group.group.steps.items()
        group.group.steps[name] = (*steps[:2], wrong, *steps[3:])
        with pytest.raises((AssertionError, IndexError)):
            check_replay(group, LANES)


@given(
    st.lists(st.tuples(st.integers(1, 6), st.integers(0, 7)), min_size=1, max_size=3),
    st.integers(2, 5),
)
@settings(max_examples=100, deadline=None)
def test_all_that_is_read_is_loaded_and_no_more(reads, count):
    """What is read is compared element by element."""
    maps = [AxisMap(0, stride, 1, first, first) for stride, first in reads]
    extent = max(stride * (count - 1) + first for stride, first in reads) + 1
    read = {x for m in maps for at in range(count) for x in read_by(m, at, extent)}
    tensor = Tensor("x", (extent,), 8, "h")
    steps = steps_of(tensor, [(m,) for m in maps])
    apart = gcd(*(x - min(read) for x in read))
    assert (steps is None) == (apart == 1)
    if steps is None:
        return
    ((step, first),) = steps
    assert step == apart
    (loaded,) = loaded_tensor(tensor, steps).shape
    held = range(first, extent, step)
    assert len(held) == loaded
    for m in maps:
        (own,) = loaded_maps((m,), steps)
        for at in range(count):
            assert [held[x] for x in read_by(own, at, loaded)] == [*read_by(m, at, extent)]
