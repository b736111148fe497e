# SPDX-License-Identifier: Apache-2.0
"""Networks of ONNX and PyTorch: what is read, how tensors are called, and what is said if not."""

from __future__ import annotations

import json
import logging
import warnings
from itertools import pairwise

import numpy as np
import pytest
import tvm
from llvm_level import at_level
from tvm import relax

import tvm_ext
from passes.relax.bindings import bindings_of
from tvm_ext.hosts import quiet
from tvm_ext.reading.input_sizes import InputSizes, open_dimensions
from tvm_ext.reading.programs import read_program


def onnx_model(nodes, inputs, outputs, weights=()):
    onnx = pytest.importorskip("onnx", reason="the package onnx is not there")
    from onnx import TensorProto, helper, numpy_helper

    def values(shapes):
        return [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
            for name, shape in shapes.items()
        ]

    graph = helper.make_graph(
        [
            helper.make_node(op, list(read), list(made), name, **attrs)
            for op, read, made, name, attrs in nodes
        ],
        "network",
        values(inputs),
        values(outputs),
        [numpy_helper.from_array(np.array(value), name) for name, value in weights],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return model


def flattening(batch):
    """What PyTorch exports of ``relu(x.view(x.size(0), -1))``."""
    nodes = [
        ("Shape", ["x"], ["s"], "shape", {}),
        ("Gather", ["s", "zero"], ["n"], "gather", {"axis": 0}),
        ("Unsqueeze", ["n", "axes"], ["n1"], "unsqueeze", {}),
        ("Concat", ["n1", "rest"], ["to"], "concat", {"axis": 0}),
        ("Reshape", ["x", "to"], ["r"], "flatten", {}),
        ("Relu", ["r"], ["r2"], "encoder/relu", {}),
        ("Exp", ["r2"], ["y"], "encoder/exp", {}),
    ]
    zero, one = np.array(0, "int64"), np.array([0], "int64")
    weights = [("zero", zero), ("axes", one), ("rest", np.array([-1], "int64"))]
    return onnx_model(nodes, {"x": [batch, 3, 4]}, {"y": [batch, 12]}, weights)


def saved(model, tmp_path):
    import onnx

    path = tmp_path / "network.onnx"
    onnx.save(model, str(path))
    return path


def names_of(mod):
    return [str(binding.var.name) for binding in bindings_of(mod["main"].body)]


def test_weights_are_parameters_and_the_network_computes(tmp_path):
    rng, channels, size = np.random.default_rng(0), (3, 8, 8, 4), 12
    nodes, weights = [], []
    for at, (inputs, outputs) in enumerate(pairwise(channels)):
        weights.append((f"w{at}", rng.standard_normal((outputs, inputs, 3, 3), "float32") / 10))
        nodes.append(("Conv", [f"x{at}", f"w{at}"], [f"c{at}"], "", {"pads": [1, 1, 1, 1]}))
        nodes.append(("Relu", [f"c{at}"], [f"x{at + 1}"], "", {}))
    shapes = [{f"x{at}": [1, channels[at], size, size]} for at in (0, 3)]
    mod = read_program(saved(onnx_model(nodes, *shapes, weights), tmp_path))
    assert int(mod["main"].attrs["num_input"]) == 1
    assert len(mod["main"].params) == 1 + len(weights)
    machine = relax.VirtualMachine(tvm.compile(mod, at_level("llvm")), tvm.cpu())
    image = rng.standard_normal((1, channels[0], size, size), "float32")
    arrays = [image, *(weight for _, weight in weights)]
    out = machine["main"](*map(tvm.runtime.tensor, arrays)).numpy()
    expected = image
    for weight in arrays[1:]:
        padded = np.pad(expected, ((0, 0), (0, 0), (1, 1), (1, 1)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
        expected = np.maximum(np.einsum("ncijab,ocab->noij", windows, weight), 0)
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-5)


def test_integers_that_shapes_are_made_of_are_constants(tmp_path):
    mod = read_program(saved(flattening(2), tmp_path))
    machine = relax.VirtualMachine(tvm.compile(mod, at_level("llvm")), tvm.cpu())
    x = np.random.default_rng(0).standard_normal((2, 3, 4), dtype="float32")
    out = machine["main"](tvm.runtime.tensor(x)).numpy()
    np.testing.assert_allclose(out, np.exp(np.maximum(x, 0)).reshape(2, 12), rtol=1e-5)


def test_a_shape_that_is_named_fixes_the_inputs(tmp_path):
    path = saved(flattening("batch"), tmp_path)
    mod = read_program(path, sizes=InputSizes(shapes={"x": (5, 3, 4)}))
    assert [int(size) for size in mod["main"].ret_ty.shape] == [5, 12]
    with pytest.raises(ValueError, match=r"network\.onnx: there is no input 'y': there are: x"):
        read_program(path, sizes=InputSizes(shapes={"y": (5, 3, 4)}))


def test_a_dimension_that_is_named_is_fixed_before_a_network_is_read(tmp_path):
    """TVM's importer pads images to equal parts only where their sizes are known."""
    halves = {"kernel_shape": [2, 2], "strides": [2, 2], "auto_pad": "SAME_UPPER"}
    nodes = [("MaxPool", ["x"], ["y"], "pool", halves)]
    path = saved(onnx_model(nodes, {"x": [1, 3, "height", 8]}, {"y": [1, 3, "a", 4]}), tmp_path)
    with pytest.raises(ValueError, match=r"--shape x=1,3,N,8"):
        read_program(path)
    mod = read_program(path, sizes=InputSizes(bind={"height": 6}))
    assert [int(size) for size in mod["main"].ret_ty.shape] == [1, 3, 3, 4]


def test_sizes_that_a_file_calls_by_a_question_mark_are_different_ones(tmp_path):
    """Paddle's exporter calls all open sizes "?", and writes -1 for a batch.

    PyTorch's calls the first input ``input.1``, and TVM ``input_1``.
    """
    x, shape = "input.1", ["?", 3, "?", "?"]
    model = onnx_model([("Relu", [x], ["y"], "relu", {})], {x: shape}, {"y": shape})
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1
    path = saved(model, tmp_path)
    assert len(open_dimensions(read_program(path))) == 3
    for _ in range(2):
        mod = read_program(saved(model, tmp_path), sizes=InputSizes(shapes={x: (2, 3, 48, 192)}))
        assert [int(size) for size in mod["main"].ret_ty.shape] == [2, 3, 48, 192]
        model.graph.input[0].type.tensor_type.ClearField("shape")  # The next file says none.


def test_what_tvm_does_not_read_is_said_with_the_operator_and_what_helps(tmp_path):
    unknown = onnx_model([("Det", ["x"], ["y"], "determinant", {})], {"x": [2, 2]}, {"y": []})
    with pytest.raises(ValueError, match=r"network\.onnx: .*Det.*export the network without Det"):
        read_program(saved(unknown, tmp_path))
    for kind, message in ((8, "STRING"), (14, "COMPLEX64"), (0, "sequence_type")):
        typed = onnx_model([("Relu", ["x"], ["y"], "relu", {})], {"x": [2]}, {"y": [2]})
        typed.graph.input[0].type.tensor_type.elem_type = kind
        if not kind:  # TVM's importer would read it without end.
            typed.graph.input[0].type.sequence_type.elem_type.tensor_type.elem_type = 1
        with pytest.raises(ValueError, match=f"network[.]onnx: input 'x' is of type {message}, wh"):
            read_program(saved(typed, tmp_path))
    computed = onnx_model(
        [
            ("Cast", ["to"], ["shape"], "cast", {"to": 7}),
            ("Reshape", ["x", "shape"], ["y"], "fold", {}),
        ],
        {"x": ["height", 4], "to": [2]},
        {"y": ["a", "b"]},
    )
    path = saved(computed, tmp_path)
    with pytest.raises(ValueError, match=r"node 'fold' \(Reshape\).*--shape x=N,4, a number for"):
        read_program(path)
    with pytest.raises(ValueError, match=r"no symbolic dimension 'width': there are: height"):
        read_program(path, sizes=InputSizes(bind={"width": 8}))
    node = computed.graph.node.add(op_type="If", input=["x"], output=["z"])
    computed.graph.output.add(name="z")
    node.attribute.add(name="then_branch").g.CopyFrom(unknown.graph)
    with pytest.raises(ValueError, match="not know Det; export the network without Det"):
        read_program(saved(computed, tmp_path))


def test_an_onnx_network_keeps_its_names_in_python(tmp_path):
    model = flattening(2)
    mod = tvm_ext.from_onnx(model)
    assert names_of(mod)[-2:] == ["encoder.relu", "encoder.exp"]
    assert [node.name for node in model.graph.node] == [n.name for n in flattening(2).graph.node]
    pads, image, weight = {"pads": [1, 1, 1, 1]}, [1, 4, 8, 8], np.ones((4, 4, 3, 3), "float32")
    nodes = [
        ("Conv", ["x", "w1", "b1"], ["c1"], "stem/conv1", pads),
        ("Softmax", ["c1"], ["s1"], "stem/softmax", {}),
        ("Conv", ["s1", "w2"], ["c2"], "blocks.0/conv2", pads),
        ("Relu", ["c2"], ["r2"], "/blocks.0/relu:0", {}),
        ("Softmax", ["r2"], ["unnamed"], "", {}),
        ("Softmax", ["unnamed"], ["y"], "head", {}),
    ]
    weights = [("w1", weight), ("w2", weight), ("b1", weight[0, 0, 0, :1].repeat(4))]
    shown = tvm_ext.memory_map(
        tvm_ext.from_onnx(onnx_model(nodes, {"x": image}, {"y": image}, weights))
    )
    (scope,) = shown.memories
    assert list(scope.problem.index) == [
        *("stem conv1", "stem softmax", "blocks.0 relu.0", "unnamed")
    ]
    assert tuple(map(str, shown.left)) == (
        "main: head: the function returns it, so its caller owns the memory",
    )


def test_a_path_is_no_model():
    pytest.importorskip("onnx", reason="the package onnx is not there")
    with pytest.raises(TypeError, match=r"onnx\.load.*got 'network.onnx'"):
        tvm_ext.from_onnx("network.onnx")


@pytest.mark.parametrize("sizes", [("--shape", "x0=64,4096"), ("--bind", "rows=64")])
def test_onnxruntime_takes_what_it_says_beside_ours(tmp_path, run, sizes):
    pytest.importorskip("onnxruntime", reason="the package onnxruntime is not there")
    nodes = [("Softmax", [f"x{at}"], [f"x{at + 1}"], "", {"axis": 1}) for at in range(4)]
    shape = ["rows", 4096]
    path = saved(onnx_model(nodes, {"x0": shape}, {"x4": shape}), tmp_path)
    out_path = tmp_path / "out.json"
    command = ["compare", str(path), "--onnxruntime", *sizes]
    status, out, err = run(*command, "--json", str(out_path))
    if "says nothing of memory" in err:
        pytest.skip("this onnxruntime is too old: its profile says nothing of memory")
    assert (status, err) == (0, "")
    found = json.loads(out_path.read_text())["onnxruntime"]
    tensor = 64 * 4096 * 4
    # Two tensors take turns; one of them is the result.
    assert 2 * tensor <= found["peak"] <= min(found["held"], 3 * tensor - 1)
    assert f"{found['peak']:,} bytes in use at most" in out
    status, _, err = run("compare", str(path), "--onnxruntime")
    assert (status, err.count("\n")) == (2, 1)
    assert "--shape x0=N,4096, a number for each N" in err


def test_what_another_framework_says_is_not_heard_but_for_errors(capsys, caplog, recwarn):
    with quiet():
        print("loading")
        warnings.warn("deprecated", stacklevel=1)
        logging.getLogger("other").warning("a traceback")
        logging.getLogger("other").error("broken")
    assert capsys.readouterr() == ("", "")
    assert not recwarn.list
    logging.getLogger("other").warning("afterwards")
    assert caplog.messages == ["broken", "afterwards"]


# ------------------------------------------------------------------------------------ PyTorch


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="the package torch is not there")


@pytest.fixture
def exported(torch):
    """A convolution with a norm in a module of its own, and a product; any batch."""
    nn = torch.nn

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)

        def forward(self, x):
            return torch.relu(self.norm(self.conv(x)))

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers, self.head = nn.Sequential(Block()), nn.Linear(8, 4)

        def forward(self, x):
            return self.head(self.layers(x).mean((2, 3)))

    torch.manual_seed(0)
    network = Network().eval()
    batch = torch.export.Dim("batch")
    example = (torch.zeros(2, 3, 8, 8),)
    return network, torch.export.export(network, example, dynamic_shapes={"x": {0: batch}})


