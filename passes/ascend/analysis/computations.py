# SPDX-License-Identifier: Apache-2.0
"""Computations of a function: what becomes one instruction, and when several make up one.

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

FILLS_FROM_GLOBAL = "MTE2"  # The pipe that fills on-chip memory from global memory

_GM, _UB, _L1, _L0C, _REGISTER = "global", "local.UB", "local.L1", "local.L0C", "local"
_CUBE_OPERANDS = ("local.L0A", "local.L0B", "local.BT")
_FROM_L1 = (*_CUBE_OPERANDS, "local.FP")

_WIDE = 64  # Bits of the elements that vectors do no arithmetic on
_ARITHMETIC = (Add, Sub, Mul, Div, FloorDiv, Min, Max, LShift, RShift)


def route(reads: Iterable[str], writes: Iterable[str]) -> str | None:
    """Return the pipe that moves or computes from some memories to others, if these decide it.

    ================================= ==================== ====
    reads                             writes               pipe
    ================================= ==================== ====
    L0A, L0B, BT, L1; or nothing      L0C                  M
    L0C, with or without others       all but L0C          FIX
    global                            on chip              MTE2
    L1                                L0A, L0B, BT, FP     MTE1
    UB                                global, L1           MTE3
    UB; or nothing                    UB                   V
    nothing                           L1                   MTE2
    nothing                           L0A, L0B, BT, FP     MTE1
    any                               a register           S
    any                               nothing              S
    any other                                              none
    ================================= ==================== ====

    A product that reads L1 itself is an instruction that loads L0A and L0B on its way. Memories are
    storage scopes, of which ``global`` stands for all of that rank. Registers do not count among
    `reads`, nor does what is written and only added to.
    """
    sources, targets = (
        {_GM if scope.startswith(f"{_GM}.") else scope for scope in scopes}
        for scopes in (reads, writes)
    )
    sources -= {_REGISTER}
    if targets <= {_REGISTER}:
        return "S"
    if len(targets) != 1:
        return None
    (target,) = targets
    if target == _L0C and sources <= {*_CUBE_OPERANDS, _L1}:
        return "M"
    if _L0C in sources and target != _L0C:
        return "FIX"
    if target in (_UB, _L1, _L0C, *_FROM_L1) and sources == {_GM}:
        return FILLS_FROM_GLOBAL
    if target in _FROM_L1 and sources <= {_L1}:
        return "MTE1"
    if target in (_GM, _L1) and sources == {_UB}:
        return "MTE3"
    if target == _UB and sources <= {_UB}:
        return "V"
    return FILLS_FROM_GLOBAL if target == _L1 and not sources else None


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
    elements: int  # How many elements all of its stores write
    moved_bits: int = 0  # Bits of those elements
    element_bits: int = 8  # Of the widest element that it reads or writes
    pipe: str | None = None  # What the program says that it runs on
    stores: tuple[BufferStore, ...] = ()
    scalar_loop: bool = False  # Whether an operator in their values has no vector instruction
    is_unconditional: bool = True  # Whether it runs each time that control comes by
    is_plain: bool = False  # Whether it consists of stores of single elements, without a loop
    is_value: bool = False  # Whether it is a `Bind` or a condition: a scalar for what follows

    @property
    def operands(self) -> list[Memory]:
        """What it reads, but for an accumulator that it adds to."""
        written = {memory.key for memory in self.writes}
        return [memory for memory in self.reads if memory.key not in written]

    @property
    def pipe_by_scopes(self) -> str | None:
        """The pipe that its memories say, if they do."""
        sources = [memory.scope for memory in self.operands]
        return route(sources, [memory.scope for memory in self.writes])

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


def joined(nodes: Sequence[Node]) -> Computation | None:
    """Return the one computation that the body of a loop is, if it is one."""
    parts: list[Computation] = []
    values: list[Computation] = []
    for node in nodes:
        part = _predicated(node) if isinstance(node, IfElse) else node
        if not isinstance(part, Computation):
            return None
        (values if part.is_value else parts).append(part)
    if not parts:
        return None
    last = {memory.key for memory in parts[-1].writes}
    clears = all(not part.reads and {m.key for m in part.writes} <= last for part in parts[:-1])
    if len(parts) > 1:
        if any(part.pipe is not None or not part.stores for part in parts):
            return None
        pipes = {part.pipe_by_scopes or "S" for part in parts}
        if not clears and not (all(part.is_plain for part in parts) and len(pipes) == 1):
            return None
    # The first step of a reduction is no work: what clears the result, or initialises it under a
    # condition beside what is always done.
    work = parts[-1:] if clears else [part for part in parts if part.is_unconditional] or parts
    whole = reduce(Computation.then, parts)
    return replace(
        whole,
        reads=union(*(value.reads for value in values), whole.reads),
        elements=sum(part.elements for part in work),
        moved_bits=sum(part.moved_bits for part in work),
    )


def _predicated(branches: IfElse) -> Computation | None:
    """Return the branches of an ``if`` as one computation, if they are one."""
    parts = [joined(nodes) for nodes in (branches.then, branches.otherwise) if nodes]
    found = [part for part in parts if part is not None and part.pipe is None]
    if len(found) < len(parts):
        return None
    if len({frozenset(memory.key for memory in part.writes) for part in found}) > 1:
        return None
    # Where both branches write the same, something is written each time.
    always = len(found) == 2 and found[0].is_unconditional
    return replace(_either(*found), is_unconditional=always)


def flattened(nodes: Sequence[Node]) -> Computation | None:
    """Return nodes of any kind as one computation; None where there are no nodes."""
    parts = []
    for node in nodes:
        if isinstance(node, Repeat):
            inner = flattened(node.body)
            part = None if inner is None else inner.times(node.trips)
        elif isinstance(node, IfElse):
            branches = map(flattened, (node.then, node.otherwise))
            part = _either(*(branch for branch in branches if branch is not None))
        else:
            part = node
        if part is not None:
            parts.append(part)
    return reduce(Computation.then, parts) if parts else None


def _either(first: Computation, second: Computation | None = None) -> Computation:
    """Return the branches of an ``if``, of which one runs, as one computation."""
    first = replace(first, is_unconditional=False)
    if second is None:
        return first
    return replace(
        first.then(second),
        elements=max(first.elements, second.elements),
        moved_bits=max(first.moved_bits, second.moved_bits),
    )


def needs_scalar_loop(value: Any) -> bool:
    """Whether an operator in the value of a store has no vector instruction.

    Source: AscendNPU-IR, ``PlanMemory.cpp`` of the HIVM dialect, which asks each operation whether
    it will be lowered to a loop of the scalar unit. Casts and selections never are.

    These are arithmetic and shifts of elements of 64 bits, a comparison of integers other than
    ``==`` and ``!=`` of 32 bits, and the remainder of integers of 32 or 64 bits. Indices do not
    count.
    """
    operators: list[Any] = []
    notes = [(TensorLoad, lambda _load: WalkResult.SKIP), (Expr, operators.append)]
    structural_walk(value, notes, WalkOrder.PREORDER)
    return any(map(_has_no_instruction, operators))


def _has_no_instruction(node: Any) -> bool:
    if isinstance(node, Call):
        return operator_name(node.op) == ABSOLUTE_FLOAT and node.ty.dtype.bits >= _WIDE
    if not isinstance(node, (BinaryOpExpr, CmpExpr)):
        return False
    dtype = node.a.ty.dtype
    is_integer = str(dtype).startswith(("int", "uint"))
    if isinstance(node, CmpExpr):
        return is_integer and not (isinstance(node, (EQ, NE)) and dtype.bits == 32)
    if isinstance(node, (FloorMod, Mod)):
        return is_integer and dtype.bits >= 32
    return isinstance(node, _ARITHMETIC) and dtype.bits >= _WIDE
