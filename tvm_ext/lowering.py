# SPDX-License-Identifier: Apache-2.0
"""The input that a program's lowering hands to the stock memory planning passes.

That is the module before ``StorageRewrite`` or ``StaticPlanBlockMemory``, for any target,
whether or not this machine has its compiler.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import tirx
from tvm.backend.trn.transform import TrnPrivateBufferAlloc
from tvm.ir.instrument import pass_instrument
from tvm.ir.transform import PassContext, module_pass

import target_hw.target  # noqa: F401 - makes the names of the chips known to TVM
from passes.addresses import has_tiles
from passes.gmem import GMEMOptions
from passes.ir import (
    IRModule,
    Pass,
    PrimFunc,
    Sequential,
    Target,
    first_line,
    make_pass,
    nodes_in,
    prim_funcs,
    structural_equal,
    target_of,
    tir,
)
from passes.ir.operators import legalization, operator_name
from passes.order import FunctionOrder, order_functions, with_orders
from passes.relax import bindings_of, functions_in_order, rx
from tvm_ext import progress
from tvm_ext.pipeline import replaced
from tvm_ext.relax_passes import FUSION, relax_stages
from tvm_ext.tensor_names import names_from_modules
from tvm_ext.text import did_you_mean

DEFAULT_TARGET = "llvm"
"""The target of a network where none is named."""

_GPUS: Mapping[str, Mapping[str, Any]] = {
    "cuda": {"kind": "cuda", "arch": "sm_61", "max_shared_memory_per_block": 49152},
    "vulkan": {
        "kind": "vulkan",
        "supports_float16": True,
        "supports_int8": True,
        "supports_16bit_buffer": True,
        "supports_8bit_buffer": True,
        "max_num_threads": 256,
        "thread_warp_size": 32,
        "max_shared_memory_per_block": 32768,
    },
    "metal": {"kind": "metal", "max_num_threads": 256, "thread_warp_size": 32},
}
"""Facts of GPUs by the name of their kind, where TVM would ask a driver that may be missing. The
CUDA architecture has no tensor cores: importing TVM's intrinsics for those takes half a minute."""


def known_target(target: str | Mapping[str, Any] | Target) -> Target:
    """Return a target by a kind, which for GPUs has limits, a tag or a mapping; or ValueError."""
    if isinstance(target, Target):
        return target
    named = _GPUS.get(target, target) if isinstance(target, str) else target
    try:
        return Target(named if isinstance(named, str) else dict(named))
    except Exception as error:  # TVM raises whatever it stumbles on
        known = [*Target.list_kinds(), *map(str, tvm.target.list_tags())]
        hint = did_you_mean(str(target), known)
        raise ValueError(f"unknown target {target!r}: {hint}{first_line(error)}") from error


def twin_of(target: Target) -> Target | None:
    """Return a chip's twin on the CPU; None where it has none, or one with other memories."""
    name = f"{target.attrs.get('model', '')}-llvm"
    if str(target.kind.name) != "ext_dev" or name not in map(str, tvm.target.list_tags()):
        return None
    twin = Target(name)
    memories = target.features.memory, twin.features.memory
    return twin if structural_equal(*memories) else None


def as_module(what: object) -> IRModule:
    """Return a module as it is, or the module of one function; raise TypeError for all else."""
    if isinstance(what, PrimFunc | rx.Function):
        return IRModule.from_expr(what)
    if not isinstance(what, IRModule):
        raise TypeError(f"needs a tvm.IRModule or a PrimFunc, got {type(what).__name__}")
    return what


def has_relax(mod: IRModule) -> bool:
    """Return whether a module has Relax functions."""
    return any(isinstance(function, rx.Function) for function in mod.functions.values())


def lowered_for(
    target: Target, lower: Callable[[], IRModule], what: str = "the Relax functions"
) -> IRModule:
    """Return what `lower` makes; ValueError, with the pass or operator, when any pass fails."""
    try:
        with progress.stage(f"lowering for {target.kind.name}"):
            return lower()
    except Exception as error:
        raise ValueError(
            f"cannot lower {what} for target kind {target.kind.name!r}: "
            f"{_where_it_fails(error, lower)}"
        ) from error


def capture(mod: IRModule | PrimFunc, target: str | Target) -> IRModule:
    """Return the module that the stock pipelines give to ``StorageRewrite``.

    A Relax module first goes through the passes of `relax_stages`, which fuse operators. The pass
    context in force applies. Raises ValueError if the lowering never reaches the pass.
    """
    target = known_target(target)
    if isinstance(mod, IRModule) and has_relax(mod):
        with target:
            mod = Sequential(relax_stages(target, names=False).all())(mod)
    captured: list[IRModule] = []

    def record(given: IRModule, _ctx: Any) -> IRModule:
        captured.append(given)
        raise RuntimeError("the lowering has served, and is left early")

    recorder = module_pass(record, opt_level=0, name="tirx.StorageRewrite")
    with replaced("StorageRewrite", lambda: recorder):
        try:
            tvm.compile(mod, target, relax_pipeline=None)
        except Exception:  # Crossing the C++ pass manager may make another error of ours.
            if not captured:
                raise
    if not captured:
        raise ValueError(
            f"lowering for target kind {target.kind.name!r} never ran tirx.StorageRewrite: the "
            "program computes nothing when it runs, or 'tirx.disable_storage_rewrite' is set"
        )
    return captured[0]


