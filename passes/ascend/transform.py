# SPDX-License-Identifier: Apache-2.0
"""`AscendPlanMemory`: places in the memories of an Ascend core, by its compiler's reuse levels.

Source of modes, options, levels and messages: AscendNPU-IR, pass ``hivm-plan-memory``
(``PlanMemory.cpp`` of the HIVM dialect) and the developer guide "Plan Memory".
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from typing import Any

from passes.ascend.analysis.kernel_problems import CoreKernel
from passes.ascend.kernel import AscendOptions, Mode, machine_of, plan_kernel, printed
from passes.ascend.planning.mirror_entries import Strategy
from passes.ascend.planning.planner import Search
from passes.driver import AddressPlan, Form, per_function, write_address_plan
from passes.ir import IRModule, Pass, PrimFunc, Sequential, Target, make_pass, prim_funcs
from passes.pass_errors import error_context
from passes.pass_options import check_flags
from passes.planning import Budget, as_budget
from passes.prim_func import Callers, find_calls
from target_hw.memory import MemoryHierarchy

WORKSPACE_BYTES = "tvm_ext.workspace_bytes"
"""The attribute of a function that says how much workspace one call of it needs, in bytes."""

LOGGER = logging.getLogger("tvm_ext.AscendPlanMemory")
"""Warns where pipelines wait because buffers share bytes, and where a statement's pipe is a guess.