def test_a_saved_program_is_read_named_and_computes(torch, exported, tmp_path, run):
    network, program = exported
    path = tmp_path / "network.pt2"
    torch.export.save(program, path)
    mod = read_program(path)
    main = mod["main"]
    parameters = [str(parameter.name) for parameter in main.params]
    # Of weights that are only read by what depends on weights alone, the results are there.
    assert parameters[:2] == ["x", "layers.0.conv.weight"]
    assert {"head.permute_dims", "head.bias"} <= {*parameters}
    assert not {"head.weight", "layers.0.conv.bias"} & {*parameters}
    assert {"layers.0.conv.conv2d", "layers.0.relu", "mean", "head.matmul"} <= {*names_of(mod)}
    sizes, bound = InputSizes(shapes={"x": (4, 3, 8, 8)}), tvm_ext.from_exported_program(program)
    fixed, read = sizes.apply(bound), read_program(path, sizes=sizes)
    one, other = (tvm_ext.compare(m, "best").memories[0] for m in (fixed, read))
    assert one.plan_of("best").plan.peak == other.plan_of("best").plan.peak
    machine = relax.VirtualMachine(tvm.compile(fixed, at_level("llvm")), tvm.cpu())
    x = torch.rand(4, 3, 8, 8)
    found = machine["main"](tvm.runtime.tensor(x.numpy()))
    expected = network(x).detach().numpy()
    np.testing.assert_allclose(found[0].numpy(), expected, rtol=1e-4, atol=1e-5)
    for command in (["compare", "--planners", "best"], ["map", "-o", str(tmp_path / "out.html")]):
        status, out, err = run(command[0], str(path), *command[1:])
        assert (status, err) == (0, "")
        assert "for each" in out
    assert tvm_ext.from_exported_program(program)["main"].params[0].name == "x"


