# SPDX-License-Identifier: Apache-2.0
"""Our passes in TVM's own pipelines for TIR."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from threading import RLock
from types import ModuleType
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.backend.trn import transform as trn_passes
from tvm.ir.transform import Pass, PassContext, Sequential, module_pass

from passes.addresses import drop_for_kernels
from passes.driver import error_context, prim_funcs, target_kind
from passes.ir import nodes_in, storage_scope
from passes.pass_options import check_flags
from tvm_ext import known_names, transform  # noqa: F401 - TVM knows pipelines by name then.

_TRAINIUM = "trn"  # The kind of its targets, and the name of its pipeline
_STOCK_REWRITE = tirx.transform.StorageRewrite
# TVM's pipelines look `StorageRewrite` up each time they run; while one of ours
# runs, they find ours there. One thread at a time.
_stock_lock = RLock()


def use_storage_rewrite(**options: Any) -> AbstractContextManager[None]:
    """Put our `StorageRewrite` in the stock pass's place while a block runs.

    Code inside the block calls TVM as usual: ``tvm.tirx.build``, ``tvm.compile``, or a pipeline of
    its own that asks ``tvm.tirx.transform`` for the pass. Other threads that enter such a block
    wait for their turn; those that build outside of one see our pass too while a block is open.

    Parameters
    ----------
    **options
        As in `tvm_ext.transform.StorageRewrite`.

    Examples
    --------
    >>> with tvm_ext.use_storage_rewrite():
    ...     executable = tvm.compile(mod, target="llvm")
    """
    return replaced("StorageRewrite", partial(transform.StorageRewrite, **options))


def use_plan_addresses(
    planner: str = "best", form: transform.Form = "arena", **options: Any
) -> AbstractContextManager[None]:
    """Put `PlanAddresses`, with its options, in the place of the stock `StorageRewrite`.

    As with `use_storage_rewrite`. `StorageRewrite(sound=True)` runs behind it, on what it leaves
    alone; addresses that TVM's lowering allows nowhere are taken off before: see `DropAddresses`.
    """
    return _planned(lambda: transform.PlanAddresses(planner, form, **options))


def use_ascend_plan_memory(
    form: transform.Form = "arena", **options: Any
) -> AbstractContextManager[None]:
    """Put `AscendPlanMemory`, with its options, in the place of the stock `StorageRewrite`.

    It plans the workspace, and then what is on chip. All else is as in `use_plan_addresses`.
    """

    def plan_memory() -> Pass:
        workspace = transform.AscendPlanMemory("global-work-space-plan", form=form, **options)
        return Sequential([workspace, transform.AscendPlanMemory(form=form, **options)])

    return _planned(plan_memory)


@contextmanager
def use_plan_shared_memory(planner: str = "best", **options: Any) -> Iterator[None]:
    """Put `PlanSharedMemory`, with its options, in the place of TVM's merge of shared memory.

    As with `use_storage_rewrite`, whose pass stands there with `shared_apart`, unless in a block of
    another of these functions: what that shares, this knows as one allocation.
    """
    with _stock_lock:
        apart: Callable[[], Pass] = partial(transform.StorageRewrite, shared_apart=True)
        plan = partial(transform.PlanSharedMemory, planner, **options)
        before = tirx.transform.StorageRewrite
        with (
            replaced("StorageRewrite", apart if before is _STOCK_REWRITE else before),
            replaced("MergeSharedMemoryAllocations", plan, s_tir.transform),
        ):
            yield


@contextmanager
def _planned(plan: Callable[[], Pass]) -> Iterator[None]:
    """Put a pass that plans addresses in the place of `StorageRewrite`, and ours behind it."""
    with _stock_lock:
        rewrite, lower = tirx.transform.StorageRewrite, tirx.transform.LowerTVMBuiltin
        merge = s_tir.transform.MergeSharedMemoryAllocations

        def storage_rewrite() -> Pass:
            # Where a target has no arithmetic for float8, TVM makes wider elements of it: in front
            # of the plan, which then knows how wide.
            legalize = tirx.transform.FP8ComputeLegalize()
            planning = Sequential([legalize, plan(), transform.StorageRewrite(sound=True)])

            def run(mod: tvm.IRModule, _ctx: PassContext) -> tvm.IRModule:
                # A planner may compile a kernel of its own, which is not to be planned by it.
                with replaced("StorageRewrite", rewrite), replaced("LowerTVMBuiltin", lower):
                    return planning(mod)

            return module_pass(run, opt_level=0, name="tvm_ext.planned")

        with (
            replaced("StorageRewrite", storage_rewrite),
            replaced("LowerTVMBuiltin", _behind(transform.DropAddresses, lower)),
            replaced(
                "MergeSharedMemoryAllocations", _behind(drop_for_kernels, merge), s_tir.transform
            ),
        ):
            yield


def _behind(first: Callable[[], Pass], then: Callable[[], Pass]) -> Callable[[], Pass]:
    """Return what makes two passes, one behind the other."""
    return lambda: Sequential([first(), then()])


@contextmanager
def replaced(
    name: str, make_pass: Callable[[], Pass], passes: ModuleType = tirx.transform
) -> Iterator[None]:
    """Let TVM's pipelines find another pass where they look one up."""
    make_pass()  # A wrong option is an error here, not in the middle of a build.
    with _stock_lock:
        stock = getattr(passes, name)
        setattr(passes, name, make_pass)
        try:
            yield
        finally:
            setattr(passes, name, stock)


