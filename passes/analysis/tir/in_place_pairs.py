"""Which allocations may hold their result in the place of an operand.

TVM's `InplaceOpVerifier` asks whether each element of the source is read for the very element of
the destination that is written. It trusts that no element is written twice, and that nothing else
happens to either. Here it is asked for each access to the source and each store to the destination
in the statement: if they meet at one element, does the access come first? What cannot be shown is
not allowed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm_ffi
from tvm.ir import TensorLoad, Var
from tvm.ir.prim import expr_deep_equal
from tvm.sym import Analyzer, detect_linear_equation
from tvm.tirx import For, ForKind, IfThenElse, IntImm, Ramp

from passes.analysis.storage_rewrite.linear_access import LinearAccess
from passes.analysis.tir.memory_uses import AllocationUses, StoreSite
from passes.analysis.tir.statement_accesses import StatementAccess, accesses_of
from passes.planning.storage_rewrite.storage import StmtEntry, StmtKind


class InPlacePairs:
    """Decides whether one allocation may take the place of another within a statement.

    Parameters
    ----------
    access : LinearAccess
        What is known of the function.
    uses : sequence of AllocationUses
        And of its memory.
    """

    def __init__(self, access: LinearAccess, uses: Sequence[AllocationUses]) -> None:
        self._access = access
        self._uses = uses
        self._accesses: dict[int, list[StatementAccess]] = {}

    def allows(self, stmt: StmtEntry, destination: int, source: int) -> bool:
        """Say whether `destination` may have the offset of `source`.

        No access to an element of the source follows a store to its place in the destination:

        - both are seen by one name there, not by address, and have elements of one width, or the
          source's are a multiple as wide;
        - each access to the source has the index of each store to the destination, and comes before
          it in the same iteration, or in another branch;
        - that index tells all iterations of the loops around both apart, within the statement, so
          that in another iteration they do not meet;
        - where elements become narrower, these loops go through the elements one after the other,
          from the first to the last, so that no write overtakes an access to wider elements;
        - no other thread runs the statement on the same memory.

        Parameters
        ----------
        stmt : StmtEntry
            The statement in which the life of `destination` begins and that of `source` ends; of
            one with a body, its first entry.
        destination, source : int
            Indices of the allocations.
        """
        if stmt.kind not in (StmtKind.STORE, StmtKind.NEST, StmtKind.PARALLEL):
            return False
        if not self._have_plain_uses(destination, source):
            return False
        sites = [site for site in self._uses[destination].stores if is_within(site, stmt)]
        if not sites or self._are_named_otherwise(stmt, destination, source):
            return False
        keys, allocs = self._access.alloc_keys, self._access.allocs
        found = self._accesses_in(stmt, sites[0])
        stores = [one for one in found if one.is_store and one.buffer == keys[destination]]
        others = [one for one in found if one.buffer == keys[source]]
        is_narrower = allocs[destination].element.bits < allocs[source].element.bits
        counters = _counters_around(sites[0], stmt)
        return all(
            _comes_first(other, store, counters, is_narrower)
            for store in stores
            for other in others
        )

    def _accesses_in(self, stmt: StmtEntry, site: StoreSite) -> list[StatementAccess]:
        """Return the accesses in a statement, which one store within it leads to."""
        if stmt.key not in self._accesses:
            ops = (*site.around, site.store)
            op = next(op for op in ops if op.__chandle__() == stmt.key)
            self._accesses[stmt.key] = accesses_of(op)
        return self._accesses[stmt.key]

    def _are_named_otherwise(self, stmt: StmtEntry, *indices: int) -> bool:
        """Whether a statement reaches the memory by another name or by its address."""
        keys, buffers = self._access.alloc_keys, self._access.buffers
        for index in indices:
            uses = self._uses[index]
            if any(site.key != keys[index] and is_within(site, stmt) for site in uses.stores):
                return True
            if any(stmt.key in map(_handle, around) for around in uses.handed_on):
                return True
        for access in self._access.accesses[stmt.first_access : stmt.last_access]:
            entry = buffers.get(access.buffer)
            if entry is not None and entry.root in indices and access.buffer != keys[entry.root]:
                return True
        return False

    def _have_plain_uses(self, destination: int, source: int) -> bool:
        allocs = [self._access.allocs[index] for index in (destination, source)]
        written, read = (alloc.element for alloc in allocs)
        if written.lanes != read.lanes or written.is_scalable:
            return False
        if written.bits % 8 or read.bits % 8 or read.bits % written.bits:
            return False
        for index, alloc in zip((destination, source), allocs, strict=True):
            uses = self._uses[index]
            is_shared = uses.owner_is_thread and not alloc.scope.is_register_like
            if uses.escape or alloc.is_volatile or is_shared:
                return False
        return True


def is_within(site: StoreSite, stmt: StmtEntry) -> bool:
    """Whether a store stands in a statement, or is it."""
    return stmt.key in map(_handle, (site.store, *site.around))


def _handle(op: Any) -> int:
    return int(op.__chandle__())


def _counters_around(site: StoreSite, stmt: StmtEntry) -> list[Var]:
    """Return the variables of the loops around the statement that a store stands in."""
    handles = [_handle(op) for op in (*site.around, site.store)]
    around = site.around[: handles.index(stmt.key)]
    return [op.loop_var for op in around if isinstance(op, For)]


def _comes_first(
    other: StatementAccess, store: StatementAccess, counters: list[Var], is_narrower: bool
) -> bool:
    """Whether an access to an element comes before a store to its place, wherever they meet."""
    if not all(isinstance(op, (For, IfThenElse)) for op, _ in (*other.path, *store.path)):
        return False
    depth = _common(other, store)
    rest = [path[depth:] for path in (other.path, store.path)]
    in_other_branch = all(rest) and rest[0][0][0].same_as(rest[1][0][0])
    if other.number > store.number and not in_other_branch:
        return False
    read, written = other.indices, store.indices
    if len(read) != len(written) or not all(map(expr_deep_equal, read, written)):
        return False
    loops = [op for op, _ in store.path[:depth] if isinstance(op, For)]
    if not loops:
        return True
    if is_narrower:
        return _is_ascending(written[0], loops, counters)
    return _tells_apart(written[0], loops, counters)


def _common(one: StatementAccess, other: StatementAccess) -> int:
    """Return how many statements around two accesses are the same, and their branches."""
    depth = 0
    for (op, branch), (other_op, taken) in zip(one.path, other.path, strict=False):
        if not op.same_as(other_op) or branch != taken:
            break
        depth += 1
    return depth


def _is_ascending(index: Any, loops: list[For], outer_vars: list[Var]) -> bool:
    """Whether an index goes through one element after the other, without gaps, as loops run.

    The index must be a sum of loop variables, of which the inner ones count the elements that one
    step of an outer one goes over, as the digits of a number do.
    """
    if any(loop.kind not in (ForKind.SERIAL, ForKind.UNROLLED) for loop in loops):
        return False
    digits = _digits(index, loops, outer_vars)
    if digits is None or (isinstance(index, Ramp) and index.stride.value != 1):
        return False
    width, factors = digits
    for factor, extent in reversed(factors):
        if factor != width or extent is None:
            return False
        width = factor * extent
    return True


def _tells_apart(index: Any, loops: list[For], outer_vars: list[Var]) -> bool:
    """Whether an index differs between any two iterations of nested loops.

    It must be a sum of loop variables with constant factors, and each factor be larger than all
    that the variables with smaller factors can add up to, as in a mixed-radix number.
    """
    digits = _digits(index, loops, outer_vars)
    if digits is None:
        return False
    width, factors = digits
    ascending = sorted(((abs(factor), extent) for factor, extent in factors), key=lambda d: d[0])
    for at, (factor, extent) in enumerate(ascending):
        if factor < width:
            return False
        if extent is None:
            return at == len(ascending) - 1
        width += factor * (extent - 1)
    return True


def _digits(
    index: Any, loops: list[For], outer_vars: list[Var]
) -> tuple[int, list[tuple[int, int | None]]] | None:
    """Return an index as a sum over loops.

    Returns
    -------
    width : int
        How many elements one access reaches over: of a vector, from its first to its last lane.
    factors : list of (int, int or None)
        For each loop that runs more than once, from the outermost: how far one iteration moves the
        index, and its extent if that is constant. A loop takes at most as many steps as its
        extent; a larger step only makes them fewer.

    None where the index is no such sum.
    """
    width = 1
    if isinstance(index, Ramp):
        if not isinstance(index.stride, IntImm) or not isinstance(index.lanes, IntImm):
            return None
        if index.stride.value < 1:
            return None
        width = index.stride.value * (index.lanes.value - 1) + 1
        index = index.base
    if index.ty.dtype.lanes != 1 or not _names_only(index, loops, outer_vars):
        return None
    loops = [loop for loop in loops if not _runs_once(loop)]
    if not loops:
        return width, []
    simple = Analyzer().simplify(index)
    factors = list(detect_linear_equation(simple, [loop.loop_var for loop in loops]))[:-1]
    if len(factors) != len(loops):
        return None
    digits: list[tuple[int, int | None]] = []
    for loop, factor in zip(loops, factors, strict=True):
        # Where a loop begins may not depend on another loop in the statement.
        if not isinstance(factor, IntImm) or not _names_only(loop.min, [], outer_vars):
            return None
        step = 1 if loop.step is None else getattr(loop.step, "value", None)
        if step is None:
            return None
        extent = loop.extent.value if isinstance(loop.extent, IntImm) else None
        digits.append((factor.value * step, extent))
    return width, digits


def _runs_once(loop: For) -> bool:
    return isinstance(loop.extent, IntImm) and loop.extent.value <= 1


def _names_only(index: Any, loops: list[For], outer_vars: list[Var]) -> bool:
    """Whether an index depends on nothing but loop variables, and reads no memory."""
    known = {loop.loop_var.__chandle__() for loop in loops}
    known |= {var.__chandle__() for var in outer_vars}
    unknown = []

    def note(node: Any) -> None:
        if isinstance(node, TensorLoad) or node.__chandle__() not in known:
            unknown.append(node)

    tvm_ffi.structural_walk(index, [(Var, note), (TensorLoad, note)])
    return not unknown
