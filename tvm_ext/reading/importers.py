# SPDX-License-Identifier: Apache-2.0
"""TVM's importers of ONNX and PyTorch networks, with the names that the author gave to tensors.

TVM's own call every result ``lv1``, ``lv2``, ...
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

from tvm import relax
from tvm.ir import IRModule

from passes.ir import first_line
from passes.relax import bindings_of
from tvm_ext.tensor_names import Names, number_of_inputs, operator_of, variables_read, with_names

_lock = Lock()


def from_onnx(model: Any, **options: Any) -> IRModule:
    """Import an ONNX model by TVM's ``tvm.relax.frontend.onnx.from_onnx``, and keep names.

    Parameters
    ----------
    model : onnx.ModelProto
        A node without a name is called by its first output. It stays as it is.
    **options
        As TVM's function takes them.

    Returns
    -------
    tvm.IRModule
        What TVM's importer returns, with each variable named by the node that makes it.

    Raises
    ------
    TypeError
        When the model is something else, such as a path.
    ValueError
        When TVM's importer fails at a node; the message names the node and its operator. What it
        raises elsewhere comes through as it is.
    ImportError
        When the package ``onnx`` is not there.
    """
    import onnx
    from tvm.relax.frontend import onnx as frontend
    from tvm.relax.frontend.onnx.onnx_frontend import ONNXGraphImporter as Importer

    if not isinstance(model, onnx.ModelProto):
        raise TypeError(f"from_onnx: a model is an onnx.ModelProto (onnx.load), got {model!r}")

    convert = Importer._convert_operator
    made: list[tuple[str, Any]] = []

    def noting(self: Any, op_name: str, inputs: Any, attrs: Any, opset: int) -> Any:
        node = str(attrs["tvm_custom"]["name"])
        try:
            result = convert(self, op_name, inputs, attrs, opset)
        except Exception as error:
            raise ValueError(f"node {node!r} ({op_name}): {first_line(error)}") from error
        made.append((node, result))
        return result

    named = type(model)()
    named.CopyFrom(model)
    for node in named.graph.node:
        node.name = node.name or next(iter(node.output), "")
    with _replaced(Importer, "_convert_operator", noting):
        mod = frontend.from_onnx(named, **options)
    node_of: Names = {}
    for name, result in made:
        if name:  # A node without an operator of its own hands on the result of another.
            node_of.setdefault(result.__chandle__(), name)

    def names_of(_variable: Any, func: relax.Function) -> Names:
        known = {
            binding.var.__chandle__(): node_of[binding.value.__chandle__()]
            for binding in bindings_of(func.body)
            if binding.value.__chandle__() in node_of
        }
        return _named(func, _spread(func, known), lambda node, _operator: node)

    return with_names(mod, names_of)


def from_exported_program(program: Any, **options: Any) -> IRModule:
    """Import a PyTorch program by TVM's ``from_exported_program``, and keep names.

    Parameters
    ----------
    program : torch.export.ExportedProgram
        It stays as it is.
    **options
        As ``tvm.relax.frontend.torch.from_exported_program`` takes them.

    Returns
    -------
    tvm.IRModule
        What TVM's importer returns. Parameters have PyTorch's names, ``layer1.0.conv.weight``; a
        result is named by its module and operator, such as ``layer1.0.conv.conv2d``.

    Raises
    ------
    ImportError
        When PyTorch is not there. What TVM's importer raises comes through as it is.
    """
    from tvm.relax.frontend import torch as frontend
    from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

    translate = ExportedProgramImporter._translate_fx_graph
    module_of: Names = {}

    def noting(self: Any, *arguments: Any) -> Any:
        result = translate(self, *arguments)
        for node, value in self.env.items():
            if isinstance(value, relax.Var) and node.op == "call_function":
                module_of.setdefault(value.__chandle__(), _module_of(node))
        return result

    with _replaced(ExportedProgramImporter, "_translate_fx_graph", noting):
        mod = frontend.from_exported_program(program, **options)
    specs = program.graph_signature.input_specs
    targets = {spec.arg.name: spec.target for spec in specs if spec.target is not None}

    def names_of(_variable: Any, func: relax.Function) -> Names:
        parameters = {
            parameter.__chandle__(): targets[parameter.name]
            for parameter in func.params[number_of_inputs(func) :]
            if parameter.name in targets
        }
        found = _spread(func, module_of)
        results = _named(func, found, lambda path, operator: f"{path}.{operator}".lstrip("."))
        return {**results, **parameters}

    return with_names(mod, names_of)


def _module_of(node: Any) -> str:
    """Return the path of the innermost module that calls an fx node; empty for the network."""
    stack = node.meta.get("nn_module_stack") or {}
    return str(next(reversed(stack.values()))[0]) if stack else ""


@contextmanager
def _replaced(owner: Any, name: str, method: Callable[..., Any]) -> Iterator[None]:
    """Replace a method of one of TVM's importers; one thread at a time."""
    with _lock:
        original = getattr(owner, name)
        setattr(owner, name, method)
        try:
            yield
        finally:
            setattr(owner, name, original)


def _spread(func: relax.Function, known: Names) -> Names:
    """Return `known`, and each unnamed operator by what its first named reader is known by."""
    found = dict(known)
    for binding in reversed(list(bindings_of(func.body))):
        name, value = found.get(binding.var.__chandle__()), binding.value
        if name is None:
            continue
        is_part = isinstance(value, relax.TupleGetItem)
        for variable in [value.tuple_value] if is_part else variables_read(value):
            found.setdefault(variable.__chandle__(), name)
    return found


def _named(func: relax.Function, found: Names, name_of: Callable[[str, str], str]) -> Names:
    """Name the calls that are known by something, and what is taken out of a tuple by its place."""
    names: Names = {}
    for binding in bindings_of(func.body):
        own, value = binding.var.__chandle__(), binding.value
        if isinstance(value, relax.TupleGetItem):
            whole = names.get(value.tuple_value.__chandle__())
            if whole is not None:
                names[own] = f"{whole}.{value.index}"
        elif own in found and isinstance(value, relax.Call):
            names[own] = name_of(found[own], operator_of(value))
    return names
