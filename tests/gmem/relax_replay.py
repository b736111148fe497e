# SPDX-License-Identifier: Apache-2.0
"""Replays a planned Relax function and tracks, byte by byte, whose value each of them holds.

It follows one path through the function and knows nothing of live ranges: a tensor at an offset
owns its bytes from when a call touches it. When a later call touches it, they must all be its own
still. What may be kept is looked at once more at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from measured_memory import value_of
from tvm import relax
from tvm.tirx import IntImm, PrimFunc


@dataclass(frozen=True, eq=False)
class Piece:
    """A tensor in a storage: bytes from `begin` up to `end`.

    `owner` is the storage: for each byte, which tensor's it is.
    """

    name: str
    begin: int
    end: int
    owner: np.ndarray


class Replay:
    """One call of one function.

    Parameters
    ----------
    mod : tvm.IRModule
        Planned, but not yet lowered further.
    name : str
        The function.
    take : callable
        Which branch of each `if` to take, in the order in which they are met.
    sizes : mapping of str to int, optional
        What symbolic dimensions are; those that are not in it are 1.
    """

    def __init__(
        self,
        mod: tvm.IRModule,
        name: str,
        take: Callable[[], bool],
        sizes: Mapping[str, int] | None = None,
    ) -> None:
        self.mod, self.func, self.take, self.sizes = mod, mod[name], take, sizes or {}
        self.values: dict[int, Any] = {}
        self.written: dict[int, Piece] = {}
        self.kept: list[Any] = []
        self.storages = 0
        self.touches = 0

    def __call__(self) -> Replay:
        for param in self.func.params:
            self.values[param.__chandle__()] = None
        self.kept.append(self.sequence(self.func.body))
        for value in self.kept:
            for piece in pieces(value):
                self.check(piece, "the end")
        return self

    def sequence(self, expr: Any) -> Any:
        for block in expr.blocks:
            for binding in block.bindings:
                self.values[binding.var.__chandle__()] = self.value(
                    binding.value, str(binding.var.name)
                )
        return self.value(expr.body, "the result")

    def value(self, expr: Any, name: str) -> Any:
        if isinstance(expr, tvm.ir.GlobalVar):
            return None
        if isinstance(expr, relax.Var):
            return self.values.get(expr.__chandle__())
        if isinstance(expr, relax.Tuple):
            return tuple(self.value(field, name) for field in expr.fields)
        if isinstance(expr, relax.TupleGetItem):
            whole = self.value(expr.tuple_value, name)
            return None if whole is None else whole[expr.index]
        if isinstance(expr, relax.If):
            self.touch(self.value(expr.cond, name), name)
            return self.sequence(expr.true_branch if self.take() else expr.false_branch)
        if isinstance(expr, relax.Call):
            return self.call(expr, name)
        return None

    def call(self, call: Any, name: str) -> Any:
        op = call.op
        if isinstance(op, tvm.ir.Op):
            if op.name == "relax.memory.alloc_storage":
                self.storages += 1
                return np.zeros(self.size(call.args[0].values[0]), "int64")
            if op.name == "relax.memory.alloc_tensor":
                return self.piece(call, name)
            if op.name in ("relax.reshape", "relax.memory.view", "relax.memory.ensure_zero_offset"):
                return self.value(call.args[0], name)
            assert op.name == "relax.builtin.alloc_tensor", op.name
            return None
        arguments = [self.value(argument, name) for argument in call.args]
        for argument in arguments:
            self.touch(argument, name)
        if not isinstance(op, tvm.ir.GlobalVar) and not call.ty_args:
            return None  # Destination-passing style.
        if not (isinstance(op, tvm.ir.GlobalVar) and isinstance(self.mod[op], PrimFunc)):
            self.kept += arguments
        return None

    def piece(self, call: Any, name: str) -> Piece:
        owner = self.value(call.args[0], name)
        assert isinstance(owner, np.ndarray), f"{name} comes before its storage"
        dims = [self.size(dim) for dim in call.args[2].values]
        dtype = np.dtype(str(call.args[3].value))
        begin = self.size(call.args[1])
        piece = Piece(name, begin, begin + int(np.prod(dims)) * dtype.itemsize, owner)
        assert piece.end <= len(owner), f"{name} ends behind its storage"
        assert begin % 64 == 0, f"{name} is at {begin}"
        return piece

    def size(self, expr: Any) -> int:
        return int(expr) if isinstance(expr, int | IntImm) else value_of(expr, self.sizes, 1)

    def touch(self, value: Any, where: str) -> None:
        touched = list(pieces(value))
        for piece in touched:
            if id(piece) in self.written:
                self.check(piece, where)
        for piece in touched:
            self.touches += 1
            self.written[id(piece)] = piece
            piece.owner[piece.begin : piece.end] = id(piece)

    def check(self, piece: Piece, where: str) -> None:
        lost = np.flatnonzero(piece.owner[piece.begin : piece.end] != id(piece))
        assert not len(lost), f"{piece.name} has lost {len(lost)} bytes before {where}"


def pieces(value: Any) -> list[Piece]:
    """Return the tensors in storages that a value refers to."""
    if isinstance(value, tuple):
        return [piece for part in value for piece in pieces(part)]
    return [] if value is None else [value]
