# SPDX-License-Identifier: Apache-2.0
"""Graphs of ops, and oracles of their placement that share no code with what they judge.

`NaiveTable` is the table of Sophgo's strategy as nothing but lists. By storage it counts the reads
of a tensor and its reshapes together; by value, as the original does, each name for itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from hypothesis import strategies as st

from passes.planning import Buffer, Problem
from target_hw.memory import MemoryScope

PASSED_ON = ("return", "func")
"""Kinds whose results are not placed, and whose operands somebody else may still read."""


class Value(NamedTuple):
    """What an op makes: name, bytes, and the bytes that its offset is a multiple of."""

    name: str
    size: int
    alignment: int = 1


class Op(NamedTuple):
    """A step of a graph; the result of a ``reshape`` is another name of its first operand."""

    name: str
    kind: str
    operands: tuple[str, ...]
    results: tuple[Value, ...]


class Graph(NamedTuple):
    """Ops in the order in which they run."""

    ops: tuple[Op, ...]

    @property
    def root(self) -> dict[str, str]:
        """The first name of each value's memory."""
        root: dict[str, str] = {}
        for op in self.ops:
            for value in op.results:
                root[value.name] = root[op.operands[0]] if op.kind == "reshape" else value.name
        return root

    @property
    def placed(self) -> list[str]:
        """The values whose memory is placed, in order."""
        outside = {v.name for op in self.ops if op.kind in PASSED_ON for v in op.results}
        root = self.root
        return [v.name for op in self.ops for v in op.results if root[v.name] not in outside]


def op(name: str, kind: str, operands: str = "", results: tuple = ()) -> Op:
    """Return an op; operands and results in short: ``op("add", "add", "ab", [("c", 64)])``."""
    return Op(name, kind, tuple(operands), tuple(Value(*result) for result in results))


def problem_of(graph: Graph, memory: MemoryScope | None = None) -> Problem:
    """Return what a planner is asked: positions are indices of the ops.

    Memory lives from the op that makes it to the last that reads any name of it. It lives on to a
    position behind all ops if a name is never read, or is read last by an op that passes it on.
    """
    root, placed = graph.root, graph.placed
    end: dict[str, int] = {}
    read: set[str] = set()
    for position, one in enumerate(graph.ops):
        for operand in one.operands:
            read.add(operand)
            kept = one.kind in (*PASSED_ON, "reshape")
            end[root[operand]] = len(graph.ops) + 1 if kept else position + 1
    for name in placed:
        if name not in read:
            end[root[name]] = len(graph.ops) + 1
    buffers = [
        Buffer(value.name, value.size, ((position, end[value.name]),), value.alignment)
        for position, one in enumerate(graph.ops)
        for value in one.results
        if value.name in placed and root[value.name] == value.name
    ]
    return Problem(tuple(buffers), memory or MemoryScope("global", alignment=1))


@st.composite
def graphs(draw: Callable, most_ops: int = 12, most_size: int = 5) -> Graph:
    """Graphs with skips, several results, reshapes, unread and empty values, and parameters."""
    sizes: dict[str, int] = {}
    ops = []
    for index in range(draw(st.integers(1, most_ops))):
        names = list(sizes)
        operands = tuple(draw(st.lists(st.sampled_from(names), max_size=3))) if names else ()
        kind = draw(st.sampled_from(["op"] * 6 + ["reshape"] * 2 + list(PASSED_ON)))
        if kind == "reshape" and not operands:
            kind = "op"
        if kind == "reshape":
            results = (Value(f"v{len(sizes)}", sizes[operands[0]]),)
        else:
            count = draw(st.sampled_from([0, 1, 1, 1, 1, 2, 3]))
            results = tuple(
                Value(
                    f"v{len(sizes) + at}",
                    draw(st.integers(0, most_size)),
                    draw(st.sampled_from([1, 1, 1, 2, 4])),
                )
                for at in range(count)
            )
        ops.append(Op(f"op{index}", kind, operands, results))
        sizes.update((value.name, value.size) for value in results)
    return Graph(tuple(ops))


# The table as the original keeps it: scanned from the front, for every result.


