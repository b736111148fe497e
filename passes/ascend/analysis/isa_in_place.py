# SPDX-License-Identifier: Apache-2.0
"""Which results the vector unit may write over an operand, and where that stalls a double buffer.

`passes.prim_func.in_place_pairs` finds pairs that are safe: each element is read before a store
writes its place. An instruction set allows fewer: not every vector instruction can write
over what it reads. Source of the rules: ``PlanMemory.cpp`` of AscendNPU-IR's HIVM
dialect. There they look at operations of that dialect; here at the value that a store computes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tvm.ir import TensorLoad, Var
from tvm.ir.expr import Call
from tvm.ir.prim import (
    Add,
    And,
    BinaryOpExpr,
    BitwiseAnd,
    BitwiseNot,
    BitwiseOr,
    Cast,
    CmpExpr,
    Max,
    Min,
    Mul,
    Not,
    Or,
    Select,
    Sub,
    expr_deep_equal,
)
from tvm.tirx import BufferStore

from passes.ascend.analysis.pipes import FILLS_FROM_GLOBAL, Pipelines
from passes.ir import nodes_in
from passes.ir.operators import is_instruction, masked_index, operator_name
from passes.planning import Buffer
from passes.prim_func import Allocation, FunctionProblems, is_within

_MOST_INPUTS = 3
_BINARY = (BinaryOpExpr, CmpExpr, And, Or)
_UNARY = (Not, BitwiseNot)
_ALWAYS = (Add, Sub, Mul, Max, Min, And, Or, BitwiseAnd, BitwiseOr)
_STORES_TO_GLOBAL = "MTE3"


@dataclass(frozen=True)
class InPlace:
    """The pairs of one problem that may be in place."""

    # (source, destination), by the position of the instruction; of one instruction, the source that
    # was allocated first. A result has one source, beside those that stall.
    pairs: tuple[tuple[str, str], ...]
    # Those of `pairs` that would let the next load wait for a store: both are multi-buffered, one
    # is stored to global memory and the other is loaded from it.
    stalls: tuple[tuple[str, str], ...]


def isa_in_place(
    found: FunctionProblems,
    allocations: Mapping[str, Allocation],
    buffers: Iterable[Buffer],
    safe: Iterable[tuple[str, str]],
    pipelines: Pipelines,
    restrict: bool = False,
) -> InPlace:
    """Pick those of the `safe` pairs of some buffers that the instruction set allows.

    `restrict` allows only what every chip of the family can do, rather than every elementwise
    instruction.

    A pair must meet all of these:

    - neither is to be kept apart from all others, and the destination is no larger than the source;
    - the vector unit runs the statement, if only element by element in a loop of the scalar unit,
      and it consists of one store;
    - it alone stores to the destination in the statement in which that begins its life, and nothing
      there stores to the source;
    - a destination of narrower elements has no more slots than the source: else the wider one
      would take as many slots, and the two more bytes than apart;
    - no element is wider than those of its operator's operands, down to the source: a cast may
      narrow;
    - its value is an operator with one to three operands, or a chain of them: one operand of each
      is the next operator, and all others are loads or scalars. Only the last one of the chain,
      which is computed first, reads the source;
    - each operator is an addition, subtraction, product, maximum, minimum, ``and`` or ``or``, and
      all loads have the element's own index; or, unless `restrict`, it is any operator that is
      computed element by element, and no operand is transposed: its index names fewer loop
      variables, where it is not the element's own.

    Of several sources of one result the first is taken. Two buffers count as multi-buffered if
    they, or what they are in place of directly, have several slots; they count as stored and as
    loaded if anything along their chains of pairs is.
    """
    by_name = {buffer.name: buffer for buffer in buffers}
    chains = _Chains(allocations, by_name, pipelines)
    pairs: list[tuple[str, str]] = []
    stalls: list[tuple[str, str]] = []
    taken: set[str] = set()

    def begins(pair: tuple[str, str]) -> tuple[int, int]:
        destination = by_name[pair[1]]
        return destination.live[0][0], -destination.size

    for source, destination in sorted(safe, key=begins):
        one, other = by_name[source], by_name[destination]
        indices = [allocations[name].index for name in (source, destination)]
        if any(index in pipelines.unique for index in indices):
            continue
        if destination in taken or other.size > one.size:
            continue
        bits = [found.access.allocs[index].element.bits for index in indices]
        if one.slots < other.slots and bits[1] < bits[0]:
            continue
        statement = found.access.sequence[other.live[0][0]]
        stores = [
            sum(is_within(site, statement) for site in found.uses[index].stores)
            for index in indices
        ]
        if stores != [0, 1]:
            continue
        store = found.uses[indices[1]].stores[0].store
        if store.__chandle__() not in pipelines.elementwise:
            continue
        if not may_write_over(store, allocations[source].statement.buffer, restrict):
            continue
        pairs.append((source, destination))
        if chains.stall(source, destination):
            stalls.append((source, destination))
            continue
        taken.add(destination)
        chains.join(source, destination)
    return InPlace(tuple(pairs), tuple(stalls))


class _Chains:
    """Buffers that are in place of each other, as far as it is decided."""

    def __init__(
        self,
        allocations: Mapping[str, Allocation],
        buffers: Mapping[str, Buffer],
        pipelines: Pipelines,
    ) -> None:
        self._pipelines, self._allocations, self._buffers = pipelines, allocations, buffers
        self._partners: dict[str, list[str]] = {name: [] for name in allocations}

    def join(self, source: str, destination: str) -> None:
        """Note that two buffers are in one place."""
        self._partners[source].append(destination)
        self._partners[destination].append(source)

    def stall(self, source: str, destination: str) -> bool:
        """Whether one takes a slot of the other, and a load would wait for a store there."""
        return (
            self._is_multi_buffered(source)
            and self._is_multi_buffered(destination)
            and self._any(destination, self._pipelines.readers, _STORES_TO_GLOBAL)
            and self._any(source, self._pipelines.writers, FILLS_FROM_GLOBAL)
        )

    def _is_multi_buffered(self, name: str) -> bool:
        return any(self._buffers[other].slots > 1 for other in (name, *self._partners[name]))

    def _any(self, name: str, pipes: Mapping[int, set[str]], pipe: str) -> bool:
        """Whether a pipe is among those of a buffer's whole chain."""
        chain = [name]
        for other in chain:
            chain += [partner for partner in self._partners[other] if partner not in chain]
        return any(pipe in pipes[self._allocations[other].index] for other in chain)


