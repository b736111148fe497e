# SPDX-License-Identifier: Apache-2.0
"""Allocations that carry a value from one round of a loop to the next.

An allocation inside a loop stands for the same memory in each round, unless rounds run at the same
time. So a round may read what an earlier one wrote: a buffer that only the first round fills, a sum
to which each round adds, a tile that is loaded a round ahead. TVM itself moves allocations into
the innermost loop around all accesses (`PlanAndUpdateBufferAllocationLocation`), whatever the loop
carries.

An allocation is one round's own if whatever a round reads was certainly written before in the same
round. Two rules show that of a read, and where neither does the value counts as carried:

- *The same element.* One store before the read wrote the element that is read: with an expression
  of the read for each variable that counts rounds of the store's own loops, both indices are the
  same, these rounds take place, and in them the conditions around the store hold.
- *All elements.* In numbers, statements that are done before the read store whatever it may read.
  Rounds of loops, and the threads of a block that all come by, are gone through; a store counts
  where each condition around it is known to hold, and a read unless one is known not to.

One branch of an ``if`` is executed: in numbers it stores what both would in the same round.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import takewhile
from typing import Any

import numpy as np

from passes.ir import tir
from passes.ir.accesses import AllocationUses, Enclosures, FunctionAccesses, MemoryAccess
from passes.ir.buffers import constant_count
from passes.ir.element_accesses import Around, ElementAccess, ElementAccesses, is_of_threads
from passes.ir.element_rounds import MOST_UNITS, reached_in
from passes.ir.operators import is_predicated
from passes.ir.statements import begins_threads
from passes.ir.structural import POSTORDER, has_any, nodes_in, structural_map
from passes.ir.uniform import Uniformity

_MOST_STORES = 16
"""Stores that one read is compared with, at most; the latest are."""

_LOOPS = (tir.Loop, tir.While)

ElementsOf = Callable[[frozenset[int]], ElementAccesses]
"""Reads elements in one round of loops, which are given by handle."""

UniformityOf = Callable[[Any], Uniformity]
"""Finds what differs between the threads of a kernel, by its outermost thread extent."""


def elements_in_rounds(found: FunctionAccesses, fixed: frozenset[int]) -> ElementAccesses:
    """Return the elements that are accessed in one round of each of some loops, by handle."""
    return ElementAccesses(found, 0, lambda op: op.__chandle__() in fixed)


def carrying_loop(
    found: FunctionAccesses,
    uses: AllocationUses,
    elements_of: ElementsOf,
    uniformity_of: UniformityOf,
) -> tir.Loop | tir.While | None:
    """Return the outermost loop through which an allocation carries a value, if it does.

    One that stands in several places does not: it lives as long as its owner runs.
    """
    carrying, around = None, uses.made[0]
    for depth in reversed(_own_loops(around, uses.owner)) if len(uses.made) == 1 else ():
        is_left = around[depth].number in found.jumps
        if not is_left and _Round(found, uses, depth + 1, elements_of, uniformity_of).is_apart():
            break
        carrying = around[depth].op
    return carrying


def _own_loops(around: Enclosures, owner: int | None) -> list[int]:
    """Return which enclosures of an allocation are loops whose rounds have the same memory."""
    begin = 0
    if owner is not None:
        handles = [enclosure.op.__chandle__() for enclosure in around]
        begin = len(around) - handles[::-1].index(owner)
    return [at for at in range(begin, len(around)) if isinstance(around[at].op, _LOOPS)]


class _Round:
    """One round of a loop around an allocation, which `depth` enclosures make."""

    def __init__(
        self,
        found: FunctionAccesses,
        uses: AllocationUses,
        depth: int,
        elements_of: ElementsOf,
        uniformity_of: UniformityOf,
    ) -> None:
        self._found, self._uses = found, uses
        # Where all accesses stand in one branch, all of them take place or none does.
        while _is_around_all(uses.accesses, depth):
            depth += 1
        self._depth = depth
        outer = next((each.around for each in uses.accesses), uses.made[0])[:depth]
        # Conditions may rest on the rounds of loops around this one, as far as these are counted.
        fixed = frozenset(e.op.__chandle__() for e in outer if not _is_counted(e.op))
        self._elements = elements_of(fixed)
        around = (self._elements.statement(outer, at) for at in range(depth))
        self._outer = [at for at in around if at is not None]
        rank = uses.alloc.scope.rank
        self._is_of_all_threads = not uses.by_threads and rank in ("global", "shared")
        if uses.by_threads and rank == "shared":
            kernel = next(e.op for e in outer if e.op.__chandle__() == uses.owner)
            # Else threads may be on another way than the one that reads, and store nothing there.
            if all(
                e.number not in found.jumps and uniformity_of(kernel).is_entered_together(e.op)
                for e in outer
            ):
                self._is_of_all_threads = True
                self._outer = [at for at in self._outer if not begins_threads(at.statement)]

    def is_apart(self) -> bool:
        """Return whether each element that the round reads was surely written in it before."""
        accesses = [each for each in self._elements.of(self._uses.accesses) if not each.is_repeated]
        stores = [each for each in accesses if self._is_certain(each)]
        numbers, written = [store.access.order for store in stores], None
        for read in (each for each in accesses if each.access.reads):
            order = read.access.order
            at = bisect_left(numbers, order)
            latest = reversed(stores[max(at - _MOST_STORES, 0) : at])
            if any(self._wrote(store, read) for store in latest):
                continue
            if written is None:
                done = {store: self._end_of(store) for store in stores}
                written = _Written(accesses, done, self._outer, self._uses)
            if not written.holds(read):
                return False
            if written.is_full:
                break
        return True

    def _is_certain(self, each: ElementAccess) -> bool:
        """Return whether an access surely writes all its elements where the conditions hold."""
        inside = each.access.around[self._depth :]
        # A thread has registers, and a warp or a block its memory, of its own.
        is_of_one = not self._is_of_all_threads and any(is_of_threads(e.op) for e in inside)
        return not is_of_one and _is_whole_store(each.access)

    def _end_of(self, store: ElementAccess) -> int:
        """Return the number of accesses up to the end of the loop or statement that has a store."""
        inside = [each for each in store.access.around[self._depth :] if _has_parts(each.op)]
        if inside:
            return self._found.ends[inside[0].number]
        # A call reads its operands, in whatever order they stand, before it writes.
        return self._found.by_statement[store.access.statement.__chandle__()][-1].order + 1

    def _wrote(self, store: ElementAccess, read: ElementAccess) -> bool:
        """Return whether a store before a read certainly wrote the element that is read."""
        if store.access.bits != read.access.bits or read.access.extent is not None:
            return False
        pairs = zip(store.around, read.around, strict=False)
        common = [at for (at, _), _ in takewhile(lambda pair: pair[0] == pair[1], pairs)]
        own = {at.counter.__chandle__(): at for at, _ in store.around[len(common) :] if at.is_loop}
        chosen: dict[int, Any] = {}
        if store.access.extent is not None or not _is_same(store.index, read.index, own, chosen):
            return False
        for key, loop in own.items():
            chosen.setdefault(key, tir.IntConstant(loop.counter.ty, 0))
        if _takes_place(store, read, len(common), chosen):
            return True
        # The first rounds of loops around both are no later.
        named = _names(store.index)
        loops = [at for at in common if at.is_loop and at.is_in_order and at not in self._outer]
        firsts = [at for at in loops if at.counter.__chandle__() not in named]
        if not firsts:
            return False
        chosen |= {at.counter.__chandle__(): tir.IntConstant(at.counter.ty, 0) for at in firsts}
        return _takes_place(store, read, common.index(firsts[0]), chosen)


def _is_around_all(accesses: Sequence[MemoryAccess], depth: int) -> bool:
    """Return whether accesses stand in the same part of a branch or an attribute, at a depth."""
    around = [access.around[depth : depth + 1] for access in accesses]
    places = {(each.number, each.part) for enclosures in around for each in enclosures}
    return len(places) == 1 and all(around) and not isinstance(around[0][0].op, _LOOPS)


def _has_parts(op: Any) -> bool:
    """Return whether a statement may have several rounds, or leave out what is in it."""
    return not isinstance(op, tir.Attribute) or is_of_threads(op)


def _is_counted(op: Any) -> bool:
    """Return whether a statement is a loop, or threads, whose rounds are known in number."""
    if isinstance(op, tir.Loop):
        return all(b is None or type(b) is tir.IntConstant for b in (op.min, op.extent, op.step))
    return is_of_threads(op) and type(op.value) is tir.IntConstant


def _is_whole_store(access: MemoryAccess) -> bool:
    """Return whether an access is a store of all its elements, if its statement is executed."""
    if not access.writes or not access.is_whole:
        return False
    if type(access.op) is tir.Store:
        return True
    # TVM's pointers to tiles reach from the first row to the end of the last, over what is between.
    ty, reached = access.buffer.ty, tir.constant(access.extent)
    is_of_all = tir.constant(access.index) == 0 and reached == constant_count(ty.shape)
    if not is_of_all or access.dtype != ty.dtype.dtype:
        return False
    # Code in C leaves out operands of ``&&`` and ``||``, and a choice leaves out one of its own.
    parts = (getattr(access.statement, name, None) for name in ("condition", "value", "indices"))
    exprs = [expr for expr in parts if expr is not None]
    is_chosen = any(isinstance(each.op, tir.Expr) for each in access.around)
    if is_chosen or not exprs or any(map(is_predicated, nodes_in(exprs, tir.Call))):
        return False
    return not has_any(exprs, tir.And, tir.Or)


def _without(each: ElementAccess, branch: Around) -> ElementAccess:
    """Return an access as if a branch around it were always taken."""
    return replace(each, around=tuple(pair for pair in each.around if pair[0] is not branch))


def _names(*exprs: Any) -> set[int]:
    """Return the handles of the variables in expressions; None has none."""
    return {v.__chandle__() for e in exprs if e is not None for v in nodes_in(e, tir.Var)}


def _is_same(one: Any, two: Any, own: Mapping[int, Any], chosen: dict[int, Any]) -> bool:
    """Return whether two indices are the same for a choice of the first one's own variables."""
    if one is None or two is None or one.ty.dtype != two.ty.dtype:
        return False
    if isinstance(one, tir.Var) and one.__chandle__() in own:
        return bool(tir.expr_deep_equal(chosen.setdefault(one.__chandle__(), two), two))
    if type(one) is not type(two):
        return False
    if isinstance(one, tir.Binary):
        parts = (one.a, two.a), (one.b, two.b)
    elif isinstance(one, tir.Ramp):
        parts = (one.base, two.base), (one.stride, two.stride)
    elif isinstance(one, (tir.Broadcast, tir.Cast)):
        return _is_same(one.value, two.value, own, chosen)
    else:
        return bool(tir.expr_deep_equal(one, two))
    return all(_is_same(*pair, own, chosen) for pair in parts)


