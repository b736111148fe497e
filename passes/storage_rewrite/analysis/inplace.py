# SPDX-License-Identifier: Apache-2.0
"""Check that one buffer may take the place of another within a statement."""

from __future__ import annotations

from typing import Any

from passes.ir import Access, array_get, has_any, is_same_type, tir
from passes.ir.storage_entries import StmtEntry, StmtKind

_PLACES = (tir.Load, tir.Store)


class InplaceOpVerifier:
    """Looks for the pattern ``dst[index] = f(src[index])`` and nothing beside it.

    The rules are those of the class of the same name in TVM's StorageRewrite. Where they hold, each
    element of `src` is read before it is overwritten, as long as each element of `dst` is written
    once: that much is taken on trust. The accesses are those of the whole function, in program
    order.
    """

    def __init__(self, accesses: list[Access]) -> None:
        self._accesses = accesses

    def check(self, stmt: StmtEntry, dst: int, src: int) -> bool:
        """Say whether `dst` may be `src` in a statement: whether each access fits the pattern.

        `stmt` is the first entry of a statement with a body; `dst` and `src` are the handles of the
        buffer that begins its life there and the one that ends it. Both have one dimension.
        """
        if stmt.kind in (StmtKind.LEAF, StmtKind.OPAQUE):
            return False
        accesses = self._accesses[stmt.first_access : stmt.last_access]
        for buffer, op, store in accesses:
            if buffer == 0:
                return False
            if op is not None and op is store:
                continue  # The original looks at uses other than by stores.
            if buffer == dst or (buffer == src and not _is_same_element(op, store, dst)):
                return False
        # An index that is read from memory, as in ``A[B[i]]``, may lead anywhere.
        for _, op, _ in accesses:
            if type(op) in _PLACES and has_any(op.indices, tir.Load):
                return False
        return True


def _is_same_element(load: Any, store: tir.Store | None, dst: int) -> bool:
    """Return whether `src` is read for the very element of `dst` that is written."""
    if store is None or store.buffer.__chandle__() != dst:
        return False
    if not is_same_type(store.value.ty, load.ty):
        return False
    return bool(tir.expr_deep_equal(array_get(store.indices, 0), array_get(load.indices, 0)))
