# SPDX-License-Identifier: Apache-2.0
"""Allocations that carry a value from one round of a loop to the next.

An allocation inside a loop stands for the same memory in each round, unless rounds run at the same
time. So a round may read what an earlier one wrote: a buffer that only the first round fills, a sum
to which each round adds, a tile that is loaded a round ahead. TVM itself moves allocations into
the innermost loop around all accesses (`PlanAndUpdateBufferAllocationLocation`), whatever the loop
carries.

An allocation is one round's own if each element that a round reads was certainly written in the
same round before. That a store stands before a load shows it only if the store is executed
each time: conditions, loops without rounds and parts of a buffer count. Here that is proven, or
else the value counts as carried.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from passes.ir import tir
from passes.ir.accesses import (
    AllocationUses,
    Enclosure,
    Enclosures,
    FunctionAccesses,
    MemoryAccess,
)
from passes.ir.buffers import constant_count
from passes.ir.element_sets import Condition, ElementProofs, ElementSet
from passes.ir.operators import THREAD_INVARIANT, is_same_for_all_threads, operator_name
from passes.ir.statements import begins_threads
from passes.ir.structural import nodes_in
from passes.ir.wide_numbers import Free, fills, number
from target_hw.storage_scope import parse_storage_scope

_MOST_SETS = 64
"""Stores that are known at one place, at most; the latest are."""

_PARALLEL_LOOP = int(tir.LoopKind.PARALLEL)
_LOOPS = (tir.Loop, tir.While)
_BODY_OF_FOR = 3  # The index of its body among its parts


def carrying_loop(found: FunctionAccesses, uses: AllocationUses) -> tir.Loop | tir.While | None:
    """Return the outermost loop through which an allocation carries a value, if it does.

    One that stands in several places does not: it lives as long as its owner runs.
    """
    carrying, around = None, uses.made[0]
    for depth in reversed(_own_loops(around, uses.owner)) if len(uses.made) == 1 else ():
        jumps = around[depth].number in found.jumps
        if not jumps and _is_filled_first(uses.accesses, depth + 1, uses.buffer):
            break
        if not jumps and _Rounds(found, uses, depth).are_apart():
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


def _is_filled_first(accesses: Sequence[MemoryAccess], depth: int, buffer: tir.Var) -> bool:
    """Return whether loops write all of a buffer before anything reads it, as a quick look shows.

    `depth` is the number of enclosures that make a round.
    """
    size = constant_count(buffer.ty.shape)
    for access in accesses:
        if access.reads or size is None:
            return False
        loops = [enclosure.op for enclosure in access.around[depth:]]
        if access.is_whole and access.extent is None and access.buffer.same_as(buffer):
            counters = [counter for op in loops if (counter := _counter(op)) is not None]
            if len(counters) == len(loops) and fills(access.index, counters, size):
                # The same loops may read an element that they have still to write.
                nest = _number_at(access, depth)
                return nest is None or not any(
                    each.reads and _number_at(each, depth) == nest for each in accesses
                )
    return True  # Nothing reads it.


def _counter(op: Any) -> tuple[tir.Var, int] | None:
    """Return the variable of a loop that counts from 0, and how far."""
    if (
        not isinstance(op, tir.Loop)
        or op.step is not None
        or not isinstance(op.extent, tir.IntConstant)
    ):
        return None
    is_from_0 = isinstance(op.min, tir.IntConstant) and op.min.value == 0
    return (op.loop_var, int(op.extent.value)) if is_from_0 else None


class _Rounds:
    """The rounds of one loop around an allocation, as far as they access it."""

    def __init__(self, found: FunctionAccesses, uses: AllocationUses, depth: int) -> None:
        self._found = found
        self._accesses, around, buffer = uses.accesses, uses.made[0], uses.buffer
        self._loop, self._depth = around[depth], depth + 1
        self._is_shared = uses.alloc.scope.is_shared_by_threads
        # A variable bound before the round is one value.
        self._proofs = ElementProofs(
            found.values, lambda key: self._loop not in found.bound_in[key]
        )
        self._sets: dict[int, list[ElementSet]] = {}  # By the numbers of enclosures
        self._conditions: dict[int, Condition] = {}  # Of branches and choices, likewise
        own = buffer.ty.dtype.dtype
        bits = own.bits * max(own.lanes, 1)
        self._unit = math.gcd(bits, *(each.bits for each in uses.accesses))
        self._size = None  # In units
        if len(buffer.ty.shape) == 1:
            count = self._wide(buffer.ty.shape[0])
            self._size = None if count is None else count * number(bits // self._unit)
        for enclosure in around[: depth + 1]:
            self._bind(enclosure.op)
        # The variables of the threads that share it, by handle, and what proofs have for them.
        inside = [each.op for access in uses.accesses for each in access.around]
        variables = [op.node.var for op in inside if self._is_shared and begins_threads(op)]
        self._threads = {variable.__chandle__() for variable in variables}
        wide = (self._wide(variable) for variable in variables)
        self._own = {variable.__chandle__() for variable in wide if variable is not None}
        # Other threads may not come by the loop, nor stay in it as long, or they have returned.
        deciding = (e for enclosure in around[: depth + 1] for e in _deciding(enclosure.op))
        returns = any(enclosure.number in found.jumps for enclosure in around[:depth])
        self._by_one = returns or self._differs(*deciding, by_number=True)

    def are_apart(self) -> bool:
        """Return whether each element that a round reads was surely written in the same round."""
        return self._walk(self._accesses, self._depth, [], check=True, by_one=self._by_one)

    def _walk(
        self,
        accesses: Sequence[MemoryAccess],
        depth: int,
        written: list[ElementSet],
        *,
        check: bool,
        by_one: bool = False,
    ) -> bool:
        """Add the sets that accesses write for certain; say whether all that they read is written.

        The accesses stand in the same `depth` enclosures. Without `check` nothing is proven.
        `by_one` says that other threads may not come by here as well.
        """
        for number_, group in groupby(accesses, lambda a: _number_at(a, depth)):
            inside = tuple(group)
            if number_ is not None:
                if check and not self._are_written(inside, depth, written, by_one):
                    return False
                written += self._of_threads(self._sets_of(inside, depth), by_one)
                continue
            for access in inside:
                if check and access.reads and not self._is_written(access, written):
                    return False
                if access.writes and access.is_whole and _is_evaluated(access):
                    written += self._of_threads(self._stored(access), by_one)
        return True

    # Threads

    def _of_threads(self, sets: Sequence[ElementSet], by_one: bool) -> Sequence[ElementSet]:
        """Return what all threads write; with `by_one` what the one that reads writes itself."""
        if not by_one or not self._threads:
            return sets
        free = [[f for f in s.free if f.variable.__chandle__() not in self._own] for s in sets]
        return [replace(s, free=tuple(left)) for s, left in zip(sets, free, strict=True)]

    def _differs(self, *exprs: Any, by_number: bool) -> bool:
        """Return whether expressions may differ between the threads that share the memory.

        Without `by_number`, variables of threads do not count where proofs have them in a number.
        """
        return bool(self._threads) and any(self._is_of_one(expr, by_number) for expr in exprs)

    def _is_of_one(self, expr: Any, by_number: bool) -> bool:
        if expr is None or (type(expr) is tir.Call and operator_name(expr.op) == THREAD_INVARIANT):
            return False
        scopes = {str(load.source.ty.storage_scope) for load in nodes_in(expr, tir.Load)}
        if not all(parse_storage_scope(scope).is_shared_by_threads for scope in scopes):
            return True
        names = (operator_name(call.op) for call in nodes_in(expr, tir.Call))
        if not all(map(is_same_for_all_threads, names)):
            return True
        by_number |= self._proofs.elements(expr) is None
        for key in (variable.__chandle__() for variable in nodes_in(expr, tir.Var)):
            if by_number and key in self._threads:
                return True
            if key in self._found.values:
                value = self._found.values[key]
                if value is None or self._is_of_one(value, by_number):
                    return True
        return False

    # Elements that are written for certain

    def _stored(self, access: MemoryAccess) -> list[ElementSet]:
        found = self._elements(access)
        if found is None:
            return []
        index, free = found
        if self._is_shared and not self._differs(access.index, access.extent, by_number=False):
            threads = [e.op for e in access.around if begins_threads(e.op)]
            free += tuple(
                Free(variable, count)
                for op in threads
                if (variable := self._wide(op.node.var)) is not None
                and (count := self._wide(op.value)) is not None
            )
        return [ElementSet(index, free)]

    def _sets_of(self, inside: Sequence[MemoryAccess], depth: int) -> list[ElementSet]:
        """Return what accesses in one statement with a body write for certain, all in all."""
        enclosure = inside[0].around[depth]
        op, key = enclosure.op, enclosure.number
        if not any(access.writes for access in inside):
            return []
        if key in self._sets:
            return self._sets[key]
        self._bind(op)
        sets: list[ElementSet] = []
        arms: list[Sequence[ElementSet]] = []
        by_one = self._differs(*_deciding(op), by_number=False)
        for part, accesses in _parts(inside, depth):
            written: list[ElementSet] = []
            self._walk(accesses, depth + 1, written, check=False)
            if isinstance(op, tir.While) or (begins_threads(op) and not self._is_shared):
                continue
            inner = self._of_threads(written, by_one)
            if isinstance(op, tir.Loop) and part == _BODY_OF_FOR:
                inner = self._left(op, inner)
            condition = self._condition(enclosure)
            if condition is not None and part:
                arms.append(written)
                when = self._holding(condition, part)
                inner = [replace(each, when=(*each.when, *when)) for each in inner]
            sets += inner
        if len(arms) == 2:
            # Elements that both branches write are written, whatever the condition is: for each
            # thread, where threads take different ones.
            by_one = self._differs(*_deciding(op), by_number=True)
            for some, others in (arms, arms[::-1]):
                sets += self._in_both(some, self._of_threads(others, by_one))
        self._sets[key] = sets[-_MOST_SETS:]
        return self._sets[key]

    def _in_both(
        self, sets: Sequence[ElementSet], others: Sequence[ElementSet]
    ) -> list[ElementSet]:
        """Return the sets that lie in others."""
        return [each for each in sets if not each.when and self._proofs.covers(each.index, others)]

    def _left(
        self, op: tir.Loop, sets: Sequence[ElementSet], beyond: Any = None
    ) -> list[ElementSet]:
        """Return what all rounds of a loop write; only those with a counter below `beyond`."""
        variable, first, extent = (self._wide(e) for e in (op.loop_var, op.min, op.extent))
        step = 1 if op.step is None else getattr(op.step, "value", 0)
        if variable is None or first is None or extent is None or step < 1:
            return []
        length = extent if beyond is None else beyond - first
        count = self._proofs.analyzer.simplify(tir.floordiv(length + (step - 1), number(step)))
        found = []
        # A value in memory that decides whether there is a store may be different in each round.
        for each in filter(self._proofs.is_known, sets):
            round_ = self._proofs.fresh(op.loop_var.name, count)
            new = each.substituted(variable, first + round_ * number(step))
            found.append(replace(new, free=(*new.free, Free(round_, count))))
        return found

    # Elements that are read

    def _are_written(
        self,
        inside: Sequence[MemoryAccess],
        depth: int,
        written: Sequence[ElementSet],
        by_one: bool,
    ) -> bool:
        """Return whether what is read in one statement with a body was written."""
        enclosure = inside[0].around[depth]
        op = enclosure.op
        self._bind(op)
        # Threads that take another way do not store what stands on this one.
        by_one = by_one or self._differs(*_deciding(op), by_number=True)
        for part, accesses in _parts(inside, depth):
            if not any(access.reads for access in accesses):
                continue
            known = [*written]
            holding: Sequence[Condition] = ()
            if isinstance(op, tir.Loop) and part == _BODY_OF_FOR:
                known += self._of_threads(self._earlier(op, accesses, depth), by_one)
                extent = self._wide(op.extent)
                if extent is not None:
                    holding = [Condition(extent > 0, extent <= 0)]
            elif (condition := self._condition(enclosure)) is not None:
                holding = self._holding(condition, part)
            if any(self._proofs.analyzer.can_prove(both.fails) for both in holding):
                continue
            # Sets found where conditions hold, as by the range of a variable, are dropped after.
            before, self._sets = self._sets, {**self._sets}
            with self._proofs.where(holding):
                if not self._walk(accesses, depth + 1, known, check=True, by_one=by_one):
                    return False
            self._sets = before
        return True

    def _earlier(
        self, op: tir.Loop, inside: Sequence[MemoryAccess], depth: int
    ) -> list[ElementSet]:
        """Return what earlier rounds of a loop within the round wrote."""
        if op.kind == _PARALLEL_LOOP:
            return []
        inner: list[ElementSet] = []
        self._walk(inside, depth + 1, inner, check=False)
        return self._left(op, inner, self._wide(op.loop_var))

    def _is_written(self, access: MemoryAccess, written: Sequence[ElementSet]) -> bool:
        found, sets = self._elements(access), written[-_MOST_SETS:]
        if found is not None and self._proofs.covers(found[0], sets):
            return True
        if self._size is None or not sets:
            return False
        # All of it may have been, wherever the access is.
        return self._proofs.covers(self._proofs.fresh("any", self._size), sets)

    # Expressions

    def _wide(self, expr: Any) -> Any:
        return self._proofs.wide(expr)

    def _elements(self, access: MemoryAccess) -> tuple[Any, tuple[Free, ...]] | None:
        """Return the first unit that is accessed, and variables that lead to the others."""
        if access.index is None:
            return None
        found = self._proofs.elements(access.index)
        extent = number(1) if access.extent is None else self._wide(access.extent)
        if found is None or extent is None:
            return None
        index, free = found
        if not (isinstance(extent, tir.IntConstant) and extent.value == 1):
            element = self._proofs.fresh("element", extent)
            index, free = index + element, (Free(element, extent), *free)
        units = number(access.bits // self._unit)
        if units.value != 1:
            unit = self._proofs.fresh("unit", units)
            index, free = index * units + unit, (Free(unit, units), *free)
        return index, free

    def _bind(self, op: Any) -> None:
        """Let proofs know the values that a loop or the threads give a variable."""
        if isinstance(op, tir.Loop):
            parts = op.loop_var, op.min, op.extent
        elif begins_threads(op):
            parts = op.node.var, tir.IntConstant("int32", 0), op.value
        else:
            return
        variable, first, extent = map(self._wide, parts)
        if variable is not None and first is not None and extent is not None:
            values = tir.Range.from_min_extent(first, extent)
            self._proofs.analyzer.bind(variable, values, allow_override=True)

    def _condition(self, enclosure: Enclosure) -> Condition | None:
        """Return the condition of a branch or of a choice; None for other nodes."""
        op, key = enclosure.op, enclosure.number
        if not isinstance(op, (tir.If, tir.Select, tir.Call)):
            return None
        if key not in self._conditions:
            condition = op.args[0] if isinstance(op, tir.Call) else op.condition
            self._conditions[key] = self._proofs.condition(condition)
        return self._conditions[key]

    def _holding(self, condition: Condition, part: int) -> tuple[Condition, ...]:
        """Return what holds in a part of a branch or of a choice."""
        if part == 0:
            return ()
        return self._proofs.conjuncts(condition) if part == 1 else (condition.opposite,)


def _deciding(op: Any) -> tuple[Any, ...]:
    """Return the expressions that decide who comes by what stands in a node, and how often."""
    if isinstance(op, tir.Loop):
        return op.min, op.extent, op.step
    if isinstance(op, (tir.If, tir.While, tir.Select)):
        return (op.condition,)
    return (op.args[0],) if isinstance(op, tir.Call) else ()


def _is_evaluated(access: MemoryAccess) -> bool:
    """Return whether a call that is given an address is surely evaluated in its statement.

    Code in C leaves out operands of ``&&`` and ``||``.
    """
    op = access.statement
    expr = getattr(op, "condition", getattr(op, "value", op))
    return type(access.op) is tir.Store or not nodes_in(expr, tir.And, tir.Or)


def _number_at(access: MemoryAccess, depth: int) -> int | None:
    return access.around[depth].number if len(access.around) > depth else None


def _parts(
    inside: Sequence[MemoryAccess], depth: int
) -> Iterator[tuple[int, tuple[MemoryAccess, ...]]]:
    for part, group in groupby(inside, lambda access: access.around[depth].part):
        yield part, tuple(group)
