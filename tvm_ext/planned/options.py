# SPDX-License-Identifier: Apache-2.0
"""The planners that a table or a map shows, and the memories and functions of a map."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from passes.planning import Budget, Problem, as_budget
from tvm_ext.named_planners import STOCK, compared_planners, listed, planners_for
from tvm_ext.planned.placements import PlannedProblem, planned

PLANNERS = ("best",)
"""Asked by default."""


@dataclass(frozen=True)
class MapOptions:
    """What a memory map shows.

    Parameters
    ----------
    planners : str or sequence of str
        The planners to ask, to be shown side by side; ``all`` stands for those that are made for
        such buffers, ``stock`` for the plan of TVM's own pass, which a program has and a table of
        buffers has not. By default ``best``; for a kernel with an Ascend target ``three_level``,
        which is what `AscendPlanMemory` does.
    scopes : str or sequence of str
        Show these memories only; by default all.
    functions : str or sequence of str
        Show these functions only. By default the Relax functions where there are some, and else
        all PrimFuncs.
    layer_group : bool
        Of a network: show the local memory of the groups of layers that `LayerGroup` makes, group
        by group, in the place of its activations in global memory.
    budget : Budget, optional
        Limits for planners that search.
    order : bool
        Of a network: show it in the order that `OrderForMemory` finds, and say what moved.
    shared_memory : bool
        Of GPU kernels: show the shared memory of each, as `PlanSharedMemory` places it. Lines are
        what may run in each epoch; a rule stands for the barrier between two.

    Raises
    ------
    ValueError
        When a planner is not known, the budget is none, or options contradict one another.
    """

    planners: str | Sequence[str] = ()
    scopes: str | Sequence[str] = ()
    functions: str | Sequence[str] = ()
    layer_group: bool = False
    budget: Budget | None = None
    order: bool = False
    shared_memory: bool = False

    def __post_init__(self) -> None:
        if self.planners != () and listed(self.planners) != (STOCK,):
            compared_planners(self.planners)
        for field in ("planners", "scopes", "functions"):
            object.__setattr__(self, field, listed(getattr(self, field)))
        if self.budget is not None:
            object.__setattr__(self, "budget", as_budget(self.budget))
        if self.layer_group and STOCK in self.planners:
            raise ValueError(f"TVM has no groups of layers, so no plan {STOCK!r} of them")
        if self.shared_memory and STOCK in self.planners:
            raise ValueError(f"TVM shares before barriers are there: it has no plan {STOCK!r}")
        if self.layer_group + self.order + self.shared_memory > 1:
            raise ValueError("a map shows groups of layers, another order or shared memory")

    def names(
        self, problem: Problem, default: Sequence[str] = PLANNERS, *, graph: bool = False
    ) -> list[str]:
        """Return which planners are asked to solve a problem: TVM's own comes first."""
        ours = [name for name in self.planners or default if name != STOCK]
        stock = [STOCK] if STOCK in self.planners else []
        return stock + (planners_for(problem, ours, graph=graph) if ours else [])

    def plan(self, problem: Problem) -> tuple[PlannedProblem, ...]:
        """Plan a problem with each planner that is asked to solve it."""
        return tuple(planned(problem, name, self.budget) for name in self.names(problem))
