# SPDX-License-Identifier: Apache-2.0
# mypy: allow-subclassing-any
"""Layers of networks in Relax, of any width, for the networks in ``written_networks.py``.

Weights are parameters of the ``forward`` function, so that building a model allocates none.
The layers follow their papers: ResNet-18 (He et al., 2016), MobileNetV2 (Sandler et al., 2018),
the BERT-base encoder layer (Devlin et al., 2019) and the Llama decoder layer (Touvron et al.,
2023) with rotary embeddings (Su et al., 2021).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax, te, tirx, topi
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import op
from tvm.relax.frontend.nn.core import wrap_nested

# ------------------------------------------------------------------------------------ vision


class BatchNorm(nn.Module):
    """Batch normalization at inference time, with the statistics folded into scale and shift."""

    def __init__(self, channels: int) -> None:
        self.scale = nn.Parameter((channels, 1, 1))
        self.shift = nn.Parameter((channels, 1, 1))

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        """Normalize a tensor of shape ``(n, channels, h, w)``."""
        return x * self.scale + self.shift


class ConvNorm(nn.Module):
    """A convolution that keeps the image size when its stride is 1, then batch normalization."""

    def __init__(
        self, channels_in: int, channels: int, kernel: int, stride: int = 1, groups: int = 1
    ) -> None:
        steps = {"stride": stride, "padding": kernel // 2, "groups": groups}
        self.conv = nn.Conv2D(channels_in, channels, kernel, bias=False, **steps)
        self.norm = BatchNorm(channels)

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        """Convolve and normalize a tensor of shape ``(n, channels_in, h, w)``."""
        return self.norm(self.conv(x))


class BasicBlock(nn.Module):
    """The residual block of ResNet-18: two 3x3 convolutions and a shortcut."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        self.conv1 = ConvNorm(channels_in, channels, 3, stride)
        self.conv2 = ConvNorm(channels, channels, 3)
        reshapes = stride != 1 or channels_in != channels
        self.shortcut = ConvNorm(channels_in, channels, 1, stride) if reshapes else None

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        """Apply the block to a tensor of shape ``(n, channels_in, h, w)``."""
        out = self.conv2(op.relu(self.conv1(x)))
        return op.relu(out + (x if self.shortcut is None else self.shortcut(x)))


class ResNet18(nn.Module):
    """ResNet-18 for images of 224x224."""

    def __init__(self, classes: int = 1000) -> None:
        self.stem = ConvNorm(3, 64, 7, stride=2)
        stages = ((64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2))
        pairs = ((BasicBlock(a, b, stride), BasicBlock(b, b, 1)) for a, b, stride in stages)
        self.blocks = nn.ModuleList([block for pair in pairs for block in pair])
        self.classifier = nn.Linear(512, classes)

    def forward(self, image: nn.Tensor) -> nn.Tensor:
        """Map an image of shape ``(1, 3, 224, 224)`` to class scores."""
        x = max_pool(op.relu(self.stem(image)), 3, padding=1)
        for block in self.blocks:
            x = block(x)
        return self.classifier(_global_mean(x))


class InvertedResidual(nn.Module):
    """The block of MobileNetV2: expand, filter each channel, project; a shortcut if it fits."""

    def __init__(self, channels_in: int, channels: int, stride: int, expansion: int) -> None:
        hidden = channels_in * expansion
        self.expand = ConvNorm(channels_in, hidden, 1) if expansion != 1 else None
        self.depthwise = ConvNorm(hidden, hidden, 3, stride, groups=hidden)
        self.project = ConvNorm(hidden, channels, 1)
        self.residual = stride == 1 and channels_in == channels

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        """Apply the block to a tensor of shape ``(n, channels_in, h, w)``."""
        out = x if self.expand is None else op.relu6(self.expand(x))
        out = self.project(op.relu6(self.depthwise(out)))
        return x + out if self.residual else out


