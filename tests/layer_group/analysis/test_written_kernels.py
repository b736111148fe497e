# SPDX-License-Identifier: Apache-2.0
"""Kernels written by hand: in a group or left alone, they compute what they say."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import rule_kernels as rules
import tvm
import written_kernels as written
from fixed_groups import LANES, chip
from hypothesis import strategies as st
from llvm_level import at_level
from operator_modules import arrays, call
from sweeps import swept
from tvm import relax

from passes.layer_group.analysis.read_network import read_networks
from passes.layer_group.planning.cut import Cut
from passes.layer_group.planning.network import NetworkIndex, extent_of
from passes.layer_group.planning.planned_group import plan_group
from passes.layer_group.rewrite.group_calls import GroupCall, call_groups
from passes.layer_group.rewrite.group_function import group_kernel

CUTS = st.tuples(st.integers(1, 2), st.integers(1, 6))
KEEPS = st.booleans()


@cache
def parsed(kernels):
    return written.module(kernels)


def grouped(mod, cut, keep):
    """Make a group of each function whose layers can all be cut; return those functions too."""
    changes = []
    for block in read_networks(mod):
        layers = block.network.layers
        if any(layer.reason for layer in layers):
            continue
        group = NetworkIndex(block.network).group(0, len(layers) - 1)
        (output,) = (group.tensor(name) for name in group.outputs)
        batch, rows = (
            min(cut.counts["n"], extent_of(output, "n")),
            min(cut.counts["h"], extent_of(output, "h")),
        )
        plan = plan_group(group, Cut(n=batch, h=rows, keep_rows=keep), chip())
        assert plan is not None
        kernel = group_kernel(plan, block.calls, LANES, "arena")
        changes.append((block, [GroupCall(f"{block.network.name}_group", group, kernel)]))
    return call_groups(mod, changes), [block.network.name for block, _ in changes]


def built(mod):
    return relax.VirtualMachine(tvm.compile(mod, target=at_level("llvm")), tvm.cpu())


def check(kernels, cuts, keep=False):
    """Compare kernels in groups with the same alone."""
    mod = parsed(tuple(kernels))
    alone = built(mod)
    for cut in cuts:
        new, _ = grouped(mod, Cut(n=cut[0], h=cut[1]), keep)
        together = built(new)
        for at, text in enumerate(kernels):
            name = f"main_{at}"
            args = arrays(mod, at, name)
            for ours, theirs in zip(
                call(together, args, name), call(alone, args, name), strict=True
            ):
                np.testing.assert_array_equal(ours, theirs, err_msg=text)


@pytest.mark.parametrize(
    "kernels",
    [{name: (text, "") for name, text in rules.TAKEN.items()}, rules.LEFT],
    ids=["taken", "left"],
)
def test_what_is_taken_and_why_the_rest_is_left(kernels):
    mod = parsed(tuple(text for text, _ in kernels.values()))
    found = {block.network.name: block.network.layers for block in read_networks(mod)}
    for at, (name, (_, reason)) in enumerate(kernels.items()):
        before, middle, behind = found[f"main_{at}"]
        assert (before.reason, behind.reason) == ("", "")
        assert bool(middle.reason) == bool(reason), (name, middle.reason)
        assert reason in middle.reason, (name, middle.reason)


TWICE_DETOUR = written.kernel(
    written.MAKE_S,
    written.nest(written.ALL, [f"R[{written.ALL}] = S[{written.ALL}] * {written.HALF}"]),
    written.nest(written.ALL, [f"O[{written.ALL}] = R[{written.ALL}] + R[n, c, 5 - h, w]"]),
    buffers=[written.WORK, written.WORK_R],
)
PRODUCT = "T.Cast('float{0}', h) * T.float{0}(0.7)"


KNOWN = [
    # Every second row is needed, and those between are computed, too.
    (written.gaps("h"), (0, 2, 4, 5, 5, 5)),
    (written.gaps("5 - h"), (5, 3, 1, 0, 0, 0)),
    (written.gaps(), ()),
    (written.gaps("h", "S[n, c, T.if_then_else(h == 1, 5, h), w]"), ()),
    (written.gaps("h", "S[n, c, T.if_then_else(h == 3, 0, h), w]"), ()),
    # How a sum is rounded: no type has more bits, or one of two products is, and which?
    (written.along(f"T.Cast('int32', {PRODUCT.format(64)} + T.float64(0.3))", ""), ()),
    (
        written.along(
            f"T.Cast('int32', {PRODUCT.format(32)} + {PRODUCT.format(32).replace('7', '2')})", ""
        ),
        (),
    ),
]


def test_rows_that_are_not_known_are_all_read():
    blocks = read_networks(written.module([kernel for kernel, _ in KNOWN]))
    for block, (kernel, known) in zip(blocks, KNOWN, strict=True):
        (rows,) = (axes[2] for axes in block.network.layers[1].maps)
        expected = tuple((row, row + 1) for row in known) or None
        assert (rows and rows.spans.ranges) == expected, kernel


def test_a_buffer_takes_the_place_of_another_though_results_need_other_rows_of_both():
    (block,) = read_networks(written.module([TWICE_DETOUR]))
    memory = block.calls[block.network.layers[1].name].memory
    assert len(memory) == 3
    assert len(set(memory.values())) == 2


def test_each_gives_the_same_in_a_group():
    check(list(rules.TAKEN.values()), [(2, 3)])


@swept(2, 60, st.lists(written.kernels(), min_size=3, max_size=6), CUTS, KEEPS)
def test_kernels_give_the_same_in_groups(kernels, cut, keep):
    check(kernels, [cut], keep)
