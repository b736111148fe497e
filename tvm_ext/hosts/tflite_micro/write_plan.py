# SPDX-License-Identifier: Apache-2.0
"""Write a plan, and an order of operators, into a ``.tflite`` file; all else stays byte for byte.

Offsets in a FlatBuffer lead forward. So what is new, the table ``Model`` with longer lists of
buffers and metadata, stands before the old content, and leads to its parts.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from tvm_ext.hosts.tflite_micro.arena_head import ALIGNMENT
from tvm_ext.hosts.tflite_micro.read_model import (
    IDENTIFIER,
    NOT_PLANNED,
    PLAN_NAME,
    BufferField,
    FlatTable,
    MetadataField,
    Model,
    ModelField,
    plan_buffer,
    table_at,
)

VERSION = 1
"""The version of the format of ``OfflineMemoryAllocation``."""


def with_plan(model: Model, offsets: Sequence[int]) -> bytes:
    """Return a model's file with a plan, in the place of its own if it has one.

    Parameters
    ----------
    model : Model
        As read from a file.
    offsets : sequence of int
        An offset in bytes for each tensor of all subgraphs, or `NOT_PLANNED`.

    Raises
    ------
    ValueError
        If the file has fields of ``Model`` that are newer than this writer, or a variable in a
        later subgraph that would get no memory: ``AllocateVariables`` looks for its offset under
        the number of a tensor of the first one.
    """
    for subgraph, graph in enumerate(model.subgraphs):
        first = model.first_tensor(subgraph)
        for number, tensor in enumerate(graph.tensors):
            is_taken = offsets[number] != NOT_PLANNED == offsets[first + number]
            if tensor.is_variable and is_taken:
                raise ValueError(
                    f"{model.name}: with a plan, TensorFlow Lite Micro would give variable "
                    f"{tensor.name!r} no memory where its subgraph is not the first one: it takes "
                    f"the offset of tensor {number} of the first one for the variable's"
                )
    root = table_at(model.content)
    written = plan_buffer(root)
    if written is not None:
        table = list(root.tables(ModelField.BUFFERS))[written]
        begin, _ = table.vector(BufferField.DATA)
        content = bytearray(model.content)
        struct.pack_into(f"<{len(offsets)}i", content, begin + 12, *offsets)
        return bytes(content)
    return _Front(model, root).content(offsets)


def with_order(content: bytes, vector: int, order: Sequence[int]) -> bytes:
    """Return a file with the operators of one subgraph in another order.

    Parameters
    ----------
    content : bytes
        The file.
    vector : int
        Where the subgraph's list of operators begins in it, as in `Model.operator_vectors`.
    order : sequence of int
        The operators by their numbers, in the order in which they run; the first few alone are kept
        if the order is shorter than the list.
    """
    changed = bytearray(content)
    places = [vector + 4 * at for at in order]
    targets = [at + struct.unpack_from("<I", content, at)[0] for at in places]
    for number, target in enumerate(targets):
        at = vector + 4 * number
        struct.pack_into("<I", changed, at, target - at)
    struct.pack_into("<I", changed, vector - 4, len(order))
    return bytes(changed)


class _Front:
    """The bytes before the old content; positions are counted from their start."""

    def __init__(self, model: Model, root: FlatTable) -> None:
        self.model, self.root = model, root
        self.bytes = bytearray()
        self.old: list[tuple[int, int]] = []  # Places of offsets, and their targets
        if root.fields() > len(ModelField):
            raise ValueError(
                f"{model.name}: its table Model has fields that this writer cannot keep"
            )

    def content(self, offsets: Sequence[int]) -> bytes:
        self.bytes += bytes(4) + IDENTIFIER
        root, fields = self.model_table()
        self.lead(0, root)
        metadata = self.longer_list(ModelField.METADATA, fields)
        buffers = self.longer_list(ModelField.BUFFERS, fields)
        number = len(list(self.root.tables(ModelField.BUFFERS)))
        entry, places = self.table({MetadataField.NAME: 0, MetadataField.BUFFER: number})
        self.lead(metadata, entry)
        self.lead(places[MetadataField.NAME], self.align(4))
        self.bytes += struct.pack("<I", len(PLAN_NAME)) + PLAN_NAME.encode() + b"\0"
        buffer, places = self.table({BufferField.DATA: 0})
        self.lead(buffers, buffer)
        self.align(ALIGNMENT, before=4)
        self.lead(places[BufferField.DATA], len(self.bytes))
        words = (VERSION, 0, len(offsets), *offsets)
        self.bytes += struct.pack(f"<I{len(words)}i", 4 * len(words), *words)
        shift = self.align(ALIGNMENT)
        for at, target in self.old:
            self.lead(at, shift + target)
        return bytes(self.bytes) + self.model.content

    def model_table(self) -> tuple[int, dict[int, int]]:
        """Write the table ``Model`` with the fields of the old one, and return where they stand."""
        values: dict[int, int] = {field: 0 for field in ModelField if self.root.field(field)}
        if ModelField.VERSION in values:
            values[ModelField.VERSION] = self.root.scalar(ModelField.VERSION, "I")
        values |= {ModelField.BUFFERS: 0, ModelField.METADATA: 0}
        begin, places = self.table(values)
        for field, at in places.items():
            kept = self.root.field(field)
            if field not in (ModelField.VERSION, ModelField.BUFFERS, ModelField.METADATA):
                self.old.append((at, kept + struct.unpack_from("<I", self.root.content, kept)[0]))
        return begin, places

    def longer_list(self, field: int, fields: dict[int, int]) -> int:
        """Write a list of the old tables and one more; return the place of that one's offset."""
        self.lead(fields[field], self.align(4))
        old = [table.position for table in self.root.tables(field)]
        self.bytes += struct.pack("<I", len(old) + 1)
        for position in old:
            self.old.append((len(self.bytes), position))
            self.bytes += bytes(4)
        self.bytes += bytes(4)
        return len(self.bytes) - 4

    def table(self, values: dict[int, int]) -> tuple[int, dict[int, int]]:
        """Write a table of 32-bit fields; return where it begins, and where each field stands."""
        fields = sorted(values)
        size = 4 + 4 * len(fields)
        slots = [0] * (fields[-1] + 1)
        for at, field in enumerate(fields):
            slots[field] = 4 + 4 * at
        self.align(2)
        vtable = len(self.bytes)
        self.bytes += struct.pack(f"<{2 + len(slots)}H", 4 + 2 * len(slots), size, *slots)
        begin = self.align(4)
        self.bytes += struct.pack(f"<i{len(fields)}I", begin - vtable, *(values[f] for f in fields))
        return begin, {field: begin + slots[field] for field in fields}

    def lead(self, at: int, target: int) -> None:
        struct.pack_into("<I", self.bytes, at, target - at)

    def align(self, unit: int, before: int = 0) -> int:
        """Append zeros until the place after `before` more bytes is aligned; return the length."""
        self.bytes += bytes(-(len(self.bytes) + before) % unit)
        return len(self.bytes)
