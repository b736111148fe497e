# SPDX-License-Identifier: Apache-2.0
"""LLaMA with a paged KV cache, as an LLM server builds it: shapes alone, no weights.

The functions are those that MLC LLM compiles: `embed`, `prefill`, `decode`, `batch_prefill`,
`batch_decode`, `batch_verify` for speculative decoding, and a sampler: `softmax_with_temperature`
and `sample`. Attention is a call of TVM's paged cache (`tvm.relax.frontend.nn.llm`), which the
caller makes and keeps. Dimensions of a batch and of a chunk have upper bounds, and those of a batch
are captured in CUDA graphs. Weights are kept transposed, so that no call transposes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import op
from tvm.relax.frontend.nn.llm.kv_cache import PagedKVCache


@dataclass(frozen=True)
class Shape:
    """A model and what a server may ask of it."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    intermediate: int
    vocabulary: int
    chunk: int = 2048  # Tokens of a prefill, at most
    batch: int = 32  # Sequences that are decoded together, at most
    draft: int = 4  # Tokens that are verified of each, at most
    dtype: str = "float16"


SHAPES = {
    "llama 1B": Shape(16, 2048, 32, 8, 8192, 128256),
    "llama 8B": Shape(32, 4096, 32, 8, 14336, 128256),
    "llama 8B, multi-head": Shape(32, 4096, 32, 32, 11008, 32000),
    "llama 70B": Shape(80, 8192, 64, 8, 28672, 128256),
}


class Matrix(nn.Module):
    """A linear layer whose weight is kept as it is multiplied with."""

    def __init__(self, inputs: int, outputs: int) -> None:
        self.weight = nn.Parameter((inputs, outputs))

    def forward(self, x: nn.Tensor, out_dtype: str | None = None) -> nn.Tensor:
        """Multiply; the result is of the weight's type, unless another one is asked for."""
        return op.matmul(x, self.weight, out_dtype)


class Layer(nn.Module):
    """Attention by the cache, and a gated feed-forward network."""

    def __init__(self, shape: Shape, number: int) -> None:
        self.shape, self.number = shape, number
        self.width = shape.hidden // shape.heads
        self.norm = nn.RMSNorm(shape.hidden, -1, bias=False)
        self.qkv = Matrix(shape.hidden, (shape.heads + 2 * shape.kv_heads) * self.width)
        self.out = Matrix(shape.hidden, shape.hidden)
        self.norm2 = nn.RMSNorm(shape.hidden, -1, bias=False)
        self.up = Matrix(shape.hidden, 2 * shape.intermediate)
        self.down = Matrix(shape.intermediate, shape.hidden)

    def forward(self, x: nn.Tensor, cache: PagedKVCache) -> nn.Tensor:
        """Map ``(batch, length, hidden)`` to the same shape."""
        batch, length, _ = x.shape
        shape = self.shape
        qkv = self.qkv(self.norm(x))
        qkv = op.reshape(qkv, (batch, length, shape.heads + 2 * shape.kv_heads, self.width))
        found = cache.attention_with_fused_qkv(
            self.number, qkv, shape.heads, sm_scale=self.width**-0.5
        )
        x = x + self.out(op.reshape(found, (batch, length, shape.hidden)))
        gate, up = op.split(self.up(self.norm2(x)), 2, axis=-1)
        return x + self.down(op.silu(gate) * up)


