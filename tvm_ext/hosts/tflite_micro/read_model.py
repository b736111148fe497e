# SPDX-License-Identifier: Apache-2.0
"""Read from a ``.tflite`` file what TensorFlow Lite Micro plans memory for.

Only the fields of `schema` are read; the places of operators in the file are kept, because a new
order is written over them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from tvm_ext.hosts.tflite_micro.schema import (
    IDENTIFIER,
    OPERATORS,
    PLAN_NAME,
    TENSOR_TYPES,
    TYPE_BYTES,
    BufferField,
    CodeField,
    MetadataField,
    ModelField,
    OperatorField,
    SubgraphField,
    TensorField,
)

NOT_PLANNED = -1
"""The offset in a plan of a tensor that TensorFlow Lite Micro places itself."""


@dataclass(frozen=True)
class TfliteTensor:
    """A tensor of one subgraph."""

    name: str
    shape: tuple[int, ...]
    type: str
    size: int  # Bytes, before they are rounded up to the arena's alignment
    is_constant: bool  # Whether the file, or a kernel, has its data
    is_variable: bool

    @property
    def in_arena(self) -> bool:
        """Whether the arena's head holds it: neither data of the file nor a variable."""
        return not self.is_constant and not self.is_variable and self.size > 0


@dataclass(frozen=True)
class Operator:
    """An operator: its name, its tensors by their numbers, and the subgraphs that it runs."""

    name: str
    inputs: tuple[int, ...]  # -1 stands for an operand that is left out
    outputs: tuple[int, ...]
    runs: tuple[int, ...] = ()

    @property
    def operands(self) -> tuple[int, ...]:
        """The operands that are there."""
        return tuple(tensor for tensor in self.inputs if tensor >= 0)


