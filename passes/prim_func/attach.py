# SPDX-License-Identifier: Apache-2.0
"""Puts allocations where they belong: at the beginning of the statements that own them."""

from __future__ import annotations

from typing import Any

from tvm.tirx import AllocBuffer, For, SeqStmt
from tvm.tirx.stmt import AttrStmt


class AttachedAllocations:
    """New allocations of a function, by the statement in whose body each is made."""

    def __init__(self) -> None:
        self._at: dict[int | None, list[AllocBuffer]] = {}

    def add(self, owner: int | None, allocation: AllocBuffer) -> None:
        """Attach an allocation to a statement, by its handle; None stands for the function."""
        self._at.setdefault(owner, []).append(allocation)

    def before(self, owner: int | None, body: Any) -> Any:
        """Return the body of a statement, or of the function, behind what is attached to it."""
        allocations = self._at.get(owner)
        return SeqStmt([*allocations, body]) if allocations else body

    def rewrite_attr(self, op: AttrStmt, node: Any, mutator: Any) -> Any:
        """Return an attribute of a node, with what is attached to it in its body."""
        attr = mutator.default_mutate(op)
        if node is op.node and op.__chandle__() not in self._at:
            return attr
        body = self.before(op.__chandle__(), attr.body)
        return AttrStmt(node, op.attr_key, attr.value, body)

    def rewrite_for(self, op: For, mutator: Any) -> Any:
        """Return a loop with its parts rewritten, and with what is attached to it in its body."""
        loop = mutator.default_mutate(op)
        if op.__chandle__() not in self._at:
            return loop
        parts = (loop.loop_var, loop.min, loop.extent, loop.kind)
        body = self.before(op.__chandle__(), loop.body)
        return For(*parts, body, loop.thread_binding, loop.annotations, loop.step)
