# SPDX-License-Identifier: Apache-2.0
"""Tensors in plans, maps and messages are called as their author calls them."""

from __future__ import annotations

import re

import pytest
import tvm
from chain import NETWORK
from tvm import relax
from tvm.relax.frontend import nn

import tvm_ext
from passes.relax.bindings import bindings_of
from tvm_ext.relax_passes import relax_stages
from tvm_ext.report.readers.groups import lowered
from tvm_ext.tensor_names import Member, group_name, spoken

ANONYMOUS = re.compile(r"(alloc|lv|gv|_)\d*")


class Mlp(nn.Module):
    def __init__(self) -> None:
        self.up = nn.Linear(8, 16)
        self.down = nn.Linear(16, 8)

    def forward(self, x):
        return self.down(nn.op.gelu(self.up(x)))


class Block(nn.Module):
    def __init__(self) -> None:
        self.norm = nn.LayerNorm(8)
        self.mlp = Mlp()

    def forward(self, x):
        return x + self.mlp(self.norm(x))


class Blocks(nn.Module):
    def __init__(self) -> None:
        self.blocks = nn.ModuleList([Block() for _ in range(3)])

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return nn.op.softmax(x)


def blocks() -> tvm.IRModule:
    mod, _ = Blocks().export_tvm({"forward": {"x": nn.spec.Tensor((4, 8), "float32")}})
    return mod


def by_hand() -> tvm.IRModule:
    return tvm.script.from_source(NETWORK)


def names(shown) -> list[str]:
    return [buffer.name for scope in shown.memories for buffer in scope.problem.buffers]


def test_modules_give_their_tensors_names():
    found = names(tvm_ext.memory_map(blocks(), target="llvm"))
    assert "blocks.0.norm layer_norm" in found
    assert "blocks.2.mlp.up gelu" in found
    assert "blocks.2.mlp.down add" in found
    # Weights are transposed before the call.
    assert not any("permute_dims" in name for name in found)
    assert len(found) == len(set(found))


def test_names_of_variables_are_kept():
    shown = tvm_ext.memory_map(by_hand(), target="llvm")
    assert names(shown) == ["act1", "conv2", "total", "scores"]
    # What has none is known by its line.
    assert tuple(map(str, shown.left)) == (
        "main: line13 exp: the function returns it, so its caller owns the memory",
    )


@pytest.mark.parametrize("fuse", [True, False])
def test_nothing_but_names_changes(fuse):
    """What is built is the same; without fusion, down to the text of its kernels.

    TVM names the parameters of a fused kernel by the variables of the first group that it is for.
    """
    for mod in (blocks(), by_hand()):
        ours = relax_stages("llvm", fuse=fuse)
        stock = [p for p in stock_passes() if fuse or p.info.name not in ("FuseOps", "FuseTIR")]
        before = mod.script()
        target = tvm.target.Target("llvm")
        with target:
            named = tvm.transform.Sequential([*ours.first, *ours.lower])(mod)
            expected = tvm.transform.Sequential(stock)(mod)
        tvm.ir.assert_structural_equal(named, expected)
        assert mod.script() == before
        for variable, func in named.functions.items():
            if not fuse and not isinstance(func, relax.Function):
                assert func.script() == expected[variable.name_hint].script()


def stock_passes():
    from tvm.relax.backend.cpu_generic import pipeline

    target = tvm.target.Target("llvm")
    stages = (
        pipeline.library_dispatch_passes,
        pipeline.legalize_passes,
        pipeline.dataflow_lower_passes,
        pipeline.finalize_passes,
    )
    passes = [one for stage in stages for one in stage(target)]
    return passes[: [one.info.name for one in passes].index("StaticPlanBlockMemory")]


