# SPDX-License-Identifier: Apache-2.0
"""Bytes a lane, against the worked numbers of the source."""

from dataclasses import replace

import pytest

from passes.layer_group.planning.cuts import Cut
from passes.layer_group.planning.group import NetworkIndex
from passes.layer_group.planning.lanes import Lanes
from passes.layer_group.planning.network import AxisMap, Layer, Network, Tensor
from passes.layer_group.planning.planned_group import Chip, plan_group
from target_hw.machine import Machine, Pipe
from target_hw.memory import MemoryScope

BM1684X = Lanes(64, 64)
BM1688 = Lanes(32, 16)
BM1684 = Lanes(64, 128, pack_bytes=4)


@pytest.mark.parametrize(
    ("lanes", "shape", "bits", "aligned", "nbytes"),
    [
        (BM1684X, (1, 64, 56, 56), 32, True, 12544),
        (BM1684X, (2, 130, 5, 5), 8, True, 384),
        (BM1684X, (2, 130, 5, 5), 8, False, 150),
        (BM1684X, (1, 1000, 1, 1), 32, True, 1024),
        (BM1688, (1, 3, 224, 224), 8, True, 50176),
        (BM1684, (1, 3, 224, 224), 8, True, 200704),
        (BM1684, (4, 64, 7, 7), 32, True, 1024),
        (BM1684, (4, 64, 7, 7), 64, True, 2048),
        (BM1688, (1, 33, 3, 3), 4, False, 9),
    ],
)
def test_bytes_a_lane(lanes, shape, bits, aligned, nbytes):
    assert lanes.tensor_bytes(Tensor("x", shape, bits, "nchw", aligned=aligned), shape) == nbytes


def test_other_axes():
    # A sequence of embeddings: rows are positions, embeddings lie across the lanes.
    assert BM1684X.tensor_bytes(Tensor("x", (2, 10, 768), 8, "nhc"), (2, 10, 768)) == 2 * 12 * 64
    # Planes of several axes count together.
    assert BM1684X.tensor_bytes(Tensor("x", (1, 12, 5, 6), 16, "nchw"), (1, 12, 2, 6)) == 64


def test_results_of_which_one_has_too_few_entries_of_the_batch_are_not_cut():
    memory = MemoryScope("local.LMEM", 1 << 16, facts=(("lanes", 4), ("eu_bytes", 16)))
    packed = replace(memory, facts=(*memory.facts, ("pack_bytes", 4)))
    maps = (AxisMap(0, 1, 4), AxisMap(1), AxisMap(2), AxisMap(3))
    tensors = (
        Tensor("x", (2, 4, 4, 4), 32, "nchw"),
        Tensor("y", (2, 4, 4, 4), 32, "nchw"),
        Tensor("z", (8, 4, 4, 4), 8, "nchw"),
    )
    layers = (
        Layer("relu:y", "relu", ("x",), "y", (tuple(map(AxisMap, range(4))),)),
        Layer("repeat:z", "repeat", ("y",), "z", (maps,)),
    )
    group = NetworkIndex(Network(tensors, layers, ("y", "z"))).group(0, 1)
    pipes = Machine((Pipe("GDMA", "bytes", 64, 100), Pipe("TIU", "multiply-adds", 512, 20)))
    assert plan_group(group, Cut(n=2), Chip(memory, pipes)) is not None
    assert plan_group(group, Cut(n=2), Chip(packed, pipes)) is None


@pytest.mark.parametrize("name", ["lanes", "eu_bytes"])
def test_a_chip_without_lanes_is_refused(name: str):
    facts = {"lanes": 4, "eu_bytes": 16, name: 0}
    with pytest.raises(ValueError, match=f"'local.LMEM': {name} must be at least 1"):
        Lanes.of(MemoryScope("local.LMEM", 1 << 16, facts=tuple(facts.items())))
