# SPDX-License-Identifier: Apache-2.0
"""Networks in ONNX files: read as TVM reads them, and planned like any other."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from llvm_level import at_level

pytest.importorskip("onnx", reason="the package onnx is not there")

import onnx
import tvm
from onnx import TensorProto, helper, numpy_helper
from tvm import relax

from tvm_ext.__main__ import main
from tvm_ext.reading.program_files import read_program
from tvm_ext.reading.programs import load_program

CHANNELS, SIZE = (3, 8, 8, 4), 12


@pytest.fixture
def network(tmp_path):
    """Write a chain of convolutions and activations, with weights of its own."""
    rng = np.random.default_rng(0)
    nodes, weights, value = [], [], "x"
    for at, (inputs, outputs) in enumerate(pairwise(CHANNELS)):
        weight = rng.standard_normal((outputs, inputs, 3, 3), dtype="float32") / 10
        weights.append(numpy_helper.from_array(weight, f"w{at}"))
        nodes.append(helper.make_node("Conv", [value, f"w{at}"], [f"c{at}"], pads=[1, 1, 1, 1]))
        nodes.append(helper.make_node("Relu", [f"c{at}"], [f"r{at}"]))
        value = f"r{at}"
    graph = helper.make_graph(
        nodes,
        "chain",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, CHANNELS[0], SIZE, SIZE))],
        [helper.make_tensor_value_info(value, TensorProto.FLOAT, (1, CHANNELS[-1], SIZE, SIZE))],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    onnx.checker.check_model(model)
    path = tmp_path / "chain.onnx"
    onnx.save(model, str(path))
    return path, weights


def test_the_weights_are_parameters_and_the_network_computes(network):
    path, weights = network
    mod = read_program(path)
    (func,) = (f for f in mod.functions.values() if isinstance(f, relax.Function))
    assert int(func.attrs["num_input"]) == 1
    assert len(func.params) == 1 + len(weights)
    machine = relax.VirtualMachine(tvm.compile(mod, at_level("llvm")), tvm.cpu())
    image = np.random.default_rng(1).standard_normal((1, CHANNELS[0], SIZE, SIZE), dtype="float32")
    arrays = [image, *map(numpy_helper.to_array, weights)]
    out = machine["main"](*(tvm.runtime.tensor(np.array(a)) for a in arrays)).numpy()
    expected = image
    for weight in arrays[1:]:
        padded = np.pad(expected, ((0, 0), (0, 0), (1, 1), (1, 1)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
        expected = np.maximum(np.einsum("ncijab,ocab->noij", windows, weight), 0)
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-5)


def test_its_tensors_are_compared(network, capsys):
    path, _ = network
    program = load_program(str(path), "llvm")
    assert program.relax is not None
    assert main(["compare", str(path), "--target", "llvm", "--planners", "best"]) == 0
    printed = capsys.readouterr().out
    assert "tensors, not fused" in printed


def test_without_a_target_it_is_lowered_for_llvm(network, capsys):
    assert main(["compare", str(network[0]), "--planners", "all"]) == 0
    printed = capsys.readouterr().out
    assert "lowered for llvm" in printed
    assert "rec_tbl" in printed


@pytest.mark.parametrize("content", [b"", b"not a network", b"\x00" * 64])
def test_bad_files_are_refused_in_one_line(tmp_path, content, capsys):
    path = tmp_path / "bad.onnx"
    path.write_bytes(content)
    assert main(["compare", str(path), "--target", "llvm"]) == 2
    err = capsys.readouterr().err
    assert "bad.onnx: " in err
    assert err.count("\n") == 1