def test_a_file_that_is_no_saved_program_is_refused(torch, tmp_path):
    path = tmp_path / "network.pt2"
    path.write_bytes(b"not a program")
    with pytest.raises(ValueError, match=r"network\.pt2: not a program saved by torch\.export"):
        read_program(path)


def test_what_tvm_does_not_read_of_a_program_is_said_with_its_operator(torch, tmp_path):
    network = torch.nn.Sequential()
    network.head = torch.nn.Linear(4, 4, dtype=torch.bfloat16)
    path, x = tmp_path / "network.pt2", torch.zeros(2, 4, dtype=torch.bfloat16)
    torch.export.save(torch.export.export(network, (x,)), path)
    message = "TVM does not read this network: operator 'head.addmm.default': "
    with pytest.raises(ValueError, match=message):
        read_program(path)


@pytest.mark.parametrize("options", [{}, {"factor": 3}, {"factor": 0.5, "negated": True}])
def test_inputs_that_are_no_tensors_are_fixed(torch, tmp_path, options):
    class Scaled(torch.nn.Module):
        def forward(self, x, mask=None, factor=1, negated=False):
            x = x if mask is None else x * mask
            return self.head(-x if negated else x) * factor

    network, path, x = Scaled(), tmp_path / "network.pt2", torch.rand(2, 4)
    network.head = torch.nn.Linear(4, 4)
    program = torch.export.export(network, (x, None), options)
    torch.export.save(program, path)
    assert str(read_program(path)["main"].params[0].name) == "x"
    mod = tvm_ext.from_exported_program(program)
    assert len(mod["main"].params) == 1
    machine = relax.VirtualMachine(tvm.compile(mod, at_level("llvm")), tvm.cpu())
    (found,) = machine["main"](tvm.runtime.tensor(x.numpy()))
    expected = network(x, None, **options).detach().numpy()
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4, atol=1e-5)


