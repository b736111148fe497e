# SPDX-License-Identifier: Apache-2.0
"""Networks whose shapes are static, or known at run time in part, small enough to be run at once.

A vision transformer (Dosovitskiy et al., 2021), a depthwise convolutional network (Howard et al.,
2017), a GPT-2 decoder (Radford et al., 2019) that hands its keys and values on as tensors or
keeps them in TVM's own cache, an encoder with a decoder that attends to it (Vaswani et al., 2017),
and a U-Net (Ronneberger et al., 2015). They are not part of the corpus.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tvm
from network_builder import Network, module_of, tensor, unet
from tvm import relax, tirx
from tvm.relax import op
from tvm.sym import Analyzer

HIDDEN, HEADS, LAYERS, VOCABULARY = 64, 4, 3, 100


def _vit(net: Network, image: Any) -> Any:
    x = net.biased(net.conv(image, HIDDEN, 16, 16, pad=0))
    x = net.emit(op.reshape(x, (image.ty.shape[0], HIDDEN, 64)))
    x = net.encoder(net.emit(op.permute_dims(x, [0, 2, 1])), LAYERS, HEADS)
    return net.linear(net.mean(x, 1), 100)


def _depthwise(net: Network, image: Any) -> Any:
    """Depthwise and pointwise convolutions in turns, the image halved now and then."""
    channels = 16
    x = net.relu(net.conv_norm(image, channels, 3, 2))
    for stride in (1, 2, 1, 2):
        x = net.relu(net.conv_norm(x, channels, 3, stride, channels))
        channels *= stride
        x = net.relu(net.conv_norm(x, channels, 1))
    return net.biased(net.conv(net.mean(x, 2, 3, keep=True), 10, 1))


def _gpt2_step(
    net: Network, tokens: Any, past: Any, keep: Callable[[Network, Any, Any], Any]
) -> list[Any]:
    """Map tokens, and each layer's keys and values, to scores, and to those with more."""
    x, kept = net.embedding(tokens, VOCABULARY, HIDDEN), []
    for layer in range(LAYERS):
        normed = net.layer_norm(x)
        new = [net.heads(normed, HEADS, HIDDEN) for _ in range(2)]
        pair = past[2 * layer : 2 * layer + 2] or (None, None)
        key, value = (keep(net, one, old) for one, old in zip(new, pair, strict=True))
        kept += [key, value]
        query = net.heads(normed, HEADS, HIDDEN)
        x = net.add(x, net.linear(net.attend(query, key, value), HIDDEN))
        x = net.add(x, net.feed_forward(net.layer_norm(x), 4 * HIDDEN))
    length = x.ty.shape[1]
    last = net.layer_norm(net.cut(x, 1, length - 1, length))
    return [net.linear(last, VOCABULARY, bias=False), *kept]


def _returned(net: Network, new: Any, old: Any) -> Any:
    return new if old is None else net.concat([old, new])