def test_groups_are_named_shortly():
    conv = Member("stem.conv.conv2d", "conv2d")
    norm = [Member("stem.norm.multiply", "multiply"), Member("stem.norm.add", "add1")]
    assert group_name([conv, *norm, Member("relu2", "relu1")]) == "stem.norm relu"
    assert group_name([Member(name, "x") for name in "abcde"]) == "e"
    assert group_name([Member("relu", "relu"), Member("add_3", "add")]) == "add_3"
    siblings = [Member("features.0.conv2d", "conv2d"), Member("features.1.relu", "relu")]
    assert group_name(siblings) == "features.1 relu"
    assert group_name([conv, Member("relu61", "tir_clip")]) == "stem.conv relu61"
    assert group_name([Member("line13.matmul", "matmul"), Member("exp", "exp")]) == "line13 exp"
    # One of several results stays with its operator, and a name is said once.
    assert spoken(spoken("h.0.attn.split.1")) == "h.0.attn split.1"
    assert spoken("features.0") == "features.0"


def test_what_is_returned_keeps_its_name_where_layers_are_grouped():
    """TVM folds the two variables of what is returned into the one that is a number."""
    *_, last = bindings_of(lowered(blocks())["forward"].body)
    assert str(last.var.name) == "softmax"


def with_packed_function() -> tvm.IRModule:
    """A network that calls a packed function which stands in its module."""
    tensor = relax.TensorType((4, 8), "float32")
    builder = relax.BlockBuilder()
    x = relax.Var("x", tensor)
    packed = relax.ExternFunc("testing.names_packed", relax.FuncType([tensor], tensor))
    variable = builder.add_func(packed, "packed")
    with builder.function("main", [x]):
        with builder.dataflow():
            a = builder.emit(relax.op.exp(x), "a")
            b = builder.emit(relax.Call(variable, [a]), "b")
            c = builder.emit_output(relax.op.add(b, a), "c")
        builder.emit_func_output(c)
    return builder.get()


def test_names_end_no_build_that_stock_finishes():
    target = tvm.target.Target("llvm")
    with target:
        first, lower, *_ = relax_stages(target)
        named = tvm.transform.Sequential([*first, *lower])(with_packed_function())
        expected = tvm.transform.Sequential(stock_passes())(with_packed_function())
    tvm.ir.assert_structural_equal(named, expected)


def memory_of(capacity: int) -> tvm.target.Target:
    memory = {"global": {"capacity": capacity, "alignment": 1}}
    return tvm.target.Target({"kind": "llvm", "feature.memory": memory})


def places_in(built: tvm.IRModule) -> list[tuple[int, list[str], list[int]]]:
    """Return bytes, names and offsets of each storage, as the attribute says them."""
    (layout,) = (
        func.attrs["tvm_ext.gmem"]
        for func in built.functions.values()
        if func.attrs and "tvm_ext.gmem" in func.attrs
    )
    return [
        (
            int(storage["bytes"]),
            [str(tensor["name"]) for tensor in storage["tensors"]],
            [int(tensor["offset"]) for tensor in storage["tensors"]],
        )
        for storage in layout["storages"]
    ]


@pytest.mark.parametrize("make", [blocks, by_hand])
def test_a_build_without_names_places_tensors_alike(make):
    quick = places_in(tvm_ext.relax_pipeline("llvm")(make()))
    named = places_in(tvm_ext.relax_pipeline("llvm", names=True)(make()))
    assert [(size, at) for size, _, at in quick] == [(size, at) for size, _, at in named]
    assert not any(ANONYMOUS.fullmatch(name) for _, names, _ in named for name in names)
    assert all(ANONYMOUS.fullmatch(name) for _, names, _ in quick for name in names)


def test_a_build_that_fails_names_the_layer():
    with pytest.raises(ValueError, match=r"blocks\.\d\.mlp\.\w+") as caught:
        tvm_ext.relax_pipeline(memory_of(1 << 10))(blocks())
    assert not re.search(r"\balloc\d*\b|'(_|lv)\d*'", str(caught.value))
    assert caught.value.__context__ is None
