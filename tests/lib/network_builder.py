# SPDX-License-Identifier: Apache-2.0
"""Networks of any width and depth in Relax, written operator by operator.

Weights are parameters after the inputs of a function, so that building a network allocates none.
The layers follow their papers: BERT-base's encoder (Devlin et al., 2019), Llama's decoder (Touvron
et al., 2023) with rotary embeddings (Su et al., 2021), and residual blocks (He et al., 2016).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import tvm
from tvm import relax, te, tirx, topi
from tvm.relax import op
from tvm.relax.op import nn


def tensor(*shape: Any, dtype: str = "float32") -> relax.TensorType:
    """Return the type of a tensor."""
    return relax.TensorType(list(shape), dtype)


def module_of(
    body: Callable[..., Any], inputs: Mapping[str, Any], name: str = "main"
) -> tvm.IRModule:
    """Return a module of one function, which a body writes of a `Network` and of its inputs."""
    net = Network()
    net.function(name, inputs, lambda *given: body(net, *given))
    return net.builder.get()


class Network:
    """The functions of a module."""

    def __init__(self) -> None:
        self.builder = relax.BlockBuilder()
        self._weights: list[Any] = []

    def function(self, name: str, inputs: Mapping[str, Any], body: Callable[..., Any]) -> None:
        """Write a function of inputs, which are types by name, and of the weights of its body."""
        self._weights = []
        variables = [relax.Var(argument, ty) for argument, ty in inputs.items()]
        attrs = {"num_input": len(variables)} if variables else None
        with self.builder.function(name, attrs=attrs):
            with self.builder.dataflow():
                made = body(*variables)
                output = relax.Tuple(made) if isinstance(made, list) else made
                result = self.builder.emit_output(output)
            self.builder.emit_func_output(result, params=[*variables, *self._weights])

    def weight(self, *shape: int) -> Any:
        """Return a new parameter."""
        self._weights.append(relax.Var(f"w{len(self._weights)}", tensor(*shape)))
        return self._weights[-1]

    def emit(self, value: Any) -> Any:
        """Bind a value to a variable, which is called as its operator."""
        return self.builder.emit(value, str(value.op.name).rpartition(".")[2])

    # Images

    def conv(
        self,
        x: Any,
        channels: int,
        kernel: int,
        stride: int = 1,
        groups: int = 1,
        dilation: int = 1,
        pad: int | None = None,
    ) -> Any:
        """Convolve an image, which keeps its size at a stride of 1."""
        inputs = int(x.ty.shape[1])
        weight = self.weight(channels, inputs // groups, kernel, kernel)
        pad = dilation * (kernel // 2) if pad is None else pad
        return self.emit(nn.conv2d(x, weight, stride, pad, dilation=dilation, groups=groups))

    def biased(self, x: Any) -> Any:
        """Shift each channel of what was convolved."""
        bias = self.emit(op.reshape(self.weight(int(x.ty.shape[1])), (1, -1, 1, 1)))
        return self.add(x, bias)

    def normalized(self, x: Any) -> Any:
        """Scale and shift each channel: batch normalization at inference."""
        channels = int(x.ty.shape[1])
        scaled = self.emit(op.multiply(x, self.weight(channels, 1, 1)))
        return self.add(scaled, self.weight(channels, 1, 1))

    def conv_norm(self, x: Any, *options: int) -> Any:
        """Convolve and normalize."""
        return self.normalized(self.conv(x, *options))

    def relu(self, x: Any) -> Any:
        """Cut off what is negative."""
        return self.emit(nn.relu(x))

    def add(self, x: Any, y: Any) -> Any:
        """Add two tensors."""
        return self.emit(op.add(x, y))

    def concat(self, parts: list[Any], axis: int = 1) -> Any:
        """Join tensors, by default their channels."""
        return self.emit(op.concat(parts, axis))

    def max_pool(self, x: Any, size: int = 2, pad: int = 0) -> Any:
        """Halve an image: the largest of `size` by `size` elements stands for two by two."""
        return self.emit(nn.max_pool2d(x, (size, size), (2, 2), (pad, pad)))

    def mean(self, x: Any, *axes: int, keep: bool = False) -> Any:
        """Return the mean along some axes."""
        return self.emit(op.mean(x, list(axes), keep))

    # Sequences

    def linear(self, x: Any, outputs: int, bias: bool = True) -> Any:
        """Multiply by a weight, which is kept transposed."""
        weight = self.emit(op.permute_dims(self.weight(outputs, int(x.ty.shape[-1]))))
        made = self.emit(op.matmul(x, weight))
        return self.add(made, self.weight(outputs)) if bias else made

    def layer_norm(self, x: Any, epsilon: float = 1e-5) -> Any:
        """Normalize the last axis, and scale and shift it."""
        size = int(x.ty.shape[-1])
        return self.emit(nn.layer_norm(x, self.weight(size), self.weight(size), -1, epsilon))

    def rms_norm(self, x: Any) -> Any:
        """Scale the last axis by its root mean square."""
        return self.emit(nn.rms_norm(x, self.weight(int(x.ty.shape[-1])), -1))

    def cut(self, x: Any, axis: int, begin: Any, end: Any) -> Any:
        """Return a part of an axis."""
        return self.emit(op.strided_slice(x, [axis], [begin], [end]))

    def embedding(self, tokens: Any, rows: int, hidden: int) -> Any:
        """Return a row for each token number; one beyond the end reads the last row."""
        return self.emit(op.take(self.weight(rows, hidden), tokens, axis=0, mode="clip"))

    def heads(self, x: Any, heads: int, hidden: int, bias: bool = True) -> Any:
        """Project ``(batch, n, width)`` to ``(batch, n, heads, hidden // heads)``."""
        made = self.linear(x, hidden, bias)
        batch, length, _ = made.ty.shape
        return self.emit(op.reshape(made, (batch, length, heads, hidden // heads)))

    def attend(self, query: Any, key: Any, value: Any, causal: bool = False) -> Any:
        """Let each query see all keys, or those up to its own place, and join the heads."""
        batch, length, heads, size = query.ty.shape
        query, key, value = (
            self.emit(op.permute_dims(x, [0, 2, 1, 3])) for x in (query, key, value)
        )
        scores = self.emit(op.matmul(query, self.emit(op.permute_dims(key, [0, 1, 3, 2]))))
        scores = self.emit(op.divide(scores, relax.const(math.sqrt(int(size)), "float32")))
        if causal:
            scores = self.builder.emit_te(_hide_future, scores, primfunc_name_hint="causal_mask")
        mixed = self.emit(op.matmul(self.emit(nn.softmax(scores, -1)), value))
        mixed = self.emit(op.permute_dims(mixed, [0, 2, 1, 3]))
        return self.emit(op.reshape(mixed, (batch, length, heads * size)))

    def attention(self, x: Any, memory: Any, heads: int) -> Any:
        """Let a sequence attend to another one."""
        hidden = int(x.ty.shape[-1])
        given = [self.heads(of, heads, hidden) for of in (x, memory, memory)]
        return self.linear(self.attend(*given), hidden)

    def feed_forward(self, x: Any, inner: int) -> Any:
        """Two linear layers."""
        wide = self.emit(nn.gelu(self.linear(x, inner)))
        return self.linear(wide, int(x.ty.shape[-1]))

    def bert_layer(self, x: Any, heads: int, inner: int) -> Any:
        """One encoder layer of BERT: attention and a feed-forward network, each normalized last."""
        x = self.layer_norm(self.add(x, self.attention(x, x, heads)), 1e-12)
        return self.layer_norm(self.add(x, self.feed_forward(x, inner)), 1e-12)

    def encoder(self, x: Any, layers: int, heads: int) -> Any:
        """Transformer layers that normalize first."""
        for _ in range(layers):
            normed = self.layer_norm(x)
            x = self.add(x, self.attention(normed, normed, heads))
            x = self.add(x, self.feed_forward(self.layer_norm(x), 4 * int(x.ty.shape[-1])))
        return x

    def llama_layer(self, x: Any, heads: int, kv_heads: int, inner: int) -> Any:
        """One decoder layer of Llama: grouped-query causal attention and a SwiGLU network."""
        hidden = int(x.ty.shape[-1])
        size, normed = hidden // heads, self.rms_norm(x)
        query, key, value = (
            self.heads(normed, count, count * size, bias=False)
            for count in (heads, kv_heads, kv_heads)
        )
        rotate = partial(self.builder.emit_te, _rotate, primfunc_name_hint="rotary")
        query, key = rotate(query), rotate(key)
        key, value = (self.emit(op.repeat(each, heads // kv_heads, 2)) for each in (key, value))
        mixed = self.attend(query, key, value, causal=True)
        x = self.add(x, self.linear(mixed, hidden, bias=False))
        normed = self.rms_norm(x)
        gate = self.emit(nn.silu(self.linear(normed, inner, bias=False)))
        wide = self.emit(op.multiply(gate, self.linear(normed, inner, bias=False)))
        return self.add(x, self.linear(wide, hidden, bias=False))


def _hide_future(scores: te.Tensor) -> te.Tensor:
    lowest = tirx.min_value(scores.dtype)
    return te.compute(
        scores.shape,
        lambda b, h, i, j: tirx.Select(j <= i, scores[b, h, i, j], lowest),
        name="causal_mask",
    )


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


def double_conv(net: Network, x: Any, channels: int) -> Any:
    """Convolve twice by 3x3."""
    for _ in range(2):
        x = net.relu(net.conv_norm(x, channels, 3))
    return x


def unet(net: Network, image: Any, channels: int, levels: int, classes: int) -> Any:
    """U-Net (Ronneberger et al., 2015), padded: each level down is kept until its way up."""
    x, kept = image, []
    for level in range(levels):
        kept.append(double_conv(net, x, channels << level))
        x = net.max_pool(kept[-1])
    x = double_conv(net, x, channels << levels)
    for level in range(levels - 1, -1, -1):
        width = channels << level
        larger = nn.conv2d_transpose(x, net.weight(2 * width, width, 2, 2), strides=(2, 2))
        x = double_conv(net, net.concat([kept[level], net.emit(larger)]), width)
    return net.biased(net.conv(x, classes, 1))


def convolved(net: Network, x: Any, widths: Sequence[int]) -> Any:
    """3x3 convolutions in a row, each with a bias."""
    for width in widths:
        x = net.relu(net.biased(net.conv(x, width, 3)))
    return x
