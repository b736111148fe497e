# SPDX-License-Identifier: Apache-2.0
"""Loops of turns: in each of them, stages work on different slices or parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from tvm.ir import PrimType, Var
from tvm.tirx import For, ForKind, IfThenElse, SeqStmt

from passes.layer_group.rewrite.slice_values import INDEX, SliceValues, number

Write = Callable[[SliceValues], Any]
"""Writes a statement for a slice, or for a part of it."""


def in_turns(
    name: str, count: int, work: Sequence[tuple[int, Write]], values: Callable[[Any], SliceValues]
) -> Any:
    """Return a loop in which each stage works on `count` slices or parts, one a turn.

    `work` has the stages, each of which begins as many turns later as its number says, and
    `values` gives what is known of a slice or part by its number. A single one passes through the
    stages one after the other.
    """
    stage_of = itemgetter(0)
    if count == 1:
        work = sorted(work, key=stage_of)
    last = max(map(stage_of, work))
    turn, turns = Var(name, PrimType(INDEX)), count + last
    statements = []
    for stage, together in groupby(work, stage_of):
        at = values(number(0) if count == 1 else turn - number(stage) if stage else turn)
        done = [write(at) for _, write in together]  # They add to the bindings.
        conditions = [turn >= number(stage)] if stage else []
        if stage < last:
            conditions.append(turn <= number(stage + count - 1))
        statement = in_order([*at.bindings, *done])
        statements.append(where(conditions if count > 1 else [], statement))
    body = in_order(statements)
    return body if count == 1 else For(turn, number(0), number(turns), ForKind.SERIAL, body)


def where(conditions: Sequence[Any], statement: Any) -> Any:
    """Return a statement that runs where all conditions hold."""
    for condition in reversed(conditions):
        statement = IfThenElse(condition, statement, None)
    return statement


def in_order(statements: Sequence[Any]) -> Any:
    """Return one statement that is all of these, one after the other."""
    return SeqStmt(statements) if len(statements) > 1 else statements[0]
