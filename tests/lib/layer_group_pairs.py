# SPDX-License-Identifier: Apache-2.0
"""The fixed pairs of a network and a chip on which mechanisms of `LayerGroup` are judged."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import tvm
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import op
from tvm.target import Target
from written_layers import ConvNorm, LlamaLayer, Model
from written_networks import WRITTEN, Bert

from passes.layer_group.analysis.read_network import read_networks
from passes.layer_group.planning.network import Network
from passes.layer_group.planning.planned_group import Chip
from passes.layer_group.transform import LayerGroupOptions, chip_of
from tvm_ext.report.readers.groups import lowered


class Bottleneck(nn.Module):
    """The residual block of ResNet-50."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        self.reduce = ConvNorm(channels_in, channels, 1)
        self.conv = ConvNorm(channels, channels, 3, stride)
        self.expand = ConvNorm(channels, 4 * channels, 1)
        reshapes = stride != 1 or channels_in != 4 * channels
        self.shortcut = ConvNorm(channels_in, 4 * channels, 1, stride) if reshapes else None

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        """Apply the block to a tensor of shape ``(n, channels_in, h, w)``."""
        out = self.expand(op.relu(self.conv(op.relu(self.reduce(x)))))
        return op.relu(out + (x if self.shortcut is None else self.shortcut(x)))


class ResNet50(nn.Module):
    """ResNet-50 for images of 224x224, without its pooling and classifier."""

    def __init__(self) -> None:
        self.stem = ConvNorm(3, 64, 7, stride=2)
        blocks, before = [], 64
        for channels, count, stride in ((64, 3, 2), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
            for number in range(count):
                blocks.append(Bottleneck(before, channels, stride if number == 0 else 1))
                before = 4 * channels
        self.blocks = nn.ModuleList(blocks)

    def forward(self, image: nn.Tensor) -> nn.Tensor:
        """Map an image of shape ``(1, 3, 224, 224)`` to features."""
        x = op.relu(self.stem(image))
        for block in self.blocks:
            x = block(x)
        return x


class Neck(nn.Module):
    """The neck and the heads of a detector: three scales, each read by its neighbour and a head."""

    def __init__(self, channels: int) -> None:
        widths = (3, *(channels for _ in range(4)))
        self.down = nn.ModuleList([ConvNorm(width, channels, 3, 2) for width in widths])
        self.across = nn.ModuleList([ConvNorm(channels, channels, 1) for _ in range(3)])
        self.up = nn.ModuleList([ConvNorm(channels, channels, 3, 2) for _ in range(2)])
        self.heads = nn.ModuleList([ConvNorm(channels, 84, 1) for _ in range(3)])

    def forward(self, image: nn.Tensor) -> nn.Tensor:
        """Map an image of shape ``(1, 3, h, w)`` to the scores of each place of three scales."""
        scales, x = [], image
        for conv in self.down:
            x = op.relu(conv(x))
            scales.append(x)
        scales = [op.relu(conv(x)) for conv, x in zip(self.across, scales[2:], strict=True)]
        for conv, at in zip(self.up, (0, 1), strict=True):
            scales[at + 1] = scales[at + 1] + op.relu(conv(scales[at]))
        found = [head(x) for head, x in zip(self.heads, scales, strict=True)]
        flat = [op.reshape(x, (1, 84, x.shape[2] * x.shape[3])) for x in found]
        return op.concat(flat, dim=2)


class SuperResolution(nn.Module):
    """Eight 3x3 convolutions in a row over a whole image."""

    def __init__(self, channels: int, layers: int) -> None:
        widths = (3, *(channels for _ in range(layers - 1)), 12)
        pairs = pairwise(widths)
        self.convs = nn.ModuleList([nn.Conv2D(a, b, 3, padding=1) for a, b in pairs])

    def forward(self, image: nn.Tensor) -> nn.Tensor:
        """Map an image of shape ``(1, 3, h, w)`` to four pixels for each."""
        x = image
        for conv in self.convs:
            x = op.relu(conv(x))
        return x


class Interleaved(nn.Module):
    """Two branches whose layers take turns, and read what the other one has made now and then."""

    def __init__(self, channels: int, layers: int) -> None:
        self.left = nn.ModuleList([ConvNorm(channels, channels, 3) for _ in range(layers)])
        self.right = nn.ModuleList([ConvNorm(channels, channels, 1) for _ in range(layers)])

    def forward(self, image: nn.Tensor) -> nn.Tensor:
        """Map a tensor of shape ``(1, channels, h, w)`` to the sum of both branches."""
        left = right = image
        for number, (one, other) in enumerate(zip(self.left, self.right, strict=True)):
            left, right = op.relu(one(left)), op.relu(other(right))
            if number % 3 == 2:
                left, right = left + right, right
        return left + right


NETWORKS: dict[str, Callable[[], tvm.IRModule]] = {
    **{name: WRITTEN[name].build for name in ("resnet18", "mobilenet_v2", "unet", "bert_layer")},
    "resnet50": Model("", ResNet50, (), (1, 3, 224, 224)).build,
    "2 BERT layers": Model("", Bert, (2, *WRITTEN["bert_base"].arguments[1:]), (1, 128)).build,
    "bert_base": WRITTEN["bert_base"].build,
    "LLaMA of 512": Model("", LlamaLayer, (1024, 16, 8, 2816), (1, 512, 1024)).build,
    "neck": Model("", Neck, (96,), (1, 3, 640, 640)).build,
    "1080p": Model("", SuperResolution, (32, 8), (1, 3, 1080, 1920)).build,
    "interleaved": Model("", Interleaved, (48, 9), (1, 48, 56, 56)).build,
}
"""The networks, by name."""

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
    return tuple(block.network for block in read_networks(lowered(NETWORKS[name]())))


def chip_named(name: str) -> Chip:
    """Return a chip of Sophgo by its name."""
    return chip_of(LayerGroupOptions(Target(f"sophgo/{name}")))
