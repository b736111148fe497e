# SPDX-License-Identifier: Apache-2.0
"""TVM's objects as JSON, with any version of tvm-ffi.

`tvm.ir.save_json` of TVM 0.27 crashes the process from tvm-ffi 0.1.15 on: that calls the hash of
`PrimType`, which TVM has compiled, by another convention. `tvm.ir.load_json` works. What is written
here for these versions is the same graph of nodes, without any hash of an object.
"""

from __future__ import annotations

import json
from typing import Any

import tvm
import tvm_ffi
from tvm_ffi.core import _lookup_type_attr

CRASHES = tuple(map(int, tvm_ffi.__version__.split(".")[:3])) >= (0, 1, 15)
"""Whether TVM's own JSON crashes, and so does text that has constants in it as metadata."""

_PLAIN = ((bool, "bool"), (int, "int"), (float, "float"), (str, "ffi.String"))
_NUMBERS, _ELEMENT_TYPE = range(5), 5  # Static types of fields whose values are no nodes


def saved_json(root: Any) -> str:
    """Return what `tvm.ir.save_json` would write, but for the order of nodes."""
    if not CRASHES:
        return tvm.ir.save_json(root)
    graph = _Graph()
    number = graph.number(root)
    return json.dumps(
        {
            "root_index": number,
            "nodes": graph.nodes,
            "metadata": {"tvm_version": tvm.__version__},
        }
    )


class _Graph:
    def __init__(self) -> None:
        self.nodes: list[dict[str, Any]] = []
        self._known: dict[Any, int] = {}
        self._kept: list[Any] = []  # So that no handle is used twice

    def number(self, value: Any) -> int:
        """Return the number of a value's node."""
        is_plain = value is None or isinstance(value, (bool, int, float, str, tvm_ffi.dtype))
        key = (type(value), str(value)) if is_plain else value.__chandle__()
        if key not in self._known:
            node = self._node(value)
            self._known[key] = len(self.nodes)
            self.nodes.append(node)
            self._kept.append(value)
        return self._known[key]

    def _node(self, value: Any) -> dict[str, Any]:
        if value is None:
            return {"type": "None"}
        if isinstance(value, tvm_ffi.dtype):  # Which is a string, too.
            return {"type": "DataType", "data": str(value)}
        for kind, name in _PLAIN:
            if isinstance(value, kind):
                return {"type": name, "data": value}
        if isinstance(value, tvm_ffi.Array):
            return {"type": "ffi.Array", "data": [self.number(item) for item in value]}
        if isinstance(value, tvm_ffi.Map):
            pairs = [(self.number(key), self.number(item)) for key, item in value.items()]
            return {"type": "ffi.Map", "data": [number for pair in pairs for number in pair]}
        info = value.__tvm_ffi_type_info__
        write = _lookup_type_attr(info.type_index, "__data_to_json__")
        return {
            "type": info.type_key,
            "data": self._fields(value) if write is None else write(value),
        }

    def _fields(self, value: Any) -> dict[str, Any]:
        data, info = {}, value.__tvm_ffi_type_info__
        while info is not None:
            for field in info.fields:
                item, kind = field.getter(value), field.field_static_type_index
                if kind == _ELEMENT_TYPE:
                    data[field.name] = str(item)
                else:
                    data[field.name] = item if kind in _NUMBERS else self.number(item)
            info = info.parent_type_info
        return data
