# SPDX-License-Identifier: Apache-2.0
"""Tensors that a group stores, or has loaded, and loads again for a layer that reads them late."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from fixed_groups import LANES, allocations, chip, everything, grouped
from operator_modules import arrays, lowered, module, run
from replay import check_replay
from tvm import relax

from passes.layer_group.analysis.networks import read_networks
from passes.layer_group.planning.group import NetworkIndex
from passes.layer_group.planning.planned_group import plan_group
from passes.layer_group.planning.slicing import Cut
from passes.layer_group.planning.time_steps import LOAD, rebalance, stores_first

OP = relax.op


def skip(emit, x, w, v, u):
    # Two blocks: the result of the first one is added behind the second one.
    y = emit(OP.nn.relu(emit(OP.nn.conv2d(x, w))))
    for _ in range(2):
        z = emit(OP.nn.relu(emit(OP.nn.conv2d(y, v))))
        z = emit(OP.nn.relu(emit(OP.nn.conv2d(z, u, padding=(1, 1)))))
        z = emit(OP.nn.conv2d(z, w))
        y = emit(OP.nn.relu(emit(OP.add(z, y))))
    return y


def unet(emit, x, w, v):
    y = emit(OP.nn.relu(emit(OP.nn.conv2d(x, w, padding=(1, 1)))))
    z = emit(OP.nn.max_pool2d(y, (2, 2), (2, 2)))
    z = emit(OP.nn.relu(emit(OP.nn.conv2d(z, v, padding=(1, 1)))))
    z = emit(OP.image.resize2d(z, (8, 6), method="nearest_neighbor", layout="NCHW"))
    return emit(OP.nn.relu(emit(OP.concat([z, y], axis=1))))


def residual(emit, x, w, v):
    # An input, of which every second row is loaded again.
    y = emit(OP.nn.relu(emit(OP.nn.conv2d(x, w, padding=(1, 1)))))
    y = emit(OP.nn.relu(emit(OP.nn.conv2d(y, w, padding=(1, 1), strides=(2, 2)))))
    y = emit(OP.nn.conv2d(y, w, padding=(1, 1)))
    return emit(OP.add(emit(OP.nn.conv2d(x, v, strides=(2, 2))), y))


NETWORKS = {
    "skip": (skip, [(1, 12, 9, 5), (20, 12, 1, 1), (12, 20, 1, 1), (12, 12, 3, 3)]),
    "unet": (unet, [(1, 5, 8, 6), (11, 5, 3, 3), (9, 11, 3, 3)]),
    "residual": (residual, [(1, 12, 8, 6), (12, 12, 3, 3), (12, 12, 1, 1)]),
}

WAYS = {
    "whole": Cut(),
    "sums": Cut(part_bytes=1, sums=1),
    "passing": Cut(part_bytes=1, passing=True),
}


def network(name):
    return lowered(module(NETWORKS[name][1], NETWORKS[name][0]), fuse=True)


def planned(name, cut):
    mod = network(name)
    (block,) = read_networks(mod)
    found = plan_group(NetworkIndex(block.network).group(everything(mod)), cut, chip())
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("name", "way"),
    [("skip", "sums"), ("skip", "passing"), ("unet", "whole"), ("residual", "sums")],
)
def test_the_numbers_are_the_same(name, way):
    mod = network(name)
    found = grouped(mod, {everything(mod): replace(WAYS[way], reloads=True)})
    assert found is not None
    new, (group,) = found
    assert group.group.again
    args = arrays(mod)
    for ours, theirs in zip(run(new, args), run(mod, args), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", NETWORKS)
def test_replay_finds_what_is_loaded_again(name, way):
    check_replay(planned(name, replace(WAYS[way], reloads=True)), LANES)


def test_slices_load_an_input_again_and_nothing_else():
    check_replay(planned("residual", Cut(h=3, reloads=True)), LANES)
    mod = network("skip")
    assert grouped(mod, {everything(mod): Cut(h=3, reloads=True)}) is None


@pytest.mark.parametrize("name", NETWORKS)
def test_its_place_is_free_meanwhile(name):
    held, again = (planned(name, Cut(reloads=reloads)) for reloads in (False, True))
    ways = again.group.again
    nbytes = {n: np.prod(again.group.tensor(n).shape) * 4 for n in (*ways, *ways.values())}
    last = {n for n in ways.values() if n in held.group.outputs}
    stored = [n for n in ways.values() if n in again.group.made and n not in last]
    between = {n: (2 if again.group.steps.get(n) else 1) for n in ways}  # See `skipped`.
    more = sum(nbytes[n] * between[n] for n in ways) + sum(nbytes[n] for n in stored)
    assert again.cost.moved == held.cost.moved + more
    for copy, source in ways.items():
        lives = [
            {
                row
                for a, b in again.local.item[name].life.ranges(again.local.rows)
                for row in range(a, b)
            }
            for name in (source, copy)
        ]
        # What comes from outside may be loaded again ahead of time.
        assert source not in again.group.made or not set.intersection(*lives)


def test_what_is_loaded_again_is_stored_before():
    group = planned("skip", Cut(reloads=True))
    assert stores_first(group.steps)
    (source, *_) = (n for n in group.group.again.values() if n in group.group.made)
    (copy,) = (n for n, of in group.group.again.items() if of == source)
    rows = list(group.steps.rows)
    at, load = next(
        (at, t)
        for at, row in enumerate(rows)
        for t in row.transfers
        if (t.tensor, t.kind) == (copy, LOAD)
    )
    rows[at] = replace(rows[at], transfers=tuple(t for t in rows[at].transfers if t != load))
    rows[0] = replace(rows[0], transfers=(*rows[0].transfers, load))
    early = replace(group.steps, rows=tuple(rows))
    assert not stores_first(early)
    with pytest.raises(AssertionError):
        check_replay(replace(group, steps=early), LANES)
    # No transfer is moved so, however much that would win.
    sizes = {name: item.lane_bytes for name, item in group.local.item.items()}
    for busy in range(len(rows)):
        cycles = [0 if row == busy else 1000 for row in range(len(rows))]
        moved = rebalance(group.steps, cycles.__getitem__, lambda _: 400, sizes)
        assert stores_first(moved)


def test_it_has_one_buffer_outside_and_two_addresses():
    mod = network("skip")
    found = grouped(mod, {everything(mod): Cut(reloads=True)}, form="address")
    assert found is not None
    new, (group,) = found
    kernel = next(f for v, f in new.functions.items() if "group_0" in str(v.name_hint))
    names = [name for name in group.group.loaded if name not in group.group.again]
    assert len(kernel.params) == len(names) + len(group.group.outputs)
    assert len(allocations(kernel)) == len(group.plan.offsets)
