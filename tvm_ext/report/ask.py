# SPDX-License-Identifier: Apache-2.0
"""The question that a report answers: planners, memories, functions, and limits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from passes.planning import Budget, Plan, Problem, as_budget
from tvm_ext.named_planners import STOCK, compared_planners, listed, planners_for
from tvm_ext.report.memory_view import PlannedProblem, planned


def silent(done: int, of: int) -> None:
    """Show no progress."""


PLANNERS = ("best",)
"""Asked by default."""


@dataclass(frozen=True)
class Ask:
    """The request for a report.

    Parameters
    ----------
    planners : str or sequence of str
        The planners to ask, to be shown side by side; ``all`` stands for those that are made for
        such buffers, ``stock`` for the plan of TVM's own pass. By default ``best``; for a kernel
        with an Ascend target ``three_level``, which is what `AscendPlanMemory` does.
    scopes : str or sequence of str
        These memories only; by default all.
    functions : str or sequence of str
        These functions only. By default the Relax functions where there are some, and else all
        PrimFuncs.
    budget : Budget or int, optional
        Limits for planners that search; an int is the number of placements that may be tried.
    everything : bool
        Also the kernels of a network, its tensors without fusion, and TVM's own plans.
    upper_bounds : mapping of str to int
        Most elements of symbolic dimensions of a network, by name, for TVM's plan too.
    progress : callable
        Is called with the number of layers that were looked at, and of all.

    Raises
    ------
    ValueError
        When a planner is not known, or the budget is malformed.
    """

    planners: str | Sequence[str] = ()
    scopes: str | Sequence[str] = ()
    functions: str | Sequence[str] = ()
    budget: Budget | int | None = None
    everything: bool = False
    upper_bounds: Mapping[str, int] = field(default_factory=dict)
    progress: Callable[[int, int], object] = silent

    def __post_init__(self) -> None:
        if self.planners != () and listed(self.planners) != (STOCK,):
            compared_planners(self.planners)
        for names in ("planners", "scopes", "functions"):
            object.__setattr__(self, names, listed(getattr(self, names)))
        if self.budget is not None:
            object.__setattr__(self, "budget", as_budget(self.budget))

    @property
    def limits(self) -> Budget | None:
        """The budget."""
        return None if self.budget is None else as_budget(self.budget)

    @property
    def stock(self) -> bool:
        """Whether TVM's own plans are to be shown."""
        return self.everything or STOCK in self.planners

    def names(
        self, problem: Problem, default: Sequence[str] = PLANNERS, *, graph: bool = False
    ) -> list[str]:
        """Return which planners of ours are asked to solve a problem.

        `graph` is whether the buffers are the tensors between the operators of a network.
        """
        ours = [name for name in self.planners or default if name != STOCK]
        return planners_for(problem, ours, graph=graph) if ours else []

    def plan(self, problem: Problem) -> tuple[PlannedProblem, ...]:
        """Plan a problem with each planner that is asked to solve it."""
        return tuple(planned(problem, name, self.limits) for name in self.names(problem))

    def without_stock(self, what: str) -> None:
        """Raise ValueError if TVM's own plan is asked for by name of what TVM has no plan of."""
        if STOCK in self.planners:
            raise ValueError(f"{what} have no plan {STOCK!r}")


def given_plans(problem: Problem, plans: Mapping[str, Plan]) -> tuple[PlannedProblem, ...]:
    """Return plans that were made before, by what to call each."""
    return tuple(PlannedProblem(name, problem, plan) for name, plan in plans.items())
