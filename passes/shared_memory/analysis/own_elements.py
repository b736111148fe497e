# SPDX-License-Identifier: Apache-2.0
"""Proof that threads keep to elements of their own, of two buffers at one offset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from passes.ir import AllocationUses, ElementAccesses, FunctionAccesses, begins_threads, tir
from passes.prim_func import comes_first


class OwnElements:
    """Compares the accesses to two buffers of a kernel, between two barriers.

    Parameters
    ----------
    owner : AttrStmt
        The kernel.
    found : FunctionAccesses
        The accesses of its function.
    allocations : mapping of str to AllocationUses
        The planned buffers, by name.
    statements : list of Stmt
        Those of the kernel's events, by number.
    with_barriers : mapping of int to bool
        Whether each round of a loop has a barrier, by the handle of the loop. The question is about
        one round of those.
    """

    def __init__(
        self,
        owner: tir.Attribute,
        found: FunctionAccesses,
        allocations: Mapping[str, AllocationUses],
        statements: Sequence[tir.Statement],
        with_barriers: Mapping[int, bool],
    ) -> None:
        self._allocations = allocations
        self._statements, self._with_barriers = statements, with_barriers
        places = [place for uses in allocations.values() for place in uses.made]
        depth = next((at for at, e in enumerate(next(iter(places), ())) if e.op.same_as(owner)), 0)
        self._elements = ElementAccesses(found, depth, self._is_fixed)
        self._known: dict[tuple[str, str, frozenset[int]], bool] = {}

    def __call__(self, source: str, destination: str, numbers: frozenset[int]) -> bool:
        """Say whether each access to an element of `source` comes before its place is written.

        `numbers` are those of the statements, of one epoch, that use either buffer. The threads of
        a block run them at their own pace.
        """
        key = source, destination, numbers
        if key not in self._known:
            self._known[key] = self._are_own(*key)
        return self._known[key]

    def _are_own(self, source: str, destination: str, numbers: frozenset[int]) -> bool:
        both = self._allocations[source], self._allocations[destination]
        if any(each.is_address for uses in both for each in uses.accesses):
            return False
        # Of two types a compiler takes it that they never meet: it may exchange a load and a store.
        if len({str(dtype) for uses in both for dtype in uses.dtypes}) > 1:
            return False
        handles = {self._statements[number].__chandle__() for number in numbers}
        read, written = (
            [
                *self._elements.of(
                    each for each in uses.accesses if each.statement.__chandle__() in handles
                )
            ]
            for uses in both
        )
        stores = [each for each in written if isinstance(each.op, tir.Store)]
        threads = {
            tuple(at for at in each.loops if isinstance(at.statement, tir.Attribute))
            for each in (*read, *written)
        }
        return len(threads) == 1 and all(
            comes_first(other, store) for other, store in product(read, stores)
        )

    def _is_fixed(self, op: Any) -> bool:
        """Return whether an epoch's accesses are all in one round: blocks have their own memory."""
        if isinstance(op, tir.Attribute):
            return op.attr_key == "thread_extent" and not begins_threads(op)
        return self._with_barriers.get(op.__chandle__(), False)
