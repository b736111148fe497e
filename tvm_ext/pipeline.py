# SPDX-License-Identifier: Apache-2.0
"""Our passes in TVM's own pipelines, for TIR and for Relax."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from inspect import signature
from threading import RLock
from types import ModuleType
from typing import Any

import tvm
from tvm import relax, s_tir, tirx
from tvm.ir.transform import Pass, PassContext, Sequential, module_pass
from tvm.relax import pipeline as relax_lists
from tvm.target import Target

from passes.driver import error_context
from passes.layer_group.rewrite.local_buffers import SCOPE
from passes.layer_group.transform import LOGGER, local_memory
from passes.options import check_flags
from target_hw.memory import target_label
from tvm_ext import transform
from tvm_ext.pass_options import takes_options_of
from tvm_ext.tensor_names import naming_passes

PIPELINE = "tvm_ext"
"""The name by which ``tvm.tirx.build(mod, target, pipeline=...)`` knows our pipeline.

``tvm_ext.address`` and ``tvm_ext.arena`` are those with `PlanAddresses`, ``tvm_ext.ascend`` is the
one with `AscendPlanMemory`.
"""

STOCK_PLANNING = "StaticPlanBlockMemory"
"""The pass of TVM's Relax pipelines whose place `GMEMAllocate` takes."""

FUSION = ("FuseOps", "FuseTIR")
"""The passes of TVM's Relax pipelines that make one kernel of several operators."""

DEFAULT_BUILD_KINDS = ("hexagon",)
"""Kinds of targets for which TVM has no lists of Relax passes, and builds with those of
``relax.pipeline.default_build_pipeline``, which only runs them."""

LOWERS_DATAFLOW = ("RewriteDataflowReshape", "ToNonDataflow")
"""The passes of TVM's Relax pipelines that lower dataflow blocks: `LayerGroup` stands before."""

_STOCK_REWRITE = tirx.transform.StorageRewrite

# TVM's pipelines look `StorageRewrite` up each time they run; while one of ours
# runs, they find ours there. One thread at a time.
_stock_lock = RLock()


@contextmanager
def use_storage_rewrite(
    *, detect_inplace: bool = True, enable_reuse: bool = True, sound: bool = False
) -> Iterator[None]:
    """Put our `StorageRewrite` in the stock pass's place while a block runs.

    Code inside the block calls TVM as usual: ``tvm.tirx.build``, ``tvm.compile``,
    or a pipeline of its own that asks ``tvm.tirx.transform`` for the pass. Other
    threads that enter such a block wait for their turn; those that build outside
    of one see our pass too while a block is open.

    Parameters
    ----------
    detect_inplace, enable_reuse, sound : bool
        As in `tvm_ext.transform.StorageRewrite`.

    Examples
    --------
    >>> with tvm_ext.use_storage_rewrite():
    ...     executable = tvm.compile(mod, target="llvm")
    """

    def storage_rewrite() -> Pass:
        return transform.StorageRewrite(
            detect_inplace=detect_inplace, enable_reuse=enable_reuse, sound=sound
        )

    storage_rewrite()  # A wrong option is an error here, not in the middle of a build.
    with _replaced("StorageRewrite", storage_rewrite):
        yield


@takes_options_of(transform.PlanAddresses)
@contextmanager
def use_plan_addresses(
    planner: str = "best", form: transform.Form = "arena", **options: Any
) -> Iterator[None]:
    """Put `PlanAddresses` in the place of the stock `StorageRewrite` while a block runs.

    What holds for `use_storage_rewrite` holds here. `StorageRewrite(sound=True)` runs behind it, on
    what it leaves alone, and `DropAddresses` before each `LowerTVMBuiltin`, so that modules with
    addresses build for a CPU too.

    Parameters
    ----------
    planner, form, **options
        As in `tvm_ext.transform.PlanAddresses`.

    Examples
    --------
    >>> with tvm_ext.pipeline.use_plan_addresses(scopes=["local.UB"]):
    ...     executable = tvm.compile(mod, target="llvm")
    """
    with _planned(lambda: transform.PlanAddresses(planner, form, **options)):
        yield


