# SPDX-License-Identifier: Apache-2.0
"""Models for TensorFlow Lite Micro, written by the schema's own Python code."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import flatbuffers
import numpy as np
from tflite_micro.tensorflow.lite.micro.python import schema_py_generated as schema

FLOAT, INT8, INT16, BOOL, INT32 = "FLOAT32", "INT8", "INT16", "BOOL", "INT32"
KINDS = {getattr(schema.TensorType, kind): kind for kind in (FLOAT, INT8, INT16, BOOL, INT32)}

# Kernels of int8 ask for these scales and zero points of their results.
FIXED = {
    "LOGISTIC": (1 / 256, -128),
    "SOFTMAX": (1 / 256, -128),
    "TANH": (1 / 128, 0),
    "LOG_SOFTMAX": (16 / 256, 127),
    "L2_NORMALIZATION": (1 / 128, 0),
}


def options_of(name: str) -> tuple[str, Any]:
    """Return the kind and the options of an operator that TensorFlow Lite Micro must have."""
    kind = {
        "ADD": "AddOptions",
        "ASSIGN_VARIABLE": "AssignVariableOptions",
        "CAST": "CastOptions",
        "CONCATENATION": "ConcatenationOptions",
        "DIV": "DivOptions",
        "IF": "IfOptions",
        "L2_NORMALIZATION": "L2NormOptions",
        "LEAKY_RELU": "LeakyReluOptions",
        "MUL": "MulOptions",
        "READ_VARIABLE": "ReadVariableOptions",
        "SOFTMAX": "SoftmaxOptions",
        "SPLIT": "SplitOptions",
        "SUB": "SubOptions",
        "VAR_HANDLE": "VarHandleOptions",
        "WHILE": "WhileOptions",
    }.get(name)
    if kind is None:
        return "NONE", None
    options = getattr(schema, f"{kind}T")()
    for field, value in (("beta", 1.0), ("alpha", 0.1)):
        if hasattr(options, field):
            setattr(options, field, value)
    return kind, options


class Graph:
    """One subgraph; tensors are known by their numbers."""

    def __init__(self, model: Made) -> None:
        self.model = model
        self.table = schema.SubGraphT()
        self.table.tensors, self.table.operators = [], []
        self.table.inputs, self.table.outputs = [], []

    def tensor(
        self,
        shape: Sequence[int],
        kind: str = FLOAT,
        data: np.ndarray[Any, Any] | None = None,
        quantized: tuple[float, int] = (0.1, 0),
        variable: bool = False,
    ) -> int:
        tensor = schema.TensorT()
        tensor.shape, tensor.isVariable = list(shape), variable
        tensor.type = getattr(schema.TensorType, kind)
        tensor.name = f"t{len(self.table.tensors)}"
        tensor.buffer = 0 if data is None else self.model.buffer(data)
        if kind == INT8:
            tensor.quantization = schema.QuantizationParametersT()
            tensor.quantization.scale = [quantized[0]]
            tensor.quantization.zeroPoint = [quantized[1]]
        self.table.tensors.append(tensor)
        return len(self.table.tensors) - 1

    def input(self, shape: Sequence[int], kind: str = FLOAT) -> int:
        self.table.inputs.append(self.tensor(shape, kind))
        return int(self.table.inputs[-1])

    def operator(
        self, name: str, inputs: Sequence[int], outputs: Sequence[int], **set_to: Any
    ) -> None:
        operator = schema.OperatorT()
        operator.opcodeIndex = self.model.code(name)
        operator.inputs, operator.outputs = list(inputs), list(outputs)
        kind, operator.builtinOptions = options_of(name)
        operator.builtinOptionsType = getattr(schema.BuiltinOptions, kind)
        for field, value in set_to.items():
            setattr(operator.builtinOptions, field, value)
        self.table.operators.append(operator)

    def apply(
        self,
        name: str,
        *inputs: int,
        shape: Sequence[int] | None = None,
        quantized: tuple[float, int] | None = None,
        **set_to: Any,
    ) -> int:
        """Add an operator, and return its result: like the last input, but for what is given."""
        kind = KINDS[self.table.tensors[inputs[-1]].type]
        shape = self.shape(inputs[-1]) if shape is None else shape
        made = self.tensor(shape, kind, quantized=quantized or FIXED.get(name, (0.1, 0)))
        self.operator(name, inputs, [made], **set_to)
        return made

    def shape(self, tensor: int) -> list[int]:
        return list(self.table.tensors[tensor].shape)

    def bytes(self, *outputs: int) -> bytes:
        """Return the model of this graph with these outputs."""
        self.table.outputs = list(outputs)
        return self.model.bytes()


class Made:
    """A model that is being made."""

    def __init__(self) -> None:
        self.table = schema.ModelT()
        self.table.version = 3
        self.table.buffers = [schema.BufferT()]
        self.table.operatorCodes, self.table.metadata, self.table.subgraphs = [], [], []
        self.names: list[str] = []

    def graph(self) -> Graph:
        made = Graph(self)
        self.table.subgraphs.append(made.table)
        return made

    def buffer(self, data: np.ndarray[Any, Any]) -> int:
        buffer = schema.BufferT()
        buffer.data = np.frombuffer(data.tobytes(), np.uint8)
        self.table.buffers.append(buffer)
        return len(self.table.buffers) - 1

    def code(self, name: str) -> int:
        if name not in self.names:
            code = schema.OperatorCodeT()
            code.builtinCode = getattr(schema.BuiltinOperator, name)
            code.deprecatedBuiltinCode = min(code.builtinCode, 127)
            code.version = 1
            self.names.append(name)
            self.table.operatorCodes.append(code)
        return self.names.index(name)

    def note(self, name: str, data: np.ndarray[Any, Any]) -> None:
        entry = schema.MetadataT()
        entry.name, entry.buffer = name, self.buffer(data)
        self.table.metadata.append(entry)

    def bytes(self) -> bytes:
        builder = flatbuffers.Builder(1024)
        builder.Finish(self.table.Pack(builder), b"TFL3")
        return bytes(builder.Output())


def new_graph() -> Graph:
    """Return the first subgraph of a new model."""
    return Made().graph()


def one_operator(name: str, kind: str, operands: int, shape: Sequence[int] = (1, 3, 5)) -> bytes:
    """Return a model of one operator, of which every operand has the result's shape."""
    graph = new_graph()
    out = BOOL if name.startswith(("EQUAL", "GREATER", "LESS", "NOT_EQUAL", "LOGICAL")) else kind
    inputs = [graph.input(shape, kind) for _ in range(operands)]
    if name == "SELECT_V2":
        inputs[0] = graph.table.inputs[0] = graph.tensor(shape, BOOL)
    if name == "RESHAPE":
        shape = tuple(reversed(shape))
        inputs.append(graph.tensor([3], INT32, np.array(shape, "int32")))
    if name == "EXPAND_DIMS":
        inputs.append(graph.tensor([1], INT32, np.array([0], "int32")))
        shape = (1, *shape)
    if name == "PRELU":
        extents = [1] * (len(shape) - 1) + [shape[-1]]
        data = np.linspace(-1, 1, shape[-1]).astype("float32" if kind == FLOAT else "int8")
        inputs.append(graph.tensor(extents, kind, data))
    result = graph.tensor(shape, out, quantized=FIXED.get(name, (0.05, 3)))
    graph.operator(name, inputs, [result])
    return graph.bytes(result)


