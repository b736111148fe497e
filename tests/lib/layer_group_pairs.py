# SPDX-License-Identifier: Apache-2.0
"""The fixed pairs of a network and a chip on which mechanisms of `LayerGroup` are judged."""

from __future__ import annotations

from tvm.target import Target
from written_networks import WRITTEN

from passes.layer_group.analysis.read_network import read_networks
from passes.layer_group.planning.network import Network
from passes.layer_group.planning.planned_group import Chip
from passes.layer_group.transform import LayerGroupOptions, chip_of
from tvm_ext.report.readers.groups import lowered

PAIRS = (
    *(("resnet18", chip) for chip in ("bm1684x", "bm1688", "cv181x")),
    *(("resnet50", chip) for chip in ("bm1688", "cv184x")),
    *(("mobilenet_v2", chip) for chip in ("cv181x", "cv184x")),
    *(("unet", chip) for chip in ("bm1684x", "cv184x")),
    *(("bert_layer", chip) for chip in ("bm1684x", "bm1688", "cv181x", "cv184x")),
    ("2 BERT layers", "cv184x"),
    ("bert_base", "bm1684x"),
    *(("LLaMA of 512", chip) for chip in ("bm1684x", "bm1688")),
    *(("neck", chip) for chip in ("bm1684x", "cv184x")),
    *(("1080p", chip) for chip in ("bm1684x", "bm1688", "cv184x")),
    *(("interleaved", chip) for chip in ("bm1688", "cv184x")),
)
"""Names of a network and of a chip of Sophgo."""


def networks_of(name: str) -> tuple[Network, ...]:
    """Return the layers of a network of this name, block by block."""
    return tuple(block.network for block in read_networks(lowered(WRITTEN[name].build())))


def chip_named(name: str) -> Chip:
    """Return a chip of Sophgo by its name."""
    return chip_of(LayerGroupOptions(Target(f"sophgo/{name}")))