class MobileNetV2(nn.Module):
    """MobileNetV2, width 1, for images of 224x224."""

    def __init__(self, classes: int = 1000) -> None:
        self.stem = ConvNorm(3, 32, 3, stride=2)
        blocks = []
        channels_in = 32
        # Table 2 of the paper: expansion, channels, repeats, stride of the first.
        for expansion, channels, repeats, stride in (
            (1, 16, 1, 1),
            (6, 24, 2, 2),
            (6, 32, 3, 2),
            (6, 64, 4, 2),
            (6, 96, 3, 1),
            (6, 160, 3, 2),
            (6, 320, 1, 1),
        ):
            for step in (stride, *(1,) * (repeats - 1)):
                blocks.append(InvertedResidual(channels_in, channels, step, expansion))
                channels_in = channels
        self.blocks = nn.ModuleList(blocks)
        self.head = ConvNorm(channels_in, 1280, 1)
        self.classifier = nn.Linear(1280, classes)

    def forward(self, image: nn.Tensor) -> nn.Tensor:
        """Map an image of shape ``(1, 3, 224, 224)`` to class scores."""
        x = op.relu6(self.stem(image))
        for block in self.blocks:
            x = block(x)
        return self.classifier(_global_mean(op.relu6(self.head(x))))


def max_pool(x: nn.Tensor, size: int, *, padding: int) -> nn.Tensor:
    """Halve an image: the largest of `size` by `size` elements stands for each two by two."""
    pooled = relax.op.nn.max_pool2d(x._expr, (size, size), (2, 2), (padding, padding))
    return wrap_nested(pooled, "max_pool2d")


def _global_mean(x: nn.Tensor) -> nn.Tensor:
    return wrap_nested(relax.op.mean(x._expr, axis=[2, 3]), "global_mean")


# -------------------------------------------------------------------------------- transformers


def attention(query: nn.Tensor, key: nn.Tensor, value: nn.Tensor, *, causal: bool) -> nn.Tensor:
    """Scaled dot product attention of tensors of shape ``(batch, sequence, heads, head_size)``.

    The result has the shape ``(batch, sequence, heads * head_size)``. Where it is causal, a
    position sees only itself and those before it.
    """
    batch, length, heads, head_size = query.shape
    query, key, value = (op.permute_dims(x, [0, 2, 1, 3]) for x in (query, key, value))
    scores = op.matmul(query, op.permute_dims(key, [0, 1, 3, 2])) / math.sqrt(head_size)
    if causal:
        scores = op.tensor_expr_op(_hide_future, "causal_mask", [scores])
    out = op.permute_dims(op.matmul(op.softmax(scores), value), [0, 2, 1, 3])
    return op.reshape(out, (batch, length, heads * head_size))


def _hide_future(scores: te.Tensor) -> te.Tensor:
    lowest = tirx.min_value(scores.dtype)
    return te.compute(
        scores.shape,
        lambda b, h, i, j: tirx.Select(j <= i, scores[b, h, i, j], lowest),
        name="causal_mask",
    )


class BertLayer(nn.Module):
    """One encoder layer of BERT: attention and a feed-forward network, each with a residual."""

    def __init__(self, hidden: int, heads: int, intermediate: int) -> None:
        self.heads = heads
        self.head_size = hidden // heads
        self.query = nn.Linear(hidden, hidden)
        self.key = nn.Linear(hidden, hidden)
        self.value = nn.Linear(hidden, hidden)
        self.output = nn.Linear(hidden, hidden)
        self.attention_norm = nn.LayerNorm(hidden, eps=1e-12)
        self.up = nn.Linear(hidden, intermediate)
        self.down = nn.Linear(intermediate, hidden)
        self.output_norm = nn.LayerNorm(hidden, eps=1e-12)

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        """Apply the layer to a tensor of shape ``(batch, sequence, hidden)``."""
        batch, length, _ = x.shape
        shape = (batch, length, self.heads, self.head_size)
        query, key, value = (op.reshape(f(x), shape) for f in (self.query, self.key, self.value))
        attended = self.output(attention(query, key, value, causal=False))
        x = self.attention_norm(x + attended)
        return self.output_norm(x + self.down(op.gelu(self.up(x))))


