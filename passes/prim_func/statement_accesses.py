# SPDX-License-Identifier: Apache-2.0
"""The loads and stores in a statement, in the order of the program, and what stands around them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from passes.ir.statements import (
    Attribute,
    Branch,
    ForLoop,
    Load,
    Other,
    Records,
    Store,
    WhileLoop,
    parts_of,
)

Path = tuple[tuple[Any, int], ...]
"""The records with a body that enclose something, outermost first, with the number of the branch
that it stands in: 1 in an ``else``, and else 0.
"""


@dataclass(frozen=True, eq=False)
class StatementAccess:
    """One load or store."""

    number: int  # Its place in the order of the program; a store comes after the loads of its value
    key: int  # The handle of the buffer variable
    indices: Any  # Which element
    is_store: bool  # Whether it is a store
    path: Path


def accesses_of(statement: Any) -> list[StatementAccess]:
    """List the loads and stores in a statement, in the order of the program.

    The statement counts as around what stands in it, unless it is a store. What the bounds of a
    loop read is listed in front of the loop and behind its body.
    """
    return [
        StatementAccess(number, access.key, access.op.indices, type(access) is Store, path)
        for number, (access, path) in enumerate(_accesses((statement,), ()))
    ]


def _accesses(records: Records, path: Path) -> Iterator[tuple[Load | Store, Path]]:
    for record in records:
        parts = [(part, 0) for part in parts_of(record)]
        match record:
            case ForLoop():
                for bound in record.bounds:
                    yield from _accesses(bound, path)
                # Behind an iteration, too: C asks for the extent then, and each task of a parallel
                # loop evaluates all of them.
                parts = [(record.body, 0), *((bound, 0) for bound in record.bounds)]
            case Branch():
                yield from _accesses(record.condition, path)
                parts = [(case, number) for number, case in enumerate(record.cases)]
        is_around = isinstance(record, (Attribute, Branch, ForLoop, Other, WhileLoop))
        for part, branch in parts:
            around = (*path, (record, branch)) if is_around else path
            yield from _accesses(part, around)
        if isinstance(record, (Load, Store)):
            yield record, path