@takes_options_of(transform.AscendPlanMemory, without=("mode",))
@contextmanager
def use_ascend_plan_memory(form: transform.Form = "arena", **options: Any) -> Iterator[None]:
    """Put `AscendPlanMemory` in the place of the stock `StorageRewrite` while a block runs.

    It runs in both of its modes: the workspace is planned, and then what is on chip. What holds
    for `use_plan_addresses` holds here.

    Parameters
    ----------
    form, **options
        As in `tvm_ext.transform.AscendPlanMemory`; there is no `mode`, because both run.

    Examples
    --------
    >>> with tvm_ext.pipeline.use_ascend_plan_memory(search="mirror"):
    ...     executable = tvm.compile(mod, target="ascend/910b-llvm")
    """

    def plan_memory() -> Pass:
        return Sequential(
            [
                transform.AscendPlanMemory("global-work-space-plan", form=form, **options),
                transform.AscendPlanMemory("local-mem-plan", form=form, **options),
            ]
        )

    with _planned(plan_memory):
        yield


@takes_options_of(transform.PlanSharedMemory)
@contextmanager
def use_plan_shared_memory(planner: str = "best", **options: Any) -> Iterator[None]:
    """Put `PlanSharedMemory` in the place of `MergeSharedMemoryAllocations` while a block runs.

    What holds for `use_storage_rewrite` holds here. In the place of the stock `StorageRewrite`
    stands ours with `shared_apart`. Inside a block of another of these functions its pass stays
    there, so of what that shares, this knows one allocation.

    Parameters
    ----------
    planner, **options
        As in `tvm_ext.transform.PlanSharedMemory`.

    Examples
    --------
    >>> with tvm_ext.use_plan_shared_memory():
    ...     executable = tvm.compile(mod, target="cuda")
    """

    def plan() -> Pass:
        return transform.PlanSharedMemory(planner, **options)

    plan()  # A wrong option is an error here, not in the middle of a build.
    with _stock_lock:
        apart: Callable[[], Pass] = partial(transform.StorageRewrite, shared_apart=True)
        before = tirx.transform.StorageRewrite
        with (
            _replaced("StorageRewrite", apart if before is _STOCK_REWRITE else before),
            _replaced("MergeSharedMemoryAllocations", plan, s_tir.transform),
        ):
            yield


@contextmanager
def _planned(plan: Callable[[], Pass]) -> Iterator[None]:
    """Let a pass that plans addresses stand where TVM's pipelines rewrite storage.

    Behind it our `StorageRewrite` shares what the plan leaves alone, so that nothing takes more
    than it would without us.
    """
    plan()  # A wrong option is an error here, not in the middle of a build.
    with _stock_lock:
        rewrite, lower = tirx.transform.StorageRewrite, tirx.transform.LowerTVMBuiltin

        def lower_tvm_builtin() -> Pass:
            return Sequential([transform.DropAddresses(), lower()])

        def storage_rewrite() -> Pass:
            # Where a target has no arithmetic for float8, TVM makes wider elements of it: in front
            # of the plan, which then knows how wide.
            legalize = tirx.transform.FP8ComputeLegalize()
            planning = Sequential([legalize, plan(), transform.StorageRewrite(sound=True)])

            def run(mod: tvm.IRModule, _ctx: PassContext) -> tvm.IRModule:
                # A planner may compile a kernel of its own, which is not to be planned by it.
                with _replaced("StorageRewrite", rewrite), _replaced("LowerTVMBuiltin", lower):
                    return planning(mod)

            return module_pass(run, opt_level=0, name="tvm_ext.planned")

        with (
            _replaced("StorageRewrite", storage_rewrite),
            _replaced("LowerTVMBuiltin", lower_tvm_builtin),
        ):
            yield