class LlamaLayer(nn.Module):
    """One decoder layer of Llama: grouped-query causal attention and a SwiGLU network."""

    def __init__(self, hidden: int, heads: int, kv_heads: int, intermediate: int) -> None:
        self.heads, self.kv_heads = heads, kv_heads
        self.head_size = hidden // heads
        self.attention_norm = nn.RMSNorm(hidden, -1, bias=False)
        self.query = nn.Linear(hidden, heads * self.head_size, bias=False)
        self.key = nn.Linear(hidden, kv_heads * self.head_size, bias=False)
        self.value = nn.Linear(hidden, kv_heads * self.head_size, bias=False)
        self.output = nn.Linear(hidden, hidden, bias=False)
        self.mlp_norm = nn.RMSNorm(hidden, -1, bias=False)
        self.gate = nn.Linear(hidden, intermediate, bias=False)
        self.up = nn.Linear(hidden, intermediate, bias=False)
        self.down = nn.Linear(intermediate, hidden, bias=False)

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        """Apply the layer to a tensor of shape ``(batch, sequence, hidden)``."""
        x = x + self._attend(self.attention_norm(x))
        normed = self.mlp_norm(x)
        return x + self.down(op.silu(self.gate(normed)) * self.up(normed))

    def _attend(self, x: nn.Tensor) -> nn.Tensor:
        batch, length, _ = x.shape
        query = op.reshape(self.query(x), (batch, length, self.heads, self.head_size))
        key = op.reshape(self.key(x), (batch, length, self.kv_heads, self.head_size))
        value = op.reshape(self.value(x), (batch, length, self.kv_heads, self.head_size))
        query = op.tensor_expr_op(_rotate, "rotary", [query])
        key = op.tensor_expr_op(_rotate, "rotary", [key])
        shared = self.heads // self.kv_heads
        key, value = op.repeat(key, shared, axis=2), op.repeat(value, shared, axis=2)
        return self.output(attention(query, key, value, causal=True))


def _rotate(x: te.Tensor) -> te.Tensor:
    """Rotate each pair of features of ``(batch, sequence, heads, size)`` by its position."""
    half = x.shape[3] // 2
    length, base = x.shape[1], 10000.0

    def angle(position: tirx.Var, i: tirx.Var) -> Any:
        exponent = i.astype("float32") * (-math.log(base) / int(half))
        return position.astype("float32") * tirx.exp(exponent)

    angles = te.compute((length, half), angle, name="angles")
    cosine, sine = topi.cos(angles), topi.sin(angles)
    rotated = te.compute(
        x.shape,
        lambda b, s, h, d: tirx.if_then_else(d < half, -x[b, s, h, d + half], x[b, s, h, d - half]),
        name="rotated",
    )
    return te.compute(
        x.shape,
        lambda b, s, h, d: (
            x[b, s, h, d] * cosine[s, d % half] + rotated[b, s, h, d] * sine[s, d % half]
        ),
        name="rotary",
    )


# ------------------------------------------------------------------------------------- export


@dataclass(frozen=True)
class Model:
    """A network and the input that it is exported with."""

    description: str  # One line for people
    network: type[Any]  # The class of the network
    arguments: tuple[int, ...]  # What it is constructed with
    shape: tuple[int | str, ...]  # Shape of the one input; a string is a symbolic dimension

    def build(self) -> tvm.IRModule:
        """Export the network as a Relax module with one function, ``forward``.

        Its input is an image, numbers (``float32``), or token numbers (``int32``), by its rank.
        """
        name, dtype = _INPUTS[len(self.shape)]
        spec = {"forward": {name: nn.spec.Tensor(list(self.shape), dtype)}}
        mod, _ = self.network(*self.arguments).export_tvm(spec=spec)
        return mod


_INPUTS = {4: ("image", "float32"), 3: ("x", "float32"), 2: ("tokens", "int32")}

_LLAMA = (1024, 16, 8, 2816)

LAYERS = {
    "bert_layer": Model(
        "one BERT-base encoder layer, sequence 128, hidden 768",
        BertLayer,
        (768, 12, 3072),
        (1, 128, 768),
    ),
    "llama_layer": Model(
        "one Llama decoder layer, sequence 64, hidden 1024", LlamaLayer, _LLAMA, (1, 64, 1024)
    ),
    "llama_layer_dynamic": Model(
        "one Llama decoder layer, any sequence length, hidden 1024",
        LlamaLayer,
        _LLAMA,
        (1, "sequence", 1024),
    ),
}
"""One layer of large networks."""
