# SPDX-License-Identifier: Apache-2.0
"""Networks written here, of any width and depth: what an export fixes can be chosen.

Benchmarks and tests that need a narrow network, or a symbolic length, build it from these; what
others defined is in `tvm_ext.workloads`. They follow their papers: ResNet (He et al., 2016),
MobileNetV2 (Sandler et al., 2018), BERT-base (Devlin et al., 2019).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tvm
from network_builder import Network, convolved, module_of, tensor, unet
from tvm import tirx
from tvm.relax import op
from tvm.relax.op import nn


def resnet(net: Network, image: Any, bottleneck: bool, counts: tuple[int, ...]) -> Any:
    """ResNet of basic blocks, or of bottlenecks and without its pooling and classifier."""
    x = net.relu(net.conv_norm(image, 64, 7, 2))
    x = x if bottleneck else net.max_pool(x, 3, 1)
    for stage, count in enumerate(counts):
        channels = 64 << stage
        for number in range(count):
            stride = 1 if number or not (stage or bottleneck) else 2
            if bottleneck:
                out = net.relu(net.conv_norm(x, channels, 1))
                out = net.relu(net.conv_norm(out, channels, 3, stride))
                out = net.conv_norm(out, 4 * channels, 1)
            else:
                out = net.relu(net.conv_norm(x, channels, 3, stride))
                out = net.conv_norm(out, channels, 3)
            if x.ty.shape[1] != out.ty.shape[1] or stride > 1:
                x = net.conv_norm(x, int(out.ty.shape[1]), 1, stride)
            x = net.relu(net.add(out, x))
    return x if bottleneck else net.linear(net.mean(x, 2, 3), 1000)


def inverted_residual(net: Network, x: Any, channels: int, stride: int, expansion: int) -> Any:
    """The block of MobileNetV2: expand, filter each channel, project; a shortcut if it fits."""
    inputs = int(x.ty.shape[1])
    hidden = inputs * expansion
    out = x if expansion == 1 else net.emit(nn.relu6(net.conv_norm(x, hidden, 1)))
    out = net.emit(nn.relu6(net.conv_norm(out, hidden, 3, stride, hidden)))
    out = net.conv_norm(out, channels, 1)
    return net.add(x, out) if stride == 1 and inputs == channels else out


def mobilenet(net: Network, image: Any) -> Any:
    """MobileNetV2 of width 1."""
    x = net.emit(nn.relu6(net.conv_norm(image, 32, 3, 2)))
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
            x = inverted_residual(net, x, channels, step, expansion)
    x = net.emit(nn.relu6(net.conv_norm(x, 1280, 1)))
    return net.linear(net.mean(x, 2, 3), 1000)


def bert(
    net: Network, tokens: Any, layers: int, hidden: int, heads: int, inner: int, words: int
) -> Any:
    """BERT: embeddings, encoder layers, and the pooler on the first token."""
    places = net.cut(net.weight(512, hidden), 0, 0, tokens.ty.shape[1])
    segment = net.cut(net.weight(2, hidden), 0, 0, 1)
    x = net.embedding(tokens, words, hidden)
    x = net.layer_norm(net.add(x, net.add(places, segment)), 1e-12)
    for _ in range(layers):
        x = net.bert_layer(x, heads, inner)
    return net.emit(op.tanh(net.linear(net.cut(x, 1, 0, 1), hidden)))


def neck(net: Network, x: Any, channels: int) -> Any:
    """The neck and the heads of a detector: three scales, each read by its neighbour and a head."""
    scales = []
    for _ in range(5):
        x = net.relu(net.conv_norm(x, channels, 3, 2))
        scales.append(x)
    scales = [net.relu(net.conv_norm(x, channels, 1)) for x in scales[2:]]
    for at in (0, 1):
        smaller = net.relu(net.conv_norm(scales[at], channels, 3, 2))
        scales[at + 1] = net.add(scales[at + 1], smaller)
    found = [net.conv_norm(x, 84, 1) for x in scales]
    flat = [net.emit(op.reshape(x, (1, 84, x.ty.shape[2] * x.ty.shape[3]))) for x in found]
    return net.concat(flat, 2)


def interleaved(net: Network, image: Any, layers: int) -> Any:
    """Two branches whose layers take turns, and read what the other one has made now and then."""
    left = right = image
    channels = int(image.ty.shape[1])
    for number in range(layers):
        left = net.relu(net.conv_norm(left, channels, 3))
        right = net.relu(net.conv_norm(right, channels, 1))
        if number % 3 == 2:
            left = net.add(left, right)
    return net.add(left, right)


@dataclass(frozen=True)
class Model:
    """A network and the input that it is built for."""

    network: Callable[..., Any]  # Writes it of a `Network`, its input, and the arguments
    arguments: tuple[Any, ...]
    shape: tuple[int | str, ...]  # Shape of the one input; a string is a symbolic dimension

    def build(self) -> tvm.IRModule:
        """Return a Relax module with one function, ``forward``.

        Its input is an image, numbers (``float32``), or token numbers (``int32``), by its rank.
        """
        name, dtype = _INPUTS[len(self.shape)]
        shape = [tirx.Var(n, "int64") if isinstance(n, str) else n for n in self.shape]
        body = lambda net, x: self.network(net, x, *self.arguments)  # noqa: E731
        return module_of(body, {name: tensor(*shape, dtype=dtype)}, "forward")


_INPUTS = {4: ("image", "float32"), 3: ("x", "float32"), 2: ("tokens", "int32")}
_IMAGE = (1, 3, 224, 224)
_LLAMA = (16, 8, 2816)
_BERT = (768, 12, 3072, 30522)

WRITTEN = {
    "bert_layer": Model(Network.bert_layer, (12, 3072), (1, 128, 768)),
    "llama_layer": Model(Network.llama_layer, _LLAMA, (1, 64, 1024)),
    "llama_layer_dynamic": Model(Network.llama_layer, _LLAMA, (1, "sequence", 1024)),
    "LLaMA of 512": Model(Network.llama_layer, _LLAMA, (1, 512, 1024)),
    "resnet18": Model(resnet, (False, (2, 2, 2, 2)), _IMAGE),
    "resnet50": Model(resnet, (True, (3, 4, 6, 3)), _IMAGE),
    "mobilenet_v2": Model(mobilenet, (), _IMAGE),
    "bert_base": Model(bert, (12, *_BERT), (1, 128)),
    "2 BERT layers": Model(bert, (2, *_BERT), (1, 128)),
    "unet": Model(unet, (64, 4, 2), (1, 3, 256, 256)),
    "neck": Model(neck, (96,), (1, 3, 640, 640)),
    "1080p": Model(convolved, ((32,) * 7 + (12,),), (1, 3, 1080, 1920)),
    "interleaved": Model(interleaved, (9,), (1, 48, 56, 56)),
}
"""Networks and layers by name."""
