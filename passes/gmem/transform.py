# SPDX-License-Identifier: Apache-2.0
"""`GMEMAllocate`: weights and activations of whole networks, placed in global memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from passes.gmem.options import BEST, IN_KERNELS, LOGGER, PASS, GMEMOptions
from passes.gmem.prim_funcs import with_placed_graphs
from passes.gmem.relax_functions import plan_gmem, write_function
from passes.gmem.relax_memory import with_kernel_variants
from passes.gmem.serving import served_memory, with_metadata
from passes.ir import IRModule, Pass, Target, as_target, make_pass, nodes_in, tir
from passes.pass_errors import error_context
from passes.pass_options import as_bounds, check_flags
from passes.planning import Budget, as_budget, get_planner
from passes.relax import EXPECTED, UNCAPTURED, RelaxMemory, place_of, rx


def GMEMAllocate(  # noqa: N802
    planner: str = BEST,
    *,
    alignment: int | None = None,
    base: int | None = None,
    target: Target | str | Mapping[str, Any] | None = None,
    upper_bounds: Mapping[str, int] | None = None,
    budget: Budget | int | None = None,
    offsets: bool | str | None = None,
    weights: bool = False,
    metadata: bool = False,
) -> Pass:
    """Place weights and activations in global memory, in place of `StaticPlanBlockMemory`.

    It stands after `CallTIRRewrite`, where `StaticPlanBlockMemory` stands in TVM's pipelines, and
    runs once. The weights of the module (the parameters from ``num_input`` on, and constants) get
    addresses in one region. The activations of a function become tensors at offsets in storages,
    one for each device or several where TVM's pool takes less for them. Regions, names, addresses
    and bytes stand in the function attribute ``tvm_ext.gmem``, as plain data.

    Tensors whose bytes are multiples of one symbolic product share storages of a size that the
    running program computes. With upper bounds they join the tensors of constant size. A tensor
    that something unknown may keep, or whose shape is not known at all, is left to the runtime;
    the logger ``tvm_ext.GMEMAllocate`` warns once and names each at level INFO. An operator that
    has yet to be lowered is unknown so; in a module that allocates nothing, it is an error.

    Activations begin where the chip says (`activation_base`), or else after the weights, and
    after those of the functions that call theirs. A function that may call itself again has no
    addresses; its tensors are left to the runtime where others have some, and under a planner
    other than the default one.

    A target that describes several memories for tensors (`MemoryHierarchy.for_tensors`) has one
    storage in each, and a tensor lies where the fewest bytes move over the slow buses.

    Parameters
    ----------
    planner : str
        The name of a planner. The default one's plan is written where the virtual machine's pool
        takes no more pages for it than for `StaticPlanBlockMemory`'s, on any path, and else that
        sharing, as far as it is right. Other plans, and those whose tensors have addresses, are
        written as they are.
    alignment : int, optional
        Bytes, a power of two. By default that of the target's ``global`` memory (4096 on Sophgo's
        BM chips, 16 on CV18xx), and 64 where no such memory is described. Offsets in the storage
        are multiples of 64 too, unless the target is an ``ext_dev``: TVM's own runtime cannot
        pass on a tensor at another offset without a copy.
    base : int, optional
        Address of the first weight. By default the chip's `weight_base`, else the first address of
        its ``global`` memory, else 0. With several memories it is an error.
    target : Target or str or mapping, optional
        Where the memory is described. By default the target that is current when the pass runs.
    upper_bounds : mapping of str to int, optional
        Most elements of symbolic dimensions, by name, for functions whose attribute
        ``tir_var_upper_bound`` does not name them. They are checked when the function runs. A name
        that no function's signature has is an error.
    budget : Budget or int, optional
        Limits for planners that search, or a number of placements.
    offsets : bool or str, optional
        Whether tensors may stand at offsets other than 0. By default the device of each tensor
        decides: they may where the runtime adds to a pointer (CPUs, CUDA, Hexagon, an
        ``ext_dev``); elsewhere whole slots are planned, whatever the planner. With ``"kernel"``,
        tensors that only kernels touch may, on any device but WebGPU: kernels are made that add
        the constant offset to their indices.
    weights : bool
        With several memories, whether the attribute has places for weights, each read once a call.
    metadata : bool
        Whether the module gets a function ``tvm_ext_memory``, which takes nothing and returns a
        text in JSON: the bytes that TVM's pool takes from the device when the functions run in
        turns and the caller holds the last result of each (`tvm_ext.ServedMemory`).

    Returns
    -------
    tvm.transform.Pass
        A module pass. In a module with Relax functions, PrimFuncs stay as they are; in one of
        PrimFuncs alone, each that holds a whole graph is planned.

    Raises
    ------
    ValueError
        At once when an option is wrong; when the pass runs, naming function and binding, when the
        module is not in the form described, when something does not fit the memory or when the base
        is not aligned.
    """
    get_planner(planner)
    with error_context(PASS):
        check_flags(weights=weights, metadata=metadata)
        bounds = as_bounds(upper_bounds)
        limits = None if budget is None else as_budget(budget)
        options = GMEMOptions(alignment, base, as_target(target), bounds, limits, offsets, weights)

    def transform(mod: IRModule) -> IRModule:
        if any(isinstance(func, rx.Function) for func in mod.functions.values()):
            return _plan_relax(mod, planner, options, metadata)
        return with_placed_graphs(mod, planner, options)

    return make_pass(PASS, transform)


def _plan_relax(mod: IRModule, planner: str, options: GMEMOptions, metadata: bool) -> IRModule:
    """Place the tensors of each Relax function; PrimFuncs stay as they are."""
    result = mod.clone()
    plans = plan_gmem(mod, planner, options)
    _report([planned.memory for planned in plans])
    for planned in plans:
        result[mod.get_global_var(planned.memory.name)] = write_function(planned)
    if options.offsets == IN_KERNELS:
        result = with_kernel_variants(result, [(one.memory, one.placement) for one in plans])
    return with_metadata(result, served_memory(plans, options)) if metadata else result


def _report(memories: Sequence[RelaxMemory]) -> None:
    """Say what is not planned, at level INFO each tensor; and which dimensions have no bound."""
    reasons: Counter[str] = Counter()
    for memory in memories:
        if memory.allocates:
            LOGGER.info("function %r: what it allocates already stays as it is", memory.name)
        for left in memory.left:
            text = "function %r: %r is left to the runtime: %s"
            LOGGER.info(text, memory.name, left.name, left.reason)
            if left.reason not in EXPECTED and not left.reason.endswith(UNCAPTURED):
                reasons[left.reason] += 1
    if reasons:
        count, others = reasons.total(), len(reasons) - 1
        those = f"{count} tensors are" if count > 1 else "1 tensor is"
        more = f", and {others} other reason{'s' if others > 1 else ''}" if others else ""
        text = "%s left to the runtime: %s%s; level INFO names each"
        LOGGER.warning(text, those, next(iter(reasons)), more)
    open_sizes = {
        str(variable.name): memory
        for memory in memories
        for group in memory.groups
        if group.unit is not None and group.problem.buffers
        for variable in nodes_in(group.unit, tir.Var)
    }
    if open_sizes:
        names = sorted(open_sizes)
        every = ", ".join(place_of(open_sizes[name].func, name) for name in names)
        given = [name for name in names if name in open_sizes[name].variables]
        # A size that the function computes has no name that its caller could bound.
        text = "function %r: the pool keeps what tensors take at each new size of %s"
        text += "; an upper bound, such as upper_bounds={%r: 512}, gives them one size"
        if not given:
            text = text.partition(";")[0] + ", which the function computes"
        first = (given or names)[0]
        LOGGER.warning(text, open_sizes[first].name, every, *given[:1])
