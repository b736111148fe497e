# SPDX-License-Identifier: Apache-2.0
"""What a kernel for an Ascend core can give up so that it fits, and what that costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tvm.ir import IRModule
from tvm.target import Target
from tvm.tirx import PrimFunc

from passes.ascend import (
    WORKSPACE,
    AscendOptions,
    MemoryRequest,
    SlotChoice,
    SlotCost,
    choose,
    level_planner,
    memory_requests,
    reuse_of,
    simulated_cost,
)
from passes.driver import error_context, memory_of
from passes.planning import Budget, as_budget, lower_bound, solve
from tvm_ext.lowering import known_target, split
from tvm_ext.text import Table, Tabular

_HEADER = ("", "bytes", "cycles", "level", "penalty", "one slot for")


@dataclass(frozen=True)
class FittingPlan:
    """One way to fit a memory."""

    slots: tuple[tuple[str, int], ...]
    """Buffers that have fewer slots than they ask for, and how many."""
    peak: int
    """Bytes."""
    penalty: int
    """What it costs by the penalties of the reuse levels."""
    level: int
    """The lowest reuse level of a buffer; 2 where no buffer waits for another pipeline's bytes."""
    cycles: int | None
    """What the kernel takes in simulation, with the best plan that fits in each other memory; None
    where the target does not describe its pipelines."""
    chosen: bool
    """Whether it is the best: of the fewest cycles, which ``AscendPlanMemory(degrade=True)`` takes;
    without cycles, the one that gives up the fewest slots, and then takes the fewest bytes."""

    @property
    def given_up(self) -> tuple[str, ...]:
        """The buffers that lose slots."""
        return tuple(name for name, _ in self.slots)


@dataclass(frozen=True)
class FittingMemory(Tabular):
    """The ways to fit one memory of a function."""

    function: str
    scope: str
    """Where it is."""
    capacity: int | None
    """Bytes."""
    asked: int
    """The least bytes of any plan with all slots, as far as is proven."""
    least: int
    """The same with one slot for each buffer."""
    lowest: int
    """The bytes of the lowest plan that was found, with one slot for each buffer."""
    plans: tuple[FittingPlan, ...]
    """The chosen one, and those to which no other is better in both bytes and cycles, fewest bytes
    first; empty where no plan that was found fits."""

    def table(self) -> Table:
        """Return a row for each plan, the chosen one with a star; or what is in the way of any."""
        there = "without end" if self.capacity is None else f"{self.capacity:,} bytes"
        title = (
            f"{self.function}, {self.scope}: {there}; with all slots at least {self.asked:,} bytes"
        )
        if not self.plans:
            return Table(title, [("",), (self._nothing(),)])
        if any(plan.cycles is None for plan in self.plans):
            title += "; the target describes no pipelines, so the fewest slots given up decide"
        rows = [_HEADER]
        for plan in self.plans:
            star = "*" if plan.chosen else ""
            cycles = "-" if plan.cycles is None else f"{plan.cycles:,}"
            lost = ", ".join(name if n == 1 else f"{name} ({n})" for name, n in plan.slots) or "-"
            rows.append(
                (star, f"{plan.peak:,}", cycles, str(plan.level), f"{plan.penalty:,}", lost)
            )
        return Table(title, rows, left=(0, 5))

    def _nothing(self) -> str:
        """Say what is in the way where nothing fits."""
        if self.least > (self.capacity or 0):
            needed = f"needs at least {self.least:,} bytes"
        else:
            needed = f"takes {self.lowest:,} bytes in the lowest plan that was found"
        short = self.lowest - (self.capacity or 0)
        return (
            f"nothing fits: one slot for each buffer {needed}; "
            f"make what is live there smaller by {short:,} bytes"
        )


def what_fits(
    program: PrimFunc | IRModule,
    target: Target | str | Mapping[str, Any] | None = None,
    *,
    budget: Budget | int | None = None,
) -> tuple[FittingMemory, ...]:
    """Show what kernels for an Ascend core can give up so that they fit, and at what cost.

    Tried are plans at all reuse levels in which any buffers have fewer slots than they ask for, and
    smaller capacities for plans of fewer bytes. What they cost is simulated.

    Parameters
    ----------
    program : tvm.tirx.PrimFunc or tvm.ir.IRModule
        It stays as it is. Without a target it has to stand right before `StorageRewrite`.
    target : Target or str or mapping, optional
        The chip, with its memories; what does not stand there yet is lowered for it. By default
        each function's own target. Where it does not describe its pipelines, slots given up
        decide, and not cycles.
    budget : Budget or int, optional
        Limits, or how many placements may be tried, for all plans of a function together, and once
        more for those of fewer bytes.

    Returns
    -------
    tuple of FittingMemory
        One for each function and memory on the chip, functions by name; printed, it is a table.

    Raises
    ------
    TypeError
        When `program` is no module and no function.
    ValueError
        When a function cannot be lowered or planned, or no memory is
        described.
    """
    with error_context("what_fits"):
        limits = as_budget(budget)
        chip = None if target is None else known_target(target)
        functions = split(program, target=chip)
    found = []
    for name, func in functions.items():
        if chip is not None:
            func = func.with_attr("target", chip)
        with error_context("what_fits", name):
            if memory_of(func) is None:
                raise ValueError("neither an argument nor the function's target describes a memory")
            options = AscendOptions()
            kernel = options.read(func)
            scopes = [scope.name for scope in kernel.memory if scope.name != WORKSPACE]
            requests = memory_requests(kernel, scopes)
            in_cycles = simulated_cost(kernel)
            # Slots and bytes alone decide where nobody knows how long anything takes.
            cost = in_cycles or (lambda _placed: SlotCost(0))
            choices = choose(requests, level_planner(options), cost, limits, smaller=True)
        for request, ways in zip(requests, choices, strict=True):
            found.append(_memory(name, request, ways, in_cycles is not None))
    return tuple(found)


def _memory(
    function: str, request: MemoryRequest, choices: Sequence[SlotChoice], in_cycles: bool
) -> FittingMemory:
    smallest = request.single()
    endless = replace(smallest, memory=replace(smallest.memory, capacity=None), penalties=())
    return FittingMemory(
        function,
        request.problem.memory.name,
        request.problem.capacity,
        lower_bound(request.problem),
        lower_bound(smallest),
        min([solve(endless, "best").peak, *(choice.plan.peak for choice in choices)]),
        tuple(
            _plan(choice, choice is choices[0], in_cycles)
            for choice in sorted(choices, key=lambda choice: (choice.plan.peak, choice.rank))
        ),
    )


def _plan(choice: SlotChoice, chosen: bool, in_cycles: bool) -> FittingPlan:
    reuse, plan = reuse_of(choice.problem, choice.plan.offsets), choice.plan
    level = min((one.level for one in reuse.values()), default=2)
    cycles = choice.cycles if in_cycles else None
    return FittingPlan(choice.slots, plan.peak, plan.penalty, level, cycles, chosen)
