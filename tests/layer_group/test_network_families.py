# SPDX-License-Identifier: Apache-2.0
"""Networks in the shapes of many families: guarded groups give the numbers of TVM's own build."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from network_families import FAMILIES
from operator_modules import arrays, check_against_stock
from test_layer_group_pass import TINY
from test_layer_group_property import CUTS, MANY, SAMPLE, check_as_one_group
from test_layer_group_property import TWO_CORES as CORES
from test_loop_functions import one_lane
from test_several_results import positive

QUICK = ("uneven_parts", "window_attention", "softmax_with_its_parts", "two_results_of_one_block")
SHIPPED = ("bm1684x", "bm1688", "bm1690", "cv181x", "cv184x")
CHIPS = (TINY, CORES, *(f"sophgo/{name}" for name in SHIPPED), "st/stm32f746")


@pytest.mark.parametrize("name", QUICK)
def test_a_family_in_little_memory(name):
    mod = FAMILIES[name]()
    assert check_against_stock(mod, f"{TINY}-llvm", positive(arrays(mod))) > 0


@pytest.mark.slow
@pytest.mark.parametrize("chip", [*(f"{chip}-llvm" for chip in CHIPS), one_lane(8192)])
@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_on_a_chip(name, chip):
    mod = FAMILIES[name]()
    args = positive(arrays(mod))
    check_against_stock(mod, chip, args)
    check_against_stock(mod, chip, args, search="tail_to_head", halo="keep")


NAMES = st.sampled_from(sorted(FAMILIES))


@SAMPLE
@given(NAMES, CUTS, st.booleans())
def test_families_as_one_group(name, cuts, fuse):
    check_as_one_group(FAMILIES[name](), cuts, fuse)


@pytest.mark.slow
@MANY
@given(NAMES, CUTS, st.booleans())
def test_families_as_one_group_in_many_ways(name, cuts, fuse):
    check_as_one_group(FAMILIES[name](), cuts, fuse)