@contextmanager
def _replaced(
    name: str, make_pass: Callable[[], Pass], passes: ModuleType = tirx.transform
) -> Iterator[None]:
    """Let TVM's pipelines find another pass where they look one up."""
    with _stock_lock:
        stock = getattr(passes, name)
        setattr(passes, name, make_pass)
        try:
            yield
        finally:
            setattr(passes, name, stock)


Pipeline = tuple[Pass, Callable[[], Pass], Callable[[], Pass]]
"""The lowering pass, and what makes the host's and the device's last passes."""


def tir_pipeline(stock: str = "default", *, shared_memory: bool = True) -> Pipeline:
    """Return a stock TIR pipeline with our `StorageRewrite` and `PlanSharedMemory` in it.

    Parameters
    ----------
    stock : str
        The name of the pipeline to build on.
    shared_memory : bool
        Whether the shared memory of GPU kernels is planned; otherwise it is as in the stock
        pipeline.

    Returns
    -------
    tuple
        What ``tvm.tirx.get_tir_pipeline`` returns.
    """
    check_flags(shared_memory=shared_memory)
    return _lowered_within(use_plan_shared_memory if shared_memory else use_storage_rewrite, stock)


@takes_options_of(transform.PlanAddresses)
def address_pipeline(form: transform.Form, stock: str = "default", **options: Any) -> Pipeline:
    """Return a stock TIR pipeline with `PlanAddresses` in the place of its `StorageRewrite`.

    Parameters
    ----------
    form : {"address", "arena"}
        How plans are written.
    stock : str
        The name of the pipeline to build on.
    **options
        As in `tvm_ext.transform.PlanAddresses`; the memory is by default that of the target
        that is built for.

    Returns
    -------
    tuple
        What ``tvm.tirx.get_tir_pipeline`` returns.
    """

    def replacement() -> AbstractContextManager[None]:
        return use_plan_addresses(form=form, **options)

    return _without_addresses(_lowered_within(replacement, stock))


@takes_options_of(transform.AscendPlanMemory, without=("mode",))
def ascend_pipeline(
    form: transform.Form = "arena", stock: str = "default", **options: Any
) -> Pipeline:
    """Return a stock TIR pipeline with `AscendPlanMemory` in the place of its `StorageRewrite`.

    Parameters
    ----------
    form : {"address", "arena"}
        How plans are written.
    stock : str
        The name of the pipeline to build on.
    **options
        As in `use_ascend_plan_memory`; the chip is by default the target that is built for.

    Returns
    -------
    tuple
        What ``tvm.tirx.get_tir_pipeline`` returns.
    """

    def replacement() -> AbstractContextManager[None]:
        return use_ascend_plan_memory(form, **options)

    return _without_addresses(_lowered_within(replacement, stock))


def _without_addresses(pipeline: Pipeline) -> Pipeline:
    """Return a pipeline that takes addresses off where a CPU's code generator allows none."""
    lower, finalize_host, finalize_device = pipeline

    def finalize_without_addresses() -> Pass:
        return Sequential([transform.DropAddresses(), finalize_host()])

    return lower, finalize_without_addresses, finalize_device


def _lowered_within(
    replacement: Callable[[], AbstractContextManager[None]], stock: str
) -> Pipeline:
    """Return a stock pipeline that lowers inside a context, made anew each time."""
    lower, finalize_host, finalize_device = tirx.get_tir_pipeline(stock)

    def lower_with_ours(mod: tvm.IRModule, _ctx: PassContext) -> Any:
        with replacement():
            return lower(mod)

    ours = module_pass(lower_with_ours, opt_level=0, name="tvm_ext.tir_pipeline")
    return ours, finalize_host, finalize_device


