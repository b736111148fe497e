# SPDX-License-Identifier: Apache-2.0
"""Global memory of functions that each hold a whole graph: weights, then what the ops make.

`te.create_prim_func` makes such a function of several ops. The statements of its body are the ops,
and its allocations in ``global`` are the tensors between them.
"""

from __future__ import annotations

from collections import Counter
from itertools import chain

from tvm import s_tir, tirx

from passes.driver import AddressPlan, place_function, write_address_plan
from passes.gmem.options import ATTRIBUTE, LOGGER, PASS, GMEMOptions, Solvers
from passes.gmem.planning.gmem_layout import GMEMLayout, PlacedTensor, Region
from passes.ir import (
    IRModule,
    PrimFunc,
    Sequential,
    constant_count,
    element_type,
    names_of_sizes,
    nodes_in,
    prim_funcs,
    tir,
    unique_name,
)
from passes.ir.operators import buffer_data_var, is_address_of
from passes.pass_errors import error_context
from passes.pass_options import check_bound_names
from passes.prim_func import (
    Callers,
    ProblemOptions,
    call_sites,
    find_calls,
    find_problems,
    overflow_in,
)
from passes.relax import NUM_INPUT, SCOPE
from target_hw.memory import MemoryHierarchy

_TAKE_BLOCKS_AWAY = Sequential(
    [
        s_tir.transform.LowerInitBlock(),
        s_tir.transform.PlanAndUpdateBufferAllocationLocation(),
        s_tir.transform.ConvertBlocksToOpaque(),
        s_tir.transform.CompactBufferAllocation(),
        s_tir.transform.LowerMatchBuffer(),
        s_tir.transform.LowerOpaqueBlock(),
        tirx.transform.FlattenBuffer(),
    ]
)


def with_placed_graphs(mod: IRModule, planner: str, options: GMEMOptions) -> IRModule:
    """Return a module whose PrimFuncs have places for weights and what they allocate in ``global``.

    The weights of all functions share one region. The activations of each function begin after
    it, and after those of the functions that call it; one that may call itself again, or be called
    by several iterations or threads at once, keeps memory of its own.
    """
    functions, result = prim_funcs(mod), mod.clone()
    gmem, solver = options.gmem(), Solvers(planner, options).offsets
    flat: dict[str, PrimFunc] = {}
    weights: dict[str, dict[str, int]] = {}
    for name, func in functions.items():
        with error_context(PASS, name):
            flat[name] = _lower_blocks(func)
            weights[name] = find_weights(name, flat[name])
    with error_context(PASS):
        regions = gmem.place_weights(
            {n: [(w, size, None) for w, size in of.items()] for n, of in weights.items()}
        )
        check_bound_names(options.upper_bounds, names_of_sizes(flat.values()))
    bounds = tuple(sorted(options.upper_bounds.items()))
    plans: dict[str, tuple[AddressPlan, GMEMLayout]] = {}
    graph = find_calls(flat)
    for name in graph.order:
        with error_context(PASS, name):
            leading = graph.callers[name]
            before = [plan for caller, plan in plans.items() if caller in leading]
            around = [layout.activations for _, layout in before]
            start, scope = gmem.memory_behind(regions[name], around)
            # Whatever leads to it counts: in a cycle, a caller may be planned after its callee.
            ways = {name, *leading}
            sites = (call_sites(plan.found.access, graph, ways) for plan, _ in before)
            at_once = any(by_several for _, by_several in chain.from_iterable(sites))
            on_stack = graph.is_on_stack(name, flat[name])
            callers = Callers({}, at_once, name in leading, graph.lasting, on_stack=on_stack)
            memory = MemoryHierarchy((scope,))
            read = ProblemOptions((SCOPE,), memory, bounds, addressed=False, callers=callers)
            found = find_problems(flat[name], read)
            plan = place_function(found, solver, overflow=overflow_in(flat[name], found))
            layout = GMEMLayout(planner, gmem.alignment, regions[name], _activations(plan, start))
            plans[name] = plan, layout
    for name in functions:
        (plan, layout), variable = plans[name], mod.get_global_var(name)
        for line in (*plan.found.left_alone, *plan.found.remarks):
            LOGGER.info("function %r: %s", name, line)
        if plan.scopes or layout.weights.tensors:
            with error_context(PASS, name):
                placed = write_address_plan(flat[name], plan, "arena")
                result[variable] = placed.with_attr(ATTRIBUTE, layout.to_plain())
    return result


def _lower_blocks(func: PrimFunc) -> PrimFunc:
    """Return a function without blocks, as TVM takes them away: itself if it has none.

    ValueError is raised when it has blocks and a schedule, whose marks TVM must follow before.
    """
    if not nodes_in(func.body, tir.Block):
        return func
    for loop in nodes_in(func.body, tir.Loop):
        if loop.kind == tir.LoopKind.THREAD_BINDING or len(loop.annotations):
            raise ValueError(
                f"it has blocks, and loop {loop.loop_var.name!r} is bound to threads or annotated; "
                "lower it first, as far as TVM does before it runs StorageRewrite"
            )
    lowered: PrimFunc = _TAKE_BLOCKS_AWAY(IRModule({"main": func}))["main"]
    return lowered


def _activations(plan: AddressPlan, start: int) -> Region:
    """Return where the activations of the whole function are."""
    placed, size = [], 0
    for scope in plan.scopes:
        if scope.attached.owner is None:
            size = max(size, scope.plan.peak)
            for buffer in scope.problem.buffers:
                (offset,) = scope.plan.offsets[buffer.name][:1]
                placed.append(PlacedTensor(buffer.name, start + offset, buffer.size))
    return Region(start, size, tuple(placed))


def find_weights(name: str, func: PrimFunc) -> dict[str, int]:
    """Return the bytes of the weights: parameters from ``num_input`` on that are only read.

    Their names are made unique; a weight of a symbolic size has no address, which is logged.
    """
    value = func.attrs.get(NUM_INPUT) if func.attrs else None
    if value is None:
        return {}
    sizes: dict[str, int] = {}
    names: set[str] = set()
    read = _only_read(func)
    for param in func.params[int(getattr(value, "value", value)) :]:
        if not tir.is_buffer(param) or param.__chandle__() not in read:
            continue
        count = constant_count(param.ty.shape)
        if count is None:
            text = "function %r: weight %r has no address: its size is symbolic"
            LOGGER.info(text, name, str(param.name))
            continue
        bits = count * element_type(param.ty.dtype).nbits
        sizes[unique_name(param.name, names)] = -(-bits // 8)
    return sizes


def _only_read(func: PrimFunc) -> set[int]:
    """Return the handles of the parameters whose elements are read, and that have no other use.

    A buffer may also be declared on the same memory, if that one is only read, too.
    """
    named = Counter(variable.__chandle__() for variable in nodes_in(func.body, tir.Var))
    named.subtract(load.source.__chandle__() for load in nodes_in(func.body, tir.Load))
    addresses = filter(is_address_of, nodes_in(func.body, tir.Call))  # Also of a buffer as a whole
    taken = (call.args[0] for call in addresses if isinstance(call.args[0], tir.Load))
    named.update(element.source.__chandle__() for element in taken)
    for alias in reversed(nodes_in(func.body, tir.Declaration)):  # Its own aliases stand after it.
        handle, source = alias.buffer.__chandle__(), buffer_data_var(alias.data)
        named[handle] -= 1
        if source is not None and not named[handle]:
            named[source.__chandle__()] -= 1
    return {param.__chandle__() for param in func.params if not named[param.__chandle__()]}
