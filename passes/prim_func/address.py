# SPDX-License-Identifier: Apache-2.0
"""Writes a plan into the IR as addresses: each allocation says where in the memory it lives."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from passes.ir import (
    AllocationUses,
    Callbacks,
    PrimFunc,
    constant_count,
    nodes_in,
    structural_mutate,
    tir,
    with_body,
)

VIEWS_REFUSE = ("global", "shared", "shared.dyn", "local")
"""Scopes in which TVM's `DeclBuffer` takes no buffer that has an address."""

_ANNOTATION = "buffer_allocated_addr"
"""The attribute in which TVM's lowering of blocks writes a buffer's addresses a second time."""


def write_addresses(
    func: PrimFunc, addresses: Iterable[tuple[tir.Allocation, Sequence[int]]]
) -> PrimFunc:
    """Give allocations of a function their ``allocated_addr``: one in bytes for each slot.

    A buffer's type holds its addresses, so each buffer is a new variable wherever it is named.
    Other names of its memory keep their types.
    """
    buffers = ((statement.buffer, list(slots)) for statement, slots in addresses)
    return _replace(func, {b.__chandle__(): b.with_allocated_addr(slots) for b, slots in buffers})


def before_carrying_loops(func: PrimFunc, uses: Iterable[AllocationUses]) -> PrimFunc:
    """Put allocations of constant size before the loop that carries a value in them, if one does.

    With an address they are the same memory in each round, wherever they stand; what unrolls the
    loop, or takes the address off, would make them other memory each time.
    """
    moved: dict[int, list[tir.Allocation]] = {}
    for use in uses:
        if use.carrying is not None and constant_count(use.buffer.ty.shape) is not None:
            moved.setdefault(use.carrying.__chandle__(), []).append(use.statement)
    if not moved:
        return func
    taken = {op.__chandle__() for statements in moved.values() for op in statements}

    def take_out(op: tir.Allocation, _mutator: Any) -> Any:
        return tir.Evaluation(0) if op.__chandle__() in taken else op

    def put_before(op: Any, mutator: Any) -> Any:
        rest = mutator.default_mutate(op)
        before = moved.get(op.__chandle__(), [])
        return tir.Sequence([*before, rest]) if before else rest

    callbacks: Callbacks = [
        (tir.Allocation, take_out),
        (tir.Loop, put_before),
        (tir.While, put_before),
    ]
    return with_body(func, structural_mutate(func.body, callbacks))


def before_branches(func: PrimFunc) -> PrimFunc:
    """Put allocations before the outermost ``while`` or ``if`` around them.

    `LowerTVMBuiltin` takes memory where an allocation stands and returns it at the end of the loop,
    or of the function, around it. Out of a ``while`` or an ``if`` that is a place which control can
    reach without passing the allocation, and LLVM refuses it: "Instruction does not dominate all
    uses".

    Those whose size is not constant stay, and so do those in a loop within, or in an attribute's
    body, which may be one iteration's or thread's own.
    """

    def hoist(op: Any, mutator: Any) -> Any:
        found: dict[int, tir.Allocation] = {}

        def take_out(allocation: tir.Allocation, _mutator: Any) -> Any:
            if not all(
                isinstance(extent, tir.IntConstant) for extent in allocation.buffer.ty.shape
            ):
                return allocation
            found[allocation.__chandle__()] = allocation
            return tir.Evaluation(0)

        def skip(inner: Any, _mutator: Any) -> Any:
            """Leave what has memory of its own as it is."""
            return inner

        rest = structural_mutate(
            op, [(tir.Allocation, take_out), (tir.Loop, skip), (tir.Attribute, skip)]
        )
        rest = mutator.default_mutate(rest)
        return tir.Sequence([*found.values(), rest]) if found else rest

    return with_body(func, structural_mutate(func.body, [(tir.If, hoist), (tir.While, hoist)]))


def drop_addresses(
    func: PrimFunc, scopes: Collection[str] = VIEWS_REFUSE, but: Iterable[tir.Allocation] = ()
) -> PrimFunc:
    """Take the ``allocated_addr`` off the allocations in `scopes`, except those in `but`.

    The default scopes are those in which an allocation with an address cannot become a view, which
    is what TVM's `LowerTVMBuiltin` makes of large allocations for a CPU.
    """
    kept = {op.buffer.__chandle__() for op in but}
    found = {op.buffer.__chandle__(): op.buffer for op in nodes_in(func.body, tir.Allocation)}
    replaced = {
        key: buffer.with_allocated_addr([])
        for key, buffer in found.items()
        if len(buffer.ty.allocated_addr) and (buffer.ty.storage_scope or "global") in scopes
        if key not in kept
    }
    return _replace(func, replaced)


def _replace(func: PrimFunc, replaced: Mapping[int, tir.Var]) -> PrimFunc:
    """Replace buffers, by their handles, wherever they are named."""
    if not replaced:
        return func

    def rewrite_var(op: tir.Var, mutator: Any) -> Any:
        new = replaced.get(op.__chandle__())
        return mutator.default_mutate(op) if new is None else new

    def rewrite_attr(op: tir.Attribute, mutator: Any) -> Any:
        node = replaced.get(op.node.__chandle__()) if isinstance(op.node, tir.Var) else None
        if node is None:
            return mutator.default_mutate(op)
        return tir.Attribute(node, op.attr_key, mutator.mutate(op.value), mutator.mutate(op.body))

    def rewrite_alloc(op: tir.Allocation, mutator: Any) -> Any:
        new = replaced.get(op.buffer.__chandle__())
        if new is None:
            return mutator.default_mutate(op)
        annotations = dict(op.annotations)
        if _ANNOTATION in annotations:
            annotations[_ANNOTATION] = list(new.ty.allocated_addr)
        return tir.Allocation(new, annotations)

    callbacks: Callbacks = [
        (tir.Allocation, rewrite_alloc),
        (tir.Attribute, rewrite_attr),
        (tir.Var, rewrite_var),
    ]
    return with_body(func, structural_mutate(func.body, callbacks))
