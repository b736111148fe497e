# SPDX-License-Identifier: Apache-2.0
"""Networks of ONNX and PyTorch, with the names that their authors gave to tensors; files of them.

TVM's importers call every result ``lv1``, ``lv2``, ... Here each is named by the ONNX node, or by
the PyTorch module and operator, that makes it.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Any
from unittest import mock
from zipfile import ZipFile, is_zipfile

from tvm import relax

from passes.ir import IRModule, first_line
from passes.relax import bindings_of, rx
from tvm_ext.hosts import quiet
from tvm_ext.reading.torch_operators import as_pytorch_computes
from tvm_ext.tensor_names import Names, number_of_inputs, operator_of, variables_read, with_names
from tvm_ext.weights import as_built

EXPORTED = ".pt2"

_NOT_IN_C = re.compile(r"[^\w.]+")
"""The letters that a name in C cannot have; a period becomes ``_`` there."""

_LOGGER = logging.getLogger("tvm_ext.from_exported_program")

_lock = Lock()
"""Held while a method of one of TVM's importers is replaced."""


def from_onnx(model: Any, **options: Any) -> IRModule:
    """Import an ONNX model by TVM's ``tvm.relax.frontend.onnx.from_onnx``, and keep names.

    Each variable is named by the node that makes it, ``stem.conv1`` for ``/stem/conv1``; a node
    without a name is called by its first output. The model, an ``onnx.ModelProto``, stays as it is;
    options are those of TVM's function. Raises TypeError for a model that is something else, such
    as a path; ImportError without the package ``onnx``; ValueError, with the node and its operator,
    when TVM's importer fails there.
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
    with _lock, mock.patch.object(Importer, "_convert_operator", noting):
        mod = frontend.from_onnx(named, **options)
    node_of: Names = {}
    for name, result in made:
        if name:  # A node without an operator of its own hands on the result of another.
            node_of.setdefault(result.__chandle__(), name)

    def names_of(_variable: Any, func: rx.Function) -> Names:
        known = {
            binding.var.__chandle__(): node_of[binding.value.__chandle__()]
            for binding in bindings_of(func.body)
            if binding.value.__chandle__() in node_of
        }
        return _named(func, known, lambda node, _operator: node)

    return with_names(mod, names_of)


def from_exported_program(program: Any, **options: Any) -> IRModule:
    """Import a PyTorch program by TVM's ``from_exported_program``, and keep names.

    Parameters have PyTorch's names, ``layer1.0.conv.weight``; a result is named by its module and
    operator, such as ``layer1.0.conv.conv2d``. Negative indices are read from the end, as PyTorch
    does, where TVM's importer alone reads outside of the tensor. Tensors full of an infinity, which
    TVM does not lower, are broadcast constants. The program, a ``torch.export.ExportedProgram``,
    stays as it is; options are those of TVM's function. Raises ImportError without PyTorch;
    ValueError, with module and operator, when TVM's importer fails there, or for an index that
    `as_pytorch_computes` refuses; and what it raises else.
    """
    from tvm.relax.frontend import torch as frontend
    from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

    translate = ExportedProgramImporter._translate_fx_graph
    parameters = ExportedProgramImporter.create_input_vars
    module_of: Names = {}

    def noting(self: Any, *arguments: Any) -> Any:
        try:
            result = translate(self, *arguments)
        except Exception as error:
            _, nodes, *_ = arguments
            calls = (n for n in nodes if n.op == "call_function" and n not in self.env)
            if (failed := next(calls, None)) is None:
                raise
            raise ValueError(f"operator {_path_of(failed)!r}: {first_line(error)}") from error
        for node, value in self.env.items():
            if isinstance(value, rx.Var) and node.op == "call_function":
                module_of.setdefault(value.__chandle__(), _module_of(node))
                _check_indexed(node, value)
        return result

    def of_tensors(self: Any, decomposed: Any) -> Any:
        _warn_of_state(decomposed)
        return parameters(self, _TensorInputs(decomposed))

    patched = mock.patch.multiple(
        ExportedProgramImporter,
        create_input_vars=of_tensors,
        _translate_fx_graph=noting,
        _check_unsupported_func_type=_check_operators,
    )
    # PyTorch loads ranges of sizes such as 2*n among those of symbols, and fails on them.
    ranges = _ranges_of_sizes(program)
    symbols = {size: limits for size, limits in ranges.items() if size.is_Symbol}
    with _lock, patched, mock.patch.dict(ranges, symbols, clear=True):
        mod = frontend.from_exported_program(program, **options)
    specs = program.graph_signature.input_specs
    targets = {spec.arg.name: spec.target for spec in specs if spec.target is not None}

    def names_of(_variable: Any, func: rx.Function) -> Names:
        weights = {
            parameter.__chandle__(): targets[parameter.name]
            for parameter in func.params[number_of_inputs(func) :]
            if parameter.name in targets
        }
        results = _named(func, module_of, lambda path, operator: f"{path}.{operator}")
        return {**results, **weights}

    return as_pytorch_computes(with_names(mod, names_of))


def _ranges_of_sizes(program: Any) -> dict[Any, Any]:
    """Return the ranges of a PyTorch program's sizes, empty where all are fixed."""
    values = (node.meta.get("val") for node in program.graph.nodes)
    modes = (value.fake_mode for value in values if hasattr(value, "fake_mode"))
    return next((mode.shape_env.var_to_range for mode in modes if mode.shape_env), {})


