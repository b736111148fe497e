# SPDX-License-Identifier: Apache-2.0
"""Networks of kinds that are built today, on all chips and by both searches."""

from __future__ import annotations

from functools import cache
from itertools import product

import numpy as np
import pytest
from modern_networks import NETWORKS, network
from operator_modules import arrays, call, lowered, run
from test_layer_group_pass import TINY, build

from passes.layer_group.planning.search import SEARCHES
from target_hw.sophgo import CHIPS
from tvm_ext.layer_group_report import layer_groups

BY_DEFAULT = ("detector", TINY, "dynamic_programming")


@cache
def expected(name):
    """Return the arguments of a network, and its results without groups."""
    mod = lowered(network(name), fuse=True)
    args = arrays(mod)
    return args, run(mod, args)


@pytest.mark.parametrize(
    ("name", "chip", "search"),
    [
        pytest.param(*case, marks=() if case == BY_DEFAULT else pytest.mark.slow)
        for case in product(NETWORKS, (TINY, *CHIPS), SEARCHES)
    ],
)
def test_a_network_built_with_groups_gives_the_same(name, chip, search):
    mod = network(name)
    report = layer_groups(mod, chip, search=search)
    assert report.moved_least <= report.moved_after <= report.moved_before
    assert report.groups or chip == TINY
    args, results = expected(name)
    grouped = build(mod, f"{chip}-llvm", layer_group={"search": search})
    for ours, theirs in zip(call(grouped, args), results, strict=True):
        assert np.isfinite(theirs).all()
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("name", ["detector", "window attention", "grouped queries"])
def test_all_of_a_network_that_fits_is_one_group_or_two(name):
    report = layer_groups(network(name), "sophgo/bm1684x")
    assert report.left == ()
    assert len(report.groups) <= 2
    assert report.moved_after <= 1.4 * report.moved_least
