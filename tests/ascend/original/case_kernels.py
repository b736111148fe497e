# SPDX-License-Identifier: Apache-2.0
"""Worked cases of AscendNPU-IR's PlanMemory as kernels, made of their operations.

A load copies global memory to UB, a store copies back, and a vector instruction is a loop nest.
Buffers have one dimension, since that is what the planner sees. The buffers that some instructions
need beside their result are left out, as they exist only once instructions are chosen. Cases with
views, with what a loop or branch hands on, or with other operations are written by hand: see
`worked_kernels`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ascend_notation import Case, Row
from program_text import program
from tvm import tirx

MANY = 1 << 17
"""Elements of an argument; no case reads or writes more of it."""

TYPES = {"i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64"} | {
    "f16": "float16",
    "f32": "float32",
}
VALUES = {
    "vadd": "{} + {}",
    "vsub": "{} - {}",
    "vmul": "{} * {}",
    "vdiv": "{} / {}",
    "vand": "{} & {}",
    "vabs": "T.fabs({})",
    "vcast": "T.cast({}, '{dtype}')",
}
"""The element that an instruction computes; what lacks an operand has the number 3 in its place."""

Block = tuple[int, ...]
"""The blocks around an operation, by the numbers in which they begin, outermost first."""


class Unwritten(Exception):  # noqa: N818
    """Says that a case has an operation that is not written here."""


def kernel_of(case: Case) -> tirx.PrimFunc | None:
    """Return a case as a kernel; None where it has to be written by hand."""
    try:
        body = list(_Writer(case).lines())
    except Unwritten:
        return None
    used = sorted(set(re.findall(r"\b[xy]_(\w+)\[", "\n".join(body))))
    arguments = ", ".join(f"{name}_{dtype}: {MANY} {dtype}" for name in "xy" for dtype in used)
    return program("\n".join([f"def main({arguments}):", *body]))


def _name(buffer: str) -> str:
    return f"b{buffer}" if buffer.isdigit() else buffer


class _Writer:
    def __init__(self, case: Case) -> None:
        self._rows = {row.name: row for row in case.buffers}
        self._marks: dict[str, list[str]] = {}
        self._steps: list[tuple[Block, str]] = []  # Operations, and the heads of blocks
        blocks: list[int] = []
        # Iterations take turns with slots, so a case that has slots has a loop.
        looped = "for{" not in case.ops and any(row.slots > 1 for row in case.buffers)
        for text in re.split(r"; (?=[t}])", f"t0 for{{; {case.ops}" if looped else case.ops):
            step = re.sub(r"^}?t\d+ ?", "", text)
            if text.startswith("}"):
                blocks.pop()
            if step.endswith("{"):
                self._steps.append((tuple(blocks), step))
                blocks.append(len(self._steps))
            elif mark := re.fullmatch(r"mark (\w+) {(.*)}", step):
                kinds = {"mem_unique", "preload_local_buffer"}
                self._marks[mark[1]] = [k for k in mark[2].split(", ") if k in kinds]
            elif step:
                self._steps.append((tuple(blocks), step))

    def lines(self) -> Iterator[str]:
        homes = self._homes()
        written: set[Block] = set()
        for block, step in self._steps:
            if block not in written:
                written.add(block)
                yield from (self._allocation(name, block) for name in homes.get(block, ()))
            space = "    " * (len(block) + 1)
            # Lowered, a scope is what stands in it.
            heads = {"for{": "for t in range(8):", "scope{": "if True:", "else{": "else:"}
            if step == "if{":
                dtype = TYPES[next(iter(self._rows.values())).dtype]
                yield f"{space}if x_{dtype}[0] > T.{dtype}(3):"
            elif step in heads:
                yield f"{space}{heads[step]}"
            else:
                yield from (space + line for line in self._operation(step))

    def _homes(self) -> dict[Block, list[str]]:
        """Return the buffers that are allocated in each block: where all their uses are."""
        homes: dict[str, Block] = {}
        for block, step in self._steps:
            for name in re.findall(r"[\w.]+", step.split(" tmp ")[0].partition("(")[2]):
                if name in self._rows:
                    known = homes.get(name, block)
                    same = [a == b for a, b in zip(known, block, strict=False)] + [False]
                    homes[name] = block[: same.index(False)]
        found: dict[Block, list[str]] = {}
        for name, block in homes.items():
            found.setdefault(block, []).append(name)
        return found

    def _allocation(self, name: str, block: Block) -> str:
        row = self._rows[name]
        if row.scope != "ub" or row.dtype not in TYPES or row.strides:
            raise Unwritten
        noted: dict[str, int | bool] = dict.fromkeys(self._marks.get(name, ()), True)
        noted |= {"multi_buffer": row.slots} if row.slots > 1 else {}
        array = f"{row.elements} {TYPES[row.dtype]}"
        return f"{'    ' * (len(block) + 1)}{_name(name)}: local.UB {array}" + (
            f" {noted}" if noted else ""
        )

    def _operation(self, step: str) -> Iterator[str]:
        found = re.fullmatch(r"(\w+)\(([\w,]*)\)→(\w+)(?: tmp [\w,]+)?(?: brc\[\d\])?", step)
        # There, a temporary keeps a cast out of place.
        if found is None or (step.startswith("vcast") and " tmp " in step):
            raise Unwritten
        word, given, to = found.groups()
        row = self._rows[given if to == "gm" else to]
        count, dtype = row.elements, TYPES[row.dtype]
        if word == "load":
            yield f"{_name(to)}[i] = x_{dtype}[i] for i in range({count})"
        elif word == "store":
            yield f"y_{dtype}[i] = {_name(given)}[i] for i in range({count})"
        elif word == "vreduce":
            read = self._rows[given]
            yield f"for i in range({count}):"
            yield f"    {_name(to)}[i] = T.{dtype}(-7)"
            yield "    for k in range(2):"
            value = f"{_name(given)}[(i + k) % {read.elements}]"
            yield f"        {_name(to)}[i] = T.max({_name(to)}[i], {value})"
        elif word in VALUES:
            extents = [int(extent) for extent in row.dims]
            loops = [f"i{n}" for n in range(len(extents))]
            operands = [self._rows[name] for name in given.split(",")]
            if all(operand.elements == count for operand in operands):
                extents, loops = [count], ["i"]
            read = [f"{_name(o.name)}[{_index(loops, extents, o)}]" for o in operands]
            value = VALUES[word].format(*read, f"T.{dtype}(3)", dtype=dtype)
            store = f"{_name(to)}[{_index(loops, extents, row)}] = {value}"
            yield f"{store} for {', '.join(loops)} in T.grid({', '.join(map(str, extents))})"
        else:
            raise Unwritten


def _index(loops: list[str], extents: list[int], row: Row) -> str:
    """Return the index of a buffer in loops over a result, in which its extents of 1 stay."""
    own = [int(extent) for extent in row.dims] if len(loops) > 1 else extents
    terms, stride = [], 1
    for loop, extent in zip(reversed(loops), reversed(own), strict=True):
        terms += [f"{loop} * {stride}" if stride > 1 else loop] if extent > 1 else []
        stride *= extent
    return " + ".join(reversed(terms))
