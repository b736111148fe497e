"""What a kernel for an Ascend core can give up so that it fits, and what that costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tvm.ir import IRModule
from tvm.target import Target
from tvm.tirx import PrimFunc

from passes.ascend_choices import MemoryChoices, choices_of
from passes.ascend_kernel import WORKSPACE, AscendOptions, level_planner
from passes.placement import naming, prim_funcs
from passes.planning import Budget, lower_bound, solve
from passes.planning.ascend.choice import Choice, front
from passes.planning.ascend.fewer_slots import single
from passes.planning.ascend.levels import reuse_of
from passes.planning.planner import as_budget


@dataclass(frozen=True)
class FittingPlan:
    """One way to fit a memory.

    Parameters
    ----------
    slots : tuple of (str, int)
        Buffers that have fewer slots than they ask for, and how many.
    peak : int
        Bytes.
    penalty : int
        What it costs by the penalties of the reuse levels.
    level : int
        The lowest reuse level of a buffer; 2 where no buffer waits for another pipeline's bytes.
    cycles : int
        What the kernel takes in simulation, with the best plan that fits in each other memory.
    chosen : bool
        Whether ``AscendPlanMemory(degrade=True)`` takes it.
    """

    slots: tuple[tuple[str, int], ...]
    peak: int
    penalty: int
    level: int
    cycles: int
    chosen: bool

    @property
    def given_up(self) -> tuple[str, ...]:
        """The buffers that lose slots."""
        return tuple(name for name, _ in self.slots)


@dataclass(frozen=True)
class FittingMemory:
    """The ways to fit one memory of a function.

    Parameters
    ----------
    function, scope : str
        Where it is.
    capacity : int or None
        Bytes.
    asked : int
        The least bytes of any plan with all slots, as far as is proven.
    least : int
        The same with one slot for each buffer.
    lowest : int
        The bytes of the lowest plan that was found, with one slot for each buffer.
    plans : tuple of FittingPlan
        The chosen one, and those to which no other is better in both bytes and cycles, fewest bytes
        first; empty where no plan that was found fits.
    """

    function: str
    scope: str
    capacity: int | None
    asked: int
    least: int
    lowest: int
    plans: tuple[FittingPlan, ...]

    def __str__(self) -> str:
        """Return a table."""
        there = "without end" if self.capacity is None else f"{self.capacity:,} bytes"
        lines = [
            f"{self.function}, {self.scope}: {there}; with all slots at least {self.asked:,} bytes"
        ]
        if not self.plans:
            return f"{lines[0]}\n  {self._nothing()}"
        rows = [("bytes", "cycles", "level", "penalty", "one slot for")]
        rows += [
            (
                f"{plan.peak:,}",
                f"{plan.cycles:,}",
                str(plan.level),
                f"{plan.penalty:,}",
                ", ".join(name if n == 1 else f"{name} ({n})" for name, n in plan.slots) or "-",
            )
            for plan in self.plans
        ]
        widths = [max(len(row[column]) for row in rows) for column in range(4)]
        for row, chosen in zip(rows, (False, *(plan.chosen for plan in self.plans)), strict=True):
            cells = "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=False))
            lines.append(f"{'*' if chosen else ' '} {cells}  {row[4]}")
        return "\n".join(lines)

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
        Flat, as before `StorageRewrite`; it stays as it is.
    target : Target or str or mapping, optional
        The chip, with its memories and pipelines. By default each function's own target.
    budget : Budget or int, optional
        Limits, or how many placements may be tried, for all plans of a function together, and once
        more for those of fewer bytes.

    Returns
    -------
    tuple of FittingMemory
        One for each function and memory on the chip, functions by name; printed, it is a table.

    Raises
    ------
    ValueError
        When it is given no program, a function cannot be planned, or its target describes no memory
        or no pipelines.
    """
    with naming("what_fits"):
        limits = as_budget(budget)
        if not isinstance(program, (PrimFunc, IRModule)):
            raise ValueError(f"a program is a PrimFunc or an IRModule, got {program!r}")
    functions = {"main": program} if isinstance(program, PrimFunc) else prim_funcs(program)
    found = []
    for name, func in functions.items():
        if target is not None:
            func = func.with_attr("target", Target(target))
        with naming("what_fits", name):
            options = AscendOptions()
            kernel = options.read(func)
            scopes = [scope.name for scope in kernel.memory if scope.name != WORKSPACE]
            memories = choices_of(kernel, level_planner(options), scopes, limits, smaller=True)
        found += [_memory(name, memory) for memory in memories]
    return tuple(found)


def _memory(function: str, memory: MemoryChoices) -> FittingMemory:
    best = memory.choices[:1]
    shown = [choice for choice in front(memory.choices) if choice not in best]
    shown = sorted([*shown, *best], key=lambda choice: (choice.plan.peak, choice.rank))
    smallest = single(memory.asked)
    endless = replace(smallest, memory=replace(smallest.memory, capacity=None), penalties=())
    return FittingMemory(
        function,
        memory.problem.memory.name,
        memory.problem.capacity,
        lower_bound(memory.problem),
        lower_bound(smallest),
        min([solve(endless, "best").peak, *(choice.plan.peak for choice in shown)]),
        tuple(_plan(choice, choice in best) for choice in shown),
    )


def _plan(choice: Choice, chosen: bool) -> FittingPlan:
    reuse = reuse_of(choice.problem, choice.plan.offsets)
    level = min((one.level for one in reuse.values()), default=2)
    return FittingPlan(
        choice.slots, choice.plan.peak, choice.plan.penalty, level, choice.cycles, chosen
    )
