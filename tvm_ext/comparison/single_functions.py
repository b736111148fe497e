# SPDX-License-Identifier: Apache-2.0
"""The PrimFuncs of a module one by one, as they stand right before ``StorageRewrite``."""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm.ir import IRModule, TensorLoad
from tvm.s_tir import SBlock
from tvm.target import Target
from tvm.tirx import AllocBuffer, BufferStore, For, ForKind, PrimFunc

from passes.ir.errors import first_line
from tvm_ext.lowering import as_module, capture, has_relax, target_for


def split(mod: IRModule | PrimFunc, *, target: str | Target | None = None) -> list[IRModule]:
    """Give each PrimFunc of a module a module of its own, as it stands before ``StorageRewrite``.

    They are in alphabetical order. Those of a Relax module are there once it is lowered; functions
    of other kinds are left out. Without Relax functions and without a target, every function has to
    stand where the pass does: flat, with blocks and vectorized loops lowered. Otherwise the whole
    module is lowered for the target by the stock pipeline, one with Relax functions by default for
    `DEFAULT_TARGET`. Where all stand there, the target is noted on the functions that name none.

    Raises ValueError when there is no PrimFunc, a function has blocks and there is no target to
    lower them for, TVM does not know the target, or the lowering fails; TypeError on what is no
    module and no function.
    """
    mod = as_module(mod)
    functions = prim_funcs(mod)
    resolved = target_for(mod, target)
    if resolved is not None and has_relax(mod):
        functions = prim_funcs(_lowered(mod, resolved))
    elif resolved is not None:
        functions = _standing_before_storage_rewrite(functions, resolved)
    if not functions:
        raise ValueError(_nothing_there(mod))
    for var, func in functions.items():
        if blocks := _blocks(func):
            raise ValueError(not_lowered(var.name_hint, blocks[0]))
    return [
        IRModule({var: functions[var]}) for var in sorted(functions, key=lambda var: var.name_hint)
    ]


def prim_funcs(mod: IRModule) -> dict[Any, PrimFunc]:
    """Return the functions of a module that are PrimFuncs, by their variables."""
    return {var: func for var, func in mod.functions.items() if isinstance(func, PrimFunc)}


def not_lowered(name: str, left: str) -> str:
    """Say that a function does not stand before ``StorageRewrite``, and what it still has."""
    return (
        f"function {name!r} is not lowered as far as StorageRewrite: {left}; "
        "name a target to have it lowered"
    )


def _standing_before_storage_rewrite(
    functions: dict[Any, PrimFunc], resolved: Target
) -> dict[Any, PrimFunc]:
    if not any(left_to_lower(func) for func in functions.values()):
        return {
            var: func if "target" in (func.attrs or {}) else func.with_attr("target", resolved)
            for var, func in functions.items()
        }
    return prim_funcs(_lowered(IRModule(functions), resolved))


def _lowered(mod: IRModule, target: Target) -> IRModule:
    try:
        return capture(mod, target)[-1]
    except Exception as error:  # any pass of the pipeline may raise anything
        names = ", ".join(sorted(repr(var.name_hint) for var in mod.functions))
        raise ValueError(
            f"cannot lower {names} for target kind {target.kind.name!r}: {first_line(error)}"
        ) from error


def _nothing_there(mod: IRModule) -> str:
    others = ", ".join(sorted(repr(var.name_hint) for var in mod.functions))
    if not others:
        return "no PrimFunc in the module: it is empty"
    return f"no PrimFunc in the module: it has only other functions ({others})"


def _blocks(func: PrimFunc) -> list[str]:
    found: list[str] = []

    def visit(block: SBlock) -> None:
        found.append(f"it has the block {block.name_hint!r}")

    tvm_ffi.structural_walk(func.body, ((SBlock, visit),))
    return found


def left_to_lower(func: PrimFunc) -> list[str]:
    """List what the stock pipeline lowers before ``StorageRewrite`` and is still there."""
    found = _blocks(func)

    def visit_buffer(buffer: Any, rank: int) -> None:
        if rank != 1:
            found.append(f"buffer {buffer.name!r} is not flat, it has {rank} dimensions")

    def visit_loop(loop: For) -> None:
        if loop.kind == ForKind.VECTORIZED:
            found.append(f"loop {loop.loop_var.name!r} is vectorized")
        elif loop.kind == ForKind.THREAD_BINDING:
            found.append(f"loop {loop.loop_var.name!r} is bound to a thread")

    tvm_ffi.structural_walk(
        func.body,
        (
            (For, visit_loop),
            (AllocBuffer, lambda op: visit_buffer(op.buffer, len(op.buffer.ty.shape))),
            (BufferStore, lambda op: visit_buffer(op.buffer, len(op.indices))),
            (TensorLoad, lambda op: visit_buffer(op.source, len(op.indices))),
        ),
    )
    return found
