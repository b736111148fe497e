# SPDX-License-Identifier: Apache-2.0
"""What the statements of a kernel do with its buffers, read off the IR by the words of the chip.

Shares no code with the analysis that it is held against.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import TensorLoad
from tvm.tirx import BufferStore, For, SeqStmt
from tvm.tirx.stmt import AttrStmt

GLOBAL = ("global", "global.workspace")

PIPES = {
    # Written scope, and the set of those read: on-chip names without their rank.
    ("UB", frozenset({"global"})): "MTE2",
    ("L1", frozenset({"global"})): "MTE2",
    ("L0A", frozenset({"L1"})): "MTE1",
    ("L0B", frozenset({"L1"})): "MTE1",
    ("global", frozenset({"UB"})): "MTE3",
    ("global", frozenset({"L0C"})): "FIX",
    ("UB", frozenset()): "V",
    ("UB", frozenset({"UB"})): "V",
    ("L0C", frozenset({"L0A", "L0B", "L0C"})): "M",
}


@dataclass
class Instruction:
    """One loop nest."""

    pipe: str
    writes: list[Any] = field(default_factory=list)
    reads: list[Any] = field(default_factory=list)


def memory_of(buffer: Any) -> str:
    scope = str(buffer.ty.storage_scope)
    return "global" if scope in GLOBAL else scope.partition(".")[2]


def instructions(func: tirx.PrimFunc) -> list[Instruction]:
    """Return the loop nests of a function that has no branches around them, in order."""
    found: list[Instruction] = []
    _descend(func.body, None, found)
    return found


def _descend(stmt: Any, pipe: str | None, found: list[Instruction]) -> None:
    if isinstance(stmt, SeqStmt):
        for part in stmt.seq:
            _descend(part, pipe, found)
    elif isinstance(stmt, AttrStmt):
        assert stmt.attr_key == "pipe"
        _descend(stmt.body, str(stmt.value.value), found)
    elif isinstance(stmt, For) and _is_outer(stmt.body):
        _descend(stmt.body, pipe, found)
    elif isinstance(stmt, For):
        found.append(_instruction(stmt, pipe))
    else:
        assert isinstance(stmt, tirx.AllocBuffer | tirx.DeclBuffer), type(stmt)


def _is_outer(body: Any) -> bool:
    """Whether a loop's body is more than one instruction: it allocates."""
    if isinstance(body, For):
        return _is_outer(body.body)
    return isinstance(body, SeqStmt) and any(isinstance(p, tirx.AllocBuffer) for p in body.seq)


def _instruction(nest: For, pipe: str | None) -> Instruction:
    made = Instruction(pipe or "")

    def note(store: BufferStore) -> None:
        made.writes.append(store.buffer)
        tvm_ffi.structural_walk(
            store.value, (TensorLoad, lambda load: made.reads.append(load.source))
        )

    tvm_ffi.structural_walk(nest, (BufferStore, note))
    (target,) = {buffer.__chandle__(): buffer for buffer in made.writes}.values()
    if pipe is None:
        made.pipe = PIPES[memory_of(target), frozenset(map(memory_of, made.reads))]
    return made