def test_a_saved_size_that_is_made_of_another_is_read(torch, tmp_path):
    class Twice(torch.nn.Module):
        def forward(self, x, y):
            return torch.relu(torch.cat([x, x]) + y)

    network, example = Twice(), (torch.rand(4, 6), torch.rand(8, 6))
    path, n = tmp_path / "network.pt2", torch.export.Dim("n", min=2)
    program = torch.export.export(network, example, dynamic_shapes=({0: n}, {0: 2 * n}))
    torch.export.save(program, path)
    loaded = torch.export.load(path)
    mod = tvm_ext.from_exported_program(loaded)
    torch.export.save(loaded, path)  # It is as it was.
    assert [str(one.name) for one in read_program(path)["main"].params] == ["x", "y"]

    def sizes(*rows: int) -> InputSizes:
        return InputSizes(shapes={name: (size, 6) for name, size in zip("yx", rows, strict=False)})

    for rows, message in (((6, 4), "is 8, not 6"), ((8,), r"is 2 \* \w+ for variables .*, not 8")):
        with pytest.raises(ValueError, match=f"input 'y': dimension 0 {message}"):
            sizes(*rows).apply(mod)
    fixed = sizes(8, 4).apply(mod)
    machine = relax.VirtualMachine(tvm.compile(fixed, at_level("llvm")), tvm.cpu())
    (found,) = machine["main"](*(tvm.runtime.tensor(one.numpy()) for one in example))
    np.testing.assert_allclose(found.numpy(), network(*example).numpy(), rtol=1e-6)