def relax_passes(target: Target | str, *, fuse: bool = True) -> list[Pass]:
    """Return the passes that TVM builds Relax modules for a target with, in order.

    Parameters
    ----------
    target : Target or str
        What is built for.
    fuse : bool
        Whether to keep the passes that fuse operators.

    Returns
    -------
    list of tvm.transform.Pass
        Library dispatch, legalization, lowering of dataflow blocks and finalization, made anew. On
        the way, tensors keep the names that their author knows them by.

    Raises
    ------
    ValueError
        When TVM has no such lists for the target's kind; a chip's ``-llvm`` twin has.
    """
    target = Target(target)
    try:
        with target:  # The list for Adreno asks which target is current.
            passes = _stock_passes(target)
    except ValueError as error:
        raise ValueError(no_relax_pipeline(target)) from error
    if not fuse:
        passes = [stock for stock in passes if stock.info.name not in FUSION]
    return naming_passes(passes)


def no_relax_pipeline(target: Target) -> str:
    """Say that TVM lowers no Relax modules for a target, and what it does lower them for."""
    return (
        f"TVM has no Relax pipeline for targets of kind {str(target.kind.name)!r}; the twin of "
        "a chip that runs on the CPU has one, such as 'sophgo/bm1684x-llvm'"
    )


def _stock_passes(target: Target) -> list[Pass]:
    if str(target.kind.name) in DEFAULT_BUILD_KINDS:
        return [
            relax.backend.DispatchSampling(),
            relax.backend.DispatchSortScan(),
            relax.transform.LegalizeOps(),
            relax.transform.RewriteDataflowReshape(),
            relax.transform.ToNonDataflow(),
            relax.transform.RemovePurityChecking(),
            relax.transform.CallTIRRewrite(),
            relax.transform.StaticPlanBlockMemory(),
            relax.transform.RewriteCUDAGraph(),
            relax.transform.LowerAllocTensor(),
            relax.transform.KillAfterLastUse(),
            relax.transform.LowerRuntimeBuiltin(),
            relax.transform.ComputePrimValue(),
            relax.transform.VMShapeLower(),
            relax.transform.AttachGlobalSymbol(),
        ]
    lists = _relax_lists(target)
    stages = (
        lists.library_dispatch_passes,
        lists.legalize_passes,
        lists.dataflow_lower_passes,
        lists.finalize_passes,
    )
    return [stock for stage in stages for stock in stage(target)]


def _relax_lists(target: Target) -> Any:
    """Return the module that makes TVM's lists of Relax passes for a target.

    TVM's own dispatch looks the lists for CPUs, CUDA and ROCm up in packages that do not name all
    of them, so those are taken from the modules that define them.
    """
    kind = str(target.kind.name)
    package = f"tvm.relax.backend.{'cpu_generic' if kind == 'llvm' else kind}"
    if find_spec(package) is None or find_spec(f"{package}.pipeline") is None:
        return relax_lists
    return import_module(f"{package}.pipeline")


def before_planning(passes: list[Pass]) -> tuple[list[Pass], list[Pass]]:
    """Split a list of passes where `StaticPlanBlockMemory` stands, and leave it out.

    Parameters
    ----------
    passes : list of tvm.transform.Pass
        As `relax_passes` returns them.

    Returns
    -------
    tuple of two lists
        The passes before it, and those behind it.

    Raises
    ------
    ValueError
        When it is not there, or more than once.
    """
    names = [str(stock.info.name) for stock in passes]
    if names.count(STOCK_PLANNING) != 1:
        raise ValueError(
            f"the Relax pipeline has {STOCK_PLANNING} {names.count(STOCK_PLANNING)} times, and "
            f"must have it once; it is: {', '.join(names)}"
        )
    at = names.index(STOCK_PLANNING)
    return passes[:at], passes[at + 1 :]


def before_lowering(passes: list[Pass]) -> tuple[list[Pass], list[Pass]]:
    """Split a list of passes behind legalization and fusion, where `LayerGroup` stands.

    Parameters
    ----------
    passes : list of tvm.transform.Pass
        As `relax_passes` returns them.

    Returns
    -------
    tuple of two lists
        The passes before it, and those behind it.

    Raises
    ------
    ValueError
        When the list does not lower dataflow blocks.
    """
    names = [str(stock.info.name) for stock in passes]
    at = next((i for i, name in enumerate(names) if name in LOWERS_DATAFLOW), None)
    if at is None:
        raise ValueError(
            f"the Relax pipeline has none of {', '.join(LOWERS_DATAFLOW)}; it is: "
            f"{', '.join(names)}"
        )
    return passes[:at], passes[at:]


