# SPDX-License-Identifier: Apache-2.0
"""Statements that run in some turns of a loop: its stages work on different slices or parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm.tirx import IfThenElse, SeqStmt

from passes.layer_group.rewrite.slice_values import number


def back(turn: Any, stage: int) -> Any:
    """Return the number of the slice or part that a stage works on in a turn."""
    return turn - number(stage) if stage else turn


def in_turns(turn: Any, stage: int, count: int, turns: int) -> list[Any]:
    """Return the conditions under which a stage has one of `count` slices or parts to work on."""
    last = stage + count - 1
    return [
        *([turn >= number(stage)] if stage > 0 else []),
        *([turn <= number(last)] if last < turns - 1 else []),
    ]


def where(conditions: Sequence[Any], statement: Any) -> Any:
    """Return a statement that runs where all conditions hold."""
    for condition in reversed(conditions):
        statement = IfThenElse(condition, statement, None)
    return statement


def in_order(statements: Sequence[Any]) -> Any:
    """Return one statement that is all of these, one after the other."""
    return SeqStmt(statements) if len(statements) > 1 else statements[0]
