# SPDX-License-Identifier: Apache-2.0
"""`PlanMemory` of the mirrored StorageRewrite: which allocations share which memory.

The rules are those of `StoragePlanRewriter::PlanMemory` in TVM's
StorageRewrite, step by step and under the same names, on plain data.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort_right
from collections.abc import Callable
from operator import itemgetter

from passes.ir.storage_entries import (
    AllocEntry,
    EventEntry,
    StmtEntry,
    StmtKind,
    StorageEntry,
    StoragePlan,
)
from target_hw.storage_scope import StorageScope

_MATCH_RANGE = 16  # Memory is shared only between sizes whose ratio is at most this
_REGISTER_NBITS = 32  # An untagged allocation of at most so many bits becomes a register
_WIDEST_NBITS = 64  # Bits of the widest scalar, as which any memory may be named
_PACK_NBITS = 32  # Allocations packed into one start at a multiple of so many bits

_SIZE = itemgetter(0)

CanBeInplace = Callable[[StmtEntry, int, int], bool]
"""``(stmt, dst, src) -> bool``: may `dst` take the place of `src` in the statement?"""


class PlanMemory:
    """Assigns each allocation to a storage entry, in one scan of the linear sequence.

    `can_be_inplace` is asked when the memory of `src` could pass to `dst` within one statement, if
    `detect_inplace`. Without `enable_reuse` memory is shared in place only. With `exact_dtype` only
    allocations of the same scalar type share (Vulkan, WebGPU). Allocations in `keep_apart` share
    with no other; where that is not None, the others share only with the same element type, lanes
    included.
    """

    def __init__(
        self,
        allocs: list[AllocEntry],
        can_be_inplace: CanBeInplace,
        *,
        detect_inplace: bool = True,
        enable_reuse: bool = True,
        exact_dtype: bool = False,
        keep_apart: frozenset[int] | None = None,
    ) -> None:
        self._allocs = allocs
        self._can_be_inplace = can_be_inplace
        self._detect_inplace = detect_inplace
        self._enable_reuse = enable_reuse
        self._exact_dtype = exact_dtype
        self._exact_element = keep_apart is not None
        self._keep_apart = keep_apart or frozenset()
        self._entries: list[StorageEntry] = []
        self._entry_of: dict[int, StorageEntry] = {}
        self._replaced: set[int] = set()
        # Free entries of constant size, by size and then by the order of their release. An entry
        # released twice has grown since, where it was taken in between; its place is still that of
        # the size that it had.
        self._const_free: list[tuple[int, StorageEntry]] = []
        self._sym_free: list[StorageEntry] = []
        self._thread_scope: int | None = None

    def run(self, sequence: list[StmtEntry], events: dict[int, EventEntry]) -> StoragePlan:
        """Plan the memory of a function, by gen and kill at each statement of its sequence.

        Special memory is packed by `pack_special_memory`. ValueError is raised when thread scopes
        are nested.
        """
        thread, parallel = StmtKind.THREAD, StmtKind.PARALLEL
        for position, stmt in enumerate(sequence):
            event, kind = events.get(stmt.key), stmt.kind
            owns_memory = kind is thread or kind is parallel
            if event is None and not owns_memory:
                continue
            offset = stmt.scope_pair_offset
            if event is not None and offset >= 0:
                self._gen(stmt, event)
            if owns_memory:
                begin = position + min(offset, 0)
                # A parallel loop inside a thread scope does not own memory.
                if kind is thread or self._thread_scope in (None, begin):
                    self._plan_new_scope(begin)
            if event is not None and offset <= 0:
                for index in event.kill:
                    if index not in self._replaced:
                        self._free(index)
        return StoragePlan(self._entries, self._entry_of)

    def _gen(self, stmt: StmtEntry, event: EventEntry) -> None:
        # With more than two results at once, the original does not look for in-place ones.
        detect_inplace = self._detect_inplace and len(event.gen) <= 2
        for index in event.gen:
            alloc = self._allocs[index]
            entry = self._find_inplace(stmt, event, index) if detect_inplace else None
            if entry is None:
                apart = index in self._keep_apart
                entry = self._new_alloc(alloc) if apart else self._find_alloc(alloc)
            entry.allocs.append(index)
            if alloc.is_volatile:
                entry.is_volatile = True
            self._entry_of[index] = entry

    def _find_inplace(self, stmt: StmtEntry, event: EventEntry, dst: int) -> StorageEntry | None:
        alloc = self._allocs[dst]
        for src in event.kill:
            entry = self._entry_of.get(src)
            if (
                entry is not None
                and src not in self._replaced
                and entry.attach_scope == self._thread_scope
                and entry.const_nbits == alloc.const_nbits
                and entry.scope == alloc.scope
                and not alloc.element.is_scalable
                and entry.element.scalar == alloc.element.scalar
                and self._can_be_inplace(stmt, dst, src)
            ):
                self._replaced.add(src)
                return entry
        return None

    def _plan_new_scope(self, begin: int) -> None:
        if self._thread_scope is None:
            self._thread_scope = begin
            return
        if self._thread_scope != begin:
            raise ValueError(
                "a virtual thread or thread extent begins inside another scope that owns memory"
            )
        self._thread_scope = None

    def _new_alloc(self, alloc: AllocEntry) -> StorageEntry:
        entry = StorageEntry(self._thread_scope, alloc.scope, alloc.element, alloc.const_nbits)
        self._entries.append(entry)
        return entry

    def _find_alloc(self, alloc: AllocEntry) -> StorageEntry:
        nbits = alloc.const_nbits
        if (
            not self._enable_reuse
            or alloc.element.is_scalable
            or alloc.num_physical_dimensions != 1
            or _is_register(alloc.scope, nbits)
        ):
            return self._new_alloc(alloc)
        entry = self._find_const(alloc, nbits) if nbits else self._find_symbolic(alloc)
        return entry or self._new_alloc(alloc)

    def _find_const(self, alloc: AllocEntry, nbits: int) -> StorageEntry | None:
        free = self._const_free
        begin = bisect_left(free, nbits // _MATCH_RANGE, key=_SIZE)
        middle = bisect_left(free, nbits, key=_SIZE)
        end = bisect_right(free, nbits * _MATCH_RANGE, key=_SIZE)
        # Larger memory first, the closest first; then smaller memory, which grows.
        for at in range(middle, end):
            if self._fits(free[at][1], alloc):
                return free.pop(at)[1]
        for at in range(middle - 1, begin - 1, -1):
            entry = free[at][1]
            if entry.element.scalar == alloc.element.scalar and self._fits(entry, alloc):
                entry.const_nbits = max(nbits, entry.const_nbits)
                return free.pop(at)[1]
        return None

    def _find_symbolic(self, alloc: AllocEntry) -> StorageEntry | None:
        for at, entry in enumerate(self._sym_free):
            if (
                entry.attach_scope == self._thread_scope
                and entry.scope == alloc.scope
                and entry.element.scalar == alloc.element.scalar
                and not (self._exact_element and entry.element is not alloc.element)
            ):
                return self._sym_free.pop(at)
        return None

    def _fits(self, entry: StorageEntry, alloc: AllocEntry) -> bool:
        if entry.attach_scope != self._thread_scope or entry.scope != alloc.scope:
            return False
        if self._exact_element and entry.element is not alloc.element:
            return False
        if not self._exact_dtype:
            return True
        return alloc.element.lanes == 1 and entry.element.scalar == alloc.element.scalar

    def _free(self, index: int) -> None:
        entry = self._entry_of[index]
        if index in self._keep_apart:
            return
        if not entry.scope.tag and self._allocs[entry.allocs[0]].element.is_scalable:
            return
        if _is_register(entry.scope, entry.const_nbits):
            return
        if entry.const_nbits:
            insort_right(self._const_free, (entry.const_nbits, entry), key=_SIZE)
        else:
            self._sym_free.append(entry)


def _is_register(scope: StorageScope, nbits: int) -> bool:
    """Return whether an allocation is better left to the code generator's register allocator."""
    return not scope.tag and (scope.is_register_like or 0 < nbits <= _REGISTER_NBITS)