class _TensorInputs:
    """A PyTorch program whose inputs are tensors alone: its graph has others as constants."""

    def __init__(self, program: Any) -> None:
        self._program, signature = program, program.graph_signature
        specs = [spec for spec in signature.input_specs if not hasattr(spec.arg, "value")]
        self.graph_signature = replace(signature, input_specs=specs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._program, name)


def _warn_of_state(program: Any) -> None:
    """Warn of buffers and inputs that a program overwrites: TVM's importer drops the new values."""
    specs = program.graph_signature.output_specs
    changed = [str(spec.target) for spec in specs if spec.kind.name.endswith("MUTATION")]
    if changed:
        text = "the program overwrites %s: each call begins with the first value, and keeps none"
        _LOGGER.warning(text, ", ".join(map(repr, changed)))


def _module_of(node: Any) -> str:
    """Return the path of the innermost module that calls an fx node; empty for the network."""
    stack = node.meta.get("nn_module_stack") or {}
    return str(next(reversed(stack.values()))[0]) if stack else ""


def _path_of(node: Any) -> str:
    """Return the path of an fx node that calls a function, with that function's name."""
    return f"{_module_of(node)}.{node.target.__name__}".lstrip(".")


def _check_operators(importer: Any, nodes: Any) -> None:
    """Raise ValueError for operators that TVM's importer does not know, by their first calls."""
    unknown: dict[str, str] = {}
    for node in nodes:
        name = node.target.__name__ if node.op == "call_function" else None
        if name is not None and name not in importer.convert_map:
            unknown.setdefault(name, repr(_path_of(node)))
    if unknown:
        raise ValueError(
            f"TVM's importer does not know the operators {', '.join(unknown.values())}"
        )


def _check_indexed(node: Any, value: rx.Var) -> None:
    """Raise ValueError where TVM's importer makes something else of ``x[:, i, j]`` than PyTorch.

    It takes ``x[:, i]``, then of that ``[:, :, j]``, where PyTorch takes the pairs of `i` and `j`,
    and puts their axis first where an axis stands between the two.
    """
    if node.target.__name__ != "index.Tensor":
        return
    rank = len(getattr(node.meta.get("val"), "shape", value.ty.shape))
    axes = [axis for axis, index in enumerate(node.args[1]) if index is not None]
    if rank != value.ty.ndim or len(axes) != axes[-1] - axes[0] + 1:
        raise ValueError(
            f"operator {_path_of(node)!r}: TVM's importer reads other elements by several index "
            "tensors beside whole axes than PyTorch; flatten the indexed axes, and take one index"
        )


def _named(func: rx.Function, known: Names, name_of: Callable[[str, str], str]) -> Names:
    """Name calls by what they are known by, and what is taken out of a tuple by its place.

    An unknown operator is known by what its first known reader is known by. Names have letters
    alone that code in C may have, as TVM names parameters of kernels by them.
    """
    found, names, bindings = dict(known), Names(), list(bindings_of(func.body))
    for binding in reversed(bindings):
        name, value = found.get(binding.var.__chandle__()), binding.value
        if name is not None:
            is_part = isinstance(value, rx.TupleGetItem)
            for read in [value.tuple_value] if is_part else variables_read(value):
                found.setdefault(read.__chandle__(), name)
    for binding in bindings:
        own, value = binding.var.__chandle__(), binding.value
        if isinstance(value, rx.TupleGetItem):
            if whole := names.get(value.tuple_value.__chandle__()):
                names[own] = f"{whole}.{value.index}"
        elif own in found and isinstance(value, rx.Call):
            names[own] = _NOT_IN_C.sub(".", name_of(found[own], operator_of(value))).strip(".")
    return names


@quiet()
def read_exported(path: Path) -> IRModule:
    """Read a program that ``torch.export.save`` wrote, its weights as by `as_built`."""
    try:
        import torch
    except ImportError as error:
        raise ImportError(missing(path, "torch", "torch")) from error
    wrong = "not a program saved by torch.export.save"
    if unknown := _unregistered(path):
        raise ValueError(
            f"{path}: is a PyTorch program, and of its operators {', '.join(unknown)} is not "
            "registered here: a .py file may import what defines it, and the module by "
            "tvm_ext.from_exported_program"
        )
    try:
        program = torch.export.load(str(path))
        wrong = "TVM does not read this network"
        mod = from_exported_program(program, keep_params_as_input=True)
    except Exception as error:  # PyTorch and TVM's importer raise whatever they stumble on
        raise ValueError(f"{path}: {wrong}: {first_line(error)}") from error
    return as_built(relax.frontend.detach_params(mod)[0])


def _unregistered(path: Path) -> list[str]:
    """Return the operators of a saved program that this process does not know."""
    import torch

    if not is_zipfile(path):
        return []
    with ZipFile(path) as archive:
        models = [name for name in archive.namelist() if re.search(r"models/[^/]*\.json$", name)]
        text = "".join(archive.read(name).decode() for name in models)
    unknown = []
    for name in sorted({*re.findall(r'"target": "torch\.ops\.([\w.]+)"', text)}):
        found: Any = torch.ops
        for part in name.split("."):
            found = getattr(found, part, None)
        unknown += [] if found is not None else ["::".join(name.split(".")[:2])]
    return unknown


def missing(path: Path, package: str, extra: str) -> str:
    """Say that a package is needed, and how to install it."""
    return (
        f"{path}: needs the package {package}, which is not there; install it, "
        f"or in the folder of tvm-ext's README: pip install '.[{extra}]'"
    )
