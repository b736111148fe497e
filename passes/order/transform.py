# SPDX-License-Identifier: Apache-2.0
"""`OrderForMemory`: the bindings of dataflow blocks in the order in which the least memory lives.

The pass stands after fusion and legalization, and before dataflow blocks are lowered.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from passes.gmem import BEST, GMEMOptions
from passes.ir import IRModule, Pass, Target, as_target, first_line, make_pass
from passes.order.function_order import FunctionOrder, order_function
from passes.pass_errors import error_context
from passes.pass_options import as_bounds, check_bound_names
from passes.planning import Budget, as_budget, get_planner
from passes.relax import functions_in_order, signature_variables

PASS = "OrderForMemory"
LOGGER = logging.getLogger(f"tvm_ext.{PASS}")


def OrderForMemory(  # noqa: N802
    target: Target | str | Mapping[str, Any] | None = None,
    *,
    alignment: int | None = None,
    base: int | None = None,
    budget: Budget | int | None = None,
    upper_bounds: Mapping[str, int] | None = None,
    offsets: bool | str | None = None,
    planner: str = BEST,
) -> Pass:
    """Reorder the bindings of dataflow blocks so that the least memory is live at once.

    It stands after legalization and fusion, before `LayerGroup` and the passes that lower dataflow
    blocks. Bindings move within their block only. Operators that have effects, or may depend on
    them, keep their order, and so do those that touch memory that is overwritten in place.

    Live bytes are read as `GMEMAllocate` reads them. The order of the lowest peak is taken where
    the plan of its tensors is lower than that of the written order, and no other memory (of other
    devices, of symbolic sizes, with the tensors that are returned) needs more. The logger
    ``tvm_ext.OrderForMemory`` says at level INFO what moved, what is proven, and why a function was
    left alone.

    Parameters
    ----------
    target : Target or str or mapping, optional
        Says the alignment of tensors. By default the target that is current when the pass runs.
    alignment, base, upper_bounds, offsets, planner
        As `GMEMAllocate` will have them: with others, a plan may take more than as written.
    budget : Budget or int, optional
        Limits for each search, or a number of its steps; by default a second's worth of steps.

    Returns
    -------
    tvm.transform.Pass
        A module pass. A module in which nothing moves is returned as it is.

    Raises
    ------
    ValueError
        At once when an option is wrong; when the pass runs, for the bound of a dimension that no
        function has.
    """
    get_planner(planner)
    with error_context(PASS):
        bounds = as_bounds(upper_bounds)
        limits = None if budget is None else as_budget(budget)
        options = GMEMOptions(alignment, base, as_target(target), bounds, offsets=offsets)

    def transform(mod: IRModule) -> IRModule:
        return with_orders(mod, order_functions(mod, options, limits, planner))

    return make_pass(PASS, transform)


def with_orders(mod: IRModule, orders: Sequence[FunctionOrder]) -> IRModule:
    """Return a module with the orders of its functions; `mod` itself where nothing moves."""
    changed = [one for one in orders if one.moved]
    if not changed:
        return mod
    result = mod.clone()
    for one in changed:
        result.update_func(mod.get_global_var(one.name), one.func)
    return result


def order_functions(
    mod: IRModule, options: GMEMOptions, budget: Budget | None = None, planner: str = BEST
) -> tuple[FunctionOrder, ...]:
    """Find an order for each Relax function of a module, sorted by name; each is logged.

    ValueError is raised for an upper bound of a dimension that no function has.
    """
    functions = functions_in_order(mod)
    with error_context(PASS):
        symbols = [v for _, func in functions for v in signature_variables(func)]
        check_bound_names(options.upper_bounds, [str(variable.name) for variable in symbols])
    result = []
    for variable, func in functions:
        try:
            found = order_function(mod, variable, options, budget, planner)
        except Exception as error:  # TVM's passes raise anything; the build goes on without us
            name = str(variable.name_hint)
            found = FunctionOrder(name, func, 0, f"it cannot be read: {first_line(error)}")
            LOGGER.warning("function %r stays as it is: %s", name, found.reason)
        if found.moved:
            proof = "no order has less"
            if not found.optimal:
                proof = f"the search stopped without a proof: none has less than {found.bound}"
            text, moved = "from %s to %s bytes at once, %s; moved: %s", ", ".join(found.moved)
            LOGGER.info(f"function %r: {text}", found.name, found.given, found.found, proof, moved)
        else:
            LOGGER.info("function %r stays as it is: %s", found.name, found.reason)
        result.append(found)
    return tuple(result)
