# SPDX-License-Identifier: Apache-2.0
"""Finds the computations of a function."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
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
from passes.ir.statements import NodeVisitor, nodes_of
from passes.prim_func import FunctionProblems
from passes.simulation import Alternative, Loop

UNKNOWN_TRIPS = 2
"""Iterations of a loop of unknown extent: the fewest with a next iteration."""

_MOST_TRIPS = 1 << 31  # Extents that may reach this limit are treated as unknown.
_PIPE = "pipe"
_OF_LOAD, _OF_STORE = 1, 2  # The argument that is the index of a load, and of a store, under a mask
_BOUNDS = (0, 1, 2)  # The parts of a loop before its body


def find_computations(found: FunctionProblems, planned: Collection[int]) -> tuple[Node, ...]:
    """Find the computations of a function and the loops and branches around them, in order.

    `planned` are indices of allocations. ValueError is raised when one named pipe stands inside of
    another, or is no name.
    """
    return _Finder(found, planned).nodes(nodes_of(found.access.body))


class _Finder(NodeVisitor):
    def __init__(self, found: FunctionProblems, planned: Collection[int]) -> None:
        self._access, self._accesses = found.access, found.accesses
        self._bounds = list(found.bounds)  # Of the variables that are known by now
        self._pipe: str | None = None  # The named pipe around
        self._nodes: list[Node] = []  # Nodes of the statements read so far
        # The statements, by handle, around allocations that are planned.
        places = (place for index in planned for place in found.accesses.of[index].made)
        self._allocating = {each.op.__chandle__() for place in places for each in place}

    def nodes(self, statements: Sequence[Any]) -> tuple[Node, ...]:
        """Return what statements are made of."""
        outer, self._nodes = self._nodes, []
        self._visit(statements)
        found, self._nodes = self._nodes, outer
        return tuple(found)

    # Memory

    def _memory(self, buffer: tir.Var) -> Memory:
        key = buffer.__chandle__()
        entry = self._access.buffers.get(key)
        bits = buffer.ty.dtype.dtype.bits
        if entry is not None and entry.root >= 0:
            alloc = self._access.allocs[entry.root]
            key = self._access.alloc_keys[entry.root]
            return Memory(key, alloc.name, str(alloc.scope), entry.root, bits)
        return Memory(key, buffer.name, buffer.ty.storage_scope, None, bits)

    def _touched(
        self, op: Any, part: int | None = None
    ) -> tuple[tuple[Memory, ...], tuple[Memory, ...], int]:
        """Return what a statement reads, what calls in it may write, and the most elements of one.

        A store's own write does not count; of a loop, one `part` can be asked for.
        """
        found = [
            (self._memory(each.buffer), each)
            for each in self._accesses.by_statement.get(op.__chandle__(), ())
            if not each.op.same_as(op)
            and (part is None or each.around[each.loop_of_bounds or 0].part == part)
        ]
        loads = [m for m, each in found if _is_load(each)]
        pointers = [(m, each) for m, each in found if not _is_load(each)]
        pointers.sort(key=lambda pointer: _rank(pointer[1].op))
        reads = union(loads, (m for m, each in pointers if each.reads))
        writes = union(m for m, each in pointers if each.writes)
        return reads, writes, max((_elements(each) for _, each in pointers), default=1)

    # Leaf statements

    def _visit_allocation(self, op: tir.Allocation) -> None:
        """Leave an allocation out, which computes nothing."""

    _visit_declaration = _visit_allocation

    def _visit_store(self, op: tir.Store) -> None:
        reads, written, _ = self._touched(op)
        dtype = op.value.ty.dtype
        lanes = max(dtype.lanes, 1)
        store = Computation(
            reads,
            union([self._memory(op.buffer)], written),
            elements=lanes,
            moved_bits=dtype.bits * lanes,
            element_bits=max([dtype.bits, *(memory.bits for memory in reads)]),
            stores=(op,),
            is_plain=lanes == 1,
        )
        self._nodes.append(store)

    def _visit_binding(self, op: tir.Assertion | tir.Binding) -> None:
        self._nodes += self._value(op)

    _visit_assertion = _visit_binding

    def _value(self, op: Any, part: int | None = None) -> Sequence[Node]:
        reads, *_ = self._touched(op, part)
        if not reads:
            return ()
        bits = max(memory.bits for memory in reads)
        return [Computation(reads, (), elements=1, element_bits=bits, is_value=True)]

    def _visit_other(self, op: Any) -> None:
        """Add the computation of a call, whose accesses are known by its pointers at most."""
        reads, writes, elements = self._touched(op)
        if reads or writes:
            bits = max(memory.bits for memory in (*reads, *writes))
            self._nodes.append(Computation(reads, writes, elements, elements * bits, bits))

    _visit_evaluation = _visit_return = _visit_other

    # Statements with a body

    def _visit_attribute(self, op: tir.Attribute) -> None:
        name = op.value if op.attr_key == _PIPE else None
        self._nodes += self._named(name, lambda: self.nodes(nodes_of(op.body)))

    def _visit_loop(self, op: tir.Loop) -> None:
        self._nodes += self._named(op.annotations.get(_PIPE), lambda: self._loop(op))

    def _named(self, value: Any, inside: Callable[[], Sequence[Node]]) -> Sequence[Node]:
        """Return one computation of all that stands under a pipe's name, if one is given."""
        if value is None:
            return inside()
        name = getattr(value, "value", value)
        if not isinstance(name, str):
            raise ValueError(f"a pipe is named by a string, got {value}")
        name, outer = str(name), self._pipe
        if outer not in (None, name):
            raise ValueError(f"pipe {name!r} is named inside of pipe {outer!r}")
        self._pipe = name
        nodes = inside()
        self._pipe = outer
        if not nodes:
            return ()
        return [replace(flattened(nodes), pipe=name, is_plain=False, is_value=False)]

    def _loop(self, op: tir.Loop) -> Sequence[Node]:
        trips = self._trips(op)
        before = [node for bound in _BOUNDS for node in self._value(op, bound)]
        body = self.nodes(nodes_of(op.body))
        if not body:
            return before
        if op.__chandle__() not in self._allocating and not before:
            whole = joined(body)
            if whole is not None:
                return [whole.times(trips)]
        return [*before, Loop(op.__chandle__(), trips, body)]

    def _visit_while(self, op: tir.While) -> None:
        body = (*self._value(op), *self.nodes(nodes_of(op.body)))
        if body:
            self._nodes.append(Loop(op.__chandle__(), UNKNOWN_TRIPS, body))

    def _visit_if(self, op: tir.If) -> None:
        self._nodes += self._value(op)
        then, otherwise = (self.nodes(nodes_of(case)) for case in (op.then_case, op.else_case))
        if then or otherwise:
            self._nodes.append(Alternative(then, otherwise))

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


def _is_load(access: MemoryAccess) -> bool:
    """Return whether an access is a load, by itself or under a mask."""
    return not access.is_address or masked_index(access.op) == _OF_LOAD


def _rank(op: Any) -> int:
    """Return 0 for a pointer that says how far it goes, 1 for a buffer, 2 for an address in it."""
    return 0 if type(op) is tir.Call else 1 if type(op) is tir.Var else 2


def _elements(access: MemoryAccess) -> int:
    """Return how many elements a call may access at an address; all, where it does not say."""
    if masked_index(access.op) == _OF_STORE:
        return int(access.op.args[1].ty.dtype.lanes)
    if is_tvm_access_ptr(access.op):
        return max((tir.constant(access.extent) or 1) * int(access.dtype.lanes), 1)
    lanes = max(int(access.dtype.lanes), 1)
    extents = (tir.constant(extent) for extent in access.buffer.ty.shape)
    return max((lanes * extent for extent in extents if extent is not None), default=lanes)