Says at level INFO which buffers are not at level 2, and why.
"""


def AscendPlanMemory(  # noqa: N802
    mode: Mode = "local-mem-plan",
    enable_global_workspace_reuse: bool = False,
    restrict_inplace_as_isa: bool = False,
    strategy: Strategy = "default",
    search: Search = "search",
    form: Form = "address",
    target: Target | str | Mapping[str, Any] | None = None,
    *,
    budget: Budget | int | None = None,
    degrade: bool = False,
) -> Pass:
    """Give the on-chip buffers of each function their places, or the workspace its.

    The pass stands where `StorageRewrite` stands, and in its place; see `PlanAddresses`. In a
    memory in which all buffers fit, no bytes are shared; the mirrored search still puts results in
    place of operands, as the original does. Else each buffer gets the best reuse level that it can:
    2, it shares with nothing on another pipeline; 1, in the same loop it takes all slots of another
    buffer, in turns; 0, it shares wherever live ranges allow.

    Parameters
    ----------
    mode : {"local-mem-plan", "global-work-space-plan"}
        Plan the on-chip scopes that the target describes, or ``global.workspace``. The second
        writes the attribute `WORKSPACE_BYTES` onto each function: what it and its callees need.
    enable_global_workspace_reuse : bool
        Whether workspace buffers that are not live together may share bytes.
    restrict_inplace_as_isa : bool
        Whether only add, sub, mul, max, min, and, or may write over an operand, rather than every
        elementwise vector instruction.
    strategy : {"default", "largest-first"}
        In which order the mirrored search places buffers of UB.
    search : {"search", "mirror"}
        Seek the plan of the least cost within the budget, or do what the original does.
    form : {"address", "arena"}
        As in `PlanAddresses`.
    target : Target or str or dict, optional
        The chip. By default each function's own target.
    budget : Budget or int, optional
        Limits for a search, or how many placements it may try; with `degrade`, for all plans of a
        function together. By default there is a short search in small memories, and none in others;
        more placements than 500,000, or seconds, are spent in any.
    degrade : bool
        Whether buffers may lose slots, so that the kernel fits or takes fewer cycles: the plan of
        the fewest cycles in simulation is taken. The target must describe its pipelines.
        The log says which buffers lost slots, `tvm_ext.what_fits` what that costs.

    Returns
    -------
    tvm.transform.Pass
        A module pass.

    Raises
    ------
    ValueError
        At once when an option is wrong; when the pass runs, naming function, buffer and scope, when
        a plan does not fit the capacity or a function cannot be planned.
    """
    with error_context("AscendPlanMemory"):
        check_flags(
            enable_global_workspace_reuse=enable_global_workspace_reuse,
            restrict_inplace_as_isa=restrict_inplace_as_isa,
            degrade=degrade,
        )
        chip = None if target is None else Target(target)
        options = AscendOptions(
            mode,
            enable_global_workspace_reuse,
            restrict_inplace_as_isa,
            strategy,
            search,
            form,
            None if chip is None else MemoryHierarchy.from_target(chip),
            as_budget(budget),
            degrade,
            machine_of(chip),
        )
    planned = per_function("AscendPlanMemory", partial(ascend_plan_function, options=options), form)
    if mode == "local-mem-plan":
        return planned
    return Sequential([planned, _with_what_callees_need(form)])


def ascend_plan_function(
    name: str, func: PrimFunc, callers: Callers, options: AscendOptions
) -> tuple[PrimFunc, AddressPlan]:
    """Plan one flat function and write the plan into it; the log calls it by its `name`."""
    kernel = options.read(func, callers)
    plan = plan_kernel(kernel, options)
    _log(name, kernel, plan)
    func = write_address_plan(kernel.func, plan, options.form)
    if options.mode == "global-work-space-plan":
        # Up to the end of the last buffer.
        needed = max((scope.plan.peak for scope in plan.scopes), default=0)
        func = func.with_attr(WORKSPACE_BYTES, needed)
    return func, plan


def _with_what_callees_need(form: Form) -> Pass:
    """Return a pass that adds to a workspace what the functions that are called need."""

    def transform(mod: IRModule) -> IRModule:
        functions, result = prim_funcs(mod), mod.clone()
        graph = find_calls(functions)
        needed = {name: int(func.attrs[WORKSPACE_BYTES]) for name, func in functions.items()}
        for name in reversed(graph.order):
            of_callees = max((needed[callee] for callee in graph.calls[name]), default=0)
            if of_callees and name in graph.callers[name]:
                raise ValueError(
                    f"AscendPlanMemory: function {name!r}: it may be called again while it runs, "
                    "so that its workspace has no size"
                )
            # Callees' addresses count from the same place; their arenas are of their own.
            own = needed[name]
            needed[name] = own + of_callees if form == "arena" else max(own, of_callees)
            if needed[name] > own:
                func = functions[name].with_attr(WORKSPACE_BYTES, needed[name])
                result[mod.get_global_var(name)] = func
        return result

    return make_pass("WorkspaceBytes", transform)


def _log(function: str, kernel: CoreKernel, plan: AddressPlan) -> None:
    """Warn of guessed pipes, lost slots and, as the original does, waits; say who makes them."""

    def warn(text: str, *given: object) -> None:
        LOGGER.warning(f"function %r: {text}", function, *given)

    guesses = kernel.pipelines.guesses
    if guesses and plan.scopes:
        text = "it is not known which pipe runs %d statements, and the scalar unit is assumed: %s; "
        warn(f"{text}name it by T.attr({{'pipe': ...}})", len(guesses), "; ".join(guesses[:3]))
    scopes = {scope.problem.memory.name for scope in plan.scopes}
    for note in kernel.found.remarks:
        if note.scope in scopes:
            warn("%s", note)
    asked = {(p.memory.name, b.name): b.slots for p in kernel.problems for b in p.buffers}
    for scope in plan.scopes:
        memory, found = scope.problem.memory, scope.plan
        for buffer in scope.problem.buffers:
            slots = asked[memory.name, buffer.name]
            if buffer.slots < slots:
                text = "buffer %r in %s has %d slots in the place of %d"
                warn(text, buffer.name, memory.name, buffer.slots, slots)
        if found.penalty and found.bytes_without_sharing is not None:
            text = "There reused some dma buffers in %s address space, which may stall pipe. "
            text += "Not reusing dma buffer needs %d bits while %d bits available!"
            needed, available = found.bytes_without_sharing * 8, (memory.capacity or 0) * 8
            warn(text, printed(memory.name), needed, available)
        for name, reuse in found.reuse.items():
            if reuse.level < 2:
                text = "buffer %r in %s is at level %d: it %s"
                LOGGER.info(text, name, memory.name, reuse.level, reuse.reason)
