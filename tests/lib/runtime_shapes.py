# SPDX-License-Identifier: Apache-2.0
# mypy: allow-subclassing-any
"""Networks whose shapes are static, or known at run time in part, small enough to be run at once.

A vision transformer (Dosovitskiy et al., 2021), a depthwise convolutional network (Howard et al.,
2017), a GPT-2 decoder (Radford et al., 2019) that hands its keys and values on as tensors or
keeps them in TVM's own cache, an encoder with a decoder that attends to it (Vaswani et al., 2017),
and a U-Net (Ronneberger et al., 2015). They are not part of the corpus.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm
from tvm import relax, tirx
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import op
from tvm.relax.frontend.nn.core import wrap_nested
from tvm.sym import Analyzer
from written_layers import ConvNorm
from written_networks import Embedding, UNet

Array = npt.NDArray[Any]
Shape = tuple[Any, ...]

# ---------------------------------------------------------------------------------- attention


def attend(query: nn.Tensor, key: nn.Tensor, value: nn.Tensor) -> nn.Tensor:
    """Let each query see all keys: ``(batch, n, heads, d)`` and ``(batch, m, heads, d)``."""
    batch, length, heads, size = query.shape
    query, key, value = (op.permute_dims(x, [0, 2, 1, 3]) for x in (query, key, value))
    scores = op.matmul(query, op.permute_dims(key, [0, 1, 3, 2])) / math.sqrt(size)
    mixed = op.matmul(op.softmax(scores, axis=-1), value)
    return op.reshape(op.permute_dims(mixed, [0, 2, 1, 3]), (batch, length, heads * size))


class Attention(nn.Module):
    """Attention of one sequence to another, with projections."""

    def __init__(self, hidden: int, heads: int) -> None:
        self.heads, self.size = heads, hidden // heads
        self.query, self.key, self.value, self.output = (
            nn.Linear(hidden, hidden) for _ in range(4)
        )

    def split(self, x: nn.Tensor) -> nn.Tensor:
        """Map ``(batch, n, hidden)`` to ``(batch, n, heads, hidden // heads)``."""
        batch, length, _ = x.shape
        return op.reshape(x, (batch, length, self.heads, self.size))

    def forward(self, x: nn.Tensor, memory: nn.Tensor) -> nn.Tensor:
        """Let ``x`` attend to ``memory``."""
        query, key = self.split(self.query(x)), self.split(self.key(memory))
        return self.output(attend(query, key, self.split(self.value(memory))))


class FeedForward(nn.Module):
    """Two linear layers, the inner one four times as wide."""

    def __init__(self, hidden: int) -> None:
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        """Map ``(batch, n, hidden)`` to the same shape."""
        return self.down(op.gelu(self.up(x)))


class Encoder(nn.Module):
    """Transformer layers, normalized first."""

    def __init__(self, layers: int, hidden: int, heads: int) -> None:
        self.norms = nn.ModuleList([nn.LayerNorm(hidden) for _ in range(2 * layers)])
        self.attention = nn.ModuleList([Attention(hidden, heads) for _ in range(layers)])
        self.forwards = nn.ModuleList([FeedForward(hidden) for _ in range(layers)])

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        """Map ``(batch, n, hidden)`` to the same shape."""
        for index, (attention, forward) in enumerate(
            zip(self.attention, self.forwards, strict=True)
        ):
            normed = self.norms[2 * index](x)
            x = x + attention(normed, normed)
            x = x + forward(self.norms[2 * index + 1](x))
        return x


class VisionTransformer(nn.Module):
    """Patches of an image, transformer layers, and scores from the mean."""

    def __init__(self, layers: int, hidden: int, heads: int) -> None:
        self.patches = nn.Conv2D(3, hidden, 16, stride=16)
        self.hidden, self.encoder = hidden, Encoder(layers, hidden, heads)
        self.head = nn.Linear(hidden, 100)

    def forward(self, image: nn.Tensor) -> nn.Tensor:
        """Map images ``(batch, 3, 128, 128)`` to scores ``(batch, 100)``."""
        batch = image.shape[0]
        x = op.permute_dims(op.reshape(self.patches(image), (batch, self.hidden, 64)), [0, 2, 1])
        mean = relax.op.mean(self.encoder(x)._expr, axis=[1])
        return self.head(wrap_nested(mean, "mean"))


class DepthwiseNet(nn.Module):
    """Depthwise and pointwise convolutions in turns, the image halved now and then."""

    def __init__(self, channels: int) -> None:
        self.stem = ConvNorm(3, channels, 3, 2)
        blocks = []
        for stride in (1, 2, 1, 2):
            wide = channels * stride
            blocks += [ConvNorm(channels, channels, 3, stride, channels)]
            blocks += [ConvNorm(channels, wide, 1)]
            channels = wide
        self.blocks = nn.ModuleList(blocks)
        self.head = nn.Conv2D(channels, 10, 1)

    def forward(self, image: nn.Tensor) -> nn.Tensor:
        """Map images ``(batch, 3, 64, 64)`` to scores ``(batch, 10, 1, 1)``."""
        x = op.relu(self.stem(image))
        for block in self.blocks:
            x = op.relu(block(x))
        return self.head(wrap_nested(relax.op.mean(x._expr, axis=[2, 3], keepdims=True), "mean"))


# ------------------------------------------------------------------------------------ decoders


class Gpt2(nn.Module):
    """A GPT-2 decoder; keys and values are tensors, or stand in TVM's cache."""

    def __init__(self, layers: int, hidden: int, heads: int, vocabulary: int) -> None:
        self.words = Embedding(vocabulary, hidden)
        self.norms = nn.ModuleList([nn.LayerNorm(hidden) for _ in range(2 * layers + 1)])
        self.attention = nn.ModuleList([Attention(hidden, heads) for _ in range(layers)])
        self.forwards = nn.ModuleList([FeedForward(hidden) for _ in range(layers)])
        self.head = nn.Linear(hidden, vocabulary, bias=False)

    def prefill(self, tokens: nn.Tensor) -> list[nn.Tensor]:
        """Map ``(1, n)`` tokens to scores, and each layer's keys and values."""
        return self._run(tokens, [None] * len(self.attention), _returned)

    def decode(self, token: nn.Tensor, *past: nn.Tensor) -> list[nn.Tensor]:
        """Map one token and each layer's keys and values to scores, and those with one more."""
        pairs = [past[2 * index : 2 * index + 2] for index in range(len(self.attention))]
        return self._run(token, pairs, _returned)

    def decode_cached(self, token: nn.Tensor, seen: nn.Tensor, *caches: Any) -> list[nn.Tensor]:
        """Map one token to scores, with keys and values in caches that hold ``seen``'s length."""
        total = seen.shape[0] + 1
        pairs = [caches[2 * index : 2 * index + 2] for index in range(len(self.attention))]
        return self._run(token, pairs, lambda new, cache: _cached(new, cache, total))[:1]

    def _run(
        self, tokens: nn.Tensor, past: Sequence[Any], keep: Callable[[nn.Tensor, Any], nn.Tensor]
    ) -> list[nn.Tensor]:
        x, kept = self.words(tokens), []
        for index, attention in enumerate(self.attention):
            normed = self.norms[2 * index](x)
            new = [attention.split(f(normed)) for f in (attention.key, attention.value)]
            pair = past[index] or (None, None)
            key, value = (keep(one, old) for one, old in zip(new, pair, strict=True))
            kept += [key, value]
            query = attention.split(attention.query(normed))
            x = x + attention.output(attend(query, key, value))
            x = x + self.forwards[index](self.norms[2 * index + 1](x))
        length = x.shape[1]
        last = relax.op.strided_slice(x._expr, [1], [length - 1], [length])
        return [self.head(self.norms[-1](wrap_nested(last, "last"))), *kept]


def _returned(new: nn.Tensor, old: nn.Tensor | None) -> nn.Tensor:
    if old is None:
        return new
    return wrap_nested(relax.op.concat([old._expr, new._expr], axis=1), "joined")


def _cached(new: nn.Tensor, cache: Any, total: Any) -> nn.Tensor:
    """Append to one of TVM's caches, and return all that it holds."""
    _, length, heads, size = new.shape
    builder = relax.BlockBuilder.current()
    flat = op.reshape(new, (length, heads, size))
    name = "vm.builtin.attention_kv_cache_append"
    appended = builder.emit(
        relax.op.call_inplace_packed(
            name, cache, flat._expr, inplace_indices=[0], ty_args=[relax.AnyType()]
        )
    )
    shape = relax.ShapeExpr([total, heads, size])
    seen = relax.op.call_pure_packed(
        "vm.builtin.attention_kv_cache_view",
        appended,
        shape,
        ty_args=[relax.TensorType(shape, new.dtype)],
    )
    return op.reshape(wrap_nested(builder.emit(seen), "seen"), (1, total, heads, size))


class EncoderDecoder(nn.Module):
    """An encoder, and a decoder whose layers attend to themselves and to what was encoded."""

    def __init__(self, layers: int, hidden: int, heads: int) -> None:
        self.encoder, self.decoder = (Encoder(layers, hidden, heads) for _ in range(2))
        self.cross = Attention(hidden, heads)

    def forward(self, source: nn.Tensor, target: nn.Tensor) -> nn.Tensor:
        """Map ``(1, n, hidden)`` and ``(1, m, hidden)`` to ``(1, m, hidden)``."""
        memory = self.encoder(source)
        return self.decoder(target + self.cross(target, memory))


class SizedUNet(UNet):
    """A U-Net that is told an eighth of its image's size, since TVM does not divide for it."""

    def forward(self, image: nn.Tensor, _size: Any = None) -> nn.Tensor:
        """Map an image of shape ``(1, 3, 8 * h, 8 * w)`` to scores."""
        return super().forward(image)


# -------------------------------------------------------------------------------------- export


@dataclass(frozen=True)
class RuntimeShapes:
    """A network, and what it is called with."""

    description: str  # One line for people
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


def export(network: nn.Module, functions: Mapping[str, Mapping[str, Any]]) -> tvm.IRModule:
    """Make a module of methods of a network; weights are parameters behind the inputs.

    Parameters
    ----------
    network : nn.Module
        The network.
    functions : mapping of str to mapping
        By the name of a method: names of its inputs, and the Relax type of each.
    """
    builder = relax.BlockBuilder()
    for name, inputs in functions.items():
        variables = [relax.Var(argument, ty) for argument, ty in inputs.items()]
        weights = []
        for path, parameter in network.named_parameters():
            ty = relax.TensorType([int(extent) for extent in parameter.shape], parameter.dtype)
            weights.append(relax.Var(path.replace(".", "_"), ty))
            parameter._expr = weights[-1]
        attrs = {"num_input": len(variables)}
        with builder.function(name, [*variables, *weights], attrs=attrs):
            with builder.dataflow():
                given = [
                    nn.Tensor(_expr=v) if isinstance(v.ty, relax.TensorType) else v
                    for v in variables
                ]
                made = getattr(network, name)(*given)
                many = made if isinstance(made, list) else [made]
                result = relax.Tuple([one._expr for one in many]) if many is made else made._expr
                output = builder.emit_output(result)
            builder.emit_func_output(output)
    return builder.get()


HIDDEN, HEADS, LAYERS, VOCABULARY = 64, 4, 3, 100


def _tensor(*shape: Any, dtype: str = "float32") -> relax.TensorType:
    return relax.TensorType(list(shape), dtype)


def _images(network: Callable[[], nn.Module], side: int, batch: Any) -> tvm.IRModule:
    return export(network(), {"forward": {"image": _tensor(batch, 3, side, side)}})


def _dim(name: str) -> tirx.Var:
    return tirx.Var(name, "int64")


def _gpt2(prompt: Any, past: Any) -> tvm.IRModule:
    network = Gpt2(LAYERS, HIDDEN, HEADS, VOCABULARY)
    pair = _tensor(1, past, HEADS, HIDDEN // HEADS)
    kept = {f"{what}{layer}": pair for layer in range(LAYERS) for what in ("key", "value")}
    return export(
        network,
        {
            "prefill": {"tokens": _tensor(1, prompt, dtype="int32")},
            "decode": {"token": _tensor(1, 1, dtype="int32"), **kept},
        },
    )


def _gpt2_cached() -> tvm.IRModule:
    network = Gpt2(LAYERS, HIDDEN, HEADS, VOCABULARY)
    caches = {f"{w}{layer}": relax.AnyType() for layer in range(LAYERS) for w in ("key", "value")}
    inputs = {"token": _tensor(1, 1, dtype="int32"), "seen": _tensor(_dim("seen")), **caches}
    return export(network, {"decode_cached": inputs})


def _translate(source: Any, target: Any) -> tvm.IRModule:
    inputs = {"source": _tensor(1, source, HIDDEN), "target": _tensor(1, target, HIDDEN)}
    return export(EncoderDecoder(2, HIDDEN, HEADS), {"forward": inputs})


def _unet(rows: Any, columns: Any) -> tvm.IRModule:
    image = _tensor(1, 3, rows * 8, columns * 8)
    size = relax.ShapeType([rows, columns])
    return export(SizedUNet(8, 3, 2), {"forward": {"image": image, "size": size}})


def _vit() -> nn.Module:
    return VisionTransformer(LAYERS, HIDDEN, HEADS)


def _depthwise() -> nn.Module:
    return DepthwiseNet(16)


RUNTIME_SHAPES: dict[str, RuntimeShapes] = {
    "vit": RuntimeShapes("a vision transformer, batch 8", lambda: _images(_vit, 128, 8)),
    "vit_batch": RuntimeShapes(
        "a vision transformer, any batch", lambda: _images(_vit, 128, _dim("batch")), {"batch": 8}
    ),
    "depthwise": RuntimeShapes("a depthwise network, batch 8", lambda: _images(_depthwise, 64, 8)),
    "depthwise_batch": RuntimeShapes(
        "a depthwise network, any batch",
        lambda: _images(_depthwise, 64, _dim("batch")),
        {"batch": 8},
    ),
    "gpt2": RuntimeShapes(
        "a GPT-2 decoder, 64 tokens, keys and values as tensors",
        lambda: _gpt2(64, 64),
        calls=("prefill", "decode"),
    ),
    "gpt2_sequence": RuntimeShapes(
        "a GPT-2 decoder, any sequence, keys and values as tensors",
        lambda: _gpt2(_dim("prompt"), _dim("past")),
        {"prompt": 50, "past": 70},
        ("prefill", "decode"),
    ),
    "gpt2_cache": RuntimeShapes(
        "a GPT-2 decoder, keys and values in nn.KVCache",
        _gpt2_cached,
        {"seen": 70},
        ("decode_cached",),
    ),
    "translation": RuntimeShapes(
        "an encoder and a decoder, 48 and 40 tokens", lambda: _translate(48, 40)
    ),
    "translation_sequence": RuntimeShapes(
        "an encoder and a decoder, any sequences",
        lambda: _translate(_dim("source"), _dim("target")),
        {"source": 48, "target": 40},
    ),
    "unet_small": RuntimeShapes("a U-Net at 64x48", lambda: _unet(8, 6)),
    "unet_image": RuntimeShapes(
        "a U-Net, any image size",
        lambda: _unet(_dim("rows"), _dim("columns")),
        {"rows": 8, "columns": 6},
    ),
}
"""Networks by name; a suffix says what is known at run time only."""
