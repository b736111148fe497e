# SPDX-License-Identifier: Apache-2.0
# mypy: allow-subclassing-any
"""Networks of layers written here, of any width and depth: what an export fixes can be chosen.

Benchmarks and tests that need a narrow network, or a symbolic length, build it from these; what
others defined is in `tvm_ext.workloads`. The networks follow their papers: BERT-base
(Devlin et al., 2019), a decoder of the width of TinyLlama (Zhang et al., 2024) with eight of its
layers, and U-Net (Ronneberger et al., 2015) with padded convolutions, as most use it.
"""

from __future__ import annotations

from tvm import relax
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import op
from tvm.relax.frontend.nn.core import wrap_nested
from written_layers import (
    LAYERS,
    BertLayer,
    ConvNorm,
    LlamaLayer,
    MobileNetV2,
    Model,
    ResNet18,
    max_pool,
)

# -------------------------------------------------------------------------------- transformers


class Embedding(nn.Module):
    """A table with a row for each token number; one beyond its end reads the last row."""

    def __init__(self, rows: int, hidden: int) -> None:
        self.weight = nn.Parameter((rows, hidden))

    def forward(self, tokens: nn.Tensor) -> nn.Tensor:
        """Map token numbers of shape ``(1, sequence)`` to ``(1, sequence, hidden)``."""
        rows = relax.op.take(self.weight._expr, tokens._expr, axis=0, mode="clip")
        return wrap_nested(rows, "embedding")


class Bert(nn.Module):
    """BERT: embeddings, encoder layers, and the pooler on the first token."""

    def __init__(
        self, layers: int, hidden: int, heads: int, intermediate: int, vocabulary: int
    ) -> None:
        self.words = Embedding(vocabulary, hidden)
        self.positions = nn.Parameter((512, hidden))
        self.segments = nn.Parameter((2, hidden))
        self.norm = nn.LayerNorm(hidden, eps=1e-12)
        self.layers = nn.ModuleList([BertLayer(hidden, heads, intermediate) for _ in range(layers)])
        self.pooler = nn.Linear(hidden, hidden)

    def forward(self, tokens: nn.Tensor) -> nn.Tensor:
        """Map token numbers of shape ``(1, sequence)``, one segment, to ``(1, 1, hidden)``."""
        _, length = tokens.shape
        places = _slice(self.positions, axis=0, begin=0, end=length)
        segment = _slice(self.segments, axis=0, begin=0, end=1)
        x = self.norm(self.words(tokens) + (places + segment))
        for layer in self.layers:
            x = layer(x)
        return op.tanh(self.pooler(_slice(x, axis=1, begin=0, end=1)))


class Llama(nn.Module):
    """A Llama decoder: an embedding, decoder layers, and the scores of the next token."""

    def __init__(
        self,
        layers: int,
        hidden: int,
        heads: int,
        kv_heads: int,
        intermediate: int,
        vocabulary: int,
    ) -> None:
        self.words = Embedding(vocabulary, hidden)
        self.layers = nn.ModuleList(
            [LlamaLayer(hidden, heads, kv_heads, intermediate) for _ in range(layers)]
        )
        self.norm = nn.RMSNorm(hidden, -1, bias=False)
        self.head = nn.Linear(hidden, vocabulary, bias=False)

    def forward(self, tokens: nn.Tensor) -> nn.Tensor:
        """Map token numbers of shape ``(1, sequence)`` to scores of ``(1, 1, vocabulary)``."""
        _, length = tokens.shape
        x = self.words(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(_slice(x, axis=1, begin=length - 1, end=length)))


def _slice(x: nn.Tensor, *, axis: int, begin: int, end: int) -> nn.Tensor:
    return wrap_nested(relax.op.strided_slice(x._expr, [axis], [begin], [end]), "slice")


# ------------------------------------------------------------------------------------- vision


class DoubleConv(nn.Module):
    """Two 3x3 convolutions, each with a normalization and ReLU."""

    def __init__(self, channels_in: int, channels: int) -> None:
        self.conv1 = ConvNorm(channels_in, channels, 3)
        self.conv2 = ConvNorm(channels, channels, 3)

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        """Convolve a tensor of shape ``(1, channels_in, h, w)`` twice."""
        return op.relu(self.conv2(op.relu(self.conv1(x))))


class UpConv(nn.Module):
    """A transposed 2x2 convolution that doubles the image and halves the channels."""

    def __init__(self, channels: int) -> None:
        self.weight = nn.Parameter((channels, channels // 2, 2, 2))

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        """Map ``(1, channels, h, w)`` to ``(1, channels // 2, 2 * h, 2 * w)``."""
        larger = relax.op.nn.conv2d_transpose(x._expr, self.weight._expr, strides=(2, 2))
        return wrap_nested(larger, "up")


class UNet(nn.Module):
    """U-Net: each level of the way down is kept until its counterpart on the way up reads it."""

    def __init__(self, channels: int, levels: int, classes: int) -> None:
        widths = [channels << level for level in range(levels + 1)]
        self.down = nn.ModuleList(
            [DoubleConv(a, b) for a, b in zip([3, *widths[:-2]], widths[:-1], strict=True)]
        )
        self.bottom = DoubleConv(widths[-2], widths[-1])
        self.up = nn.ModuleList([UpConv(width) for width in widths[:0:-1]])
        self.merge = nn.ModuleList([DoubleConv(width, width // 2) for width in widths[:0:-1]])
        self.head = nn.Conv2D(channels, classes, 1)

    def forward(self, image: nn.Tensor) -> nn.Tensor:
        """Map an image of shape ``(1, 3, h, w)`` to scores of ``(1, classes, h, w)``."""
        x, kept = image, []
        for block in self.down:
            kept.append(block(x))
            x = max_pool(kept[-1], 2, padding=0)
        x = self.bottom(x)
        for up, merge, skip in zip(self.up, self.merge, reversed(kept), strict=True):
            x = merge(op.concat([skip, up(x)], dim=1, name="skip"))
        return self.head(x)


# ------------------------------------------------------------------------------------- export

_IMAGE = (1, 3, 224, 224)

WRITTEN = {
    **LAYERS,
    "resnet18": Model("ResNet-18 at 224x224", ResNet18, (), _IMAGE),
    "mobilenet_v2": Model("MobileNetV2 at 224x224", MobileNetV2, (), _IMAGE),
    "bert_base": Model(
        "BERT-base, 12 layers, sequence 128, hidden 768",
        Bert,
        (12, 768, 12, 3072, 30522),
        (1, 128),
    ),
    "llama_8_layers": Model(
        "a Llama decoder, 8 layers, sequence 128, hidden 2048",
        Llama,
        (8, 2048, 32, 4, 5632, 32000),
        (1, 128),
    ),
    "unet": Model("U-Net with four long skips, at 256x256", UNet, (64, 4, 2), (1, 3, 256, 256)),
}
"""Networks and layers by name."""