def capture_relax(
    mod: IRModule,
    target: str | Target,
    *,
    fuse: bool = True,
    between: Callable[[IRModule], IRModule] | None = None,
) -> IRModule:
    """Return the module that the stock pipeline gives to ``StaticPlanBlockMemory``.

    `between` changes the module where `OrderForMemory` and `LayerGroup` stand. Raises ValueError if
    there is no Relax function, TVM has no Relax pipeline for the target, or cannot lower it.
    """
    if not has_relax(mod):
        raise ValueError("there is no Relax function in the module")
    target = known_target(target)
    stages = relax_stages(target, fuse=fuse)
    with target:
        first = lowered_for(target, lambda: Sequential(stages.first)(mod))
        first = first if between is None else between(first)
        return lowered_for(target, lambda: Sequential(stages.lower)(first))


def legalized(mod: IRModule, target: Target) -> IRModule:
    """Return a Relax module with its operators as kernels, which are not fused yet.

    `capture` and `capture_relax` give the same for it as for `mod`, sooner. Raises ValueError as
    they do.
    """
    names = ", ".join(repr(variable.name_hint) for variable, _ in functions_in_order(mod))
    with target:
        first = relax_stages(target).first
        fusion = [at for at, one in enumerate(first) if one.info.name in FUSION]
        before = first[: min(fusion, default=len(first))]
        return lowered_for(target, lambda: Sequential(before)(mod), names)


@dataclass
class Reordered:
    """`between` of `capture_relax`: puts operators in the order in which least memory is live."""

    options: GMEMOptions
    planner: str  # Its plan decides whether an order is taken
    orders: tuple[FunctionOrder, ...] = ()  # The new order of each function

    def __call__(self, written: IRModule) -> IRModule:
        """Return the module with its functions reordered, and note their orders."""
        self.orders = order_functions(written, self.options, planner=self.planner)
        return with_orders(written, self.orders)


def split(mod: IRModule | PrimFunc, *, target: str | Target | None = None) -> dict[str, PrimFunc]:
    """Return the PrimFuncs of a module by name, sorted, as they stand before ``StorageRewrite``.

    A module with Relax functions is lowered for the target, by default `DEFAULT_TARGET`; another
    one is where a target is named and a function is not yet as the pass takes it: flat, with blocks
    and vectorized loops lowered. Where all are, the target is noted on those that name none. Raises
    TypeError on what is no module and no function, ValueError when there is no PrimFunc, or it has
    to be lowered and cannot be.
    """
    given = as_module(mod)
    functions, is_network = prim_funcs(given), has_relax(given)
    if target is None and is_network:
        target = DEFAULT_TARGET
    resolved = None if target is None else known_target(target)
    if not is_network and any(map(has_tiles, functions.values())):
        functions = prim_funcs(_with_private_tiles(given, resolved))
    elif resolved is not None and (
        is_network or any(any(_left_to_lower(func)) for func in functions.values())
    ):
        own = {v: func for v, func in given.functions.items() if isinstance(func, PrimFunc)}
        whole = given if is_network else IRModule(own)
        # The functions of a network, not its kernels, of which there may be hundreds.
        asked = [v for v in whole.functions if v not in own] or whole.functions
        names = ", ".join(sorted(repr(var.name_hint) for var in asked))
        functions = prim_funcs(lowered_for(resolved, lambda: capture(whole, resolved), names))
    elif resolved is not None:
        functions = {
            name: func if "target" in (func.attrs or {}) else func.with_attr("target", resolved)
            for name, func in functions.items()
        }
    if not functions:
        others = ", ".join(sorted(repr(var.name_hint) for var in given.functions))
        what = f"it has only other functions ({others})" if others else "it is empty"
        raise ValueError(f"no PrimFunc in the module: {what}")
    for name, func in functions.items():
        _check(name, _blocks(func))
    return functions


def _with_private_tiles(mod: IRModule, target: Target | None) -> IRModule:
    """Return a module for Trainium as it stands where TVM allocates its tiles."""
    if target is not None:
        mod = tirx.transform.BindTarget(target)(mod)
    for name, func in prim_funcs(mod).items():
        if target_of(func) is None:
            raise ValueError(f"function {name!r} has tiles of a Trainium core: name its target")
    return TrnPrivateBufferAlloc()(mod)