def test_what_a_program_overwrites_is_named_in_a_warning(torch, caplog):
    class Counted(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(()))
            self.norm = torch.nn.BatchNorm1d(4)

        def forward(self, x):
            self.count.add_(1)
            return self.norm(x) * self.count

    network = Counted()
    for given, names in ((network, ["count", "norm.running_mean"]), (network.norm, [])):
        caplog.clear()
        tvm_ext.from_exported_program(torch.export.export(given, (torch.rand(3, 4),)))
        network.eval()
        records = [one for one in caplog.records if one.name.startswith("tvm_ext")]
        said = [one.getMessage() for one in records]
        assert len(said) == bool(names)
        assert all(f"'{name}'" in said[0] for name in names)


def test_operators_that_tvm_does_not_know_are_named_in_their_order(torch, tmp_path):
    class Found(torch.nn.Module):
        def forward(self, x):
            return torch.nonzero(x), torch.amax(torch.nonzero(x), 1), torch.erfinv(x)

    path = tmp_path / "network.pt2"
    torch.export.save(torch.export.export(Found(), (torch.zeros(3, 3),)), path)
    message = "does not know the operators 'nonzero.default', 'amax.default', 'erfinv.default'"
    with pytest.raises(ValueError, match=message):
        read_program(path)


def test_an_operator_that_is_not_registered_here_is_named(torch, tmp_path):
    library = torch.library.Library("tvm_ext_tests", "FRAGMENT")
    library.define("doubled(Tensor x) -> Tensor")
    library.impl("doubled", lambda x: x * 2, "CompositeExplicitAutograd")

    class Network(torch.nn.Module):
        def forward(self, x):
            return torch.ops.tvm_ext_tests.doubled(x) + 1

    path = tmp_path / "network.pt2"
    torch.export.save(torch.export.export(Network(), (torch.zeros(3),)), path)
    library._destroy()
    del torch.ops.tvm_ext_tests
    with pytest.raises(ValueError, match=r"of its operators tvm_ext_tests::doubled is not reg"):
        read_program(path)
