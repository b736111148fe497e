"""Which allocations may hold their result in the place of an operand.

`InplaceOpVerifier` asks whether each element of the source is read for the very element of the
destination that is written. It trusts that no element is written twice, and it knows memory by
one name only. Here both are looked at, and what cannot be shown is not allowed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm_ffi
from tvm.ir import TensorLoad, Var
from tvm.ir.prim import expr_deep_equal
from tvm.sym import Analyzer, detect_linear_equation
from tvm.tirx import For, ForKind, IntImm, Ramp, While
from tvm.tirx.stmt import AttrStmt

from passes.analysis.storage_rewrite.inplace import ANY_BUFFER, InplaceOpVerifier
from passes.analysis.storage_rewrite.linear_access import LinearAccess
from passes.analysis.tir.memory_uses import AllocationUses, StoreSite
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
        self._verifier = InplaceOpVerifier(access.accesses)

    def allows(self, stmt: StmtEntry, destination: int, source: int) -> bool:
        """Say whether `destination` may have the offset of `source`.

        Each element is read before the one store that writes its place, by the same iteration:

        - both are seen by one name there, not by address, and have elements of one width, or the
          source's are a multiple as wide;
        - a single store in the statement writes the destination, and none the source;
        - its index tells all loop iterations within the statement apart, so that it writes no
          element twice;
        - where elements become narrower, it writes one after the other from the first to the last,
          so that no write overtakes a read of the wider elements;
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
        sites = [site for site in self._uses[destination].stores if _is_within(site, stmt)]
        if len(sites) != 1 or any(_is_within(s, stmt) for s in self._uses[source].stores):
            return False
        if self._is_named_otherwise(stmt, (destination, source), sites[0]):
            return False
        keys, allocs = self._access.alloc_keys, self._access.allocs
        if allocs[destination].element is allocs[source].element:
            if not self._verifier.check(stmt, keys[destination], keys[source]):
                return False
        elif not self._reads_same_elements_only(stmt, sites[0], source):
            return False
        if allocs[destination].element.bits < allocs[source].element.bits:
            return _writes_in_ascending_order(sites[0], stmt)
        return _writes_each_element_once(sites[0], stmt)

    def _reads_same_elements_only(self, stmt: StmtEntry, site: StoreSite, source: int) -> bool:
        """Whether a statement reads a source for nothing but the element of its own index.

        The rule of `InplaceOpVerifier` for a source and a destination of different types.
        """
        keys, store = self._access.alloc_keys, site.store
        for access in self._access.accesses[stmt.first_access : stmt.last_access]:
            if access.buffer in (ANY_BUFFER.buffer, site.key):
                return False
            if access.buffer != keys[source]:
                continue
            if access.load is None or access.store is None or not access.store.same_as(store):
                return False
            read, written = access.load.indices, store.indices
            same = len(read) == len(written) and all(map(expr_deep_equal, read, written))
            if not same or access.load.ty.dtype.lanes != store.value.ty.dtype.lanes:
                return False
        return True

    def _is_named_otherwise(
        self, stmt: StmtEntry, indices: tuple[int, int], site: StoreSite
    ) -> bool:
        """Whether a statement reaches the memory by another name or by its address."""
        keys, buffers = self._access.alloc_keys, self._access.buffers
        if site.key != keys[indices[0]]:
            return True
        for access in self._access.accesses[stmt.first_access : stmt.last_access]:
            entry = buffers.get(access.buffer)
            if entry is not None and entry.root in indices and access.buffer != keys[entry.root]:
                return True
        return any(
            stmt.key in [op.__chandle__() for op in around]
            for index in indices
            for around in self._uses[index].handed_on
        )

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


def _is_within(site: StoreSite, stmt: StmtEntry) -> bool:
    return stmt.key in (site.store.__chandle__(), *(op.__chandle__() for op in site.around))


def _loops_within(site: StoreSite, stmt: StmtEntry) -> tuple[list[For], list[Var]] | None:
    """Return the loops around a store within a statement, and the variables of those around it.

    None where the store is repeated by something else than loops.
    """
    handles = [op.__chandle__() for op in site.around]
    begin = handles.index(stmt.key)
    inside = site.around[begin:]
    if any(isinstance(op, (While, AttrStmt)) for op in inside):
        return None
    loops = [op for op in inside if isinstance(op, For)]
    return loops, [op.loop_var for op in site.around[:begin] if isinstance(op, For)]


def _is_whole(site: StoreSite, stmt: StmtEntry) -> bool:
    """Whether a store is the whole statement, so that it reads all before it writes."""
    return bool(stmt.key == site.store.__chandle__())


def _writes_each_element_once(site: StoreSite, stmt: StmtEntry) -> bool:
    """Whether a store writes different elements in different iterations within a statement."""
    if _is_whole(site, stmt):
        return True
    inside = _loops_within(site, stmt)
    return inside is not None and _tells_apart(site.store.indices[0], *inside)


def _writes_in_ascending_order(site: StoreSite, stmt: StmtEntry) -> bool:
    """Whether a store writes one element after the other, without gaps, as its loops run.

    The index must be a sum of loop variables, of which the inner ones count the elements that one
    step of an outer one goes over, as the digits of a number do.
    """
    if _is_whole(site, stmt):
        return True
    inside = _loops_within(site, stmt)
    if inside is None:
        return False
    loops, outer_vars = inside
    if any(loop.kind not in (ForKind.SERIAL, ForKind.UNROLLED) for loop in loops):
        return False
    index = site.store.indices[0]
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