class Llama(nn.Module):
    """The functions of a server; each has a method."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.words = nn.Embedding(shape.vocabulary, shape.hidden)
        self.layers = nn.ModuleList([Layer(shape, number) for number in range(shape.layers)])
        self.norm = nn.RMSNorm(shape.hidden, -1, bias=False)
        self.head = Matrix(shape.hidden, shape.vocabulary)

    def embed(self, tokens: nn.Tensor) -> nn.Tensor:
        """Map token numbers to rows of the embedding."""
        return self.words(tokens)

    def _scores(self, x: nn.Tensor, cache: PagedKVCache, places: nn.Tensor | None) -> Any:
        for layer in self.layers:
            x = layer(x, cache)
        x = self.norm(x)
        if places is not None:
            x = op.take(x, places, axis=1)
        return self.head(x, "float32"), cache

    def prefill(self, x: nn.Tensor, cache: PagedKVCache) -> Any:
        """Read one sequence, and return the scores behind its last token."""
        for layer in self.layers:
            x = layer(x, cache)
        _, length, _ = x.shape
        last = nn.wrap_nested(
            relax.op.strided_slice(self.norm(x)._expr, [1], [length - 1], [length]), "last"
        )
        return self.head(op.reshape(last, (1, 1, self.shape.hidden)), "float32"), cache

    def decode(self, x: nn.Tensor, cache: PagedKVCache) -> Any:
        """Read one token of one sequence."""
        return self._scores(x, cache, None)

    def batch_prefill(self, x: nn.Tensor, places: nn.Tensor, cache: PagedKVCache) -> Any:
        """Read several sequences in one row, and return the scores at some places."""
        return self._scores(x, cache, places)

    def batch_decode(self, x: nn.Tensor, cache: PagedKVCache) -> Any:
        """Read one token of each of several sequences."""
        return self._scores(x, cache, None)

    def batch_verify(self, x: nn.Tensor, cache: PagedKVCache) -> Any:
        """Read the drafts of several sequences in one row, and return the scores of each token."""
        return self._scores(x, cache, None)

    def softmax_with_temperature(self, scores: nn.Tensor, temperature: nn.Tensor) -> nn.Tensor:
        """Map scores of several sequences to probabilities."""
        batch, _, _ = scores.shape
        return op.softmax(scores / op.reshape(temperature, (batch, 1, 1)), axis=-1)

    def sample(self, chances: nn.Tensor, uniform: nn.Tensor) -> nn.Tensor:
        """Choose a token of each sequence: the first at which the chances sum up to a number."""
        batch, _, vocabulary = chances.shape
        sums = op.cumsum(op.reshape(chances, (batch, vocabulary)), axis=1)
        is_reached = relax.op.greater_equal(sums._expr, uniform._expr)
        reached = relax.op.astype(nn.wrap_nested(is_reached, "is_reached")._expr, "int8")
        first = relax.op.argmax(nn.wrap_nested(reached, "reached")._expr, axis=1)
        return nn.wrap_nested(first, "first")


def bounds_of(shape: Shape) -> dict[str, int]:
    """Return the most that each symbolic dimension of a server's functions can be."""
    drafts = shape.batch * shape.draft
    return {"seq_len": shape.chunk, "batch_size": shape.batch, "draft_len": drafts}


def module_of(shape: Shape) -> tvm.IRModule:
    """Return the functions of a server's model, with bounds and what CUDA graphs capture."""
    model = Llama(shape)
    model.to(shape.dtype)
    cache = nn.spec.Object(object_type=PagedKVCache)
    tensor, hidden, dtype = nn.spec.Tensor, shape.hidden, shape.dtype
    plain = {"$": {"param_mode": "packed", "effect_mode": "none"}}
    spec = {
        "embed": {"tokens": tensor(["seq_len"], "int32"), **plain},
        "prefill": {"x": tensor([1, "seq_len", hidden], dtype), "cache": cache, **plain},
        "decode": {"x": tensor([1, 1, hidden], dtype), "cache": cache, **plain},
        "batch_prefill": {
            "x": tensor([1, "seq_len", hidden], dtype),
            "places": tensor(["batch_size"], "int32"),
            "cache": cache,
            **plain,
        },
        "batch_decode": {"x": tensor(["batch_size", 1, hidden], dtype), "cache": cache, **plain},
        "batch_verify": {"x": tensor([1, "draft_len", hidden], dtype), "cache": cache, **plain},
        "softmax_with_temperature": {
            "scores": tensor(["batch_size", 1, shape.vocabulary], "float32"),
            "temperature": tensor(["batch_size"], "float32"),
            **plain,
        },
        "sample": {
            "chances": tensor(["batch_size", 1, shape.vocabulary], "float32"),
            "uniform": tensor(["batch_size", 1], "float32"),
            **plain,
        },
    }
    mod, _ = model.export_tvm(spec=nn.spec.ModuleSpec.from_raw(spec, model))
    bounds = bounds_of(shape)
    for variable in mod.get_global_vars():
        if isinstance(mod[variable], relax.Function):
            attrs = {
                "tir_var_upper_bound": bounds,
                "relax.rewrite_cuda_graph.capture_symbolic_vars": ["batch_size"],
            }
            mod[variable] = mod[variable].with_attrs(attrs)
    return mod
