# SPDX-License-Identifier: Apache-2.0
"""Our passes in TVM's pipelines for Relax."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from inspect import signature
from typing import Any, NamedTuple

from tvm.relax import pipeline as relax_lists

from passes.gmem import GMEMOptions, host_scopes, plan_gmem, stock_pass
from passes.ir import IRModule, Pass, Sequential, Target, make_pass
from passes.layer_group import LOGGER, SCOPE, local_memory
from passes.pass_errors import error_context
from passes.pass_options import check_flags
from target_hw.memory import target_label
from tvm_ext import transform
from tvm_ext.tensor_names import naming_passes
from tvm_ext.weights import REMEDY, WeightTensors, as_built, weight_tensors, with_lifted_weights

FUSION = ("FuseOps", "FuseTIR")
"""TVM's Relax passes that make one kernel of several operators."""

# Others: whose place `GMEMAllocate` takes; that lower dataflow blocks, before which `LayerGroup`
# stands.
_PLANNING = "StaticPlanBlockMemory"
_LOWERS_DATAFLOW = ("RewriteDataflowReshape", "ToNonDataflow")

_WITHOUT_LISTS = {"hexagon": ("AnnotateTIROpPattern", "FoldConstant", *FUSION)}
"""Kinds of targets for which TVM has no lists of Relax passes, and what it leaves out of those for
CPUs: it builds with ``relax.pipeline.default_build_pipeline``, which only runs the others."""

_CPU_KINDS = ("llvm", "c")
"""Kinds of targets that TVM's list for CPUs serves; it asks for nothing that is ``llvm``'s own."""

_LOGGER = logging.getLogger("tvm_ext.relax_pipeline")

_LOGGERS = tuple(
    logging.getLogger(f"tvm_ext.{make_pass.__name__}")
    for make_pass in (transform.OrderForMemory, transform.LayerGroup, transform.GMEMAllocate)
)


class RelaxStages(NamedTuple):
    """The passes with which TVM builds Relax modules, in order, in three parts around the plan."""

    first: list[Pass]  # Legalization and fusion; after them stand `OrderForMemory`, `LayerGroup`
    lower: list[Pass]  # From dataflow blocks to allocations, up to the planning of memory
    plan: Pass  # `StaticPlanBlockMemory`
    behind: list[Pass]

    def all(self) -> list[Pass]:
        """Return all of them."""
        return [*self.first, *self.lower, self.plan, *self.behind]


def relax_stages(target: Target | str, *, fuse: bool = True, names: bool = True) -> RelaxStages:
    """Return the passes with which TVM builds Relax modules for a target, made anew.

    Operators are fused if `fuse`; if `names`, tensors keep the names that their author gave them.
    Raises ValueError when TVM has no such passes for the target's kind, as it has for a chip's
    ``-llvm`` twin, or they do not lower dataflow blocks and then plan memory, once.
    """
    target = Target(target)
    kind = str(target.kind.name)
    try:
        with target:  # The list for Adreno asks which target is current.
            lists = _relax_lists(target)
            passes = [
                *lists.library_dispatch_passes(target),
                *lists.legalize_passes(target),
                *lists.dataflow_lower_passes(target),
                *lists.finalize_passes(target),
            ]
    except ValueError as error:
        raise ValueError(
            f"TVM has no Relax pipeline for targets of kind {kind!r}; the twin of "
            "a chip that runs on the CPU has one, such as 'sophgo/bm1684x-llvm'"
        ) from error
    left_out = _WITHOUT_LISTS.get(kind, () if fuse else FUSION)
    passes = [stock for stock in passes if stock.info.name not in left_out]
    called = [str(stock.info.name) for stock in passes]
    # A user may have put `GMEMAllocate` there under the name of the stock pass.
    planning = _PLANNING, f"tvm_ext.{transform.GMEMAllocate.__name__}"
    plans = [at for at, name in enumerate(called) if name in planning]
    lowers = [at for at, name in enumerate(called) if name in _LOWERS_DATAFLOW]
    if len(plans) != 1 or not lowers or lowers[0] > plans[0]:
        raise ValueError(
            f"the Relax pipeline must have {_PLANNING} once, after one of "
            f"{', '.join(_LOWERS_DATAFLOW)}; it is: {', '.join(called)}"
        )
    plan, lower = plans[0], lowers[0]
    passes = naming_passes(passes) if names else passes
    return RelaxStages(passes[:lower], passes[lower:plan], stock_pass(), passes[plan + 1 :])


def _relax_lists(target: Target) -> Any:
    """Return the module of TVM's lists: its own dispatch misses some for CPUs, CUDA and ROCm."""
    kind = str(target.kind.name)
    package = "cpu_generic" if kind in (*_CPU_KINDS, *_WITHOUT_LISTS) else kind
    module = f"tvm.relax.backend.{package}.pipeline"
    has_own = find_spec(module.rpartition(".")[0]) is not None and find_spec(module) is not None
    return import_module(module) if has_own else relax_lists