def check_lowered(name: str, func: PrimFunc) -> None:
    """Raise ValueError if something is left to lower in a function before ``StorageRewrite``."""
    _check(name, _left_to_lower(func))


def _check(name: str, left: Iterator[str]) -> None:
    for first in left:
        raise ValueError(
            f"function {name!r} is not lowered as far as StorageRewrite: {first}; "
            "name a target to have it lowered"
        )


def _blocks(func: PrimFunc) -> Iterator[str]:
    for block in nodes_in(func.body, tir.Block):
        yield f"it has the block {block.name_hint!r}"


def _left_to_lower(func: PrimFunc) -> Iterator[str]:
    """Yield what the stock pipeline lowers before ``StorageRewrite`` and is still there."""
    yield from _blocks(func)
    for op in nodes_in(func.body, tir.Allocation, tir.Store, tir.Load):
        buffer = op.source if isinstance(op, tir.Load) else op.buffer
        rank = len(buffer.ty.shape if isinstance(op, tir.Allocation) else op.indices)
        if rank != 1:
            yield f"buffer {buffer.name!r} is not flat, it has {rank} dimensions"
    for loop in nodes_in(func.body, tir.Loop):
        if loop.kind == tir.LoopKind.VECTORIZED:
            yield f"loop {loop.loop_var.name!r} is vectorized"
        elif loop.kind == tir.LoopKind.THREAD_BINDING:
            yield f"loop {loop.loop_var.name!r} is bound to a thread"


@pass_instrument
class _Between:
    """Lets those passes run that stand after `StorageRewrite` and before the merge."""

    def __init__(self) -> None:
        self.runs = False

    def should_run(self, _mod: IRModule, info: Any) -> bool:
        namespace, _, name = info.name.rpartition(".")
        if name in ("StorageRewrite", "MergeSharedMemoryAllocations"):
            self.runs = name == "StorageRewrite"
            return False
        return self.runs or not namespace


def up_to_shared_memory() -> Pass:
    """Return TVM's passes between ``StorageRewrite`` and the merge, but ``VerifyMemory``."""
    lower, _, _ = tirx.get_tir_pipeline("default")

    def run(mod: IRModule) -> IRModule:
        with _instrumented(_Between(), "tirx.VerifyMemory"):
            return lower(mod)

    return make_pass("up_to_shared_memory", run)


def _instrumented(instrument: Any, *disabled: str) -> PassContext:
    """Return the pass context in force with `StorageRewrite` on, and one more instrument."""
    ctx = PassContext.current()
    return PassContext(
        opt_level=ctx.opt_level,
        required_pass=list(ctx.required_pass),
        disabled_pass=[*ctx.disabled_pass, *disabled],
        instruments=[*(ctx.instruments or ()), instrument],
        config={**dict(ctx.config), "tirx.disable_storage_rewrite": False},
    )


# ------------------------------------------------------ where an error of the lowering came from


@pass_instrument
class _Running:
    """Notes the passes that have begun and not ended, each with the module that it was given."""

    def __init__(self) -> None:
        self.passes: list[tuple[str, IRModule]] = []
        self.last = IRModule()  # The input of the network pass that began last

    def run_before_pass(self, mod: IRModule, info: Any) -> None:
        self.passes.append((str(info.name), mod))
        if has_relax(mod):
            self.last = mod

    def run_after_pass(self, _mod: IRModule, _info: Any) -> None:
        self.passes.pop()


def _where_it_fails(error: Exception, lower: Callable[[], object]) -> str:
    """Return the first line of an error of `lower`, with the pass or the operator if known.

    `lower` is run once more; an error that does not come again is said alone.
    """
    noted, text = _Running(), first_line(error)
    try:
        with _instrumented(noted):
            lower()
    except Exception:  # any of TVM's passes may raise anything
        name, mod = noted.passes[-1] if noted.passes else ("", noted.last)
        if where := _failing_operator(mod, text if name else None):
            return f"{where}: {text}"
        return f"TVM's pass {name} fails: {text}" if name else text
    return text


def _failing_operator(mod: IRModule, text: str | None) -> str:
    """Name the first operator whose legalization raises an error with this text; empty if none.

    Without a text, code was being generated, and the first operator that is left is named.
    """
    for _, func in functions_in_order(mod):
        names = names_from_modules(func)
        for binding in bindings_of(func.body):
            call = binding.value
            legalize = legalization(call.op) if isinstance(call, rx.Call) else None
            if legalize is None:
                continue
            name = names.get(binding.var.__chandle__(), binding.var.name)
            named = f"{operator_name(call.op)} ({name})"
            if text is None:
                return named
            try:
                legalize(rx.BlockBuilder(mod), call)
            except Exception as error:  # outside of a function, some raise another one
                if first_line(error) == text:
                    return named
    return ""
