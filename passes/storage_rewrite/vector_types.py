# SPDX-License-Identifier: Apache-2.0
"""Gives memory that is only accessed as vectors a vector element type.

Some runtimes cannot cast a pointer to `float16` into one to `float16x4`, so the
memory itself must be declared with the vector type. The rules are those of
`VectorTypeRewriter` in TVM's StorageRewrite.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from passes.ir import Callbacks, is_dense, structural_equal, structural_mutate, tir
from passes.ir.operators import is_buffer_data, is_tvm_access_ptr, type_annotation
from passes.storage_rewrite.analysis.vector_access import Retype


class VectorTypeRewriter:
    """Gives the memory of a function its new element types.

    `roots` has the handle of the variable that declares the memory, for each buffer; `has_opaque`
    says whether buffers or pointers are used other than by loads and stores.
    """

    def __init__(
        self, retypes: Sequence[Retype], roots: dict[int, int], *, has_opaque: bool
    ) -> None:
        self._roots = roots
        self._has_opaque = has_opaque
        self._analyzer = tir.Analyzer()
        self._retypes = {retype.var.__chandle__(): retype for retype in retypes}
        self._new_var = {key: _new_var(retype) for key, retype in self._retypes.items()}

    def __call__(self, body: Any) -> Any:
        """Rewrite a function's body.

        ValueError is raised when an access does not fall together with the vectors of its memory.
        """
        callbacks: Callbacks = []
        if self._retypes:
            callbacks += [
                (tir.Load, self._rewrite_load),
                (tir.Store, self._rewrite_store),
                (tir.Allocation, self._rewrite_alloc),
                (tir.Declaration, self._rewrite_decl),
            ]
        if self._retypes and self._has_opaque:
            callbacks += [(tir.Var, self._rewrite_var), (tir.Call, self._rewrite_call)]
        if self._has_opaque:
            callbacks.append((tir.Binding, self._rewrite_bind))
        return structural_mutate(body, callbacks)

    def _retype(self, var: tir.Var) -> Retype | None:
        """Return the new type of the memory that a variable names."""
        key = var.__chandle__()
        return self._retypes.get(self._roots.get(key, key))

    def _remap(self, buffer: tir.Var, retype: Retype) -> tir.Var:
        key = buffer.__chandle__()
        if key not in self._new_var:
            self._new_var[key] = _retyped_buffer(buffer, retype)
        return self._new_var[key]

    # Definitions

    def _rewrite_alloc(self, op: tir.Allocation, mutator: Any) -> Any:
        new = self._new_var.get(op.buffer.__chandle__())
        if new is None:
            return op
        # For the accesses that are left alone: those of scalable vectors.
        mutator.var_remap_set(op.buffer, new)
        return tir.Allocation(new, op.annotations)

    def _rewrite_decl(self, op: tir.Declaration, mutator: Any) -> Any:
        retype = self._retype(op.buffer)
        if retype is None:
            return mutator.default_mutate(op)
        data = op.data
        if is_buffer_data(data):
            source = data.args[0]
            data = self._remap(source, retype).data
        new = self._remap(op.buffer, retype)
        # For the uses that are left alone: in calls, and by scalable vectors.
        mutator.var_remap_set(op.buffer, new)
        return tir.Declaration(new, data=data)

    def _rewrite_bind(self, op: tir.Binding, mutator: Any) -> Any:
        value = mutator.mutate(op.value)
        var = self._new_var.get(op.var.__chandle__(), op.var)
        if is_buffer_data(value) and var.same_as(op.var):
            # The address of a buffer keeps its own type even if the variable has another.
            return mutator.default_mutate(op)
        if not structural_equal(value.ty, var.ty):
            if not isinstance(value, tir.Call):
                raise ValueError(
                    f"{op.var.name!r} of type {var.ty} is bound to a value of type {value.ty}"
                )
            value = tir.Call(value.op, value.args, value.attrs, value.ty_args, value.span, var.ty)
        if var.same_as(op.var) and value.same_as(op.value):
            return op
        return tir.Binding(var, value)

    # Accesses

    def _rewrite_indices(self, buffer: tir.Var, retype: Retype, indices: list[Any]) -> int | None:
        """Divide the last index; return the lane to read where one of a vector is meant."""
        factor, last = retype.factor, indices[-1]
        if isinstance(last, tir.Ramp) and is_dense(last):
            lanes = int(last.lanes.value)
            indices[-1] = _divide(last.base, lanes)
            if lanes != factor:
                if lanes % factor:
                    raise ValueError(
                        f"{buffer.name!r} is accessed with {lanes} lanes, "
                        f"which is no multiple of its vectors' {factor}"
                    )
                indices[-1] = tir.Ramp(
                    indices[-1] * (lanes // factor), last.stride, lanes // factor
                )
        elif last.ty.dtype.lanes == 1 and factor > 1:
            modular = self._analyzer.modular_set(last)
            if modular.coeff and factor % modular.coeff:
                raise ValueError(f"{buffer.name!r} is read at an unknown lane of a vector")
            indices[-1] = _divide(last, factor)
            return int(modular.base % factor)
        return None

    def _is_left_alone(self, buffer: tir.Var, retype: Retype, indices: Any) -> bool:
        """Return whether an access is one of scalable vectors to a buffer that declares its memory.

        It gets the new buffer, of any type. Such an access through an alias
        keeps the alias of before, which nothing declares any more: the original,
        too, makes no sense of scalable vectors in memory with a new type.
        """
        return buffer.same_as(retype.var) and _is_scalable(buffer, indices)

    def _rewrite_load(self, op: tir.Load, mutator: Any) -> Any:
        retype = self._retype(op.source)
        if retype is None or self._is_left_alone(op.source, retype, op.indices):
            return mutator.default_mutate(op)
        indices = list(mutator.mutate(op.indices))
        if _is_scalable(op.source, op.indices):
            return tir.new_load(op.source, indices)
        lane = self._rewrite_indices(op.source, retype, indices)
        load = tir.new_load(self._remap(op.source, retype), indices)
        return load if lane is None else tir.Shuffle([load], [tir.IntConstant("int32", lane)])

    def _rewrite_store(self, op: tir.Store, mutator: Any) -> Any:
        value = mutator.mutate(op.value)
        if not structural_equal(value.ty, op.value.ty):
            raise ValueError(
                f"{op.buffer.name!r} would be written with {value.ty} in place of {op.value.ty}: "
                "its value is read from truth values that are only accessed as vectors"
            )
        retype = self._retype(op.buffer)
        if retype is None or self._is_left_alone(op.buffer, retype, op.indices):
            return mutator.default_mutate(op)
        indices = list(mutator.mutate(op.indices))
        if _is_scalable(op.buffer, op.indices):
            return tir.Store(op.buffer, mutator.mutate(op.value), indices)
        if self._rewrite_indices(op.buffer, retype, indices) is not None:
            raise ValueError(f"{op.buffer.name!r} is written one lane of a vector at a time")
        return _store(self._remap(op.buffer, retype), value, indices)

    # Other uses

    def _rewrite_var(self, op: tir.Var, mutator: Any) -> Any:
        retype = self._retypes.get(op.__chandle__())
        return mutator.default_mutate(op) if retype is None else self._new_var[op.__chandle__()]

    def _rewrite_call(self, op: tir.Call, mutator: Any) -> Any:
        if is_buffer_data(op):
            var = op.args[0]
            retype = self._retype(var) if isinstance(var, tir.Var) else None
            if retype is not None and tir.is_buffer(var):
                return self._remap(var, retype).data
        elif is_tvm_access_ptr(op) and isinstance(op.args[1], tir.Var):
            retype = self._retype(op.args[1])
            if retype is not None:
                return self._rewrite_access_ptr(op, retype, mutator)
        return mutator.default_mutate(op)

    def _rewrite_access_ptr(self, op: tir.Call, retype: Retype, mutator: Any) -> tir.Call:
        _, _, index, extent, mask = op.args
        new = self._new_var[retype.var.__chandle__()]
        args = [
            type_annotation(retype.element),
            new.data if tir.is_buffer(new) else new,
            _divide(mutator.mutate(index), retype.factor),
            _divide(mutator.mutate(extent), retype.factor),
            mutator.mutate(mask),
        ]
        pointer = tir.PointerType(tir.PrimType(retype.element), op.ty.storage_scope)
        return tir.Call(op.op, args, ret_ty=pointer)


def _new_var(retype: Retype) -> tir.Var:
    var = retype.var
    if tir.is_buffer(var):
        return _retyped_buffer(var, retype)
    return tir.Var(var.name, tir.PointerType(tir.PrimType(retype.element), var.ty.storage_scope))


def _retyped_buffer(buffer: tir.Var, retype: Retype) -> tir.Var:
    ty = buffer.ty
    shape = list(ty.shape)
    if shape:
        shape[-1] = _divide(shape[-1], retype.factor)
    new = tir.new_buffer(
        shape,
        retype.element,
        buffer.name,
        strides=ty.strides,
        elem_offset=ty.elem_offset,
        scope=ty.storage_scope,
        data_alignment=ty.data_alignment,
        offset_factor=ty.offset_factor,
    )
    return new.with_allocated_addr(ty.allocated_addr) if len(ty.allocated_addr) else new


def _store(buffer: tir.Var, value: Any, indices: list[Any]) -> tir.Store:
    """Make a store whose value need not have the type of the memory.

    Truth values are kept in memory of integers, and like the original we leave the
    conversion to the code generator. The constructor wants equal types, so a value
    of another type takes the place of one that fits.
    """
    expected = tir.new_load(buffer, indices).ty
    if structural_equal(value.ty, expected):
        return tir.Store(buffer, value, indices)
    fitting = tir.Var("value", expected)
    return structural_mutate(
        tir.Store(buffer, fitting, indices),
        [(tir.Var, lambda var, _mutator: value if var.same_as(fitting) else var)],
    )


def _is_scalable(buffer: tir.Var, indices: Any) -> bool:
    return buffer.ty.dtype.dtype.lanes < 0 or any(index.ty.dtype.lanes < 0 for index in indices)


def _divide(value: Any, factor: int) -> Any:
    return tir.truncdiv(value, tir.IntConstant(value.ty, factor))