Pipeline = tuple[Pass, Callable[[], Pass], Callable[[], Pass]]
"""The lowering pass, and what makes the host's and the device's last passes."""


def tir_pipeline(*, shared_memory: bool = True) -> Pipeline:
    """Return TVM's default TIR pipeline with our `StorageRewrite` in it.

    With `shared_memory`, `PlanSharedMemory` plans that of GPU kernels.
    """
    check_flags(shared_memory=shared_memory)
    ours = use_plan_shared_memory if shared_memory else use_storage_rewrite
    return _pipeline(ours, addresses=False)


def address_pipeline(form: transform.Form, **options: Any) -> Pipeline:
    """Return the same pipeline with `PlanAddresses`, whose options these are."""
    plan: Callable[[], Pass] = partial(transform.PlanAddresses, form=form, **options)
    plan()  # A wrong option is an error here, not in the middle of a build.
    return _pipeline(partial(use_plan_addresses, form=form, **options), plan)


def ascend_pipeline(form: transform.Form = "arena", **options: Any) -> Pipeline:
    """Return the same pipeline with `AscendPlanMemory`, whose options these are."""
    transform.AscendPlanMemory("local-mem-plan", form=form, **options)  # As above
    return _pipeline(partial(use_ascend_plan_memory, form, **options))


def _pipeline(
    ours: Callable[[], AbstractContextManager[None]],
    tiles: Callable[[], Pass] = transform.PlanAddresses,
    *,
    addresses: bool = True,
) -> Pipeline:
    """Return TVM's default pipeline, which lowers inside the context that `ours` makes.

    TVM's own pipeline lowers a module for Trainium, with the pass `tiles` in the place of its
    allocator. `addresses` are taken off before the host's code generator, which refuses them.
    """
    lower, finalize_host, finalize_device = tirx.get_tir_pipeline("default")
    lower_tiles, _, finalize_tiles = tirx.get_tir_pipeline(_TRAINIUM)

    def run(mod: tvm.IRModule, _ctx: PassContext) -> Any:
        if _is_for_trainium(mod):
            with replaced("TrnNaiveAllocator", tiles, trn_passes):
                return lower_tiles(mod)
        _check_scopes(mod)
        with ours():
            return lower(mod)

    def finish_device(mod: tvm.IRModule, _ctx: PassContext) -> tvm.IRModule:
        return (finalize_tiles if _is_for_trainium(mod) else finalize_device)()(mod)

    if addresses:
        finalize_host = _behind(transform.DropAddresses, finalize_host)
    return (
        module_pass(run, opt_level=0, name="tvm_ext.tir_pipeline"),
        finalize_host,
        partial(module_pass, finish_device, opt_level=0, name="tvm_ext.finalize_device"),
    )


def _check_scopes(mod: tvm.IRModule) -> None:
    """Raise ValueError for a scope that TVM does not know; its own error names no buffer."""
    for name, func in prim_funcs(mod).items():
        with error_context("the pipeline", name):
            for op in nodes_in(func.body, s_tir.SBlock, tirx.AllocBuffer):
                for buffer in op.alloc_buffers if isinstance(op, s_tir.SBlock) else [op.buffer]:
                    storage_scope(buffer)


def _is_for_trainium(mod: tvm.IRModule) -> bool:
    return any(target_kind(func) == _TRAINIUM for func in prim_funcs(mod).values())
