# SPDX-License-Identifier: Apache-2.0
"""Modules, their functions, what these are built for, and passes over them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tvm.error import InternalError as InternalError
from tvm.ir import IRModule as IRModule
from tvm.ir import assert_structural_equal as assert_structural_equal
from tvm.ir.transform import Pass as Pass
from tvm.ir.transform import PassContext, module_pass
from tvm.ir.transform import Sequential as Sequential
from tvm.s_tir.transform import MergeSharedMemoryAllocations
from tvm.target import Target as Target
from tvm.tirx.transform import StorageRewrite, prim_func_pass

from passes.ir.tir import PrimFunc

STOCK_REWRITE, STOCK_MERGE = StorageRewrite, MergeSharedMemoryAllocations
"""TVM's own passes, whatever stands in their place in ``tvm.tirx.transform`` while a build runs."""

_PREFIX = "tvm_ext."  # Of the names of our passes, for instruments


def make_pass(name: str, transform: Callable[[IRModule], IRModule]) -> Pass:
    """Return a pass over modules; its name for TVM is ``tvm_ext.<name>``."""

    def run(mod: IRModule, _context: PassContext) -> IRModule:
        return transform(mod)

    return module_pass(run, opt_level=0, name=_PREFIX + name)


def make_function_pass(
    name: str, transform: Callable[[PrimFunc, IRModule, PassContext], PrimFunc]
) -> Pass:
    """Return a pass over the PrimFuncs of a module; its name for TVM is ``tvm_ext.<name>``.

    What `transform` gets last is the context of the build, whose `config` has its options.
    """
    return prim_func_pass(transform, opt_level=0, name=_PREFIX + name)


def build_option(name: str, default: Any = False) -> Any:
    """Return what a build that is running says of an option of TVM's."""
    return PassContext.current().config.get(name, default)


def without_instruments() -> PassContext:
    """Return the pass context in force without its instruments, for passes that build nothing."""
    ctx = PassContext.current()
    return PassContext(
        opt_level=ctx.opt_level,
        required_pass=list(ctx.required_pass),
        disabled_pass=list(ctx.disabled_pass),
        config=dict(ctx.config),
    )


def with_options(options: Mapping[str, Any]) -> Any:
    """Return a context in which a build has some options of TVM's, and no instruments."""
    return PassContext(config=dict(options))


def current_target() -> Target | None:
    """Return the target that a ``with`` statement has made the current one, if any."""
    return Target.current(allow_none=True)


def as_target(target: Target | str | Mapping[str, Any] | None) -> Target | None:
    """Return a target as TVM's object; None for None."""
    return None if target is None else Target(target)


def prim_funcs(mod: IRModule) -> dict[str, PrimFunc]:
    """Return the TIR functions of a module by name, in the order of their names."""
    functions = {str(var.name_hint): mod[var] for var in mod.get_global_vars()}
    return {name: f for name, f in sorted(functions.items()) if isinstance(f, PrimFunc)}


def name_of(func: PrimFunc) -> str:
    """Return the name by which a function is called from outside, for messages."""
    return str(func.attrs.get("global_symbol", "?"))


def target_of(func: PrimFunc) -> Target | None:
    """Return the target that a function is bound to, if any."""
    target = func.attrs.get("target")
    return target if isinstance(target, Target) else None


def target_kind(func: PrimFunc) -> str:
    """Return the kind of the target that a function is bound to; empty if it is to none."""
    target = target_of(func)
    return "" if target is None else str(target.kind.name)