def may_write_over(store: BufferStore, source: Any, restrict: bool = False) -> bool:
    """Whether vector instructions can compute the value of a store in the place of an operand.

    A value of several operators is a chain of instructions, each in the place of the one before.
    `restrict` is as in `isa_in_place`.
    """
    bits, node = store.value.ty.dtype.bits, store.value
    while True:
        operands = _operands(node)
        if operands is None or len(operands) > _MOST_INPUTS or node.ty.dtype.bits % bits:
            return False
        bits = node.ty.dtype.bits  # What is computed first may be wider, and is narrowed later.
        loads = [operand for operand in operands if type(operand) is TensorLoad]
        rest = [operand for operand in operands if type(operand) is not TensorLoad]
        inner = [operand for operand in rest if _reads(operand)]
        shapes = {_shape(load, store) for load in loads}
        always = isinstance(node, _ALWAYS) and shapes <= {"same"}
        if not always and (restrict or "other" in shapes):
            return False
        sources = [load for load in loads if load.source.same_as(source)]
        if any(load.ty.dtype.bits % bits for load in sources):
            return False
        if not inner:
            return bool(sources)
        # What a later instruction reads must not be overwritten by an earlier one.
        if sources or len(inner) > 1:
            return False
        (node,) = inner


def _operands(value: Any) -> list[Any] | None:
    """Return the operands of an operator; None if the operator is unknown."""
    if isinstance(value, _BINARY):
        return [value.a, value.b]
    if isinstance(value, _UNARY):
        return [value.a]
    if isinstance(value, Cast):
        return [value.value]
    if isinstance(value, Select):
        return [value.condition, value.true_value, value.false_value]
    if isinstance(value, Call):
        return list(value.args) if is_instruction(operator_name(value.op)) else None
    return None


def _reads(expr: Any) -> bool:
    """Whether an expression reads memory."""
    nodes = nodes_in(expr, TensorLoad, Call)
    return any(type(node) is TensorLoad or masked_index(node) is not None for node in nodes)


def _shape(load: TensorLoad, store: BufferStore) -> str:
    """Return how an operand's index relates to the one that is written."""
    read, written = load.indices, store.indices
    if len(read) == len(written) and all(map(expr_deep_equal, read, written)):
        return "same"
    return "broadcast" if _variables(read) < _variables(written) else "other"


def _variables(indices: Any) -> set[int]:
    return {var.__chandle__() for index in indices for var in nodes_in(index, Var)}