def _takes_place(
    store: ElementAccess, read: ElementAccess, same: int, chosen: Mapping[int, Any]
) -> bool:
    """Return whether a store is executed in some rounds wherever a read is.

    The first `same` statements around both are in one round. Of the others `chosen` has the rounds,
    by counter, or else they have the read's.
    """

    def put(expr: Any) -> Any:
        new = [(tir.Var, lambda var: chosen.get(var.__chandle__(), var))]
        return structural_map(expr, new, POSTORDER)  # A new expression stays as it is.

    needed: list[Any] = []
    conditions = dict(store.conditions)
    for at, _ in store.around[same:]:
        if at.is_loop:
            if at.extent is None or isinstance(at.statement, tir.Attribute):
                return False
            number, extent = put(at.counter), put(at.extent)
            if not _counts_below(number, extent, read):
                needed += [number >= 0, number < extent]
        elif at in conditions:
            if conditions[at] is None:
                return False
            needed.append(put(conditions[at]))
        elif not isinstance(at.statement, (tir.Attribute, tir.If)):
            return False
    return _are_shown(needed, read)


def _counts_below(number: Any, extent: Any, read: ElementAccess) -> bool:
    """Return whether a number is a round of a loop around a read that has no more than these."""
    if type(extent) is not tir.IntConstant:
        return False
    return any(
        loop.counter.same_as(number)
        and isinstance(loop.most, int)
        and loop.most <= int(extent.value)
        for loop in read.loops
    )


