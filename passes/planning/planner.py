# SPDX-License-Identifier: Apache-2.0
"""Planners by name: what a planner is, and how one is asked."""

from __future__ import annotations

import importlib
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from passes.planning.bound import lower_bound
from passes.planning.buffer import ADDRESS_LIMIT
from passes.planning.plan import Plan, Status
from passes.planning.problem import Problem
from target_hw.memory import as_plain, is_byte_count

_PLANNERS_FOLDER = "passes.planning.planners"
_MODULES = {
    "best": f"{_PLANNERS_FOLDER}.best",
    "bump": f"{_PLANNERS_FOLDER}.first_fit",
    "first_fit": f"{_PLANNERS_FOLDER}.first_fit",
}
"""The module that registers each planner of ours, imported when the planner is asked for.

Features add theirs with `declare`.
"""


@dataclass(frozen=True)
class Budget:
    """The work that a planner may do before it returns the best plan that it has.

    Parameters
    ----------
    nodes : int
        Placements that a search may try in all: the same result on every machine.
    seconds : float, optional
        An outer stop by the clock; results then depend on the machine when it is hit.
    """

    nodes: int = 500_000
    seconds: float | None = None

    def __post_init__(self) -> None:
        if self.nodes < 0:
            raise ValueError(f"budget: nodes must not be negative, got {self.nodes}")
        if self.seconds is not None and not self.seconds >= 0:
            raise ValueError(f"budget: seconds must not be negative, got {self.seconds}")


class BudgetTracker:
    """The rest of a budget while a planner works."""

    def __init__(self, budget: Budget, whole: BudgetTracker | None = None) -> None:
        self.used = 0  # Nodes spent so far
        self._nodes = budget.nodes
        self._stop = None if budget.seconds is None else time.monotonic() + budget.seconds
        self._whole = whole

    def share(self, part: float, at_most: int | None = None) -> BudgetTracker:
        """Return a tracker of one `part`-th of the nodes and time left; it spends them here too."""
        nodes, seconds = math.ceil(self.left / part), self.rest().seconds
        nodes = nodes if at_most is None else min(nodes, at_most)
        return BudgetTracker(Budget(nodes, None if seconds is None else seconds / part), self)

    def rest(self) -> Budget:
        """Return the remaining seconds and steps as a budget of its own."""
        if self._stop is None:
            return Budget(self.left)
        return Budget(self.left, max(0.0, self._stop - time.monotonic()))

    def spend(self, nodes: int) -> None:
        """Count nodes that were tried."""
        self.used += nodes
        if self._whole is not None:
            self._whole.spend(nodes)

    @property
    def left(self) -> int:
        """Nodes that may still be tried; zero once the time is over."""
        return 0 if self.expired else max(0, self._nodes - self.used)

    @property
    def expired(self) -> bool:
        """Whether the time is over."""
        return self._stop is not None and time.monotonic() >= self._stop


Solver = Callable[[Problem], Plan]  # From a problem to a complete plan, also when that does not fit
Offsets = Mapping[str, int | Sequence[int]]  # By buffer name: an offset in bytes, or one a slot

Run = TypeVar("Run", bound=Callable[[Problem, Budget], Plan | Offsets])
"""``run(problem, budget)`` returns where each buffer goes, also when it does not fit the capacity.

It returns a complete plan, or the offsets alone.
"""


_PLANNERS: dict[str, Callable[[Problem, Budget], Plan]] = {}
"""By name, from a problem and a budget to a complete plan. A planner takes every problem."""


def register(name: str) -> Callable[[Run], Run]:
    """Return a decorator that makes ``run(problem, budget)`` the planner called `name`.

    ValueError is raised if the name is no text, has a comma, which lists of names are cut at, or is
    taken, and if what is decorated cannot be called.
    """
    if not isinstance(name, str) or not name or "," in name:
        raise ValueError(f"a planner's name must be a text without a comma, got {name!r}")

    def decorate(run: Run) -> Run:
        if not callable(run):
            raise ValueError(f"planner {name!r} must be a function, got {run!r}")
        if name in _PLANNERS or _MODULES.get(name, run.__module__) != run.__module__:
            raise ValueError(f"planner {name!r} is already registered")
        _PLANNERS[name] = partial(_run, name, run)
        return run

    return decorate


def declare(name: str, module: str) -> None:
    """Say which module registers the planner called `name`, without importing it yet.

    A feature declares its planners where it begins: they are there once the feature is imported.
    """
    if _MODULES.setdefault(name, module) != module:
        raise ValueError(f"planner {name!r} is already registered")


def planner_names() -> tuple[str, ...]:
    """Return the names of all planners, sorted; imports none of them."""
    return tuple(sorted({**_MODULES, **_PLANNERS}))


def get_planner(name: str) -> Callable[[Problem, Budget], Plan]:
    """Return the planner called `name`: from a problem and a budget to a complete plan.

    ValueError, which lists the known names, is raised if no planner has this one.
    """
    if name not in planner_names():
        raise ValueError(f"unknown planner {name!r}; there are: {', '.join(planner_names())}")
    if name not in _PLANNERS:
        importlib.import_module(_MODULES[name])
    return _PLANNERS[name]


def as_budget(budget: Budget | int | None) -> Budget:
    """Return a budget: the default one for None, a number of placements for an integer.

    ValueError is raised for anything else that is no budget.
    """
    if budget is None:
        return Budget()
    given: Any = as_plain(budget)
    if is_byte_count(given):
        return Budget(given)
    if not isinstance(given, Budget):
        raise ValueError(f"a budget must be a Budget or a number of placements, got {given!r}")
    return given


def _run(
    planner: str,
    run: Callable[[Problem, Budget], Plan | Offsets],
    problem: Problem,
    budget: Budget,
) -> Plan:
    """Return a planner's plan; of mere offsets, the plan that has its peak, penalty and status.

    Errors say which planner it was.
    """
    where = f"{problem.name}: planner {planner!r}"
    try:
        answer: object = run(problem, budget)
    except Exception as error:
        raise ValueError(f"{where} raised {type(error).__name__}: {error}") from error
    if isinstance(answer, Plan):
        return answer if planner in _MODULES else _judged(problem, answer, where)
    if not isinstance(answer, Mapping):
        raise ValueError(f"{where}: must return a Plan, or offsets by buffer name, got {answer!r}")
    offsets = {}
    for buffer in problem.buffers:
        given = answer.get(buffer.name, ())
        slots: tuple[Any, ...] = tuple(given) if isinstance(given, Iterable) else (given,)
        slots = tuple(map(as_plain, slots))
        is_each_one = all(is_byte_count(slot) and 0 <= slot < ADDRESS_LIMIT for slot in slots)
        if len(slots) < buffer.slots or not is_each_one:
            raise ValueError(
                f"{where}: buffer {buffer.name!r} needs {buffer.slots} offsets in bytes, "
                f"got {given!r}"
            )
        offsets[buffer.name] = slots
    from passes.planning.engine.blocks import BlockList  # Where nobody plans, none is imported

    return BlockList(problem).plan_of(offsets, planner)


def _judged(problem: Problem, plan: Plan, where: str) -> Plan:
    """Return a user's plan as optimal if it costs nothing and is as low as the lower bound."""
    if not isinstance(plan.status, Status):
        raise ValueError(f"{where}: a plan's status must be a Status, got {plan.status!r}")
    if plan.status is Status.FEASIBLE and not plan.penalty and plan.peak == lower_bound(problem):
        return replace(plan, status=Status.OPTIMAL)
    return plan