def relax_pipeline(
    target: Target | str,
    planner: str = "best",
    *,
    fuse: bool = True,
    layer_group: bool | Mapping[str, Any] = False,
    order: bool | Mapping[str, Any] = False,
    names: bool = False,
    lift_weights: bool = False,
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
        Whether to fuse operators. Constants are folded either way, which drops what a dataflow
        block computes and nothing uses.
    layer_group : bool or mapping
        Whether layers run together in local memory; a mapping holds options of
        `tvm_ext.transform.LayerGroup`. The target is by default that of the pipeline.
    order : bool or mapping
        Whether operators are reordered for the least memory, before what runs them together; a
        mapping holds options of `tvm_ext.transform.OrderForMemory`. By default it has those of the
        pipeline.
    names : bool
        Whether tensors keep their author's names in the lowered module and in the attribute
        ``tvm_ext.gmem``, which takes time. Errors and the lines that our passes log at level INFO
        have those names in any case: for an error, the module is lowered again.
    lift_weights : bool
        Whether what depends on weights alone, such as a transposed weight, is computed by a
        function of its own, ``main_transform_params`` for ``main``, which is run once and whose
        results ``main`` then takes in the place of its weights: TVM's `LiftTransformParams`.
        Without it, where each call computes such tensors, a warning says how many, their bytes, and
        what the memory of a call is with and without them.
    **options
        As in `tvm_ext.transform.GMEMAllocate`.

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
        check_flags(fuse=fuse, names=names, lift_weights=lift_weights)
    target = Target(target)
    allocate = transform.GMEMAllocate(planner, target=target, **options)
    of_memory = ("alignment", "base", "offsets")
    memory: dict[str, Any] = {name: options.get(name) for name in of_memory}
    memory["upper_bounds"] = options.get("upper_bounds") or {}
    ours = []
    if order is not False:
        defaults = {"target": target, "planner": planner, **memory}
        ours.append(_with_options("order", transform.OrderForMemory, order, **defaults))
    if layer_group is not False:
        ours.append(_with_options("layer_group", transform.LayerGroup, layer_group, target=target))
        chip = layer_group.get("target", target) if isinstance(layer_group, Mapping) else target
        if local_memory(Target(chip)) is None:
            what = "relax_pipeline: layer_group does nothing, as target %s describes no memory %r"
            LOGGER.warning(what, target_label(Target(chip)), SCOPE)
    on_host = [host_scopes()] if str(target.kind.name) in _CPU_KINDS else []

    stages, unnamed = (relax_stages(target, fuse=fuse, names=named) for named in (True, False))

    def lowered(stages: RelaxStages, mod: IRModule, between: Sequence[Pass] = ()) -> IRModule:
        return Sequential([*stages.first, *between, *stages.lower])(mod)

    def planned_bytes(mod: IRModule) -> int:
        found = plan_gmem(mod, planner, GMEMOptions(target=target, **memory))
        return sum(one.plan.peak for one in found)

    def say_weights(mod: IRModule, found: Sequence[WeightTensors], built: IRModule) -> None:
        """Say what `mod` computes from weights in each call; `built` is what is allocated for."""
        before = planned_bytes(lowered(unnamed, mod) if ours else built)
        after = planned_bytes(lowered(unnamed, as_built(mod)))
        peaks = f"a call takes {before:,} bytes with them, {after:,} without"
        peaks += ", in the written order" if ours else ""
        _LOGGER.warning("relax_pipeline: %s; %s; %s", "; ".join(map(str, found)), peaks, REMEDY)

    def run(stages: RelaxStages, mod: IRModule) -> Any:
        built = lowered(stages, mod, ours)
        result = Sequential([allocate, *on_host, *stages.behind])(built)
        says = not lift_weights and _LOGGER.isEnabledFor(logging.WARNING)
        if found := weight_tensors(mod) if says else ():
            with suppress(Exception):  # The module without them may fail to lower, too.
                say_weights(mod, found, built)
        return result

    def lower(mod: IRModule) -> Any:
        with target:
            if lift_weights:
                mod = with_lifted_weights(mod)
            if not (names or any(logger.isEnabledFor(logging.INFO) for logger in _LOGGERS)):
                with suppress(Exception):  # The named passes raise it too, with names in it.
                    return run(unnamed, mod)
            return run(stages, mod)

    return make_pass("relax_pipeline", lower)


def _with_options(
    option: str, make_pass: Callable[..., Pass], given: object, **defaults: Any
) -> Pass:
    """Return a pass with the options that one option of the pipeline holds."""
    name, known = make_pass.__name__, signature(make_pass).parameters
    options = {} if given is True else given
    if not isinstance(options, Mapping):
        kinds = f"True, False or a mapping of options of {name}"
        raise ValueError(f"{option} must be {kinds}, got {given!r}")
    for key in options:
        if key not in known:
            raise ValueError(f"{option}: {name} has no option {key!r}; it has: {', '.join(known)}")
    return make_pass(**{**defaults, **options})