@dataclass(frozen=True)
class Subgraph:
    """Tensors and operators, in the order in which the operators run."""

    tensors: tuple[TfliteTensor, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    operators: tuple[Operator, ...]


@dataclass(frozen=True)
class Model:
    """A model, and the bytes that it was read from."""

    name: str
    content: bytes
    subgraphs: tuple[Subgraph, ...]
    plan: tuple[int, ...] | None  # The file's own: an offset in bytes for each tensor
    operator_vectors: tuple[int, ...]  # The lists of operators in the file

    @property
    def tensors(self) -> tuple[TfliteTensor, ...]:
        """The tensors of all subgraphs, in the order of a plan."""
        return tuple(tensor for subgraph in self.subgraphs for tensor in subgraph.tensors)

    def first_tensor(self, subgraph: int) -> int:
        """Return the number in a plan of a subgraph's first tensor."""
        return sum(len(earlier.tensors) for earlier in self.subgraphs[:subgraph])


def read_model(content: bytes, name: str) -> Model:
    """Read a model.

    Raises
    ------
    ValueError
        If the bytes are no ``.tflite`` model, or one that TensorFlow Lite Micro cannot hold: with
        data outside the FlatBuffer, compressed weights, or tensors of a type or size that it does
        not know. The message names the file and the tensor.
    ImportError
        If the package ``flatbuffers`` is missing.
    """
    if content[4:8] != IDENTIFIER:
        raise ValueError(f"{name}: is no model of TensorFlow Lite: the mark 'TFL3' is missing")
    try:
        return _ModelReader(content, name).model()
    except (struct.error, IndexError, TypeError, UnicodeDecodeError, OverflowError) as error:
        raise ValueError(f"{name}: the file is cut off or damaged: {error}") from error


class FlatTable:
    """A table of a FlatBuffer, whose fields are read by their numbers."""

    def __init__(self, content: bytes, position: int) -> None:
        try:
            from flatbuffers.table import Table as ByteTable
        except ImportError as error:
            raise ImportError(
                "reading a .tflite file needs the package 'flatbuffers' (pip install flatbuffers)"
            ) from error
        if not 0 < position < len(content):
            raise IndexError(f"an offset leads to byte {position} of {len(content)}")
        self._table: Any = ByteTable(content, position)
        self.content, self.position = content, position

    def fields(self) -> int:
        """Return how many fields the table may have."""
        (back,) = struct.unpack_from("<i", self.content, self.position)
        (size,) = struct.unpack_from("<H", self.content, self.position - back)
        return int(size - 4) // 2

    def field(self, number: int) -> int:
        """Return the position of a field, 0 if the table has none."""
        offset: int = self._table.Offset(4 + 2 * number)
        return self.position + offset if offset else 0

    def scalar(self, number: int, code: str) -> int:
        """Return a number, of one of the codes of `struct`; 0 where there is none."""
        position = self.field(number)
        return struct.unpack_from("<" + code, self.content, position)[0] if position else 0

    def vector(self, number: int) -> tuple[int, int] | None:
        """Return where the elements of a list begin, and their number; None without a list."""
        position = self.field(number)
        if not position:
            return None
        begin = position + struct.unpack_from("<I", self.content, position)[0]
        return begin + 4, struct.unpack_from("<I", self.content, begin)[0]

    def numbers(self, number: int) -> tuple[int, ...]:
        """Return a list of 32-bit integers."""
        begin, count = self.vector(number) or (0, 0)
        return struct.unpack_from(f"<{count}i", self.content, begin) if count else ()

    def tables(self, number: int) -> Iterator[FlatTable]:
        """Yield a list of tables."""
        begin, count = self.vector(number) or (0, 0)
        for at in range(begin, begin + 4 * count, 4):
            yield FlatTable(self.content, at + struct.unpack_from("<I", self.content, at)[0])

    def table(self, number: int) -> FlatTable | None:
        """Return the table that a field leads to."""
        at = self.field(number)
        if not at:
            return None
        return FlatTable(self.content, at + struct.unpack_from("<I", self.content, at)[0])

    def text(self, number: int) -> str:
        """Return a string, empty if there is none."""
        begin, count = self.vector(number) or (0, 0)
        return self.content[begin : begin + count].decode("utf-8", "replace")


def root_of(content: bytes) -> FlatTable:
    """Return the table ``Model`` of a file."""
    return FlatTable(content, struct.unpack_from("<I", content)[0])


def plan_buffer(root: FlatTable) -> int | None:
    """Return the number of the buffer in which a file has its plan, None if it has none."""
    entries = root.tables(ModelField.METADATA)
    plans = [entry for entry in entries if entry.text(MetadataField.NAME) == PLAN_NAME]
    return plans[-1].scalar(MetadataField.BUFFER, "I") if plans else None


class _ModelReader:
    def __init__(self, content: bytes, name: str) -> None:
        self.content, self.name = content, name
        self.root = root_of(content)
        self.buffers = list(self.root.tables(ModelField.BUFFERS))
        outside = any(each.scalar(BufferField.OFFSET, "Q") > 1 for each in self.buffers)
        if outside or any(True for _ in self.root.tables(ModelField.EXTERNAL_BUFFERS)):
            raise ValueError(
                f"{name}: keeps data outside its FlatBuffer, where TensorFlow Lite Micro reads none"
            )
        names = {entry.text(MetadataField.NAME) for entry in self.root.tables(ModelField.METADATA)}
        if "COMPRESSION_METADATA" in names:
            raise ValueError(
                f"{name}: has compressed weights, whose scratch memory this reader does not know"
            )
        self.codes = [self.operator_name(c) for c in self.root.tables(ModelField.OPERATOR_CODES)]

    def model(self) -> Model:
        tables = list(self.root.tables(ModelField.SUBGRAPHS))
        if not tables:
            raise ValueError(f"{self.name}: the model has no subgraph")
        subgraphs = tuple(self.subgraph(table) for table in tables)
        for number, subgraph in enumerate(subgraphs):
            self.check(number, subgraph, len(subgraphs))
        vectors = tuple((t.vector(SubgraphField.OPERATORS) or (0, 0))[0] for t in tables)
        count = sum(len(subgraph.tensors) for subgraph in subgraphs)
        return Model(self.name, self.content, subgraphs, self.plan(count), vectors)

    def plan(self, count: int) -> tuple[int, ...] | None:
        number = plan_buffer(self.root)
        if number is None:
            return None
        begin, size = self.buffers[number].vector(BufferField.DATA) or (0, 0)
        words = struct.unpack_from(f"<{size // 4}i", self.content, begin) if size else ()
        offsets = words[3 : 3 + words[2]] if len(words) > 2 else ()
        if len(offsets) != count:
            raise ValueError(
                f"{self.name}: its {PLAN_NAME} has {len(offsets)} offsets, and the model {count} "
                "tensors"
            )
        return offsets

    def operator_name(self, code: FlatTable) -> str:
        old = code.scalar(CodeField.DEPRECATED_BUILTIN_CODE, "b")
        number = max(old, code.scalar(CodeField.BUILTIN_CODE, "i"))
        name = OPERATORS[number] if 0 <= number < len(OPERATORS) else f"operator {number}"
        custom = code.text(CodeField.CUSTOM_CODE)
        return f"{name} {custom}" if name == "CUSTOM" else name

    def subgraph(self, table: FlatTable) -> Subgraph:
        operators = tuple(self.operator(one) for one in table.tables(SubgraphField.OPERATORS))
        # The kernel of VAR_HANDLE keeps its result, a number, itself.
        held = {tensor for one in operators if one.name == "VAR_HANDLE" for tensor in one.outputs}
        tensors = enumerate(table.tables(SubgraphField.TENSORS))
        return Subgraph(
            tuple(self.tensor(each, at, at in held) for at, each in tensors),
            table.numbers(SubgraphField.INPUTS),
            table.numbers(SubgraphField.OUTPUTS),
            operators,
        )

    def tensor(self, table: FlatTable, number: int, is_held: bool) -> TfliteTensor:
        label = table.text(TensorField.NAME) or f"tensor {number}"
        code = table.scalar(TensorField.TYPE, "b")
        kind = TENSOR_TYPES[code] if 0 <= code < len(TENSOR_TYPES) else f"type {code}"
        if kind not in TYPE_BYTES:
            raise ValueError(
                f"{self.name}: tensor {label!r} is of type {kind}, which TensorFlow Lite Micro "
                "cannot hold"
            )
        shape = table.numbers(TensorField.SHAPE)
        if any(extent < 0 for extent in shape):
            raise ValueError(f"{self.name}: tensor {label!r} has the unknown shape {list(shape)}")
        buffer = self.buffers[table.scalar(TensorField.BUFFER, "I")]
        has_data = is_held or bool((buffer.vector(BufferField.DATA) or (0, 0))[1])
        variable = bool(table.scalar(TensorField.IS_VARIABLE, "b"))
        size = prod(shape) * TYPE_BYTES[kind]
        if size >= 1 << 30:  # So that a plan's offsets, of 32 bits, hold it
            raise ValueError(f"{self.name}: tensor {label!r} is too large, of {size} bytes")
        return TfliteTensor(label, shape, kind, size, has_data, variable)

    def operator(self, table: FlatTable) -> Operator:
        name = self.codes[table.scalar(OperatorField.OPCODE_INDEX, "I")]
        options = table.table(OperatorField.BUILTIN_OPTIONS)
        # IfOptions and WhileOptions have two numbers of subgraphs, CallOnceOptions has one.
        count = {"IF": 2, "WHILE": 2, "CALL_ONCE": 1}.get(name, 0)
        runs = tuple(options.scalar(at, "i") if options else 0 for at in range(count))
        inputs, outputs = table.numbers(OperatorField.INPUTS), table.numbers(OperatorField.OUTPUTS)
        return Operator(name, inputs, outputs, runs)

    def check(self, number: int, subgraph: Subgraph, count: int) -> None:
        """Refuse a number of a tensor or subgraph that the file does not have."""
        last = len(subgraph.tensors) - 1
        touched = [t for one in subgraph.operators for t in (*one.operands, *one.outputs)]
        for tensor in (*subgraph.inputs, *subgraph.outputs, *touched):
            if not 0 <= tensor <= last:
                raise ValueError(
                    f"{self.name}: subgraph {number} uses tensor {tensor}, its last one is {last}"
                )
        for one in subgraph.operators:
            if any(not number < other < count for other in one.runs):
                # A subgraph that runs itself, or an earlier one, would have no end.
                raise ValueError(
                    f"{self.name}: subgraph {number} runs subgraph {one.runs} by {one.name}, "
                    f"of {count} subgraphs"
                )


def called_tensor(tensors: Sequence[TfliteTensor], number: int) -> str:
    """Return a name for a tensor that no other of its subgraph has."""
    name = tensors[number].name
    repeated = sum(tensor.name == name for tensor in tensors) > 1
    return f"{name} (tensor {number})" if repeated else name