@takes_options_of(transform.GMEMAllocate)
def relax_pipeline(
    target: Target | str,
    planner: str = "best",
    *,
    fuse: bool = True,
    layer_group: bool | Mapping[str, Any] = False,
    order: bool | Mapping[str, Any] = False,
    **options: Any,
) -> Pass:
    """Return TVM's Relax pipeline for a target, with `GMEMAllocate` in the stock planning's place.

    Parameters
    ----------
    target : Target or str
        What is built for; its ``global`` memory is what `GMEMAllocate` places tensors in.
    planner : str
        The name of a planner.
    fuse : bool
        Whether to fuse operators.
    layer_group : bool or mapping
        Whether layers run together in local memory; a mapping holds options of
        `tvm_ext.transform.LayerGroup`. The target is by default that of the pipeline.
    order : bool or mapping
        Whether operators are reordered for the least memory, in front of what runs them together; a
        mapping holds options of `tvm_ext.transform.OrderForMemory`. The target and the upper bounds
        are by default those of the pipeline.
    **options
        As in `tvm_ext.transform.GMEMAllocate`.

    Returns
    -------
    tvm.transform.Pass
        For ``tvm.compile(mod, target, relax_pipeline=...)``.

    Raises
    ------
    ValueError
        When TVM has no pipeline for the target, or none with `StaticPlanBlockMemory` in it, or when
        an option is wrong.

    Examples
    --------
    >>> executable = tvm.compile(mod, "llvm", relax_pipeline=tvm_ext.relax_pipeline("llvm"))
    """
    with error_context("relax_pipeline"):
        check_flags(fuse=fuse)
    target = Target(target)
    allocate = transform.GMEMAllocate(planner, **{"target": target, **options})
    before, behind = before_planning(relax_passes(target, fuse=fuse))
    first, then = before_lowering(before)
    if order is not False:
        bounds = {"target": target, "upper_bounds": options.get("upper_bounds")}
        first.append(_with_options("order", transform.OrderForMemory, order, bounds))
    if layer_group is not False:
        first.append(_layer_group(target, layer_group))
    before = [*first, *then]

    def lower(mod: tvm.IRModule, _ctx: PassContext) -> Any:
        with target:
            return Sequential([*before, allocate, *behind])(mod)

    return module_pass(lower, opt_level=0, name="tvm_ext.relax_pipeline")


def _with_options(
    option: str, make_pass: Callable[..., Pass], given: object, defaults: Mapping[str, Any]
) -> Pass:
    """Return a pass with the options that one option of the pipeline holds."""
    if given is True:
        given = {}
    name = make_pass.__name__
    if not isinstance(given, Mapping):
        raise ValueError(
            f"{option} must be True, False or a mapping of options of {name}, got {given!r}"
        )
    known = signature(make_pass).parameters
    for key in map(str, given):
        if key not in known:
            raise ValueError(f"{option}: {name} has no option {key!r}; it has: {', '.join(known)}")
    return make_pass(**{**defaults, **given})


def _layer_group(target: Target, options: object) -> Pass:
    group = _with_options("layer_group", transform.LayerGroup, options, {"target": target})
    chip = (
        Target(options["target"])
        if isinstance(options, Mapping) and "target" in options
        else target
    )
    if local_memory(chip) is None:
        LOGGER.warning(
            "relax_pipeline: layer_group does nothing, as target %s describes no memory %r",
            target_label(chip),
            SCOPE,
        )
    return group


tirx.compilation_pipeline.register_tir_pipeline(PIPELINE, tir_pipeline)
for _form in transform.FORMS:
    tirx.compilation_pipeline.register_tir_pipeline(
        f"{PIPELINE}.{_form}", partial(address_pipeline, _form)
    )
tirx.compilation_pipeline.register_tir_pipeline(f"{PIPELINE}.ascend", ascend_pipeline)
