# SPDX-License-Identifier: Apache-2.0
"""The names of ONNX nodes, which TVM's frontend drops, as names of tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from threading import Lock
from typing import Any

from tvm import relax
from tvm.ir import IRModule

from tvm_ext.tensor_names import Names, bindings_of, variables_read, with_names

_onnx_lock = Lock()


def with_onnx_names(importer: Any, read: Callable[[], IRModule]) -> IRModule:
    """Call `read`, TVM's frontend, and name the tensors of the network by the nodes that make them.

    The importer is TVM's ``ONNXGraphImporter``, which drops the names; meanwhile it notes them.
    """
    convert = importer._convert_operator
    made: list[tuple[str, Any]] = []

    def noting(self: Any, op_name: str, inputs: Any, attrs: Any, opset: int) -> Any:
        result = convert(self, op_name, inputs, attrs, opset)
        made.append((str(attrs["tvm_custom"]["name"]), result))
        return result

    with _onnx_lock:
        importer._convert_operator = noting
        try:
            mod = read()
        finally:
            importer._convert_operator = convert
    node_of: Names = {}
    for name, result in made:
        if name:  # A node without an operator of its own hands on the result of another.
            node_of.setdefault(result.__chandle__(), name)
    return with_names(mod, lambda _variable, func: _from_nodes(func, node_of))


def _from_nodes(func: relax.Function, node_of: Mapping[int, str]) -> Names:
    """Name what a node makes by the node, and the operators that it needs before that as well."""
    found: Names = {}
    bindings = list(bindings_of(func.body))
    for binding in reversed(bindings):
        own = binding.var.__chandle__()
        name = node_of.get(binding.value.__chandle__()) or found.get(own)
        if name is not None and isinstance(binding.value, relax.Call):
            found[own] = name
            for read in variables_read(binding.value):
                found.setdefault(read.__chandle__(), name)
    names: Names = {}
    for binding in bindings:
        own, value = binding.var.__chandle__(), binding.value
        if isinstance(value, relax.TupleGetItem):
            whole = names.get(value.tuple_value.__chandle__())
            if whole is not None:
                names[own] = f"{whole}.{value.index}"
        elif own in found:
            names[own] = found[own]
    return names
