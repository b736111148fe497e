# SPDX-License-Identifier: Apache-2.0
"""Slots that a kernel for an Ascend core can give up so that it fits, and the cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from passes import ascend
from passes.ir import IRModule, PrimFunc, Target
from passes.pass_errors import error_context
from passes.planning import Budget, as_budget, lower_bound
from passes.prim_func import memory_of
from tvm_ext.lowering import known_target, split
from tvm_ext.text import Table, Tabular

_HEADER = ("bytes", "cycles", "level", "penalty", "one slot for")


@dataclass(frozen=True)
class FittingPlan:
    """The best way to fit a memory."""

    slots: tuple[tuple[str, int], ...]
    """Buffers that have fewer slots than they ask for, and how many."""
    peak: int
    """Bytes."""
    penalty: int
    """The cost by the penalties of the reuse levels."""
    level: int
    """The lowest reuse level of a buffer; 2 where no buffer waits for another pipeline's bytes."""
    cycles: int | None
    """Cycles of the kernel in simulation, with the best plan that fits in each other memory; None
    where the target does not describe its pipelines."""


@dataclass(frozen=True)
class FittingMemory(Tabular):
    """The slots that a function drops to fit one memory."""

    function: str
    scope: str
    capacity: int | None
    """Bytes."""
    asked: int
    """The least bytes of any plan with all slots, as far as is proven."""
    least: int
    """The same with one slot for each buffer."""
    plan: FittingPlan | None
    """That of the fewest cycles, which ``AscendPlanMemory(degrade=True)`` takes; without cycles,
    the one that drops the fewest slots, and then takes the fewest bytes. None where no plan that
    was found fits."""

    def table(self) -> Table:
        """Return the plan's row, or what is in the way of any."""
        there = "without end" if self.capacity is None else f"{self.capacity:,} bytes"
        title = (
            f"{self.function}, {self.scope}: {there}; with all slots at least {self.asked:,} bytes"
        )
        plan = self.plan
        if plan is None:
            said = f"nothing fits: one slot for each buffer takes {self.least:,} bytes or more"
            return Table(title, [("",), (said,)])
        if plan.cycles is None:
            title += "; the target describes no pipelines, so the fewest slots given up decide"
        cycles = "-" if plan.cycles is None else f"{plan.cycles:,}"
        lost = ", ".join(name if n == 1 else f"{name} ({n})" for name, n in plan.slots) or "-"
        row = f"{plan.peak:,}", cycles, str(plan.level), f"{plan.penalty:,}", lost
        return Table(title, [_HEADER, row], left=(4,))


def what_fits(
    program: PrimFunc | IRModule,
    target: Target | str | Mapping[str, Any] | None = None,
    *,
    budget: Budget | int | None = None,
) -> tuple[FittingMemory, ...]:
    """Show what kernels for an Ascend core can give up so that they fit, and at what cost.

    Tried are plans at all reuse levels in which any buffers have fewer slots than they ask for, and
    what they cost is simulated. There is a table for each function and memory on the chip,
    functions by name.

    Parameters
    ----------
    program : tvm.tirx.PrimFunc or tvm.ir.IRModule
        It stays as it is. Without a target it has to stand right before `StorageRewrite`.
    target : Target or str or mapping, optional
        The chip, with its memories, for which functions are lowered; by default their own. Where it
        does not describe its pipelines, slots given up decide, and not cycles.
    budget : Budget or int, optional
        Limits, or how many placements may be tried, for all plans of a function together.

    Raises
    ------
    TypeError
        When `program` is no module and no function.
    ValueError
        When a function cannot be lowered or planned, or no memory is described.
    """
    found: list[FittingMemory] = []
    with error_context("what_fits"):
        limits = as_budget(budget)
        chip = None if target is None else known_target(target)
        functions = split(program, target=chip)
    for name, func in functions.items():
        if chip is not None:
            func = func.with_attr("target", chip)
        with error_context("what_fits", name):
            if memory_of(func) is None:
                raise ValueError("neither an argument nor the function's target describes a memory")
            options = ascend.AscendOptions()
            kernel = options.read(func)
            scopes = [scope.name for scope in kernel.memory if scope.name != ascend.WORKSPACE]
            requests = ascend.memory_requests(kernel, scopes)
            in_cycles = ascend.simulated_cost(kernel)
            # Slots and bytes alone decide where nobody knows how long anything takes.
            cost = in_cycles or (lambda _placed: 0)
            choices = ascend.choose(requests, ascend.level_planner(options), cost, limits)
        for request, choice in zip(requests, choices, strict=True):
            memory, plan = request.problem.memory, None
            if choice is not None:
                reuse = ascend.reuse_of(choice.problem, choice.plan.offsets).values()
                level = min((one.level for one in reuse), default=2)
                cycles = None if in_cycles is None else choice.cycles
                placed = choice.plan
                plan = FittingPlan(choice.slots, placed.peak, placed.penalty, level, cycles)
            least = lower_bound(request.problem), lower_bound(request.single())
            found.append(FittingMemory(name, memory.name, memory.capacity, *least, plan))
    return tuple(found)
