"""What a kernel for an Ascend core can give up so that it fits, and what that costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tvm.ir import IRModule
from tvm.target import Target
from tvm.tirx import PrimFunc

from passes.ascend_choices import MemoryChoices, choices_of
from passes.ascend_kernel import WORKSPACE, AscendOptions, level_solver
from passes.placement import naming, prim_funcs
from passes.planning import Budget, lower_bound
from passes.planning.ascend.fewer_slots import Choice, front
from passes.planning.ascend.levels import reuse_of


@dataclass(frozen=True)
class FittingPlan:
    """One way to fit a memory.

    Parameters
    ----------
    given_up : tuple of str
        Buffers that have one slot in the place of several.
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

    given_up: tuple[str, ...]
    peak: int
    penalty: int
    level: int
    cycles: int
    chosen: bool


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
    plans : tuple of FittingPlan
        Those to which none is better in both bytes and cycles, fewest bytes first; empty where no
        plan that was found fits.
    """

    function: str
    scope: str
    capacity: int | None
    asked: int
    plans: tuple[FittingPlan, ...]

    def __str__(self) -> str:
        """Return a table."""
        there = "without end" if self.capacity is None else f"{self.capacity:,} bytes"
        lines = [
            f"{self.function}, {self.scope}: {there}; with all slots at least {self.asked:,} bytes"
        ]
        if not self.plans:
            return f"{lines[0]}\n  nothing that was tried fits: make a buffer smaller"
        rows = [("bytes", "cycles", "level", "penalty", "one slot for")]
        rows += [
            (
                f"{plan.peak:,}",
                f"{plan.cycles:,}",
                str(plan.level),
                f"{plan.penalty:,}",
                ", ".join(plan.given_up) or "-",
            )
            for plan in self.plans
        ]
        widths = [max(len(row[column]) for row in rows) for column in range(4)]
        for row, chosen in zip(rows, (False, *(plan.chosen for plan in self.plans)), strict=True):
            cells = "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=False))
            lines.append(f"{'*' if chosen else ' '} {cells}  {row[4]}")
        return "\n".join(lines)


def what_fits(
    program: PrimFunc | IRModule,
    target: Target | str | Mapping[str, Any] | None = None,
    *,
    budget: Budget | None = None,
) -> tuple[FittingMemory, ...]:
    """Show what kernels for an Ascend core can give up so that they fit, and at what cost.

    Tried are plans at all reuse levels with any buffers single that the kernel asks to be double.
    What they cost is simulated.

    Parameters
    ----------
    program : tvm.tirx.PrimFunc or tvm.ir.IRModule
        Flat, as before `StorageRewrite`; it stays as it is.
    target : Target or str or mapping, optional
        The chip, with its memories and pipelines. By default each function's own target.
    budget : Budget, optional
        Limits for each plan that is searched for.

    Returns
    -------
    tuple of FittingMemory
        One for each function and memory on the chip, functions by name; printed, it is a table.

    Raises
    ------
    ValueError
        When a function cannot be planned, or its target describes no memory or no pipelines.
    """
    functions = {"main": program} if isinstance(program, PrimFunc) else prim_funcs(program)
    found = []
    for name, func in functions.items():
        if target is not None:
            func = func.with_attr("target", Target(target))
        with naming("what_fits", name):
            options = AscendOptions(budget=budget)
            kernel = options.read(func)
            scopes = [scope.name for scope in kernel.memory if scope.name != WORKSPACE]
            memories = choices_of(kernel, level_solver(options), scopes)
        found += [_memory(name, memory) for memory in memories]
    return tuple(found)


def _memory(function: str, memory: MemoryChoices) -> FittingMemory:
    best = memory.choices[0] if memory.choices else None
    return FittingMemory(
        function,
        memory.problem.memory.name,
        memory.problem.capacity,
        lower_bound(memory.problem),
        tuple(_plan(choice, choice is best) for choice in front(memory.choices)),
    )


def _plan(choice: Choice, chosen: bool) -> FittingPlan:
    reuse = reuse_of(choice.problem, choice.plan.offsets)
    level = min((one.level for one in reuse.values()), default=2)
    return FittingPlan(
        choice.given_up, choice.plan.peak, choice.plan.penalty, level, choice.cycles, chosen
    )
