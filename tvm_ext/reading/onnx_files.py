# SPDX-License-Identifier: Apache-2.0
"""Files of ONNX networks: open sizes, types and constants are put as TVM's importer reads them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tvm import relax

from passes.ir import IRModule, first_line
from tvm_ext.hosts import quiet
from tvm_ext.reading.input_sizes import InputSizes, check_known, dimension_values
from tvm_ext.reading.networks import from_onnx, missing
from tvm_ext.weights import as_built

ONNX = ".onnx"

_READ = (
    "FLOAT",
    "DOUBLE",
    "BFLOAT",
    "BOOL",
    *(f"{u}INT{n}" for u in ("", "U") for n in (8, 16, 32, 64)),
)
"""Prefixes of ONNX's names of the number types that TVM's importer reads."""


def read_onnx(path: Path, sizes: InputSizes) -> IRModule:
    """Read an ONNX model, whose inputs get these sizes first; weights as `as_built`.

    Where TVM's importer fails it is asked again with constants folded by ``onnxslim``, if that is
    there. Raises ImportError without ``onnx``; ValueError, which says what would help.
    """
    model = open_model(path, sizes)
    _integers_as_constants(model)
    try:
        mod = _import(model)
    except Exception:  # TVM's importer raises whatever it stumbles on
        folded = _folded(model)
        try:
            mod = _import(model if folded is None else folded)
        except Exception as error:
            unknown = ", ".join(sorted(_unknown_operators((folded or model).graph)))
            help_ = _what_helps(model, unknown, folded is not None)
            reason = f"it does not know {unknown}" if unknown else first_line(error)
            text = f"{path}: TVM does not read this network: {reason}"
            raise ValueError(f"{text.rstrip('.')}; {help_}" if help_ else text) from error
    return as_built(relax.frontend.detach_params(mod)[0])


def open_model(path: Path, sizes: InputSizes) -> Any:
    """Return the model in an ONNX file, with sizes of its inputs; raise as `read_onnx` does."""
    try:
        import onnx
    except ImportError as error:
        raise ImportError(missing(path, "onnx", "onnx")) from error
    try:
        model = onnx.load(str(path))
    except OSError:  # Its own words name the file.
        raise
    except Exception as error:  # protobuf raises whatever it stumbles on
        raise ValueError(f"{path}: not an ONNX model: {first_line(error)}") from error
    if not model.graph.node:
        raise ValueError(f"{path}: not an ONNX model: it has no nodes")
    _name_open_sizes(model)
    try:
        _check_types(model)
        _fix_inputs(model, sizes)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return model


def shape_hint(name: str, shape: Sequence[Any]) -> str:
    """Return the option that gives an input a shape, with N for each size that is open."""
    sizes = ",".join(str(size) if isinstance(size, int) else "N" for size in shape)
    return f"--shape {name}={sizes}"


@quiet()  # TVM prints the node that fails.
def _import(model: Any) -> IRModule:
    return from_onnx(model, keep_params_in_input=True)


def _inputs(model: Any) -> dict[str, list[Any]]:
    """Return the inputs' shapes; an open dimension is a tuple of its name."""
    weights = {weight.name for weight in model.graph.initializer}
    return {
        given.name: [
            size.dim_value if size.dim_value > 0 else (size.dim_param,)
            for size in given.type.tensor_type.shape.dim
        ]
        for given in model.graph.input
        if given.name not in weights
    }


def _check_types(model: Any) -> None:
    """Raise ValueError for an input or weight that is no tensor of numbers as TVM has them.

    TVM's importer names none of them, and reads an input that is a sequence without end.
    """
    import onnx

    found = [
        ("input", given.name, given.type.tensor_type.elem_type)
        if given.type.HasField("tensor_type")
        else ("input", given.name, given.type.WhichOneof("value"))
        for given in model.graph.input
    ]
    found += [("weight", weight.name, weight.data_type) for weight in model.graph.initializer]
    for what, name, type_ in found:
        kind = onnx.TensorProto.DataType.Name(type_) if isinstance(type_, int) else str(type_)
        if not kind.startswith(_READ):
            raise ValueError(f"{what} {name!r} is of type {kind}, which TVM does not read")