def random_model(seed: int, size: int = 14) -> bytes:
    """Return a model of random operators: branches, joins, scratch memory, an if and a loop."""
    drawn, graph = random.Random(seed), new_graph()
    kind = drawn.choice((FLOAT, INT8))
    values = [graph.input([1, 2, drawn.randint(1, 4) * 4, 4], kind) for _ in range(2)]
    if drawn.random() < 0.4:
        values.append(_with_branches(graph, values[0]))
    if drawn.random() < 0.3:
        values.append(_with_loop(graph, values[1]))
    for _ in range(size):
        one = drawn.choice(values[-4:])
        shape = graph.shape(one)
        alike = [other for other in values if graph.shape(other) == shape]
        what = drawn.choice(("unary", "unary", "binary", "sum", "join", "split", "reshape"))
        same = _scale(graph, one)
        if what == "unary":
            name = drawn.choice(("RELU", "TANH", "LOGISTIC", "HARD_SWISH", "LEAKY_RELU", "SOFTMAX"))
            values.append(graph.apply(name, one))
        elif what == "binary":
            name = drawn.choice(("ADD", "SUB", "MUL"))
            values.append(graph.apply(name, one, drawn.choice(alike)))
        elif what == "sum":  # Of int8, it asks for scratch memory
            parts = [drawn.choice(alike) for _ in range(3)]
            if kind == INT8:
                parts = [part for part in parts if _scale(graph, part) == same]
            values.append(graph.apply("ADD_N", one, *parts))
        elif what == "join":
            other = drawn.choice([v for v in alike if _scale(graph, v) == same])
            extents = [*shape[:-1], 2 * shape[-1]]
            options = {"shape": extents, "quantized": same, "axis": len(shape) - 1}
            values.append(graph.apply("CONCATENATION", one, other, **options))
        elif what == "split" and shape[-1] % 2 == 0:
            extents = [*shape[:-1], shape[-1] // 2]
            parts = [graph.tensor(extents, kind, quantized=same) for _ in range(2)]
            axis = graph.tensor([], INT32, np.array([len(shape) - 1], "int32"))
            graph.operator("SPLIT", [axis, one], parts, numSplits=2)
            values += parts
        elif what == "reshape":
            extents = [1, int(np.prod(shape[:-1])), 1, shape[-1]]
            wanted = graph.tensor([4], INT32, np.array(extents, "int32"))
            values.append(graph.tensor(extents, kind, quantized=same))
            graph.operator("RESHAPE", [one, wanted], values[-1:])
    used = {int(t) for one in graph.table.operators for t in one.inputs}
    made_values = [v for v in values if v not in graph.table.inputs]
    return graph.bytes(*([v for v in made_values if v not in used] or made_values[-1:]))


def _scale(graph: Graph, tensor: int) -> tuple[float, int]:
    quantization = graph.table.tensors[tensor].quantization
    return (quantization.scale[0], quantization.zeroPoint[0]) if quantization else (0.1, 0)


def chosen(graph: Graph, condition: int, value: int, then: int, other: int) -> int:
    """Add an `IF` of two subgraphs by their numbers, and return its result."""
    result = graph.tensor(graph.shape(value), KINDS[graph.table.tensors[value].type])
    graph.operator(
        "IF", [condition, value], [result], thenSubgraphIndex=then, elseSubgraphIndex=other
    )
    return result


def _with_branches(graph: Graph, value: int) -> int:
    """Add an `IF` on a new input, whose branches keep values of their own."""
    for names in (("RELU", "TANH"), ("LOGISTIC",)):
        branch = graph.model.graph()
        first = now = branch.input(graph.shape(value), KINDS[graph.table.tensors[value].type])
        for name in names:
            now = branch.apply(name, now)
        branch.table.outputs = [branch.apply("ADD", now, first)]
    return chosen(graph, graph.input([1], BOOL), value, 1, 2)


def _with_loop(graph: Graph, value: int) -> int:
    """Add a `WHILE` of three rounds, whose body has a value that it carries."""
    shape, kind = graph.shape(value), KINDS[graph.table.tensors[value].type]
    one, condition = np.array([1], "int32"), graph.model.graph()
    count, _ = condition.input([1], INT32), condition.input(shape, kind)
    limit, more = condition.tensor([1], INT32, 3 * one), condition.tensor([1], BOOL)
    condition.operator("LESS", [count, limit], [more])
    condition.table.outputs = [more]
    body = graph.model.graph()
    count, first = body.input([1], INT32), body.input(shape, kind)
    step = body.tensor([1], INT32, one)
    now = body.apply("HARD_SWISH", body.apply("RELU", first))
    body.table.outputs = [body.apply("ADD", count, step), body.apply("ADD", now, first)]
    number = len(graph.model.table.subgraphs) - 2
    begin = graph.input([1], INT32)
    results = [graph.tensor([1], INT32), graph.tensor(shape, kind)]
    graph.operator(
        "WHILE", [begin, value], results, condSubgraphIndex=number, bodySubgraphIndex=number + 1
    )
    return results[1]
