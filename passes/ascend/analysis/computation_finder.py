# SPDX-License-Identifier: Apache-2.0
"""Finds the computations of a function, by the record of its accesses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from passes.ascend.analysis.computations import (
    Computation,
    Memory,
    Node,
    flattened,
    joined,
    union,
)
from passes.ir import NO_LOWER, Bound, MemoryAccess, most_of, structural_map, tir
from passes.ir.operators import is_tvm_access_ptr, masked_index
from passes.ir.statements import nodes_of
from passes.prim_func import FunctionProblems
from passes.simulation import Alternative, Loop

UNKNOWN_TRIPS = 2
"""Iterations of a loop of unknown extent: the fewest with a next iteration."""

_MOST_TRIPS = 1 << 31  # Extents that may reach this limit are treated as unknown.
_PIPE = "pipe"
_OF_LOAD, _OF_STORE = 1, 2  # The argument that is the index of a load, and of a store, under a mask


def find_computations(found: FunctionProblems, planned: Mapping[int, str]) -> tuple[Node, ...]:
    """Find the computations of a function and the loops and branches around them, in order.

    `planned` has the names of planned buffers by the index of the allocation. ValueError is raised
    when one named pipe stands inside of another, or is no name.
    """
    return _Finder(found, planned).nodes(found.access.body, None)


class _Finder:
    def __init__(self, found: FunctionProblems, planned: Mapping[int, str]) -> None:
        self._access, self._accesses, self._planned = found.access, found.accesses, planned
        self._bounds = list(found.bounds)  # Of the variables that are known by now
        # The statements, by handle, around allocations that are planned.
        places = (place for index in planned for place in found.accesses.of[index].made)
        self._allocating = {each.op.__chandle__() for place in places for each in place}

    def nodes(self, part: Any, pipe: str | None) -> tuple[Node, ...]:
        """Return what a part of a statement is made of; `pipe` is the named pipe around it."""
        found: list[Node] = []
        for op in nodes_of(part):
            name = _named_pipe(op, pipe)
            inside = self._statement(op, name or pipe)
            if name is not None and inside:
                whole = flattened(inside)
                inside = [replace(whole, pipe=name, is_plain=False, is_value=False)]
            found += inside
        return tuple(found)

    def _statement(self, op: Any, pipe: str | None) -> Sequence[Node]:
        key = op.__chandle__()
        match op:
            case tir.Allocation() | tir.Declaration():
                return ()
            case tir.Store():
                return [self._store(op)]
            case tir.Attribute():
                return self.nodes(op.body, pipe)
            case tir.Binding() | tir.Assertion():
                return self._value(op)
            case tir.Loop():
                return self._loop(op, pipe)
            case tir.While():
                body = (*self._value(op), *self.nodes(op.body, pipe))
                return [Loop(key, UNKNOWN_TRIPS, body)] if body else []
            case tir.If():
                cases = [self.nodes(case, pipe) for case in (op.then_case, op.else_case)]
                return [*self._value(op), *([Alternative(*cases)] if any(cases) else [])]
        # Of a call the accesses are known by its pointers at most.
        reads, writes, elements = self._touched(op)
        bits = max((memory.bits for memory in (*reads, *writes)), default=0)
        return [Computation(reads, writes, elements, elements * bits, bits)] if bits else []

    def _store(self, op: tir.Store) -> Computation:
        reads, written, _ = self._touched(op)
        dtype = op.value.ty.dtype
        lanes = max(dtype.lanes, 1)
        return Computation(
            reads,
            union([self._memory(op.buffer)], written),
            elements=lanes,
            moved_bits=dtype.bits * lanes,
            element_bits=max([dtype.bits, *(memory.bits for memory in reads)]),
            stores=(op,),
            is_plain=lanes == 1,
        )

    def _value(self, op: Any) -> Sequence[Node]:
        reads, *_ = self._touched(op)
        if not reads:
            return ()
        bits = max(memory.bits for memory in reads)
        return [Computation(reads, (), elements=1, element_bits=bits, is_value=True)]

    def _loop(self, op: tir.Loop, pipe: str | None) -> Sequence[Node]:
        trips, key = self._trips(op), op.__chandle__()
        before, body = self._value(op), self.nodes(op.body, pipe)
        whole = None if before or key in self._allocating else joined(body)
        if whole is not None:
            return [whole.times(trips)]
        return [*before, *([Loop(key, trips, body)] if body else [])]

    # Memory

    def _memory(self, buffer: tir.Var) -> Memory:
        key = buffer.__chandle__()
        entry = self._access.buffers.get(key)
        bits = buffer.ty.dtype.dtype.bits
        if entry is not None and entry.root >= 0:
            alloc, key = self._access.allocs[entry.root], self._access.alloc_keys[entry.root]
            return Memory(key, alloc.name, str(alloc.scope), bits, self._planned.get(entry.root))
        return Memory(key, buffer.name, buffer.ty.storage_scope, bits)

    def _touched(self, op: Any) -> tuple[tuple[Memory, ...], tuple[Memory, ...], int]:
        """Return what a statement reads, what calls in it may write, and the most elements of one.

        A store's own write does not count, nor what stands in the body of a statement.
        """
        found = [
            (self._memory(each.buffer), each)
            for each in self._accesses.by_statement.get(op.__chandle__(), ())
            if not each.op.same_as(op)
        ]
        reads = union(memory for memory, each in found if each.reads)
        writes = union(memory for memory, each in found if each.writes)
        return reads, writes, max((_elements(each) for _, each in found), default=1)

    # Extents

    def _trips(self, op: tir.Loop) -> int:
        """Return how often a loop runs at most, and note what its variable can be."""
        extent, begin = self._most(op.extent), self._most(op.min)
        if extent is not None and begin is not None:
            least = op.min.value if isinstance(op.min, tir.IntConstant) else NO_LOWER
            last = max(begin + extent - 1, least)
            self._bounds.append(Bound(op.loop_var, least, last))
        if extent is None or extent >= _MOST_TRIPS:
            return UNKNOWN_TRIPS
        step = getattr(op.step, "value", 1) if op.step is not None else 1
        return max(-(-extent // max(step, 1)), 0)

    def _most(self, expr: Any) -> int | None:
        """Return the most that an expression can be; what it reads from memory can be anything."""
        if isinstance(expr, tir.IntConstant):
            return int(expr.value)
        unknown = [(tir.Load, lambda load: tir.Var("unknown", load.ty))]
        found = most_of(structural_map(expr, unknown), self._bounds)
        return None if found is None else found[0]


def _named_pipe(op: Any, outer: str | None) -> str | None:
    """Return the pipe that a statement names, if it does, inside of the named pipe `outer`."""
    value = None
    if isinstance(op, tir.Loop):
        value = op.annotations.get(_PIPE)
    elif isinstance(op, tir.Attribute) and op.attr_key == _PIPE:
        value = op.value
    if value is None:
        return None
    name = getattr(value, "value", value)
    if not isinstance(name, str):
        raise ValueError(f"a pipe is named by a string, got {value}")
    if outer not in (None, name):
        raise ValueError(f"pipe {str(name)!r} is named inside of pipe {outer!r}")
    return str(name)


def _elements(access: MemoryAccess) -> int:
    """Return how many elements a call may access at an address; all, where it does not say.

    What a load reads is not counted.
    """
    at = masked_index(access.op)
    if not access.is_address or at == _OF_LOAD:
        return 1
    if at == _OF_STORE:
        return int(access.op.args[1].ty.dtype.lanes)
    lanes = max(int(access.dtype.lanes), 1)
    if is_tvm_access_ptr(access.op):
        return max((tir.constant(access.extent) or 1) * int(access.dtype.lanes), 1)
    extents = (tir.constant(extent) for extent in access.buffer.ty.shape)
    return max((lanes * extent for extent in extents if extent is not None), default=lanes)
