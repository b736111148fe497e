# SPDX-License-Identifier: Apache-2.0
"""Networks of three-dimensional convolutions: their depth is one more axis that is cut."""

from __future__ import annotations

import pytest
from fixed_groups import block_of, chip, everything, grouped
from operator_modules import arrays, check_same, lowered, module, run
from replay import check_replay
from sweeps import sample
from tvm import relax

from passes.layer_group.planning.cut import Cut
from passes.layer_group.planning.layer_groups import by_dependencies, plan_layer_groups
from passes.layer_group.planning.network import NetworkIndex
from passes.layer_group.planning.planned_group import plan_group

OP = relax.op


def videos(depth=6, rows=9, columns=7, channels=8):
    """Return a residual block of (2+1)-dimensional convolutions, as r3d networks have it."""

    def body(emit, x, w, v, u, bias):
        y = emit(OP.nn.conv3d(x, w, padding=(1, 1, 1)))
        y = emit(OP.nn.relu(emit(OP.add(y, bias))))
        y = emit(OP.nn.conv3d(y, v, padding=(0, 1, 1)))
        y = emit(OP.nn.conv3d(y, u, padding=(1, 0, 0), strides=(2, 1, 1)))
        skip = emit(OP.nn.max_pool3d(x, (1, 1, 1), strides=(2, 1, 1)))
        return emit(OP.nn.relu(emit(OP.add(y, skip))))

    c = channels
    weights = [(c, c, 3, 3, 3), (c, c, 1, 3, 3), (c, c, 3, 1, 1), (c, 1, 1, 1)]
    return module([(1, c, depth, rows, columns), *weights], body)


def test_the_first_of_three_axes_is_the_depth():
    network = block_of(lowered(videos())).network
    letters = {tensor.name: tensor.axes for tensor in network.tensors}
    assert {letters[layer.output] for layer in network.layers} == {"ncdhw"}
    assert all(not layer.uncut for layer in network.layers)


CUTS = [
    (numbers, keep)
    for numbers in ({"d": 3}, {"d": 2, "h": 3}, {"d": 3, "w": 2, "h": 2}, {"d": 2, "w": 7})
    for keep in (False, True)
]


@pytest.mark.parametrize("case", sample(CUTS, CUTS[5]))
def test_a_group_cut_along_the_depth_gives_the_same(case):
    numbers, keep = case
    mod = lowered(videos())
    cut = Cut(keep_rows=keep, **numbers)
    index = NetworkIndex(by_dependencies(block_of(mod).network))
    planned = plan_group(index.group(0, len(index.network.layers) - 1), cut, chip())
    assert planned is not None
    assert check_replay(planned).moved == planned.cost.moved
    held = planned.slices.tensors[planned.group.outputs[0]].window
    assert held[2] < 3 or numbers["d"] == 2
    found = grouped(mod, {everything(mod): cut})
    assert found is not None
    args = arrays(mod)
    check_same(run(found[0], args), run(mod, args))


def test_cores_share_the_depth():
    mod = lowered(videos(depth=8))
    found = grouped(mod, {everything(mod): Cut(d=4, h=3, keep_rows=True, cores=2)})
    assert found is not None
    assert found[1][0].cut.shared == "d"
    args = arrays(mod)
    check_same(run(found[0], args), run(mod, args))


def test_the_search_cuts_the_depth_where_rows_do_not_do():
    mod = lowered(videos(depth=24, rows=4, columns=12), fuse=True)
    (group,) = plan_layer_groups(block_of(mod).network, chip(6), halo="cheapest").groups
    assert group.cut.counts["d"] > 1
    assert group.cut.counts["h"] == 4
    check_replay(group)
    found = grouped(mod, {everything(mod): group.cut}, kib=6)
    assert found is not None
    args = arrays(mod)
    check_same(run(found[0], args), run(mod, args))
