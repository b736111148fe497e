# SPDX-License-Identifier: Apache-2.0
"""Puts barriers between the statements of a kernel."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tvm.tirx import Evaluate, PrimFunc, SeqStmt, call_intrin
from tvm_ffi import structural_mutate

from passes.ir import with_body
from passes.ir.operators import STORAGE_SYNC


def add_barriers(func: PrimFunc, scope: str, places: Iterable[tuple[SeqStmt, int]]) -> PrimFunc:
    """Return a function with a barrier of a storage scope in front of statements.

    Each place is a sequence of the function, and the index in it of the statement.
    """
    wanted: dict[int, set[int]] = {}
    for sequence, at in places:
        wanted.setdefault(sequence.__chandle__(), set()).add(at)

    def rewrite(op: SeqStmt, mutator: Any) -> Any:
        chosen = wanted.get(op.__chandle__(), ())
        parts: list[Any] = []
        for at, inner in enumerate(op.seq):
            if at in chosen:
                parts.append(Evaluate(call_intrin("int32", STORAGE_SYNC, scope)))
            parts.append(mutator.mutate(inner))
        return SeqStmt(parts)

    return with_body(func, structural_mutate(func.body, (SeqStmt, rewrite)))
