# SPDX-License-Identifier: Apache-2.0
"""Which results may be written in place of an operand that dies in the same statement.

TVM's `InplaceOpVerifier` checks that a store reads the source at the index at which it writes the
destination. It assumes that no element is written twice and that nothing else accesses either
buffer. Here each access to the source is compared with each store to the destination in the
statement: it must come first, and be to the same element, which no other iteration stores to. A
pair is refused unless that is shown.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product, takewhile
from typing import Any

from tvm.ir import TensorLoad, Var
from tvm.ir.prim import expr_deep_equal
from tvm.sym import Analyzer, detect_linear_equation
from tvm.tirx import BufferStore, For, ForKind, IfThenElse, IntImm, Ramp

from passes.ir import LinearAccess, is_dense, items, never_wraps
from passes.ir.statements import has_body, parts_of
from passes.ir.storage_entries import StmtEntry
from passes.prim_func.memory_uses import AllocationUses, Around, StoreSite


@dataclass(frozen=True, eq=False)
class _StatementAccess:
    """One load or store."""

    number: int  # Its place in the order of the program; a store comes after the loads of its value
    op: TensorLoad | BufferStore
    key: int  # The handle of the buffer variable
    around: Around
    is_repeated: bool  # Whether the bound of a loop is evaluated once more, behind an iteration


class InPlacePairs:
    """Decides whether one allocation may take the place of another within a statement."""

    def __init__(self, access: LinearAccess, uses: Sequence[AllocationUses]) -> None:
        self._access = access
        self._uses = uses
        self._accesses: dict[int, list[_StatementAccess]] = {}

    def allows(self, position: int, destination: int, source: int) -> bool:
        """Say whether `destination` may have the offset of `source`: two allocations, by index.

        `position` is that of the statement in which the life of `destination` begins and that of
        `source` ends; of one with a body, its first entry. No access to an element of the source
        follows a store to its place in the destination:

        - every touch of either there is a load or a store by its own name, and no address is taken;
        - both have elements of one width, or the source's are a multiple as wide;
        - each access to the source comes before each store to the destination in the same iteration
          of the loops around both, within the statement;
        - if there are such loops, both have the same index, and no two iterations have one index;
        - where elements become narrower, the loops go through the elements one after the other,
          from the first to the last, so that no write overtakes an access to wider elements;
        - no other thread runs the statement on the same memory.
        """
        stmt = self._access.sequence[position]
        if not self._have_plain_uses(destination, source):
            return False
        written_at = self._uses[destination].stores
        sites = [site for site in written_at if stmt.key in _handles((site.store, *site.around))]
        if not sites:
            return False
        keys, allocs = self._access.alloc_keys, self._access.allocs
        found = self._accesses_in(stmt, sites[0])
        last = self._access.sequence[position + stmt.scope_pair_offset]
        if not all(self._sees_all(found, last, index) for index in (destination, source)):
            return False
        written = [access for access in found if access.key == keys[destination]]
        stores = [access for access in written if isinstance(access.op, BufferStore)]
        others = [access for access in found if access.key == keys[source]]
        is_narrower = allocs[destination].element.bits < allocs[source].element.bits
        pairs = product(others, stores)
        return all(_comes_first(other, store, is_narrower) for other, store in pairs)

    def _accesses_in(self, stmt: StmtEntry, site: StoreSite) -> list[_StatementAccess]:
        """Return the accesses in a statement that has a store at `site`."""
        if stmt.key not in self._accesses:
            statements = (*site.around, site.store)
            at = next(at for at in statements if at.__chandle__() == stmt.key)
            self._accesses[stmt.key] = [
                _StatementAccess(number, op, _buffer_of(op).__chandle__(), around, again)
                for number, (op, around, again) in enumerate(_loads_and_stores((at,), ()))
            ]
        return self._accesses[stmt.key]

    def _sees_all(self, found: Sequence[_StatementAccess], stmt: StmtEntry, index: int) -> bool:
        """Whether all touches of an allocation in a statement are among the accesses found there.

        Touches by another name are not, nor is what a call does with an address. `stmt` is the last
        entry of the statement, which lists the touches.
        """
        if any(stmt.key in _handles(around) for around in self._uses[index].handed_on):
            return False
        key = self._access.alloc_keys[index]
        seen = sum(access.key == key and not access.is_repeated for access in found)
        return 0 < seen == stmt.touched.count(index)

    def _have_plain_uses(self, destination: int, source: int) -> bool:
        """Whether both have elements of whole bytes that divide, and all their uses are seen.

        Memory that is volatile, that threads share or whose address is kept is used at any time.
        """
        allocs = [self._access.allocs[index] for index in (destination, source)]
        written, read = (alloc.element for alloc in allocs)
        if written.lanes != read.lanes or written.bits % 8 or read.bits % written.bits:
            return False
        both = zip((self._uses[destination], self._uses[source]), allocs, strict=True)
        return not any(
            uses.escapes
            or alloc.is_volatile
            or (uses.by_threads and alloc.scope.is_shared_by_threads)
            for uses, alloc in both
        )


def _handles(statements: Sequence[Any]) -> list[int]:
    return [statement.__chandle__() for statement in statements]


def _buffer_of(access: TensorLoad | BufferStore) -> Var:
    return access.buffer if isinstance(access, BufferStore) else access.source


def _comes_first(other: _StatementAccess, store: _StatementAccess, is_narrower: bool) -> bool:
    """Whether an access to an element comes before a store to its place, wherever they meet."""
    if not all(isinstance(at, (For, IfThenElse)) for at in (*other.around, *store.around)):
        return False
    if other.number > store.number:
        return False
    pairs = zip(other.around, store.around, strict=False)
    both = [at for at, _ in takewhile(lambda pair: pair[0].same_as(pair[1]), pairs)]
    loops = [at for at in both if isinstance(at, For)]
    if not loops:
        return True
    (read,), (written,) = items(other.op.indices), items(store.op.indices)
    goes_once = _is_ascending if is_narrower else _is_injective
    return goes_once(written, loops) and bool(expr_deep_equal(read, written))


def _is_injective(index: Any, loops: Sequence[For]) -> bool:
    """Whether an index reaches different elements in different iterations of loops.

    Each loop must move it by more elements than all loops that move it less together, as the places
    of a mixed-radix number do. It may be a vector, whose lanes all count.
    """
    width, moves = _affine(index, loops)
    for move, count in sorted((abs(move), count) for move, count in moves if count > 1):
        if move < width:
            return False
        width += move * (count - 1)
    return True


def _is_ascending(index: Any, loops: Sequence[For]) -> bool:
    """Whether an index reaches consecutive elements in consecutive iterations of loops.

    One step of an outer loop must skip just the elements that the loops inside it count.
    """
    is_in_order = all(loop.kind in (ForKind.SERIAL, ForKind.UNROLLED) for loop in loops)
    if not is_in_order or (isinstance(index, Ramp) and not is_dense(index)):
        return False
    width, moves = _affine(index, loops)
    for move, count in reversed(moves):
        if count > 1 and move != width:
            return False
        width *= max(count, 1)
    return True


_UNKNOWN = math.inf, [(0, math.inf)]


def _affine(index: Any, loops: Sequence[For]) -> tuple[float, list[tuple[int, float]]]:
    """Return how many elements an index spans; and for each loop, the move of a step, and steps.

    Loops are the outermost first. A vector spans the elements from its first lane to its last. An
    index that is no sum of constants and multiples of loop variables is `_UNKNOWN`, of which
    nothing can be shown.
    """
    width: float = 1
    if isinstance(index, Ramp):
        if not isinstance(index.stride, IntImm) or not isinstance(index.lanes, IntImm):
            return _UNKNOWN
        if index.stride.value < 1:
            return _UNKNOWN
        width, index = index.stride.value * (index.lanes.value - 1) + 1, index.base
    if not never_wraps(index):
        return _UNKNOWN
    variables = [loop.loop_var for loop in loops]
    found = items(detect_linear_equation(Analyzer().simplify(index), variables))
    if not found or not all(isinstance(part, IntImm) for part in found):
        return _UNKNOWN
    moves: list[tuple[int, float]] = []
    for loop, factor in zip(loops, found[:-1], strict=True):
        step = IntImm("int32", 1) if loop.step is None else loop.step
        if not isinstance(loop.min, IntImm) or not isinstance(step, IntImm) or step.value <= 0:
            return _UNKNOWN
        is_known = isinstance(loop.extent, IntImm)
        count = -(-loop.extent.value // step.value) if is_known else math.inf
        moves.append((factor.value * step.value, count))
    return width, moves


def _loads_and_stores(
    nodes: Sequence[Any], around: Around, is_repeated: bool = False
) -> Iterator[tuple[TensorLoad | BufferStore, Around, bool]]:
    """Yield the loads and stores in some nodes in program order, with what encloses each.

    A statement counts as around what stands in it, unless it is a leaf. What the bounds of a loop
    read comes in front of the loop and, as `is_repeated`, behind its body: C asks for the extent
    then, and each task of a parallel loop evaluates all bounds.
    """
    for op in nodes:
        parts = parts_of(op)
        inside = (*around, op) if has_body(op) else around
        if isinstance(op, For):
            *bounds, body = parts
            for bound in bounds:
                yield from _loads_and_stores(bound, around, is_repeated)
            yield from _loads_and_stores(body, inside, is_repeated)
            for bound in bounds:
                yield from _loads_and_stores(bound, inside, True)
            continue
        for part in parts:
            yield from _loads_and_stores(part, inside, is_repeated)
        if isinstance(op, (TensorLoad, BufferStore)):
            yield op, around, is_repeated