def _name_open_sizes(model: Any) -> None:
    """Name each open size of an input that has no name of its own: two that are "?" may differ."""
    for given in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        for size in given.type.tensor_type.shape.dim:
            if size.dim_param == "?" or size.dim_value < 0:
                size.Clear()
    for given in model.graph.input:
        for at, size in enumerate(given.type.tensor_type.shape.dim):
            if not (size.dim_value or size.dim_param):
                size.dim_param = f"{given.name}_d{at}"


def _fix_inputs(model: Any, sizes: InputSizes) -> None:
    """Write sizes into a model's inputs; other mentions of the same open dimension follow."""
    for given in model.graph.input:
        if given.name in sizes.shapes and not given.type.tensor_type.HasField("shape"):
            for size in sizes.shapes[given.name]:
                given.type.tensor_type.shape.dim.add().dim_value = size
    known = _inputs(model)
    opened = {size[0] for shape in known.values() for size in shape if isinstance(size, tuple)}
    check_known("symbolic dimension", sizes.bind, sorted(opened))
    values = dimension_values(sizes.shapes, known, {(n,): size for n, size in sizes.bind.items()})
    for given in model.graph.input:
        for at, old in enumerate(known.get(given.name, ())):
            if old in values:
                given.type.tensor_type.shape.dim[at].dim_value = values[old]
    if sizes:  # Shapes of results in the file may be of other sizes.
        del model.graph.value_info[:]
        for result in model.graph.output:
            for size in result.type.tensor_type.shape.dim:
                size.Clear()


def _integers_as_constants(model: Any) -> None:
    """Turn integer weights, shapes and axes that the importer reads, into constants."""
    import onnx

    graph, integers = model.graph, (onnx.TensorProto.INT64, onnx.TensorProto.INT32)
    moved = {one.name: one for one in graph.initializer if one.data_type in integers}
    nodes = [
        onnx.helper.make_node("Constant", [], [name], name, value=weight)
        for name, weight in moved.items()
    ]
    for field, kept in (
        (graph.initializer, [one for one in graph.initializer if one.name not in moved]),
        (graph.input, [one for one in graph.input if one.name not in moved]),
        (graph.node, [*nodes, *graph.node]),
    ):
        del field[:]
        field.extend(kept)


@quiet()
def _folded(model: Any) -> Any | None:
    """Return a copy with constants folded by ``onnxslim``; None if that is not there or fails."""
    try:
        import onnxslim
    except ImportError:
        return None
    copy = type(model)()
    copy.CopyFrom(model)
    try:
        folded = onnxslim.slim(copy)
    except Exception:  # then the model is said to be what it is in the file
        return None
    if folded is not None:
        _integers_as_constants(folded)
    return folded


def _unknown_operators(graph: Any) -> set[str]:
    """Return the operators of a graph, and of branches in it, that TVM's importer has not."""
    from tvm.relax.frontend.onnx.onnx_frontend import _get_convert_map

    own = {node.op_type for node in graph.node} - {"If", "Constant"} - {*_get_convert_map()}
    branches = [one.g for node in graph.node for one in node.attribute if one.HasField("g")]
    return own.union(*map(_unknown_operators, branches))


def _what_helps(model: Any, unknown: str, folded: bool) -> str:
    """Say what a user can do about a model that TVM's importer does not read."""
    if unknown:
        return f"export the network without {unknown}, as basic operators"
    hints = [
        shape_hint(name, shape)
        for name, shape in _inputs(model).items()
        if not all(isinstance(size, int) for size in shape)
    ]
    lines = [f"fix the sizes of its inputs: {' '.join(hints)}, a number for each N"] * bool(hints)
    if not folded:
        lines.append("with the package onnxslim, constants are folded before it is read")
    return "; ".join(lines)
