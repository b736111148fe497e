# SPDX-License-Identifier: Apache-2.0
"""Proof that threads keep to elements of their own, of two buffers at one offset."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from itertools import product
from typing import Any

from passes.ir import tir
from passes.prim_func import ElementAccess, comes_first, element_accesses


class OwnElements:
    """Compares the accesses to two buffers of a kernel, between two barriers.

    Parameters
    ----------
    owner : AttrStmt
        The kernel.
    name_of : Callable
        Gives the name of the planned buffer that a variable stands for, or None.
    statements : list of Stmt
        Those of the kernel's events, by number.
    with_barriers : mapping of int to bool
        Whether each round of a loop has a barrier, by the handle of the loop. The question is about
        one round of those.
    """

    def __init__(
        self,
        owner: tir.Attribute,
        name_of: Callable[[Any], str | None],
        statements: list[tir.Statement],
        with_barriers: Mapping[int, bool],
    ) -> None:
        self._owner, self._name_of, self._statements = owner, name_of, statements
        self._with_barriers = with_barriers
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
        handles = {self._statements[number].__chandle__() for number in numbers}
        found: dict[str, list[ElementAccess]] = {source: [], destination: []}
        for name, access in self._accesses:
            if name in found and access.statement.__chandle__() in handles:
                found[name].append(access)
        stores = [a for a in found[destination] if isinstance(a.op, tir.Store)]
        threads = {_threads(access) for accesses in found.values() for access in accesses}
        return len(threads) == 1 and all(
            comes_first(other, store) for other, store in product(found[source], stores)
        )

    @cached_property
    def _accesses(self) -> list[tuple[str | None, ElementAccess]]:
        found = element_accesses(self._owner, self._is_fixed)
        return [(self._name_of(access.buffer), access) for access in found]

    def _is_fixed(self, op: Any) -> bool:
        """Return whether an epoch's accesses are all in one round: blocks have their own memory."""
        if isinstance(op, tir.Attribute):
            tag = str(getattr(op.node, "thread_tag", ""))
            return tag.startswith(("blockIdx.", "clusterCtaIdx."))
        return self._with_barriers.get(op.__chandle__(), False)


def _threads(access: ElementAccess) -> tuple[Any, ...]:
    return tuple(at for at in access.loops if isinstance(at.statement, tir.Attribute))
