# SPDX-License-Identifier: Apache-2.0
"""Random networks, cut at random: the numbers are those of the layers one by one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fixed_groups import everything, grouped
from hypothesis import assume
from hypothesis import strategies as st
from network_families import FAMILIES
from operator_modules import arrays, check_against_stock, check_same, lowered, positive, run
from random_networks import networks
from sweeps import swept
from test_layer_group_pass import LOCAL, MEMORY, TINY
from test_loop_functions import twin

from passes.layer_group.analysis.read_network import read_networks
from passes.layer_group.planning.cut import Cut
from target_hw import register_chip
from target_hw.machine import Machine, Pipe
from tvm_ext.report.readers.groups import layer_groups

TWO_CORES = "test/tiny-cores"
shared = MEMORY.with_scope(replace(LOCAL, facts=(*LOCAL.facts, ("cores", 2))))
pipes = (Pipe("GDMA", "bytes", 64, 10), Pipe("TIU", "multiply-adds", 4))  # Computing takes long.
register_chip(TWO_CORES, shared, machine=Machine(pipes), override=True)


def as_one_group(mod, cuts):
    """Group all layers of a lowered module, with as many slices as there are rows at most.

    Cores share slices or channels. The result is None where the group finds no room.
    """
    (block,) = read_networks(mod)
    made = {layer.output for layer in block.network.layers}
    tensors = [tensor for tensor in block.network.tensors if tensor.name in made]
    most = {
        letter: min((t.shape[t.axes.index(letter)] for t in tensors if letter in t.axes), default=1)
        for letter in "nh"
    }
    n, h = min(cuts[0], most["n"]), min(cuts[1], most["h"])
    cut = Cut(n=n, h=h, keep_rows=cuts[5], part_bytes=cuts[3])
    if cuts[3] and cuts[4]:
        cut = replace(cut, cores=max(2, cuts[2]), by_channels=True)
    else:
        cut = replace(cut, cores=1 if cut.counts[cut.outermost or "n"] % cuts[2] else cuts[2])
    found = grouped(mod, {everything(mod): cut}, kib=256)
    return None if found is None else found[0]


def check_as_one_group(mod, cuts, fuse):
    """Run all layers as one group; an axis that is interleaved may be none that can be cut."""
    mod = lowered(mod, fuse=fuse)
    found, args = as_one_group(mod, cuts), positive(arrays(mod))
    assume(found is not None)
    check_same(run(found, args), run(mod, args))


CUTS = st.tuples(
    st.integers(1, 2),
    st.integers(1, 6),
    st.integers(1, 3),
    st.integers(0, 2),
    st.booleans(),
    st.booleans(),
)


test_all_layers_as_one_group = swept(2, 120, networks(), CUTS, st.booleans())(check_as_one_group)


CHIPS = st.sampled_from([TINY, TWO_CORES])
SEARCHES = st.sampled_from(["tail_to_head", "dynamic_programming"])
HALOS = st.sampled_from(["recompute", "keep", "cheapest"])


@swept(2, 120, networks(), CHIPS, SEARCHES, HALOS)
def test_the_pass(mod, chip, search, halo):
    args = arrays(mod)
    target = f"{chip}-llvm"
    check_against_stock(mod, target, args, search=search, halo=halo)
    report = layer_groups(mod, target, search=search, halo=halo)
    assert all(group.lmem_peak <= group.lmem_capacity for group in report.groups)
    assert report.moved_least <= report.moved_after <= report.moved_before


QUICK = (
    "shuffled_channels",
    "uneven_parts",
    "softmax_with_its_parts",
    "two_results_of_one_block",
)
SHIPPED = ("bm1684x", "bm1688", "bm1690", "cv181x", "cv184x")
EVERY_CHIP = (TINY, TWO_CORES, *(f"sophgo/{name}" for name in SHIPPED), "st/stm32f746")


@pytest.mark.parametrize("name", QUICK)
def test_a_family_in_little_memory(name):
    mod = FAMILIES[name]()
    assert check_against_stock(mod, f"{TINY}-llvm", positive(arrays(mod))) > 0


@pytest.mark.slow
@pytest.mark.parametrize("chip", [*(f"{chip}-llvm" for chip in EVERY_CHIP), twin(8192)])
@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_on_a_chip(name, chip):
    mod = FAMILIES[name]()
    args = positive(arrays(mod))
    check_against_stock(mod, chip, args)
    check_against_stock(mod, chip, args, search="tail_to_head", halo="keep")


NAMES = st.sampled_from(sorted(FAMILIES))


@swept(2, 120, NAMES, CUTS, st.booleans())
def test_families_as_one_group(name, cuts, fuse):
    check_as_one_group(FAMILIES[name](), cuts, fuse)
