# SPDX-License-Identifier: Apache-2.0
"""`StorageRewrite`, mirrored: the same IR as the stock pass, in Python."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from passes.ir import (
    DEFAULT_ALIGNMENT,
    AllocationUses,
    InternalError,
    IRModule,
    LinearAccess,
    Pass,
    PrimFunc,
    Target,
    asked_alignment,
    element_type,
    find_accesses,
    find_linear_access,
    has_any,
    is_widened_later,
    items,
    make_function_pass,
    name_of,
    nodes_in,
    structural_mutate,
    target_of,
    tir,
    variables_of_params,
    with_body,
)
from passes.ir.operators import MERGES_STATIC_SHARED, is_pure, is_tvm_access_ptr
from passes.ir.storage_entries import AllocEntry, StmtEntry, StmtKind, StoragePlan
from passes.pass_errors import error_context
from passes.pass_options import check_flags
from passes.prim_func import (
    before_branches,
    has_exact_dtype,
    names_with_pointers,
    races_with_any,
)
from passes.storage_rewrite.analysis.inplace import InplaceOpVerifier
from passes.storage_rewrite.analysis.liveness import liveness_analysis
from passes.storage_rewrite.analysis.vector_access import check_declared, find_retypes
from passes.storage_rewrite.merge import StorageRewriter
from passes.storage_rewrite.planning.plan_memory import PlanMemory, pack_special_memory
from passes.storage_rewrite.vector_types import VectorTypeRewriter

_CHANGED = (tir.Binding, tir.Let, tir.Block, tir.BlockRealize)
"""Without any of these, the pass finds nothing to change."""


def StorageRewrite(  # noqa: N802
    *,
    detect_inplace: bool = True,
    enable_reuse: bool = True,
    sound: bool = False,
    shared_apart: bool = False,
) -> Pass:
    """Let the allocations of each function share memory, as TVM's pass of this name does.

    The result is structurally equal to that of ``tvm.tirx.transform.StorageRewrite()``.
    Functions must be flat, and vectorized loops lowered: the pass stands where the
    stock one stands, after `FlattenBuffer`, `VectorizeLoop` and `InjectDoubleBuffer`.

    Parameters
    ----------
    detect_inplace : bool
        Whether the result of a statement may take the memory of an operand that dies there.
    enable_reuse : bool
        Whether an allocation may take memory that was released before. The pass
        configuration ``tirx.merge_static_smem`` turns this off, as in the stock pass.
    sound : bool
        Whether to leave out what the stock pass does and is known to change what a
        program computes (``docs/stock-differences.md``). Nothing is then done in place; memory
        in which a loop may carry a value from one round to the next lives through the loop;
        memory whose address is taken, that is volatile, or that threads would race for, is not
        shared, packed or given another type; memory that has an ``allocated_addr``, or a size
        that rests on what the function computes, stays as it is and where it is allocated; the
        rest is shared between equal element types only. Where this is not set, the result is
        the stock pass's, faults included.
    shared_apart : bool
        Whether each allocation that the threads of a GPU kernel share stays by itself, where it
        is, for `PlanSharedMemory` after it: `ThreadSync` between the two then sees each by its
        own name. Elements of no whole bytes, such as ``int4``, share as in the stock pass.

    Returns
    -------
    tvm.transform.Pass
        A function pass.

    Raises
    ------
    ValueError
        At once when an option is neither True nor False; when the pass runs, naming the function
        and the buffer, where the stock pass fails an internal check.
    """
    with error_context("StorageRewrite"):
        flags = {"detect_inplace": detect_inplace, "sound": sound, "shared_apart": shared_apart}
        check_flags(**flags, enable_reuse=enable_reuse)

    def transform(func: PrimFunc, mod: IRModule, context: Any) -> PrimFunc:
        reuse = enable_reuse and not context.config.get(MERGES_STATIC_SHARED, False)
        try:
            return storage_rewrite(func, **flags, enable_reuse=reuse)
        except (ValueError, RecursionError):
            # Once more, with names in the error, and with room for statements that nest deep: for
            # a small function, to make that room takes a twentieth of the time.
            with error_context("StorageRewrite", lambda: _name(func, mod)):
                return storage_rewrite(func, **flags, enable_reuse=reuse)

    return make_function_pass("StorageRewrite", transform)


def _name(func: PrimFunc, mod: IRModule) -> str:
    for global_var, candidate in mod.functions.items():
        # While a function pass runs, its function is out of the module.
        if candidate is None or candidate.same_as(func):
            return str(global_var.name_hint)
    return name_of(func)


def plan_storage(
    func: PrimFunc,
    access: LinearAccess,
    *,
    detect_inplace: bool = True,
    enable_reuse: bool = True,
    sound: bool = False,
    shared_apart: bool = False,
) -> StoragePlan:
    """Decide which allocations of a function share memory, with special memory packed.

    `access` walked `func`; the options are those of `StorageRewrite`. If `sound`, the plan leaves
    out what is to stay where it is allocated. ValueError is raised as by `PlanMemory.run` and
    `pack_special_memory`.
    """
    verifier, keys = InplaceOpVerifier(access.accesses), access.alloc_keys
    sequence, keep_apart = access.sequence, None
    carried: dict[int, list[int]] = {}
    staying: frozenset[int] = frozenset()
    if shared_apart and not has_exact_dtype(func):
        staying = _shared_in_kernels(access)
    if sound:
        uses = find_accesses(access).of
        staying |= _staying(func, access, uses)
        keep_apart = _kept_apart(access, uses, target_of(func))
        for use in uses:
            if use.carrying is not None:
                carried.setdefault(use.carrying.__chandle__(), []).append(use.index)
    if sound or staying:
        sequence = _by_position(sequence, staying, carried)
    planner = PlanMemory(
        access.allocs,
        lambda stmt, dst, src: verifier.check(stmt, keys[dst], keys[src]),
        detect_inplace=detect_inplace and not sound,
        enable_reuse=enable_reuse,
        exact_dtype=_is_mixed(access.allocs) and has_exact_dtype(func),
        keep_apart=keep_apart,
    )
    plan = planner.run(sequence, liveness_analysis(sequence))
    pack_special_memory(plan, access.allocs, keep_apart, align=sound)
    return plan


def _is_mixed(allocs: Sequence[AllocEntry]) -> bool:
    """Return whether allocations are of several element types, or of vectors."""
    return any(
        alloc.element is not allocs[0].element or alloc.element.lanes != 1 for alloc in allocs
    )


def _staying(
    func: PrimFunc, access: LinearAccess, uses: Sequence[AllocationUses]
) -> frozenset[int]:
    """Return the allocations that mean something else in another place, by index.

    An address that the program asks for does not survive sharing or packing, and the loop around
    the allocation is that whose iterations take turns with several. A size that is not constant may
    rest on what has its value only there, and memory that is packed needs one that is. Of a
    parallel region the sequence knows nothing. Memory that pointers with names reach may be
    compiled wrongly by TVM where the rounds of a loop have it in common: see `names_with_pointers`.
    """
    known, pointed = variables_of_params(func), names_with_pointers(func.body)
    owners = {None, *(entry.key for entry in access.sequence)}
    return frozenset(
        index
        for index, (alloc, op) in enumerate(zip(access.allocs, access.alloc_stmts, strict=True))
        if uses[index].owner not in owners
        or len(op.buffer.ty.allocated_addr)
        or any(name.__chandle__() in pointed for name in (op.buffer, *uses[index].aliases))
        or (alloc.scope.is_special and not alloc.const_nbits)
        or not all(_names_only(extent, known) for extent in op.buffer.ty.shape)
    )


def _names_only(expr: Any, variables: Iterable[tir.Var]) -> bool:
    """Return whether an expression depends on nothing but some variables, and reads no memory."""
    known = {var.__chandle__() for var in variables}
    nodes = nodes_in(expr, tir.Var, tir.Load, tir.Call)
    reads_no_memory = all(
        type(x) is tir.Call and is_pure(x) for x in nodes if not isinstance(x, tir.Var)
    )
    return reads_no_memory and all(
        x.__chandle__() in known for x in nodes if isinstance(x, tir.Var)
    )


def _shared_in_kernels(access: LinearAccess) -> frozenset[int]:
    """Return the allocations that `PlanSharedMemory` places, by index: those of whole bytes."""
    if all(entry.kind is not StmtKind.THREAD for entry in access.sequence):
        return frozenset()
    scopes = ("shared", "shared.dyn")
    return frozenset(
        index
        for index, (alloc, op) in enumerate(zip(access.allocs, access.alloc_stmts, strict=True))
        if str(alloc.scope) in scopes and not op.buffer.ty.dtype.dtype.bits % 8
    )


def _kept_apart(
    access: LinearAccess, uses: Sequence[AllocationUses], target: Target | None
) -> frozenset[int]:
    """Return the allocations whose memory may hold nothing else, by index.

    An allocation that asks for more than TVM's default alignment would lose it in a storage that
    others share. One of a special scope, which is packed by bits, would lose any alignment, and
    reach into its neighbours where LLVM gives each of its elements a byte. Elements that TVM widens
    later stay as they are under a second name, where it converts zero wrongly.
    """
    apart = set(access.escaped)
    for index, (alloc, use) in enumerate(zip(access.allocs, uses, strict=True)):
        asked = asked_alignment(access.alloc_stmts[index].buffer) or 1
        has_parts = any(dtype.bits % 8 for dtype in use.dtypes)
        is_unfit = alloc.scope.is_special and (asked > 1 or has_parts)
        is_unfit |= any(is_widened_later(dtype, target) for dtype in use.dtypes)
        is_unfit |= bool(DEFAULT_ALIGNMENT % asked)
        if alloc.is_volatile or use.escapes or is_unfit or races_with_any(use):
            apart.add(index)
    return frozenset(apart)


def _by_position(
    sequence: list[StmtEntry], staying: frozenset[int], carried: Mapping[int, Sequence[int]]
) -> list[StmtEntry]:
    """Tell statements apart by where they stand: one object may stand in several places.

    Memory that stays where it is allocated is touched by none of them. `carried` has the
    allocations that carry a value through a loop, by its handle: all of the loop touches them.
    """
    found = []
    for position, entry in enumerate(sequence):
        offset = entry.scope_pair_offset
        touched = [*entry.touched, *carried.get(entry.key, ())] if offset < 0 else entry.touched
        own = [index for index in touched if index not in staying]
        found.append(replace(entry, key=position + min(offset, 0), touched=own))
    return found


def rewrite_vector_types(
    func: PrimFunc,
    body: Any,
    access: LinearAccess,
    rewriter: StorageRewriter,
    *,
    sound: bool = False,
) -> Any:
    """Give memory that is only accessed as vectors a vector element type.

    `access` walked `func`, of whose body `rewriter` made this one. If `sound`, nothing but the
    number of lanes changes, and that only where every access is seen. ValueError is raised as by
    `find_retypes` and `VectorTypeRewriter`.
    """
    entries, owners, is_unclear = rewriter.plan.entries, rewriter.owners, access.has_unclear_types
    if sound and (is_unclear or any(entry.children for entry in entries)):
        check_declared(access, {owner.__chandle__() for owner in owners.values()})
        return body
    retypes, roots = find_retypes(func, access, rewriter.plan, owners)
    if sound:
        escaped = [entry for entry in entries if not access.escaped.isdisjoint(entry.allocs)]
        handed_on = {owners[entry].__chandle__() for entry in escaped}
        retypes = [
            retype
            for retype in retypes
            if retype.changes_lanes_only and retype.var.__chandle__() not in handed_on
        ]
    if not retypes and not is_unclear:
        return body
    return VectorTypeRewriter(retypes, roots, has_opaque=is_unclear or access.has_opaque)(body)


def _has_nothing_to_change(func: PrimFunc) -> bool:
    """Return whether the pass leaves a function as it is, and finds nothing in it to refuse."""
    if has_any(func.body, tir.Allocation):
        return False
    declared, is_parallel = [*items(func.params)], False
    for node in nodes_in(func.body, *_CHANGED, tir.Call, tir.Declaration, tir.Loop):
        if type(node) is tir.Declaration:
            declared.append(node.buffer)
        elif type(node) is tir.Loop:
            if node.kind == tir.LoopKind.VECTORIZED:
                return False
            is_parallel |= node.kind == tir.LoopKind.PARALLEL
        elif type(node) is not tir.Call or (
            is_tvm_access_ptr(node) and node.args[0].ty.dtype.lanes != 1
        ):
            return False
    if is_parallel and has_any(func.body, tir.Attribute):  # A kernel in a parallel loop is refused
        return False
    arrays = [var.ty for var in declared if type(var.ty) is tir.BufferType]
    if any(element_type(ty.dtype).lanes != 1 for ty in arrays):
        return False
    try:
        # The sizes of arrays are undefined here, and numbers; an undeclared buffer is refused.
        is_closed = all(
            type(v.ty) is tir.PrimType for v in tir.undefined_vars(func.body, func.params)
        )
    except InternalError:  # Of a loop that stands in two places: its variable is defined twice.
        return False
    return is_closed and len({var.__chandle__() for var in declared}) == len(declared)


def storage_rewrite(func: PrimFunc, *, sound: bool = False, **options: Any) -> PrimFunc:
    """Let the allocations of a flat function share memory, with options as in `plan_storage`.

    ValueError is raised, naming the buffer, when the function is not one that the pass can take.
    """
    if _has_nothing_to_change(func):
        # TVM's mutation drops an ``evaluate(0)`` from a sequence, and so the original does.
        return structural_mutate(func, [])
    access = find_linear_access(func)
    plan = plan_storage(func, access, sound=sound, **options)
    rewriter = StorageRewriter(access, plan, sound=sound)
    body = rewrite_vector_types(func, rewriter(func.body), access, rewriter, sound=sound)
    result = with_body(func, body)
    return before_branches(result) if sound else result
