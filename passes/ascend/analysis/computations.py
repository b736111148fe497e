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
from typing import TypeAlias

from passes.ascend.analysis.instructions import needs_scalar_loop, route
from passes.ir import tir
from passes.simulation import Alternative, Loop


@dataclass(frozen=True)
class Memory:
    """A buffer as a computation sees it."""

    key: int  # The handle of the variable that it was allocated or passed as
    name: str  # As it is written
    scope: str  # TVM's storage scope
    bits: int  # Of one element, of one of its lanes
    planned: str | None = None  # The name that the function's problems give it, if they have it


@dataclass(frozen=True, eq=False)
class Computation:
    """One computation that becomes one instruction."""

    # Without repeats, in the order of their first access. Memory whose elements it writes before it
    # reads them is not in `reads`.
    reads: tuple[Memory, ...]
    writes: tuple[Memory, ...]
    elements: int  # Number of elements that all of its stores write
    moved_bits: int = 0  # Bits of those elements
    # Of the widest element that its stores or calls read or write; conditions do not count
    element_bits: int = 8
    pipe: str | None = None  # The pipe that the program names, if it does
    stores: tuple[tir.Store, ...] = ()
    is_unconditional: bool = True  # Whether it runs each time that control comes by
    is_plain: bool = False  # Whether it consists of stores of single elements, without a loop
    is_value: bool = False  # Whether it is a `Bind` or a condition: a scalar for what follows

    @property
    def operands(self) -> list[Memory]:
        """The memories that it reads, but for an accumulator that it adds to."""
        written = {memory.key for memory in self.writes}
        return [memory for memory in self.reads if memory.key not in written]

    @property
    def is_scalar_loop(self) -> bool:
        """Whether an operator in the values that it stores has no vector instruction."""
        return any(needs_scalar_loop(store.value) for store in self.stores)

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
            is_unconditional=self.is_unconditional and other.is_unconditional,
            is_plain=self.is_plain and other.is_plain,
        )


Node: TypeAlias = "Computation | Loop[Node] | Alternative[Node]"
"""A loop that holds more than one computation has the handle of its statement as its number, and
the condition of a `While` as the first computation of its body."""


def union(*groups: Iterable[Memory]) -> tuple[Memory, ...]:
    """Return memory without repeats, in order."""
    return tuple({memory.key: memory for group in groups for memory in group}.values())


def joined(nodes: Sequence[Node]) -> Computation | None:
    """Return the one computation that the body of a loop is, if it is one."""
    parts: list[Computation] = []
    values: list[Computation] = []
    for node in nodes:
        part = _predicated(node) if isinstance(node, Alternative) else node
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
        pipes = {part.pipe_by_scopes for part in parts}
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


def _predicated(branches: Alternative[Node]) -> Computation | None:
    """Return the branches of an ``if`` as one computation, if they are one."""
    parts = [joined(nodes) for nodes in (branches.then, branches.otherwise) if nodes]
    found = [part for part in parts if part is not None and part.pipe is None]
    if len(found) < len(parts):
        return None
    if len({frozenset(memory.key for memory in part.writes) for part in found}) > 1:
        return None
    # Where both branches write the same, something is written each time.
    always = len(found) == 2 and all(part.is_unconditional for part in found)
    return replace(_either(found), is_unconditional=always)


def flattened(nodes: Sequence[Node]) -> Computation:
    """Return nodes of any kind, at least one, as one computation."""

    def whole(node: Node) -> Computation:
        if isinstance(node, Loop):
            return flattened(node.body).times(node.extent)
        if isinstance(node, Alternative):
            return _either([flattened(nodes) for nodes in (node.then, node.otherwise) if nodes])
        return node

    return reduce(Computation.then, map(whole, nodes))


def _either(branches: Sequence[Computation]) -> Computation:
    """Return the branches of an ``if`` as one computation: only one of them runs."""
    parts = [replace(branch, is_unconditional=False) for branch in branches]
    return replace(
        reduce(Computation.then, parts),
        elements=max(part.elements for part in parts),
        moved_bits=max(part.moved_bits for part in parts),
    )
