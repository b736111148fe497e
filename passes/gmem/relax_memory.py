# SPDX-License-Identifier: Apache-2.0
"""Write planned memory into Relax functions: storages, tensors at byte offsets in them, kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

from passes.gmem.allocations import storage_span
from passes.gmem.planning.pool import Placement, checked
from passes.ir import (
    Bound,
    Callbacks,
    IRModule,
    Pass,
    PrimFunc,
    element_type,
    items,
    make_pass,
    nodes_in,
    structural_mutate,
    tir,
    unique_name,
)
from passes.ir.operators import operator_name
from passes.ir.relax_operators import ALLOC_PLANNED_STORAGE, ALLOC_PLANNED_TENSOR
from passes.relax import SCOPE, RelaxMemory, rx

_MATCH_SHAPE = rx.ExternFunc("vm.builtin.match_shape")
"""Part of every runtime of TVM, with Python or without."""

_EQUAL_TO = 0  # ``MatchShapeCode::kAssertEqualToImm``: the extent of a shape must be a number


def write_storages(memory: RelaxMemory, placement: Placement) -> rx.Function:
    """Allocate the pieces of each group, and give tensors their places in them.

    A storage is allocated right before the first binding that needs it, in the innermost sequence
    of bindings in which all of its tensors stand. So it is there on all paths that use it, and
    until then the runtime can serve others with that memory. Where storages are kept from call to
    call, those of constant size are allocated where the function begins.

    ``R.memory.ensure_zero_offset`` folds an offset into the pointer, or copies the tensor
    (`passes.gmem.options`), unless kernels add it to their indices (`with_kernel_variants`).
    The function begins with a check of each bound: within one storage, a tensor that is larger than
    was planned would end in its neighbour. Where no tensor is placed, it is the function given.
    """
    func = memory.func
    if not any(placement):
        return func
    typed = rx.BlockBuilder(memory.mod).normalize
    first: list[Any] = []
    earlier: dict[int, list[Any]] = {}
    # By handle of the variable that an ``R.builtin.alloc_tensor`` is bound to: the storage, the
    # bytes from its start for each of the unit, and that unit.
    places: dict[int, tuple[Any, int, Any | None]] = {}
    for binding, position, unit, offsets, is_result in _storages(memory, placement, typed):
        if memory.keeps_storages and unit is None and not is_result:
            first.append(binding)
        else:
            earlier.setdefault(memory.handles[position], []).append(binding)
        places |= {handle: (binding.var, count, unit) for handle, count in offsets.items()}

    in_kernels = memory.kernel_arguments is not None

    def rewrite(block: Any, mutator: Any) -> Any:
        block = mutator.default_mutate(block)
        given = [(binding, binding.var.__chandle__()) for binding in items(block.bindings)]
        if not any(handle in earlier or handle in places for _, handle in given):
            return block
        bindings: list[Any] = []
        for binding, handle in given:
            bindings += earlier.get(handle, ())
            if handle in places:
                bindings += _placed(binding, *places[handle], typed, in_kernels)
            else:
                bindings.append(binding)
        return type(block)(bindings)

    callbacks: Callbacks = [(rx.DataflowBlock, rewrite), (rx.BindingBlock, rewrite)]
    first += _checks(memory.bounds, memory.name, typed)
    return _entered(structural_mutate(func, callbacks), first, typed)


def _storages(
    memory: RelaxMemory, placement: Placement, typed: Callable[[Any], Any]
) -> Iterator[tuple[Any, int, Any | None, dict[int, int], bool]]:
    """Yield of each storage its binding, where it stands, its unit, and offsets by handles.

    The last value is whether the caller gets it.
    """
    handle_of = {name: handle for handle, name in memory.buffer_of.items()}
    count = 0
    for group, pieces in zip(memory.groups, placement, strict=True):
        known = {buffer.name: buffer for buffer in group.every}
        for piece in checked(f"function {memory.name!r}", group.every, pieces):
            shape = rx.ShapeExpr([_times(piece.size, group.unit)])
            scope = piece.scope or group.scope
            allocation = typed(rx.alloc_storage(shape, group.device, scope, group.dtype))
            variable = rx.Var(f"storage{count or ''}", allocation.ty)
            begin, _ = storage_span(memory, group, [known[name] for name in piece.offsets])
            offsets = {handle_of[name]: at for name, at in piece.offsets.items()}
            is_result = any(group.uses[name].is_result for name in piece.offsets)
            yield rx.VarBinding(variable, allocation), begin, group.unit, offsets, is_result
            count += 1


def _entered(
    func: rx.Function, bindings: Sequence[Any], typed: Callable[[Any], Any]
) -> rx.Function:
    """Return a function that begins with bindings."""
    if not bindings:
        return func
    body = rx.SeqExpr([rx.BindingBlock(bindings), *func.body.blocks], func.body.body)
    return rx.Function(func.params, typed(body), func.ret_ty, func.is_pure, func.attrs, func.span)


def _times(count: int, unit: Any | None) -> Any:
    number = tir.IntConstant("int64", count)
    return number if unit is None else _as_int64(unit) * number


def _placed(
    binding: Any,
    storage: Any,
    count: int,
    unit: Any | None,
    typed: Callable[[Any], Any],
    in_kernels: bool,
) -> list[Any]:
    """Return the bindings that stand for an ``R.builtin.alloc_tensor``."""
    shape, dtype, device, _ = items(binding.value.args)
    offset = _times(count, unit if count else None)
    # A program may state another type than the one that follows from the shape, such as
    # ``(2 * n + 2,)`` for ``(10,)``. The variable has that type, so the two must go on to agree.
    args = [storage, offset, shape, dtype, device]
    alloc = typed(rx.Call(ALLOC_PLANNED_TENSOR, args, ret_ty=binding.value.ty))
    if count == 0 or in_kernels:
        return [rx.VarBinding(binding.var, alloc)]
    placed = type(binding.var)(f"{binding.var.name}_at_{count}", binding.var.ty)
    return [
        rx.VarBinding(placed, alloc),
        rx.VarBinding(binding.var, typed(rx.ensure_zero_offset(placed))),
    ]


def _checks(bounds: Sequence[Bound], function: str, typed: Callable[[Any], Any]) -> list[Any]:
    """Return bindings that fail at run time where a dimension is out of its bounds.

    They match the shape ``(max(n, upper),)`` with the upper bound, so that the runtime's message
    says both values. Values in a shape parameter may be negative, and then a tensor of ``32 - n``
    elements is larger than planned.
    """
    checks = []
    for bound in bounds:
        name, variable = bound.variable.name, bound.variable
        limits = [
            (tir.most(variable, bound.upper), bound.upper, f"above {bound.upper}"),
            (tir.least(variable, bound.lower), bound.lower, f"below {bound.lower}"),
        ]
        for extent, limit, fault in limits:
            text = f"function {function!r}: {name} is {fault}, for which memory was planned:"
            heap, count = 0, 1
            numbers = [tir.IntConstant("int64", each) for each in (heap, count, _EQUAL_TO, limit)]
            arguments = [rx.ShapeExpr([_as_int64(extent)]), *numbers, tir.StringConstant(text)]
            nothing = rx.TupleType([])
            call = rx.Call(_MATCH_SHAPE, arguments, ty_args=[nothing])
            result = rx.Var(f"{name}_within_bounds", nothing)
            checks.append(rx.VarBinding(result, typed(call)))
    return checks


def _as_int64(expr: Any) -> Any:
    return expr if str(expr.ty.dtype) == "int64" else tir.Cast("int64", expr)


def host_scopes() -> Pass:
    """Return a pass that lets a host run what was placed over several memories of its chip.

    Each storage is allocated in ``global``, the only scope that TVM's allocators on a CPU take.
    """

    def rewrite(call: Any, mutator: Any) -> Any:
        call = mutator.default_mutate(call)
        if operator_name(call.op) != ALLOC_PLANNED_STORAGE or str(call.args[2].value) == SCOPE:
            return call
        args = [*call.args[:2], tir.StringConstant(SCOPE), *call.args[3:]]
        return rx.Call(call.op, args, call.attrs, call.ty_args, call.span)

    def transform(mod: IRModule) -> IRModule:
        result = mod.clone()
        for variable in mod.get_global_vars():
            if isinstance(mod[variable], rx.Function):
                result[variable] = structural_mutate(mod[variable], [(rx.Call, rewrite)])
        return result

    return make_pass("HostScopes", transform)


def with_kernel_variants(
    mod: IRModule, planned: Sequence[tuple[RelaxMemory, Placement]]
) -> IRModule:
    """Return a module whose planned functions call variants of kernels for arguments at offsets.

    A parameter of a variant begins at a constant element other than 0 (`elem_offset`), which TVM's
    code for the host checks and `FlattenBuffer` adds to the indices; vector loads stay as they are.
    Kernels of the module's own that nothing calls any more are dropped.
    """
    result = mod.clone()
    names = {str(variable.name_hint) for variable in mod.get_global_vars()}
    made: dict[tuple[str, tuple[int, ...]], tir.GlobalVar] = {}

    def variant(kernel: tir.GlobalVar, offsets: tuple[int, ...]) -> tir.GlobalVar:
        key = str(kernel.name_hint), offsets
        if key not in made:
            made[key] = tir.GlobalVar(unique_name(f"{kernel.name_hint}_at_offsets", names, "_"))
            rx.update_type(made[key], kernel.ty)
            result[made[key]] = _at_offsets(mod[kernel], offsets)
        return made[key]

    def rewrite(moved: Mapping[int, tuple[int, ...]], binding: Any, mutator: Any) -> Any:
        call, offsets = binding.value, moved.get(binding.var.__chandle__(), ())
        if not any(offsets):
            return mutator.default_mutate(binding)
        kernel = variant(call.op, offsets)
        new = rx.Call(kernel, call.args, call.attrs, call.ty_args, call.span, call.ty)
        return rx.VarBinding(binding.var, new, binding.span)

    for memory, placement in planned:
        moved = _moved(memory, placement)
        function, own = mod.get_global_var(memory.name), partial(rewrite, moved)
        result[function] = structural_mutate(mod[function], [(rx.VarBinding, own)])
    functions = result.functions.values()
    called = {str(v.name_hint) for func in functions for v in nodes_in(func, tir.GlobalVar)}
    for name in sorted({name for name, _ in made} - called):
        variable = result.get_global_var(name)
        if "global_symbol" not in result[variable].attrs:
            del result[variable]
    return result


def _moved(memory: RelaxMemory, placement: Placement) -> dict[int, tuple[int, ...]]:
    """Return the offsets of a call's arguments, by its variable's handle."""
    uses = memory.kernel_arguments
    offsets = {n: at for piece in chain(*placement) for n, at in piece.offsets.items()}
    calls = uses.calls.items() if uses else ()
    return {handle: tuple(offsets.get(buffer, 0) for buffer in own) for handle, own in calls}


def _at_offsets(func: PrimFunc, offsets: tuple[int, ...]) -> PrimFunc:
    """Return a kernel whose parameters begin at some bytes each."""
    new: dict[int, tir.Var] = {}
    for param, offset in zip(func.params, offsets, strict=False):
        if offset:
            ty = param.ty
            elements, rest = divmod(offset * 8, element_type(ty.dtype).nbits)
            if rest:
                raise AssertionError(f"parameter {param.name!r} begins within an element: {offset}")
            new[param.__chandle__()] = tir.new_buffer(
                ty.shape,
                ty.dtype,
                param.name,
                elem_offset=tir.IntConstant("int64", elements),
                data_alignment=int(ty.data_alignment),
                offset_factor=int(ty.offset_factor),
                layout="default",
            )

    def swap(variable: Any, _mutator: Any) -> Any:
        return new.get(variable.__chandle__(), variable)

    return structural_mutate(func, [(tir.Var, swap)]).without_attr("global_symbol")
