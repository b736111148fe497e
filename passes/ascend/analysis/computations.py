# SPDX-License-Identifier: Apache-2.0
"""Computations of a function, each of which becomes one instruction, and how they join."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, TypeAlias

from tvm.ir import TensorLoad
from tvm.ir.expr import Call
from tvm.ir.prim import (
    EQ,
    NE,
    Add,
    BinaryOpExpr,
    CmpExpr,
    Div,
    Expr,
    FloorDiv,
    FloorMod,
    LShift,
    Max,
    Min,
    Mod,
    Mul,
    RShift,
    Sub,
)
from tvm.tirx import BufferStore, For, While
from tvm_ffi import WalkOrder, WalkResult

from passes.ir import structural_walk
from passes.ir.operators import ABSOLUTE_FLOAT, operator_name


@dataclass(frozen=True)
class Memory:
    """A buffer as a computation sees it."""

    key: int  # The handle of the variable that it was allocated or passed as
    name: str  # As it is written
    scope: str  # TVM's storage scope
    index: int | None  # Of its allocation in ``access.allocs``; None for memory from outside
    bits: int  # Of one element, of one of its lanes


@dataclass(frozen=True, eq=False)
class Computation:
    """What becomes one instruction."""

    # Without repeats, in the order of their first access. Memory whose elements it writes before it
    # reads them is not in `reads`.
    reads: tuple[Memory, ...]
    writes: tuple[Memory, ...]
    elements: int = 0  # How many elements all of its stores write
    moved_bits: int = 0  # Bits of those elements
    element_bits: int = 8  # Of the widest element that it reads or writes
    pipe: str | None = None  # What the program says that it runs on
    stores: tuple[BufferStore, ...] = ()  # Its stores
    scalar_loop: bool = False  # Whether an operator in their values has no vector instruction
    is_unconditional: bool = True  # Whether it runs each time that control comes by
    is_plain: bool = False  # Whether it consists of stores of single elements, without a loop
    # Whether it only computes a scalar for what follows: a `Bind`, a condition.
    is_value: bool = False

    def times(self, trips: int) -> Computation:
        """Return the computation with a loop around it."""
        return replace(
            self, elements=self.elements * trips, moved_bits=self.moved_bits * trips, is_plain=False
        )

    def then(self, other: Computation) -> Computation:
        """Return this and another computation, one after the other, as one."""
        written = {memory.key for memory in self.writes} if self.is_unconditional else set()
        later = tuple(memory for memory in other.reads if memory.key not in written)
        return Computation(
            union(self.reads, later),
            union(self.writes, other.writes),
            elements=self.elements + other.elements,
            moved_bits=self.moved_bits + other.moved_bits,
            element_bits=max(self.element_bits, other.element_bits),
            stores=self.stores + other.stores,
            scalar_loop=self.scalar_loop or other.scalar_loop,
            is_unconditional=self.is_unconditional and other.is_unconditional,
            is_plain=self.is_plain and other.is_plain,
        )


@dataclass(frozen=True, eq=False)
class Repeat:
    """A loop that holds more than one computation."""

    loop: For | While  # The statement
    trips: int  # How often it runs; `UNKNOWN_TRIPS` where that is not known
    # What one iteration does; with the condition of a `While` as its first computation.
    body: tuple[Node, ...]


@dataclass(frozen=True, eq=False)
class IfElse:
    """An ``if``."""

    then: tuple[Node, ...]
    otherwise: tuple[Node, ...]


Node: TypeAlias = "Computation | Repeat | IfElse"


def union(*groups: Iterable[Memory]) -> tuple[Memory, ...]:
    """Return memory without repeats, in order."""
    return tuple({memory.key: memory for group in groups for memory in group}.values())


def is_initialised(parts: Sequence[Computation]) -> bool:
    """Whether all but the last of some computations only prepare what the last one writes."""
    last = {memory.key for memory in parts[-1].writes}
    return all(not part.reads and {m.key for m in part.writes} <= last for part in parts[:-1])


def counted(parts: Sequence[Computation]) -> Sequence[Computation]:
    """Return the parts of an instruction that are its work.

    What it clears first is not, nor what it does under a condition beside what it always does:
    that is how the first step of a reduction is written.
    """
    if is_initialised(parts):
        return parts[-1:]
    return [part for part in parts if part.is_unconditional] or parts


def in_sequence(parts: Sequence[Computation]) -> Computation:
    """Return at least one computation, one after the other, as one."""
    return reduce(Computation.then, parts)


def flattened(nodes: Sequence[Node]) -> Computation | None:
    """Return nodes of any kind as one computation; None where there are no nodes."""
    parts = []
    for node in nodes:
        if isinstance(node, Repeat):
            inner = flattened(node.body)
            part = None if inner is None else inner.times(node.trips)
        elif isinstance(node, IfElse):
            branches = [flattened(branch) for branch in (node.then, node.otherwise)]
            part = either(*(branch for branch in branches if branch is not None))
        else:
            part = node
        if part is not None:
            parts.append(part)
    return in_sequence(parts) if parts else None


def either(first: Computation, second: Computation | None = None) -> Computation:
    """Return two computations of which one runs as one computation."""
    if second is None:
        return replace(first, is_unconditional=False)
    both = replace(first, is_unconditional=False).then(second)
    return replace(
        both,
        elements=max(first.elements, second.elements),
        moved_bits=max(first.moved_bits, second.moved_bits),
    )


_WIDE = 64  # Bits of the elements that vectors do no arithmetic on
_ARITHMETIC = (Add, Sub, Mul, Div, FloorDiv, Min, Max, LShift, RShift)


def needs_scalar_loop(value: Any) -> bool:
    """Whether an operator in the value of a store has no vector instruction.

    Source: AscendNPU-IR, ``PlanMemory.cpp`` of the HIVM dialect, which asks each operation whether
    it will be lowered to a loop of the scalar unit. Casts and selections never are.

    These are arithmetic and shifts of elements of 64 bits, a comparison of integers other than
    ``==`` and ``!=`` of 32 bits, and the remainder of integers of 32 or 64 bits. Indices do not
    count.
    """
    found: list[Any] = []

    def visit(node: Any) -> None:
        if _has_no_instruction(node):
            found.append(node)

    notes = [(TensorLoad, lambda _load: WalkResult.SKIP), (Expr, visit)]
    structural_walk(value, notes, WalkOrder.PREORDER)
    return bool(found)


def _has_no_instruction(node: Any) -> bool:
    if isinstance(node, Call):
        return operator_name(node.op) == ABSOLUTE_FLOAT and _bits(node) >= _WIDE
    if not isinstance(node, (BinaryOpExpr, CmpExpr)):
        return False
    bits = _bits(node.a)
    is_integer = str(node.a.ty.dtype).startswith(("int", "uint"))
    if isinstance(node, CmpExpr):
        return is_integer and not (isinstance(node, (EQ, NE)) and bits == 32)
    if isinstance(node, (FloorMod, Mod)):
        return is_integer and bits >= 32
    return isinstance(node, _ARITHMETIC) and bits >= _WIDE


def _bits(expr: Any) -> int:
    return int(expr.ty.dtype.bits)
