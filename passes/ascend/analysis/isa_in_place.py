# SPDX-License-Identifier: Apache-2.0
"""Which results the vector unit may write over an operand, and where that stalls a double buffer.

`passes.prim_func.in_place_pairs` finds pairs that are safe: each element is read before a store
writes its place. An instruction set allows fewer: not every vector instruction can write
over what it reads. Source of the rules: ``PlanMemory.cpp`` of AscendNPU-IR's HIVM
dialect. There they look at operations of that dialect; here at the value that a store computes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
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

from passes.ascend.analysis.pipes import Pipelines
from passes.ascend.analysis.routes import FILLS_FROM_GLOBAL, STORES_TO_GLOBAL
from passes.ir import nodes_in
from passes.ir.operators import is_instruction, masked_index, operator_name
from passes.planning import Buffer
from passes.prim_func import AllocationUses, FunctionProblems, is_within

_MOST_INPUTS = 3
_ALWAYS = (Add, Sub, Mul, Max, Min, And, Or, BitwiseAnd, BitwiseOr)


def isa_in_place(
    found: FunctionProblems,
    allocations: Mapping[str, AllocationUses],
    buffers: Iterable[Buffer],
    safe: Iterable[tuple[str, str]],
    pipelines: Pipelines,
    restrict: bool = False,
) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Pick those of the `safe` pairs of some buffers that the instruction set allows.

    Pairs are (source, destination), by the position of the instruction; of one instruction, the
    source that was allocated first. `restrict` allows only what every chip of the family can do,
    rather than every elementwise instruction. The second list has those of the pairs that would
    let the next load wait for a store: both are multi-buffered, one is stored to global memory and
    the other is loaded from it. A result has one source, beside those that stall.

    A pair must meet all of these:

    - the destination is no larger than the source;
    - the vector unit runs the statement, if only element by element in a loop of the scalar unit,
      and it consists of one store;
    - it alone stores to the destination in the statement in which that begins its life, and nothing
      there stores to the source;
    - a destination of narrower elements has no more slots than the source: else the wider one
      would take as many slots, and the two more bytes than apart;
    - `may_write_over` allows the value that is stored.

    Two buffers count as multi-buffered if they, or what they are in place of directly, have several
    slots; they count as stored and as loaded if anything along their chains of pairs is.
    """
    by_name = {buffer.name: buffer for buffer in buffers}
    partners: dict[str, list[str]] = {name: [] for name in allocations}
    pairs: list[tuple[str, str]] = []
    stalls: list[tuple[str, str]] = []
    taken: set[str] = set()

    def is_multi_buffered(name: str) -> bool:
        return any(by_name[other].slots > 1 for other in (name, *partners[name]))

    def is_moved(name: str, pipes: Mapping[int, Collection[str]], pipe: str) -> bool:
        chain = [name]
        for other in chain:
            chain += [partner for partner in partners[other] if partner not in chain]
        return any(pipe in pipes[allocations[other].index] for other in chain)

    def may_be_in_place(source: str, destination: str) -> bool:
        one, two = by_name[source], by_name[destination]
        indices = [allocations[name].index for name in (source, destination)]
        bits = [found.access.allocs[index].element.bits for index in indices]
        if two.size > one.size or (one.slots < two.slots and bits[1] < bits[0]):
            return False
        statement = found.access.sequence[two.live[0][0]]
        sites = [found.uses[index].stores for index in indices]
        if [sum(is_within(site, statement) for site in each) for each in sites] != [0, 1]:
            return False
        store = sites[1][0].store
        return store.__chandle__() in pipelines.elementwise and may_write_over(
            store, allocations[source].statement.buffer, restrict
        )

    def begins(pair: tuple[str, str]) -> tuple[int, int]:
        destination = by_name[pair[1]]
        return destination.live[0][0], -destination.size

    for source, destination in sorted(safe, key=begins):
        if destination in taken or not may_be_in_place(source, destination):
            continue
        pairs.append((source, destination))
        if (
            is_multi_buffered(source)
            and is_multi_buffered(destination)
            and is_moved(destination, pipelines.readers, STORES_TO_GLOBAL)
            and is_moved(source, pipelines.writers, FILLS_FROM_GLOBAL)
        ):
            stalls.append((source, destination))
            continue
        taken.add(destination)
        partners[source].append(destination)
        partners[destination].append(source)
    return pairs, stalls


def may_write_over(store: BufferStore, source: Any, restrict: bool = False) -> bool:
    """Whether vector instructions can compute the value of a store in the place of an operand.

    The value must be an operator with one to three operands, or a chain of operators: one operand
    of each is the next operator, and all others are loads or scalars. Each is an instruction in the
    place of the one before. Only the last one of the chain, which is computed first, reads the
    source. No element is wider than those of its operator's operands: a cast may narrow.

    Each operator is an addition, subtraction, product, maximum, minimum, ``and`` or ``or``, and all
    loads have the element's own index; or, unless `restrict`, it is any operator that is computed
    element by element, and no operand is transposed: its index names fewer loop variables, where it
    is not the element's own.
    """
    bits, node = store.value.ty.dtype.bits, store.value
    while True:
        operands = _operands(node)
        if len(operands) not in range(1, _MOST_INPUTS + 1) or node.ty.dtype.bits % bits:
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


def _operands(value: Any) -> list[Any]:
    """Return the operands of an operator; none if the operator is unknown."""
    if isinstance(value, (BinaryOpExpr, CmpExpr, And, Or)):
        return [value.a, value.b]
    if isinstance(value, (Not, BitwiseNot)):
        return [value.a]
    if isinstance(value, Cast):
        return [value.value]
    if isinstance(value, Select):
        return [value.condition, value.true_value, value.false_value]
    is_known = isinstance(value, Call) and is_instruction(operator_name(value.op))
    return list(value.args) if is_known else []


def _reads(expr: Any) -> bool:
    """Whether an expression reads memory."""
    nodes = nodes_in(expr, TensorLoad, Call)
    return any(type(node) is TensorLoad or masked_index(node) is not None for node in nodes)


def _shape(load: TensorLoad, store: BufferStore) -> str:
    """Return how an operand's index relates to the one that is written."""
    read, written = load.indices, store.indices
    if len(read) == len(written) and all(map(expr_deep_equal, read, written)):
        return "same"
    named, counted = (
        {var.__chandle__() for index in indices for var in nodes_in(index, Var)}
        for indices in (read, written)
    )
    return "broadcast" if named < counted else "other"
