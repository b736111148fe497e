# SPDX-License-Identifier: Apache-2.0
"""Which parts of a function are one instruction of the hardware, and the loops around them.

TIR writes an instruction as a loop nest over elements; an instruction set for accelerators has one
instruction for it. A *computation* is such a nest, as large as it can be:

- a store, or a call in a statement of its own;
- a loop around one computation;
- a loop around initial stores and the computation that they are for: all but the last read no
  memory, and write only what the last one writes. So TVM lowers reductions;
- a loop around stores of single elements that run on one pipe each by itself, and on the same, such
  as a reduction of several results at once;
- an ``if`` around computations, inside of one of these loops: a predicate;
- all statements inside of ``T.attr({"pipe": ...})``, or in a loop with that annotation.

A loop in which memory is allocated that is planned is no part of a computation, so a loop over
tiles stays a loop; so does any other loop that holds several computations.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

import tvm_ffi
from tvm.ir import TensorLoad, Var
from tvm.ir.expr import Call as CallExpr
from tvm.sym import Analyzer, ConstIntBound
from tvm.tirx import Bind, Cast, For, IntImm

from passes.ascend.analysis.computations import (
    READS,
    WRITES,
    Computation,
    IfElse,
    Memory,
    Node,
    Repeat,
    access_mask,
    counted,
    either,
    flattened,
    in_sequence,
    is_initialised,
    needs_scalar_loop,
    union,
)
from passes.ir import nodes_in
from passes.ir.operators import buffer_data_var, is_address_of, is_tvm_access_ptr, masked_index
from passes.ir.statements import (
    Alloc,
    Assert,
    Attribute,
    Branch,
    Call,
    Declare,
    ForLoop,
    Load,
    Name,
    Other,
    Records,
    RecordVisitor,
    Store,
    Value,
    WhileLoop,
    post_order,
)
from passes.prim_func import FunctionProblems

UNKNOWN_TRIPS = 2
"""Iterations of a loop of unknown extent: the fewest with a next iteration."""

_MOST_TRIPS = 1 << 31
"""Extents that may reach this limit are treated as unknown."""

_INFINITE = (1 << 63) - 1  # What TVM's analyzer takes for infinite

_PIPE = "pipe"
_OF_LOAD, _OF_STORE = 1, 2  # Which argument is the index of a load, and of a store, under a mask


def find_computations(
    found: FunctionProblems, planned: Collection[int], route: Callable[[Computation], str]
) -> tuple[Node, ...]:
    """Find the computations of a function and the loops and branches around them, in order.

    `planned` are indices of allocations; `route` gives the pipe that a computation would run on by
    itself. ValueError is raised when one named pipe stands inside of another, or is no name.
    """
    return _Finder(found, planned, route).nodes(found.access.statements)


class _Finder(RecordVisitor):
    def __init__(
        self, found: FunctionProblems, planned: Collection[int], route: Callable[[Computation], str]
    ) -> None:
        self._access = found.access
        self._planned = frozenset(planned)
        self._route = route
        self._analyzer = Analyzer()
        self._bounded: set[int] = set()  # The variables of which more is known than their type.
        for bound in found.bounds:
            self._bound(bound.variable, bound.lower, bound.upper)
        self._made = 0
        self._pipe: str | None = None
        self._nodes: list[Node] = []  # What the statements that are read are made of, so far

    def nodes(self, statements: Records) -> tuple[Node, ...]:
        """Return what statements are made of."""
        outer, self._nodes = self._nodes, []
        self._visit(statements)
        found, self._nodes = self._nodes, outer
        return tuple(found)

    # Memory

    def _memory(self, buffer: Var) -> Memory:
        key = buffer.__chandle__()
        entry = self._access.buffers.get(key)
        bits = buffer.ty.dtype.dtype.bits
        if entry is not None and entry.root >= 0:
            alloc = self._access.allocs[entry.root]
            key = self._access.alloc_keys[entry.root]
            return Memory(key, alloc.name, str(alloc.scope), entry.root, bits)
        return Memory(key, buffer.name, buffer.ty.storage_scope or "global", None, bits)

    def _loads(self, *expressions: Records) -> tuple[Memory, ...]:
        uses = (use for records in expressions for use in post_order(records))
        return union([self._memory(var) for use in uses if (var := _loaded(use)) is not None])

    # Leaf statements

    def _visit_alloc(self, alloc: Alloc) -> None:
        self._made += self._memory(alloc.buffer).index in self._planned

    def _visit_declare(self, _declare: Declare) -> None:
        """Give memory another name."""

    def _value(self, records: Records) -> Sequence[Node]:
        reads = self._loads(records)
        if not reads:
            return ()
        bits = max(memory.bits for memory in reads)
        return [Computation(reads, (), elements=1, element_bits=bits, is_value=True)]

    def _visit_assert(self, check: Assert) -> None:
        self._nodes += self._value(check.condition)

    def _visit_store(self, store: Store) -> None:
        op, pointers = store.op, self._pointers(store.value)
        pointed = [memory for memory, mask, _ in pointers if mask & READS]
        reads = union(self._loads(store.value, store.indices), pointed)
        written = [memory for memory, mask, _ in pointers if mask & WRITES]
        dtype = op.value.ty.dtype
        lanes = max(dtype.lanes, 1)
        self._nodes.append(
            Computation(
                reads,
                union([self._memory(op.buffer)], written),
                elements=lanes,
                moved_bits=dtype.bits * lanes,
                element_bits=max(dtype.bits, *(memory.bits for memory in reads), 1),
                stores=(op,),
                scalar_loop=needs_scalar_loop(op.value),
                starts=not reads,
                is_plain=lanes == 1,
            )
        )

    def _visit_value(self, value: Value) -> None:
        read = self._value if type(value.op) is Bind else self._opaque
        self._nodes += read(value.value)

    def _visit_other(self, other: Other) -> None:
        self._nodes += self._opaque(other.parts)

    def _opaque(self, records: Records) -> Sequence[Node]:
        """Return the computation of a call, whose accesses are told by its pointers at most."""
        reads, writes = list(self._loads(records)), []
        sizes = [1]
        for memory, mask, elements in self._pointers(records):
            reads += [memory] if mask & READS else []
            writes += [memory] if mask & WRITES else []
            sizes.append(elements)
        if not reads and not writes:
            return ()
        touched = union(reads, writes)
        bits = max(memory.bits for memory in touched)
        return [
            Computation(
                union(reads),
                union(writes),
                elements=max(sizes),
                moved_bits=max(sizes) * bits,
                element_bits=bits,
            )
        ]

    def _pointers(self, records: Records) -> Sequence[tuple[Memory, int, int]]:
        """Return the memory whose address a call is given, how it is accessed, and how much."""
        found: list[tuple[Memory, int, int]] = []
        uses = tuple(post_order(records))
        described = {var.__chandle__() for use in uses if (var := _loaded(use)) is not None}
        for use in uses:
            if type(use) is Call and masked_index(use.op) == _OF_STORE:
                buffer, value, _, _ = use.op.args
                found.append((self._memory(buffer), WRITES, value.ty.dtype.lanes))
                described.add(buffer.__chandle__())
            if type(use) is not Call or not is_tvm_access_ptr(use.op):
                continue
            dtype, data, _, extent, _ = use.op.args
            buffer = buffer_data_var(data)
            if buffer is not None and buffer.__chandle__() in self._access.buffers:
                elements = extent.value if isinstance(extent, IntImm) else 1
                elements *= dtype.ty.dtype.lanes
                found.append((self._memory(buffer), access_mask(use.op), max(elements, 1)))
                described.add(buffer.__chandle__())
        named = [use.buffer for use in uses if type(use) is Name and use.key not in described]
        # Of an element's address it is not known how far from there the call goes.
        loads = (use.op.args[0] for use in uses if type(use) is Call and is_address_of(use.op))
        named += [load.source for load in loads if isinstance(load, TensorLoad)]
        for buffer in named:
            if buffer.__chandle__() in self._access.buffers:
                lanes = max(buffer.ty.dtype.dtype.lanes, 1)
                extents = [e.value * lanes for e in buffer.ty.shape if isinstance(e, IntImm)]
                memory = self._memory(buffer)
                found.append((memory, READS | WRITES, max(extents, default=lanes)))
        return found

    # Statements with a body

    def _visit_attribute(self, attribute: Attribute) -> None:
        name = attribute.op.value if attribute.op.attr_key == _PIPE else None
        self._nodes += self._named(name, lambda: self.nodes(attribute.body))

    def _visit_forloop(self, loop: ForLoop) -> None:
        self._nodes += self._named(loop.op.annotations.get(_PIPE), lambda: self._loop(loop))

    def _named(self, value: Any, inside: Callable[[], Sequence[Node]]) -> Sequence[Node]:
        """Return one computation of all that stands under a pipe's name, if one is given."""
        if value is None:
            return inside()
        name = getattr(value, "value", value)
        if not isinstance(name, str):
            raise ValueError(f"a pipe is named by a string, got {value}")
        outer = self._pipe
        if outer is not None and outer != str(name):
            raise ValueError(f"pipe {str(name)!r} is named inside of pipe {outer!r}")
        self._pipe = str(name)
        whole = flattened(inside())
        self._pipe = outer
        if whole is None:
            return ()
        return [replace(whole, pipe=str(name), starts=False, is_plain=False, is_value=False)]

    def _loop(self, loop: ForLoop) -> Sequence[Node]:
        op, trips = loop.op, self._trips(loop.op)
        (least, low), (_, extent) = self._limits(op.min), self._limits(op.extent)
        self._bound(op.loop_var, least, max(low + extent - 1, least))
        before = [node for bound in loop.bounds for node in self._value(bound)]
        made = self._made
        body = self.nodes(loop.body)
        if not body:
            return before
        if self._made == made and not before:
            whole = self._joined(body)
            if whole is not None:
                return [whole.times(trips)]
        return [*before, Repeat(op, trips, body)]

    def _visit_whileloop(self, loop: WhileLoop) -> None:
        body = (*self._value(loop.condition), *self.nodes(loop.body))
        if body:
            self._nodes.append(Repeat(loop.op, UNKNOWN_TRIPS, body))

    def _visit_branch(self, branch: Branch) -> None:
        self._nodes += self._value(branch.condition)
        made = self._made
        then, *others = map(self.nodes, branch.cases)
        otherwise = others[0] if others else ()
        if then or otherwise:
            predicated = self._predicated(then, otherwise) if self._made == made else None
            self._nodes.append(IfElse(then, otherwise, predicated))

    def _predicated(self, then: Sequence[Node], otherwise: Sequence[Node]) -> Computation | None:
        """Return the branches of an ``if`` as one computation, if they are one."""
        parts = []
        for nodes in filter(None, (then, otherwise)):
            part = self._joined(nodes)
            if part is None or part.pipe is not None:
                return None
            parts.append(part)
        if len(parts) == 1:
            return either(parts[0])
        one, other = parts
        if {memory.key for memory in one.writes} != {memory.key for memory in other.writes}:
            return None
        return replace(either(one, other), is_unconditional=one.is_unconditional)

    # What becomes one

    def _joined(self, nodes: Sequence[Node]) -> Computation | None:
        """Return the one computation that the body of a loop is, if it is one."""
        parts = []
        for node in nodes:
            part = node.predicated if isinstance(node, IfElse) else node
            if not isinstance(part, Computation):
                return None
            parts.append(part)
        values = [part for part in parts if part.is_value]
        parts = [part for part in parts if not part.is_value]
        if not parts or (len(parts) > 1 and not self._are_one(parts)):
            return None
        whole, work = in_sequence(parts), counted(parts)
        return replace(
            whole,
            reads=union(*(value.reads for value in values), whole.reads),
            elements=sum(part.elements for part in work),
            moved_bits=sum(part.moved_bits for part in work),
            starts=whole.starts and not values,
        )

    def _are_one(self, parts: Sequence[Computation]) -> bool:
        if any(part.pipe is not None or not part.stores for part in parts):
            return False
        if is_initialised(parts):
            return True
        routes = [self._route(part) for part in parts]
        return all(part.is_plain for part in parts) and len(set(routes)) == 1

    # How often

    def _trips(self, op: For) -> int:
        _, most = self._limits(op.extent)
        if most >= _MOST_TRIPS:
            return UNKNOWN_TRIPS
        step = getattr(op.step, "value", 1) if op.step is not None else 1
        return max(-(-most // max(step, 1)), 0)

    def _bound(self, var: Var, least: int, most: int) -> None:
        least, most = max(least, -_INFINITE), min(most, _INFINITE)
        self._bounded.add(var.__chandle__())
        self._analyzer.update(var, ConstIntBound(least, most), override=True)

    def _limits(self, expr: Any) -> tuple[int, int]:
        """Return the least and the most that an expression can be, infinite if that is not known.

        TVM's analyzer would take the limits of its type for those of a variable.
        """

        def forget(op: Any, mutator: Any) -> Any:
            """Put a variable in the place of what is not known, or hides that it is not."""
            if isinstance(op, Cast) and not _names(op.value) - self._bounded:
                return mutator.default_mutate(op)
            return Var("unknown", op.ty)

        expr = tvm_ffi.structural_mutate(
            expr, [(TensorLoad, forget), (CallExpr, forget), (Cast, forget)]
        )
        for var in nodes_in(expr, Var):
            if var.__chandle__() not in self._bounded:
                self._analyzer.update(var, ConstIntBound(-_INFINITE, _INFINITE), override=True)
        bound = self._analyzer.const_int_bound(expr)
        return int(bound.min_value), int(bound.max_value)


def _loaded(use: Any) -> Var | None:
    """Return the buffer of which a record is a load, by itself or under a mask."""
    if type(use) is Load:
        return use.op.source
    return use.op.args[0] if type(use) is Call and masked_index(use.op) == _OF_LOAD else None


def _names(expr: Any) -> set[int]:
    """Return the handles of the variables in an expression, and of the buffers that it reads."""
    buffers = {load.source.__chandle__() for load in nodes_in(expr, TensorLoad)}
    return buffers | {var.__chandle__() for var in nodes_in(expr, Var)}
