"""Write planned memory into a Relax function: one storage, tensors at byte offsets in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tvm import relax, tirx
from tvm.tirx import IntImm

from passes.analysis.relax.graph import SCOPE
from passes.ir.structural import Callback, structural_mutate, type_index
from passes.ir.symbolic_bounds import Bound

_BLOCK = type_index(relax.BindingBlock)


def write_storage(
    func: relax.Function, size: int, offsets: Mapping[int, int], bounds: Sequence[Bound] = ()
) -> relax.Function:
    """Give tensors their places in one storage.

    The storage is allocated by the first binding of the function, so it is there on all paths.
    The run time makes a tensor at an offset by a pointer and an offset, and kernels built by TVM
    take no offset: ``R.memory.ensure_zero_offset`` folds it into the pointer. That is free on CPUs
    and CUDA where the offset is a multiple of the run time's alignment (64 bytes); where it is
    not, and on other devices, the run time copies the tensor to memory of its own, so that
    results are right and nothing is saved.

    Parameters
    ----------
    func : tvm.relax.Function
        It stays as it is.
    size : int
        Bytes of the storage.
    offsets : mapping of int to int
        By handle of the variable that an ``R.builtin.alloc_tensor`` is bound to: bytes from the
        start of the storage.
    bounds : sequence of Bound
        What the sizes rest on. The function then begins with a check of each at run time:
        within one storage, a tensor that is larger than was planned would end in its neighbour.

    Returns
    -------
    tvm.relax.Function
        The new function; `func` itself where no tensor is placed.
    """
    if not offsets:
        return func
    typed = relax.BlockBuilder().normalize
    allocation = typed(_alloc_storage(size))
    storage = relax.Var("storage", allocation.ty)
    pending = [*_checks(bounds), relax.VarBinding(storage, allocation)]

    def rewrite(block: Any, mutator: Any) -> Any:
        bindings = list(pending)
        pending.clear()  # The outermost first block is the first to come here.
        block = mutator.default_mutate(block)
        changed = bool(bindings)
        for binding in block.bindings:
            offset = offsets.get(binding.var.__chandle__())
            if offset is None:
                bindings.append(binding)
            else:
                bindings += _placed(binding, storage, offset, typed)
                changed = True
        return relax.BindingBlock(bindings) if changed else block

    callbacks: list[tuple[int, Callback]] = [(_BLOCK, rewrite)]
    return structural_mutate(func, callbacks)


def _alloc_storage(size: int) -> Any:
    return relax.op.memory.alloc_storage(
        relax.ShapeExpr([IntImm("int64", size)]), 0, SCOPE, "uint8"
    )


def _placed(binding: Any, storage: Any, offset: int, typed: Callable[[Any], Any]) -> list[Any]:
    """Return the bindings that stand for an ``R.builtin.alloc_tensor``."""
    shape, dtype, device, _ = binding.value.args
    alloc = typed(relax.op.memory.alloc_tensor(storage, offset, shape, dtype.value, device))
    if offset == 0:
        return [relax.VarBinding(binding.var, alloc)]
    placed = relax.Var(f"{binding.var.name}_at_{offset}", binding.var.ty)
    return [
        relax.VarBinding(placed, alloc),
        relax.VarBinding(binding.var, typed(relax.op.memory.ensure_zero_offset(placed))),
    ]


def _checks(bounds: Sequence[Bound]) -> list[Any]:
    """Return bindings that fail at run time where a dimension is out of its bounds."""
    checks = []
    for bound in bounds:
        dtype = bound.variable.ty.dtype
        within = tirx.min(bound.variable, IntImm(dtype, bound.upper))
        if bound.lower > 0:
            within = tirx.max(within, IntImm(dtype, bound.lower))
        result = relax.Var(f"{bound.variable.name}_within_bounds", relax.ShapeType([within]))
        checks.append(
            relax.MatchCast(result, relax.ShapeExpr([bound.variable]), relax.ShapeType([within]))
        )
    return checks
