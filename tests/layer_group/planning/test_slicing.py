# SPDX-License-Identifier: Apache-2.0
"""Slices of groups: the worked numbers of the source, and brute force over random networks."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import Builder, Window, random_networks, worked_example
from slice_boxes import indices_of, made_box

from passes.layer_group.planning.cut import LETTERS, Cut
from passes.layer_group.planning.network import Group, Kind, NetworkIndex, Tensor, extent_of
from passes.layer_group.planning.slicing import GroupSlices, slice_group
from passes.layer_group.planning.spans import Spans, even_spans


def slices_of(begin_sizes):
    return [(begin, begin + size) for begin, size in begin_sizes]


def group_of(network, layers=None):
    index = NetworkIndex(network)
    layers = layers or range(len(network.layers))
    return index.group(layers[0], layers[-1])


def test_worked_example_in_four():
    slices = slice_group(group_of(worked_example()), Cut(h=4))
    expected = {
        "t4": [(0, 7), (7, 7), (14, 7), (21, 7)],
        "t3": [(0, 8), (6, 9), (13, 9), (20, 8)],
        "t2": [(0, 16), (12, 18), (26, 18), (40, 16)],
        "t1": [(0, 16), (12, 18), (26, 18), (40, 16)],
        "in0": [(0, 17), (11, 20), (25, 20), (39, 17)],
    }
    for name, ranges in expected.items():
        assert list(slices.tensors[name].makes[2].spans.ranges) == slices_of(ranges)
    repeated = {"t4": 0, "t3": 6, "t2": 12, "t1": 12, "in0": 18}
    assert {name: slices.tensors[name].repeated_rows for name in repeated} == repeated


def test_even_ranges():
    assert even_spans(28, 3).ranges == ((0, 10), (10, 19), (19, 28))
    with pytest.raises(ValueError, match="cannot cut 3 elements"):
        even_spans(3, 4)


def test_a_network_whose_layers_are_in_no_order_is_refused():
    b = Builder()
    b.same("relu", "b", b.same("relu", "a", b.tensor("x", 1, 1, 4, 4)))
    network = b.network("b")
    with pytest.raises(ValueError, match="network: layer 'relu:b' reads 'a' before it is made"):
        NetworkIndex(replace(network, layers=network.layers[::-1]))


def test_weights_of_few_bits_part_no_batch_otherwise():
    b = Builder(bits=16)
    b.tensors.append(Tensor("w", (1, 8, 1, 1), 4, "nchw", Kind.WEIGHT))
    network = b.network(b.scale(b.tensor("x", 4, 8, 4, 4), "w", "y"))
    assert NetworkIndex(network).least_bits == 16


@st.composite
def sliced_groups(draw: st.DrawFn) -> GroupSlices:
    """Draw consecutive layers of a random network, cut at random, any halos kept, any cores."""
    index = NetworkIndex(draw(random_networks()))
    count = len(index.network.layers)
    first = draw(st.integers(0, count - 1))
    group = index.group(first, draw(st.integers(first, count - 1)))
    cut = Cut(**{x: draw(st.integers(1, least(group, x))) for x in LETTERS})
    shared = cut.counts[cut.outermost or LETTERS[0]]
    cores = draw(st.sampled_from([c for c in (1, 2, 3) if shared % c == 0]))
    return slice_group(group, replace(cut, cores=cores, keep_rows=draw(st.booleans())))


def least(group: Group, letter: str) -> int:
    return min(4, *(extent_of(group.tensor(name), letter) for name in group.outputs))


def elements(box):
    return set(product(*(range(begin, end) for begin, end in box)))


@given(slices=sliced_groups())
@settings(max_examples=50, deadline=None, print_blob=True)
def test_what_is_kept_is_made_once(slices):
    whole_keep = slice_group(slices.group, replace(slices.cut, cores=1, keep_rows=True))
    for name, tensor in whole_keep.tensors.items():
        letters = [part.letter for part in tensor.holds if part.letter]
        again = slices.cut.counts["w"] > 1 or (slices.cut.counts["n"] > 1 and "n" not in letters)
        if len(set(letters)) == len(letters) and not again:
            boxes = [elements(made_box(tensor, index)) for index in indices_of(slices.cut)]
            assert sum(map(len, boxes)) == len(set().union(*boxes)), name
    for name, tensor in slices.tensors.items():
        count = sum(len(elements(made_box(tensor, i))) for i in indices_of(slices.cut))
        assert tensor.made_elements == count, name


def test_what_each_slice_needs_whole_is_made_once_and_stays_where_rows_do():
    """As the keys of an attention, all of which each row of the scores reads."""
    b = Builder()
    b.tensor("x", 1, 8, 6, 4)
    b.same("relu", "keys", b.tensor("y", 1, 8, 6, 4))
    n, c, h, w = map(Window, range(4))
    b.add("scores", "s", (1, 8, 6, 4), [("x", (n, c, h, w)), ("keys", (n, c, None, w))])
    group = group_of(b.network("s"))
    for keep, kept, times in ((True, ("keys",), 1), (False, (), 3)):
        slices = slice_group(group, Cut(h=3, keep_rows=keep))
        assert slices.kept == kept
        assert slices.resident == ("y",)
        assert slices.tensors["keys"].made_elements == times * 8 * 6 * 4
    assert slice_group(group, Cut()).resident == ()


def test_what_one_reader_needs_whole_is_whole_for_the_others():
    b = Builder()
    y = b.same("relu", "y", b.tensor("x", 1, 8, 6, 4))
    network = b.network(b.scale(y, b.mean(y, "m"), "z"))
    slices = slice_group(group_of(network), Cut(h=3))
    assert slices.tensors["z"].holds[2].spans.ranges == ((0, 2), (2, 4), (4, 6))
    assert slices.tensors["y"].is_whole


def test_rows_that_later_slices_read_before_these_are_made_by_the_first():
    held, made = Spans.of([(4, 6), (2, 4), (0, 2)]).kept(3)
    assert held.ranges == ((0, 6),) * 3
    assert made.ranges == ((0, 6), (0, 0), (0, 0))


def test_no_halo_is_kept_where_two_axes_are_rows():
    b = Builder()
    b.same("relu", "y", b.tensor("x", 1, 2, 6, 6))
    rows = Window(2, first=-1, last=1)
    b.add("both", "z", (1, 2, 6, 6), [("y", (Window(0), Window(1), rows, rows))])
    slices = slice_group(group_of(b.network("z")), Cut(h=3, keep_rows=True))
    assert slices.kept == ()
    assert slices.tensors["y"].repeated_rows > 0