@dataclass
class NaiveTable:
    """The strategy with nothing but lists."""

    graph: Graph
    base: int
    alignment: int
    by_value: bool
    address: dict[str, int] = field(default_factory=dict)
    steps: list[tuple] = field(default_factory=list)
    """Of each value with an address: name, decision, source, values held, addresses in use."""

    def run(self) -> NaiveTable:
        self.cursor = self.base
        self.table: list[tuple[str, int, int]] = []  # value, address, bytes
        self.hold: list[str] = []
        self.owners: list[tuple[int, str]] = []  # address, whose
        self.readers: dict[str, int] = {}
        names = self.graph.root
        self.root = {name: name for name in names} if self.by_value else names
        for one in self.graph.ops:
            self.visit(one)
        return self

    def all_readers(self, name: str) -> int:
        """Return how many operands are this value, or share its root."""
        ops, root = self.graph.ops, self.root
        count = sum(root[o] == root[name] for one in ops for o in one.operands)
        if not self.by_value:
            read = {o for one in ops for o in one.operands}
            placed = self.graph.placed
            count += sum(n not in read and root[n] == root[name] for n in placed)
        return count

    def visit(self, one: Op) -> None:
        for operand in one.operands:
            root = self.root[operand]
            if self.readers.get(root, 0) >= 1:
                self.readers[root] -= 1
        if one.kind in PASSED_ON:
            return
        if one.kind == "reshape":
            for value in one.results:
                if one.operands[0] in self.address:
                    self.record(value, self.address[one.operands[0]])
                    self.note(value.name, "share", one.operands[0])
            return
        for value in one.results:
            source = self.scan(one, value)
            if source is None:
                unit = self.alignment
                while unit % value.alignment:
                    unit += self.alignment
                address = -(-self.cursor // unit) * unit
                self.cursor = -(-(address + value.size) // self.alignment) * self.alignment
            else:
                address = self.address[source]
            self.record(value, address)
            self.release(one)
            self.note(value.name, "new" if source is None else "reuse", source)
        if not one.results and not self.by_value:
            self.release(one)

    def note(self, name: str, decision: str, source: str | None) -> None:
        in_use = tuple(sorted({address for address, _ in self.owners}))
        self.steps.append((name, decision, source, tuple(self.hold), in_use))

    def record(self, value: Value, address: int) -> None:
        root = self.root[value.name]
        self.address[value.name] = address
        self.table.append((value.name, address, value.size))
        self.hold.append(value.name)
        if (address, root) not in self.owners:
            self.owners.append((address, root))
        if root not in self.readers:
            self.readers[root] = self.all_readers(value.name)

    def scan(self, one: Op, value: Value) -> str | None:
        for name, address, size in self.table:
            if name in self.hold or address in [at for at, _ in self.owners]:
                continue
            if self.readers[self.root[name]] > 0 or size < value.size:
                continue
            if address in [self.address.get(operand) for operand in one.operands]:
                continue
            if address % value.alignment:
                continue
            return name
        return None

    def release(self, one: Op) -> None:
        for operand in one.operands:
            root = self.root[operand]
            if root in self.hold and self.readers[root] == 0:
                address = self.address[root]
                self.owners = [
                    (at, whose)
                    for at, whose in self.owners
                    if at != address or (whose != root and not self.by_value)
                ]
                self.hold = [name for name in self.hold if self.root[name] != root]


# What a machine would do: run the graph on real bytes.


class OverwrittenError(AssertionError):
    """An operand is not what was written."""


def replay(graph: Graph, offsets: dict[str, int]) -> int:
    """Run a graph on one memory, and return how many bytes were checked.

    Each op checks its operands. What is over is wiped, and what somebody else may still want is
    checked at the end.
    """
    root, placed = graph.root, graph.placed
    size = {value.name: value.size for one in graph.ops for value in one.results}
    read = {operand for one in graph.ops for operand in one.operands}
    kept = {root[name] for name in placed if name not in read}
    last = {root[o]: index for index, one in enumerate(graph.ops) for o in one.operands}
    memory: dict[int, tuple[str, int]] = {}

    def check(name: str, reader: str) -> int:
        for byte in range(size[name]):
            found = memory.get(offsets[root[name]] + byte)
            if found != (root[name], byte):
                raise OverwrittenError(f"{reader} finds {found} in {name!r}")
        return size[name]

    checked = 0
    for index, one in enumerate(graph.ops):
        checked += sum(check(operand, one.name) for operand in one.operands if operand in placed)
        for value in one.results:
            if value.name in placed and root[value.name] == value.name:
                for byte in range(value.size):
                    memory[offsets[value.name] + byte] = value.name, byte
        if one.kind in PASSED_ON:
            kept.update(root[o] for o in one.operands if last[root[o]] == index)
            continue
        for name in dict.fromkeys(root[operand] for operand in one.operands):
            if last[name] == index and name not in kept and name in placed:
                for byte in range(size[name]):
                    memory[offsets[name] + byte] = "wiped", byte
    for name in placed:
        if root[name] in kept:
            check(name, "the end")
    return checked