def pack_special_memory(
    plan: StoragePlan,
    allocs: list[AllocEntry],
    keep_apart: frozenset[int] | None = None,
    *,
    align: bool = False,
) -> None:
    """Pack all entries of one special memory and attach scope into the first of them.

    A special memory is one with a tag that TVM gives no meaning to, such as ``local.UB``. Each
    entry starts at the next multiple of 32 bits; with `align`, at a multiple of its elements' width
    and of 64 bits, where the original can fail to address it. The allocations in `keep_apart` are
    not packed. The plan's entries get `parent`, `bits_offset`, `children` and `packed_nbits`.
    ValueError is raised when an entry of special memory has a symbolic size.
    """
    first: dict[tuple[int | None, StorageScope], StorageEntry] = {}
    for entry in plan.entries:
        if not entry.scope.is_special or (keep_apart and entry.allocs[0] in keep_apart):
            continue
        if not entry.const_nbits:
            raise ValueError(
                f"buffer {allocs[entry.allocs[0]].name!r} in {entry.scope} has a symbolic or "
                "empty size; the allocations of a special memory are packed, so their sizes "
                "must be constants above zero"
            )
        parent = first.setdefault((entry.attach_scope, entry.scope), entry)
        if parent is not entry:
            entry.parent = parent
            unit = math.lcm(entry.element.nbits, _WIDEST_NBITS) if align else 1
            entry.bits_offset = -(-parent.packed_nbits // unit) * unit
            parent.children.append(entry)
        end = entry.bits_offset + entry.const_nbits
        parent.packed_nbits = -(-end // _PACK_NBITS) * _PACK_NBITS
