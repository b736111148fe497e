# SPDX-License-Identifier: Apache-2.0
"""The question that a report answers: planners, memories, functions, and limits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from passes.pass_options import as_bounds
from passes.planning import Budget, Problem, as_budget
from tvm_ext.named_planners import STOCK, compared_planners, listed, planners_for
from tvm_ext.report.memory_view import PlannedProblem, planned

if TYPE_CHECKING:
    from passes.ir import Target
    from tvm_ext.reading.input_sizes import InputSizes


def silent(done: int, of: int) -> None:
    """Show no progress."""


PLANNERS = ("best",)
"""Asked by default."""


@dataclass(frozen=True)
class Ask:
    """The request for a report, in the words of `memory_map`.

    Raises ValueError when a planner is not known, or the budget is malformed.
    """

    planners: str | Sequence[str] = ()
    scopes: str | Sequence[str] = ()
    functions: str | Sequence[str] = ()
    budget: Budget | int | None = None
    everything: bool = False
    """Also the kernels of a network, its tensors without fusion, and TVM's own plans."""
    upper_bounds: Mapping[str, int] = field(default_factory=dict)
    progress: Callable[[int, int], object] = silent
    view: str = ""
    target: str | Target | None = None
    sizes: InputSizes | None = None
    capacity: int | None = None
    alignment: int = 1

    def __post_init__(self) -> None:
        if self.planners != () and listed(self.planners) != (STOCK,):
            compared_planners(self.planners)
        for names in ("planners", "scopes", "functions"):
            object.__setattr__(self, names, listed(getattr(self, names)))
        as_budget(self.budget)
        as_bounds(self.upper_bounds)

    @property
    def limits(self) -> Budget:
        """The budget."""
        return as_budget(self.budget)

    @property
    def stock(self) -> bool:
        """Whether TVM's own plans are to be shown."""
        return self.everything or STOCK in self.planners

    @property
    def own_memory(self) -> bool:
        """Whether a capacity or an alignment is given."""
        return self.capacity is not None or self.alignment != 1

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

    def check_alone(self, name: str, fixed: str = "") -> None:
        """Raise ValueError if more is asked for than the buffers of a table or file.

        What is `fixed`, such as a program of another compiler, decides its memories itself.
        """
        if fixed and (self.target is not None or self.own_memory or self.sizes):
            raise ValueError(f"{name}: {fixed} has its memories, its target and its sizes")
        what = f"{name}: buffers without a program of TVM"
        self.without_stock(what)
        if self.view or self.upper_bounds:
            lacks = f"view {self.view!r}" if self.view else "symbolic dimensions, and no bounds"
            raise ValueError(f"{what} have no {lacks}")

    def without_stock(self, what: str) -> None:
        """Raise ValueError if TVM's own plan is asked for by name of what TVM has no plan of."""
        if STOCK in self.planners:
            raise ValueError(f"{what} have no plan {STOCK!r}")
