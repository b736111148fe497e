# SPDX-License-Identifier: Apache-2.0
"""What is imported from PyTorch and ONNX computes what the two do: indices, infinities."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from llvm_level import at_level
from tvm import relax

import tvm_ext
from tvm_ext.reading.torch_operators import as_pytorch_computes

X = np.arange(24, dtype="float32").reshape(2, 3, 4)
INDEX = np.array([-1, 0, -2])


def computed(mod: tvm.IRModule, *arrays: np.ndarray) -> np.ndarray:
    pipeline = tvm_ext.relax_pipeline("llvm")
    executable = tvm.compile(mod, at_level("llvm"), relax_pipeline=pipeline)
    machine = relax.VirtualMachine(executable, tvm.cpu())
    found = machine["main"](*map(tvm.runtime.tensor, arrays))
    return (found if isinstance(found, tvm.runtime.Tensor) else found[0]).numpy()


# ------------------------------------------------------------------------------------ in Relax


def module(build, *arrays: np.ndarray, sizes: tuple = ()) -> tvm.IRModule:
    """Return a module whose ``main`` is built of its inputs; some have a symbolic shape."""
    builder = relax.BlockBuilder()
    shapes = [sizes if sizes and a.ndim == len(sizes) else a.shape for a in arrays]
    inputs = [
        relax.Var(f"x{at}", relax.TensorType(list(shape), str(array.dtype)))
        for at, (shape, array) in enumerate(zip(shapes, arrays, strict=True))
    ]
    with builder.function("main", inputs):
        with builder.dataflow():
            result = builder.emit_output(build(*inputs))
        builder.emit_func_output(result)
    return builder.get()


OPEN = (*(tvm.tirx.Var(name, "int64") for name in "mn"), 4)
TAKES = {
    "last": (lambda x: relax.op.take(x, relax.const(-1, "int64"), axis=1), (), X[:, -1]),
    "constants": (lambda x: relax.op.take(x, relax.const(INDEX), axis=1), (), X[:, INDEX]),
    "an input": (lambda x, i: relax.op.take(x, i, axis=1), (INDEX,), X[:, INDEX]),
    "of all": (
        lambda x, i: relax.op.take(relax.op.reshape(x, (-1,)), i),
        (INDEX,),
        X.reshape(-1)[INDEX],
    ),
    "pairs": (
        lambda x, i, j: relax.op.index_tensor(x, [i, j]),
        (INDEX, np.array([[1], [-3]])),
        X[INDEX % 2, np.array([[1], [-3]])],
    ),
    "32 bits": (
        lambda x, i: relax.op.index_tensor(x, [i, relax.const([-1, 0, 1], "int32")]),
        (np.array([-1, 0, -1], "int32"),),
        X[[-1, 0, -1], [-1, 0, 1]],
    ),
}


@pytest.mark.parametrize("sizes", [(), OPEN], ids=["constant", "symbolic"])
@pytest.mark.parametrize("name", TAKES)
def test_a_negative_index_reads_from_the_end(name, sizes):
    build, indices, right = TAKES[name]
    if name == "pairs":
        indices = (indices[0] % 2 - 2, indices[1])  # All of them negative or zero.
    mod = module(build, X, *indices, sizes=sizes)
    before = mod.script()
    mended = as_pytorch_computes(mod)
    assert mod.script() == before
    relax.analysis.well_formed(mended)
    np.testing.assert_array_equal(computed(mended, X, *indices), right)


def test_constants_that_are_in_the_tensor_stay_as_they_are():
    mod = module(lambda x: relax.op.take(x, relax.const([0, 2], "int64"), axis=1), X)
    tvm.ir.assert_structural_equal(as_pytorch_computes(mod), mod)


@pytest.mark.parametrize("index", [3, -4])
def test_a_constant_index_outside_of_the_tensor_is_refused(index):
    mod = module(lambda x: relax.op.take(x, relax.const(index, "int64"), axis=1), X)
    with pytest.raises(ValueError, match=rf"operator '\w+': index {index} is not in an axis of 3"):
        as_pytorch_computes(mod)


# ------------------------------------------------------------------------------------- in ONNX


@pytest.mark.parametrize("operator", ["Gather", "GatherElements", "GatherND"])
@pytest.mark.parametrize("constant", [True, False])
def test_negative_indices_of_onnx(operator, constant):
    onnx = pytest.importorskip("onnx")
    index = {
        "Gather": INDEX,
        "GatherElements": np.array([[[-1], [0], [-2]], [[1], [-4], [3]]]),
        "GatherND": np.array([[-1, 0, -2], [0, -3, 3]]),
    }[operator]
    right = {
        "Gather": X[:, INDEX],
        "GatherElements": np.take_along_axis(X, index, 2) if operator == "GatherElements" else X,
        "GatherND": X[tuple(index.T)] if operator == "GatherND" else X,
    }[operator]
    helper, kinds = onnx.helper, onnx.TensorProto
    axis = {"Gather": {"axis": 1}, "GatherElements": {"axis": 2}}.get(operator, {})
    given = [helper.make_tensor_value_info("x", kinds.FLOAT, X.shape)]
    if not constant:
        given.append(helper.make_tensor_value_info("i", kinds.INT64, index.shape))
    graph = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["n"]), helper.make_node(operator, "ni", ["y"], **axis)],
        "graph",
        given,
        [helper.make_tensor_value_info("y", kinds.FLOAT, right.shape)],
        [onnx.numpy_helper.from_array(index, "i")] if constant else [],
    )
    opset = [helper.make_opsetid("", 17)]
    mod = tvm_ext.from_onnx(helper.make_model(graph, opset_imports=opset))
    arrays = [X] if constant else [X, index]
    np.testing.assert_array_equal(computed(mod, *arrays), -right)


# ---------------------------------------------------------------------------------- in PyTorch


def programs(torch):
    """Return functions of a tensor, with index tensors: each by what it does."""
    i, j = torch.tensor([-1, 0]), torch.tensor([1, -1])
    return {
        "last": (lambda x: x[:, -1],),
        "last axis": (lambda x: x[..., -2],),
        "slice": (lambda x: x[:, -2:, :-1],),
        "list": (lambda x: x[:, [-1, 0]],),
        "pairs": (lambda x: x[[-1, 0], [1, -1]],),
        "an input": (lambda x, i: x[:, i], i),
        "inputs": (lambda x, i, j: x[i, j], i, j),
        "take": (lambda x, i: torch.take(x, i), i),
        "embedding": (lambda x, i: torch.nn.functional.embedding(i, x[0]), j.abs()),
    }


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    "name",
    ["last", "last axis", "slice", "list", "pairs", "an input", "inputs", "take", "embedding"],
)
def test_a_program_reads_what_pytorch_reads(name, dynamic, tmp_path):
    torch = pytest.importorskip("torch", reason="the package torch is not there")
    function, *indices = programs(torch)[name]

    class Network(torch.nn.Module):
        def forward(self, x, *indices):
            return function(x * 2, *indices) + 1

    given, dim = (torch.from_numpy(X), *indices), torch.export.Dim
    axes = {0: dim("batch", min=2, max=9), 1: dim("length", min=3, max=50)}
    shapes = [axes, tuple(None for _ in indices)][: 1 + bool(indices)] if dynamic else None
    program = torch.export.export(Network(), given, dynamic_shapes=shapes)
    right = Network()(*given).numpy()
    arrays = [one.numpy() for one in given]
    np.testing.assert_array_equal(computed(tvm_ext.from_exported_program(program), *arrays), right)
    path = tmp_path / "network.pt2"
    torch.export.save(program, path)
    read = tvm_ext.reading.programs.read_program(path)
    np.testing.assert_array_equal(computed(read, *arrays), right)


@pytest.mark.parametrize("separate", [False, True])
def test_pairs_beside_whole_axes_are_refused(separate):
    torch = pytest.importorskip("torch", reason="the package torch is not there")

    class Network(torch.nn.Module):
        def forward(self, x, i, j):
            return x[i, :, j] if separate else x[:, i, j]

    pair = torch.tensor([0, 1])
    program = torch.export.export(Network(), (torch.from_numpy(X), pair, pair))
    with pytest.raises(ValueError, match=r"operator 'index\.Tensor': .* than PyTorch; flatten"):
        tvm_ext.from_exported_program(program)


# ------------------------------------------------------------------ full of an infinity


def filled(value: float, dtype: str) -> tvm.IRModule:
    """A tensor of unknown size, the larger of it and of the value, and one full of the value."""
    builder, n = relax.BlockBuilder(), tvm.tirx.Var("n", "int64")
    x, fill = relax.Var("x", relax.TensorType((n, 4), dtype)), relax.const(value, dtype)
    with builder.function("main", [x]):
        with builder.dataflow():
            mask = builder.emit(relax.op.full((n, 4), fill))
            made = [
                builder.emit(relax.op.maximum(x, mask)),
                builder.emit(relax.op.full_like(x, fill)),
            ]
            result = builder.emit_output(relax.Tuple(made))
        builder.emit_func_output(result)
    return builder.get()


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("value", [-np.inf, np.inf, np.nan, 2.0])
def test_what_is_full_of_a_value_computes(value: float, dtype: str):
    mod = filled(value, dtype)
    mended = as_pytorch_computes(mod)
    tvm.ir.assert_structural_equal(mod, filled(value, dtype))  # The input stays as it is.
    assert ("R.full" in mended.script()) == np.isfinite(value)
    data = np.linspace(-4, 4, 12, dtype=dtype).reshape(3, 4)
    machine = relax.VirtualMachine(tvm.compile(mended, at_level("llvm")), tvm.cpu())
    larger, full = (result.numpy() for result in machine["main"](tvm.runtime.tensor(data)))
    np.testing.assert_array_equal(full, np.full_like(data, value))
    if not np.isnan(value):
        np.testing.assert_array_equal(larger, np.maximum(data, value))