def _gpt2(prompt: Any, past: Any) -> tvm.IRModule:
    net, pair = Network(), tensor(1, past, HEADS, HIDDEN // HEADS)
    kept = {f"{what}{layer}": pair for layer in range(LAYERS) for what in ("key", "value")}
    inputs = {"tokens": tensor(1, prompt, dtype="int32")}
    net.function("prefill", inputs, lambda tokens: _gpt2_step(net, tokens, (), _returned))
    inputs = {"token": tensor(1, 1, dtype="int32"), **kept}
    net.function("decode", inputs, lambda token, *old: _gpt2_step(net, token, old, _returned))
    return net.builder.get()


def _gpt2_cached() -> tvm.IRModule:
    """Keys and values stand in TVM's caches, which hold the length of ``seen``."""

    def cached(net: Network, new: Any, cache: Any, total: Any) -> Any:
        flat = net.emit(op.reshape(new, (1, HEADS, HIDDEN // HEADS)))
        name, options = "vm.builtin.attention_kv_cache_append", {"ty_args": [relax.AnyType()]}
        appended = net.emit(
            op.call_inplace_packed(name, cache, flat, inplace_indices=[0], **options)
        )
        shape = relax.ShapeExpr([total, HEADS, HIDDEN // HEADS])
        name, ty = "vm.builtin.attention_kv_cache_view", [relax.TensorType(shape, "float32")]
        seen = net.emit(op.call_pure_packed(name, appended, shape, ty_args=ty))
        return net.emit(op.reshape(seen, (1, total, HEADS, HIDDEN // HEADS)))

    def body(net: Network, token: Any, seen: Any, *caches: Any) -> Any:
        total = seen.ty.shape[0] + 1
        return _gpt2_step(net, token, caches, lambda *given: cached(*given, total))[:1]

    caches = {f"{w}{layer}": relax.AnyType() for layer in range(LAYERS) for w in ("key", "value")}
    inputs = {"token": tensor(1, 1, dtype="int32"), "seen": tensor(_dim("seen")), **caches}
    return module_of(body, inputs, "decode_cached")


def _translate(source: Any, target: Any) -> tvm.IRModule:
    """Return an encoder, and a decoder that attends to itself and to what was encoded."""

    def body(net: Network, source: Any, target: Any) -> Any:
        memory = net.encoder(source, 2, HEADS)
        return net.encoder(net.add(target, net.attention(target, memory, HEADS)), 2, HEADS)

    inputs = {"source": tensor(1, source, HIDDEN), "target": tensor(1, target, HIDDEN)}
    return module_of(body, inputs, "forward")


def _images(body: Callable[[Network, Any], Any], side: int, batch: Any) -> tvm.IRModule:
    return module_of(body, {"image": tensor(batch, 3, side, side)}, "forward")


def _unet(rows: Any, columns: Any) -> tvm.IRModule:
    """Return a U-Net that is told an eighth of its image's size: TVM does not divide for it."""
    image, size = tensor(1, 3, rows * 8, columns * 8), relax.ShapeType([rows, columns])
    body = lambda net, image, _size: unet(net, image, 8, 3, 2)  # noqa: E731
    return module_of(body, {"image": image, "size": size}, "forward")


def _dim(name: str) -> tirx.Var:
    return tirx.Var(name, "int64")


@dataclass(frozen=True)
class RuntimeShapes:
    """A network, and what it is called with."""

    build: Callable[[], tvm.IRModule]  # Make the Relax module
    # The symbolic dimensions, and what they are when it is run.
    sizes: Mapping[str, int] = field(default_factory=dict)
    calls: tuple[str, ...] = ("forward",)  # The functions to call, in order

    def arguments(self, function: relax.Function, seed: int) -> list[Any]:
        """Return random arguments: tokens, numbers, weights; caches where they are asked for."""
        rng = np.random.default_rng(seed)
        known: dict[int, int] = {}
        for param in function.params:
            for variable in relax.analysis.tir_vars_in_type(param.ty):
                known[variable.__chandle__()] = self.sizes[str(variable.name)]
        return [self._argument(param, known, rng) for param in function.params]

    def _argument(self, param: Any, known: Mapping[int, int], rng: np.random.Generator) -> Any:
        if isinstance(param.ty, relax.ShapeType):
            return tvm.runtime.ShapeTuple([_value(one, known) for one in param.ty.values])
        if not isinstance(param.ty, relax.TensorType):
            create = tvm.get_global_func("vm.builtin.attention_kv_cache_create")
            (seen,) = self.sizes.values()
            data = rng.standard_normal((seen, HEADS, HIDDEN // HEADS), dtype="float32")
            return create(tvm.runtime.tensor(data), tvm.runtime.ShapeTuple(data.shape), seen)
        shape = [_value(extent, known) for extent in param.ty.shape]
        if str(param.ty.dtype.dtype) == "int32":
            return tvm.runtime.tensor(rng.integers(VOCABULARY, size=shape, dtype="int32"))
        data = rng.standard_normal(shape, dtype="float32") / math.sqrt(max(shape[-1], 1))
        return tvm.runtime.tensor(data)


def _value(extent: Any, known: Mapping[int, int]) -> int:
    analyzer = Analyzer()
    for variable in tirx.analysis.undefined_vars(extent):
        analyzer.bind(variable, tirx.IntImm("int64", known[variable.__chandle__()]))
    return int(analyzer.simplify(extent))


RUNTIME_SHAPES: dict[str, RuntimeShapes] = {
    "vit": RuntimeShapes(lambda: _images(_vit, 128, 8)),
    "vit_batch": RuntimeShapes(lambda: _images(_vit, 128, _dim("batch")), {"batch": 8}),
    "depthwise": RuntimeShapes(lambda: _images(_depthwise, 64, 8)),
    "depthwise_batch": RuntimeShapes(lambda: _images(_depthwise, 64, _dim("batch")), {"batch": 8}),
    "gpt2": RuntimeShapes(lambda: _gpt2(64, 64), calls=("prefill", "decode")),
    "gpt2_sequence": RuntimeShapes(
        lambda: _gpt2(_dim("prompt"), _dim("past")),
        {"prompt": 50, "past": 70},
        ("prefill", "decode"),
    ),
    "gpt2_cache": RuntimeShapes(_gpt2_cached, {"seen": 70}, ("decode_cached",)),
    "translation": RuntimeShapes(lambda: _translate(48, 40)),
    "translation_sequence": RuntimeShapes(
        lambda: _translate(_dim("source"), _dim("target")), {"source": 48, "target": 40}
    ),
    "unet_small": RuntimeShapes(lambda: _unet(8, 6)),
    "unet_image": RuntimeShapes(
        lambda: _unet(_dim("rows"), _dim("columns")), {"rows": 8, "columns": 6}
    ),
}
"""Networks by name; a suffix says what is known at run time only."""