def _are_shown(needed: Sequence[Any], read: ElementAccess) -> bool:
    """Return whether conditions hold wherever an access is executed."""
    known = [condition for _, condition in read.conditions if condition is not None]
    left = [n for n in needed if not any(tir.expr_deep_equal(n, each) for each in known)]
    if not left:
        return True
    analyzer = tir.Analyzer()
    for loop in read.loops:
        if loop.extent is None or loop.most == 0:
            continue
        if loop.counter.ty.dtype == loop.extent.ty.dtype:
            values = tir.Range.from_min_extent(tir.IntConstant(loop.counter.ty, 0), loop.extent)
            analyzer.bind(loop.counter, values)
        known.append(loop.extent > 0)
    with ExitStack() as scopes:
        for each in known:
            scopes.enter_context(analyzer.constraint_scope(each))
        return all(map(analyzer.can_prove, left))


class _Written:
    """Elements that are written for certain, in numbers, in each round of the loops around.

    `done` has the stores, each with the number of the first access after the loops around it.
    """

    def __init__(
        self,
        accesses: Sequence[ElementAccess],
        done: Mapping[ElementAccess, int],
        outer: Sequence[Around],
        uses: AllocationUses,
    ) -> None:
        own = uses.buffer.ty.dtype.dtype
        bits = own.bits * max(own.lanes, 1)
        widths = {bits, *(each.access.bits for each in accesses)}
        self._unit = math.gcd(*widths)
        self._count = max(constant_count(uses.buffer.ty.shape) or 0, 0) * (bits // self._unit)
        self._around, self._outer = outer, _named_loops(outer, accesses)
        if self._count * _rounds_of(self._outer) > MOST_UNITS:
            self._outer = []
        size = self._count * _rounds_of(self._outer)
        # Of parts of bytes, and of three lanes, some code generators pack none.
        is_known = len(widths) == 1 or not any(width % 8 or width & (width - 1) for width in widths)
        self._written = np.zeros(size if is_known and size <= MOST_UNITS else 0, bool)
        self._done, self._waiting = done, sorted(done, key=lambda store: -done[store])
        self.is_full = False

    def holds(self, read: ElementAccess) -> bool:
        """Return whether all that may be read is written by statements that are done before."""
        if not len(self._written):
            return False
        ready: list[ElementAccess] = []
        while self._waiting and self._done[self._waiting[-1]] <= read.access.order:
            ready.append(self._waiting.pop())
        for units in self._certain(ready, self._outer):
            self._written[units] = True
        if ready:
            self.is_full = bool(self._written.all())
        if self.is_full:
            return True
        reached = self._reached(self._outer, read, is_certain=False)
        return reached is not None and bool(self._written[reached].all())

    def _certain(
        self, stores: Sequence[ElementAccess], outer: Sequence[Around]
    ) -> Iterator[np.ndarray]:
        """Yield the units that stores write for certain in each round of some loops."""
        parts = {pair for store in stores for pair in store.around}
        inside: dict[Around, list[ElementAccess]] = {}
        for store in stores:
            units = self._reached(outer, store, is_certain=True)
            if units is not None:
                yield units
            branches = (at for at, _ in store.around if at.condition is not None)
            branch = next((at for at in branches if {(at, 1), (at, 2)} <= parts), None)
            if branch is not None:
                inside.setdefault(branch, []).append(store)
        for branch, found in inside.items():
            around = [at for at, _ in found[0].around]
            known = (*self._around, *outer)
            loops = [at for at in around[: around.index(branch)] if at not in known]
            inner = _named_loops(loops, found)
            arms = []
            for part in (1, 2):
                arm = [_without(each, branch) for each in found if (branch, part) in each.around]
                units_of = self._certain(arm, (*outer, *inner))
                arms.append(np.concatenate([np.zeros(0, np.int64), *units_of]))
            # One part is executed: it writes what both would.
            units = np.intersect1d(arms[0], arms[1])
            yield units // self._count // _rounds_of(inner) * self._count + units % self._count

    def _reached(
        self, outer: Sequence[Around], each: ElementAccess, *, is_certain: bool
    ) -> np.ndarray | None:
        own = [at for at in each.loops if at not in self._around and at not in outer]
        ratio = each.access.bits // self._unit
        return reached_in(outer, own, each, ratio, self._count, is_certain=is_certain)


def _rounds_of(loops: Sequence[Around]) -> int:
    counts = (loop.most if isinstance(loop.most, int) else 0 for loop in loops)
    return max(math.prod(counts), 1)


def _named_loops(loops: Sequence[Around], accesses: Sequence[ElementAccess]) -> list[Around]:
    """Return the loops on whose rounds it depends which elements accesses reach."""
    named = _names(*(expr for each in accesses for expr in _deciding(each)))
    return [at for at in loops if at.is_loop and at.counter.__chandle__() in named]


def _deciding(each: ElementAccess) -> Iterator[Any]:
    """Yield the expressions that decide which elements an access reaches."""
    yield each.index
    yield from (loop.extent for loop in each.loops)
    yield from (condition for _, condition in each.conditions)
