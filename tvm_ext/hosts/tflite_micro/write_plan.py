# SPDX-License-Identifier: Apache-2.0
"""Write a plan, and an order of operators, into a ``.tflite`` file; all else stays byte for byte.

Offsets in a FlatBuffer lead forward. So what is new, the table ``Model`` with longer lists of
buffers and metadata, stands before the old content, and leads to its parts.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple

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
    return _front(model, root, offsets) + model.content


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


class _Old(NamedTuple):
    """An offset that leads to a byte of the old content."""

    position: int


_Word = int | str | _Old
"""32 bits: a number, or the offset of a part of the front, by its name, or of the old content."""


def _front(model: Model, root: FlatTable, offsets: Sequence[int]) -> bytes:
    """Return the bytes that stand before the old content."""
    if root.fields() > len(ModelField):
        raise ValueError(f"{model.name}: its table Model has fields that this writer cannot keep")
    words: list[_Word] = ["root", *_words(IDENTIFIER)]
    begins: dict[str, int] = {}

    def add_table(name: str, values: Mapping[int, _Word]) -> None:
        fields = sorted(values)
        slots = [0] * (fields[-1] + 1)
        for at, field in enumerate(fields):
            slots[field] = 4 + 4 * at
        sizes = 4 + 2 * len(slots), 4 + 4 * len(fields)
        vtable = _words(struct.pack(f"<{2 + len(slots)}H", *sizes, *slots))
        words.extend(vtable)
        begins[name] = len(words)
        words.extend((4 * len(vtable), *(values[field] for field in fields)))

    values: dict[int, _Word] = {}
    for field in ModelField:
        if at := root.field(field):
            values[field] = _Old(at + struct.unpack_from("<I", model.content, at)[0])
    if ModelField.VERSION in values:
        values[ModelField.VERSION] = root.scalar(ModelField.VERSION, "I")
    add_table("root", values | {ModelField.BUFFERS: "buffers", ModelField.METADATA: "metadata"})
    counts = {}
    for name, kept in (("metadata", ModelField.METADATA), ("buffers", ModelField.BUFFERS)):
        old = [_Old(table.position) for table in root.tables(kept)]
        begins[name], counts[name] = len(words), len(old)
        words += [len(old) + 1, *old, f"last of {name}"]
    entry: dict[int, _Word] = {MetadataField.NAME: "name", MetadataField.BUFFER: counts["buffers"]}
    add_table("last of metadata", entry)
    begins["name"] = len(words)
    words += [len(PLAN_NAME), *_words(PLAN_NAME.encode() + b"\0")]
    add_table("last of buffers", {BufferField.DATA: "data"})
    unit = ALIGNMENT // 4
    words += [0] * (-(len(words) + 1) % unit)  # The data comes after its length
    begins["data"] = len(words)
    plan = (VERSION, 0, len(offsets), *offsets)
    words += [4 * len(plan), *plan]
    words += [0] * (-len(words) % unit)
    end = 4 * len(words)

    def number(at: int, word: _Word) -> int:
        if isinstance(word, int):
            return word % (1 << 32)
        target = end + word.position if isinstance(word, _Old) else 4 * begins[word]
        return target - 4 * at

    return struct.pack(f"<{len(words)}I", *(number(at, word) for at, word in enumerate(words)))


def _words(content: bytes) -> tuple[int, ...]:
    """Return bytes as words, filled up with zeros."""
    content += bytes(-len(content) % 4)
    return struct.unpack(f"<{len(content) // 4}I", content)
