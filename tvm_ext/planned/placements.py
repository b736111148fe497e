# SPDX-License-Identifier: Apache-2.0
"""Plans beside their problems: who is asked, the peak, what is proven of it, and sums of plans.

TVM's passes decide which tensors share a whole allocation, and its runtime where that comes to lie:
a stock plan shows the allocations one after another, aligned as their buffers ask for.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from passes.planning import (
    Budget,
    Buffer,
    Plan,
    Problem,
    Solver,
    Status,
    as_budget,
    charge,
    check,
    live_together,
    lower_bound,
    solve,
    verify,
)
from passes.simulation import Simulation
from target_hw.memory import settle
from tvm_ext.named_planners import STOCK, compared_planners, listed, planners_for


@dataclass(frozen=True)
class Peak:
    """Where a plan is at its highest."""

    # The positions with the most bytes in use, each with other live buffers than the one before,
    # among those at which a buffer reaches the plan's peak; of TVM's own plan, among all.
    places: tuple[int, ...]
    live: tuple[str, ...]  # The buffers live at the first, largest first, all slots counted
    occupied: int  # Bytes in use there; bytes shared in place count once
    # The most bytes in use at any other position, and the first such position
    below: tuple[int, int] | None


@dataclass(frozen=True)
class PlannedProblem:
    """A plan, with the problem that it solves."""

    planner: str  # The planner that was asked; `plan.planner` is the one that it asked in turn
    problem: Problem
    plan: Plan  # Possibly above the capacity
    seconds: float = field(default=0.0, compare=False)  # Time that the planner took
    base: int = 0  # Bytes at the start of the memory that enclosing scopes hold
    # The lower bound of plans in whole slots, for a device that takes no other plans
    bound_of_form: int | None = None

    @property
    def label(self) -> str:
        """The planner that was asked, and in brackets the planner that it asked in turn."""
        asked, made = self.planner, self.plan.planner
        return asked if asked == made else f"{asked} ({made})"

    @cached_property
    def bound(self) -> int:
        """Bytes that no plan's peak can be below."""
        return lower_bound(self.problem) if self.bound_of_form is None else self.bound_of_form

    @cached_property
    def proven(self) -> str:
        """What no plan is better in, as `PlannedMemory.proven` says it."""
        plan, lowest = self.plan, self.plan.peak == self.bound
        if plan.status is Status.INFEASIBLE:
            return "nothing fits"
        is_optimal = plan.status is Status.OPTIMAL
        if self.problem.penalties and (is_optimal or (plan.fits and plan.penalty == 0)):
            return "least penalty and peak" if lowest else "least penalty"
        return "lowest peak" if lowest or (is_optimal and not self.problem.penalties) else ""

    @property
    def verdict(self) -> str:
        """Whether the plan fits, and what is proven of it, in a few words."""
        if not self.plan.fits:
            return "does not fit, as no plan does" if self.proven else "does not fit"
        return f"{self.proven} (proven)" if self.proven else "a better plan may exist"

    def peak(self) -> Peak:
        """Find where the plan is at its highest."""
        steps = list(_bytes_in_use(self.problem, self.plan, everywhere=self.planner == STOCK))
        most = max((used for _, used, highest in steps if highest), default=0)
        places = tuple(at for at, used, highest in steps if highest and used == most) or (0,)
        others = ((at, used) for at, used, highest in steps if not (highest and used == most))
        at, below = max(others, key=lambda step: step[1], default=(0, 0))
        here = (places[0], places[0] + 1)
        live = [b for b in self.problem.buffers if live_together(b.live, (here,))]
        live.sort(key=lambda b: (-b.size * len(self.plan.offsets[b.name]), b.name))
        names = tuple(b.name for b in live)
        return Peak(places, names, most, (below, at) if below else None)


@dataclass(frozen=True, eq=False)
class PlannedRun:
    """A function, run in simulation with its buffers where a planner put them."""

    function: str  # Its name
    planner: str
    simulation: Simulation


def planned(
    problem: Problem,
    planner: str,
    budget: Budget | None = None,
    *,
    solver: Solver | None = None,
    base: int = 0,
) -> PlannedProblem:
    """Solve a problem by a planner, or by `solver` in its name; a plan that fits is verified."""
    begin = time.perf_counter()
    plan = solve(problem, planner, budget) if solver is None else solver(problem)
    seconds = time.perf_counter() - begin
    if plan.fits and planner != STOCK:  # The map says which rule a plan of TVM's breaks.
        check(problem, plan)
    return PlannedProblem(planner, problem, plan, seconds, base)


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
        for names in ("planners", "scopes", "functions"):
            object.__setattr__(self, names, listed(getattr(self, names)))
        if self.budget is not None:
            object.__setattr__(self, "budget", as_budget(self.budget))
        if self.layer_group and STOCK in self.planners:
            raise ValueError(f"TVM has no groups of layers, so no plan {STOCK!r} of them")
        if self.layer_group and self.budget is not None:
            raise ValueError("groups of layers are planned within limits of their own: give none")
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


@dataclass(frozen=True)
class PlannedMemory:
    """The plan of one planner for the buffers that compete for a memory."""

    planner: str
    """Its name."""
    nbytes: int
    """The peak of its plan, bytes that the memory reserves below the peak included."""
    fits: bool
    """Whether the plan is within the memory's capacity."""
    proven: str
    """What no plan is better in: ``lowest peak``; ``least penalty``, for which a plan may need a
    higher peak; ``least penalty and peak``; or ``nothing fits``. Empty if nothing is proven."""
    penalty: int | None
    """What the sharing of bytes costs, in waits on an Ascend core; None where nothing does."""
    seconds: float
    """Time that the planner took."""


def planned_memory(placements: Sequence[PlannedProblem]) -> PlannedMemory:
    """Add up the plans of one planner for one memory, one for each point of attachment."""
    proven = placements[0].proven
    costs = any(one.problem.penalties for one in placements)
    return PlannedMemory(
        placements[0].planner,
        sum(one.plan.peak - one.base for one in placements),
        all(one.plan.fits for one in placements),
        proven if all(one.proven == proven for one in placements) else "",
        sum(one.plan.penalty for one in placements) if costs else None,
        sum(one.seconds for one in placements),
    )


def _bytes_in_use(
    problem: Problem, plan: Plan, everywhere: bool
) -> Iterator[tuple[int, int, bool]]:
    """Yield the positions at which the live buffers change: position, bytes in use, at the peak.

    The last is whether a buffer that ends highest is live; with `everywhere`, it is always true.
    """
    changes: defaultdict[int, list[tuple[int, Buffer]]] = defaultdict(list)
    for buffer in problem.buffers:
        for begin, end in buffer.live:
            changes[begin].append((1, buffer))
            changes[end].append((-1, buffer))
    top = max((o + b.size for b in problem.buffers for o in plan.offsets[b.name]), default=0)
    used = highest = 0
    live: dict[str, Buffer] = {}
    for position in sorted(changes):
        for sign, buffer in sorted(changes[position], key=lambda change: change[0]):
            offsets = plan.offsets[buffer.name]
            highest += sign * (max(offsets) + buffer.size == top)
            used += sign * buffer.size * len(offsets)
            if sign > 0:
                live[buffer.name] = buffer
            else:
                del live[buffer.name]
        shared = bool(problem.in_place)  # Else nothing that is live shares bytes.
        yield position, _union(plan, live) if shared else used, everywhere or highest > 0


def _union(plan: Plan, buffers: Mapping[str, Buffer]) -> int:
    """Return how many bytes belong to at least one of the buffers."""
    occupied = reached = 0
    for begin, end in sorted(
        (at, at + buffer.size) for name, buffer in buffers.items() for at in plan.offsets[name]
    ):
        occupied += max(0, end - max(begin, reached))
        reached = max(reached, end)
    return occupied


# ---------------------------------------------------------------------------- TVM's own plans

StockAllocation = tuple[int, dict[str, int]]
"""An allocation that a stock pass leaves: its bytes, and where in it the buffers begin."""


def stock_plan(
    problem: Problem, pieces: Iterable[StockAllocation], stock_pass: str, function: str
) -> Plan:
    """Lay the allocations that a stock pass left with a problem's buffers one after another.

    Whether the plan keeps the problem's rules is not looked at, only whether it fits. Raises
    ValueError when a buffer has several slots, which TVM's passes do not know.
    """
    for buffer in problem.buffers:
        if buffer.slots > 1:
            raise ValueError(
                f"function {function!r}: buffer {buffer.name!r} in {problem.memory.name} has "
                f"{buffer.slots} slots, and TVM's {stock_pass} plans one; leave out {STOCK!r}"
            )
    offsets: dict[str, tuple[int, ...]] = {}
    top = 0
    for size, begins in pieces:
        inside = [buffer for buffer in problem.buffers if buffer.name in begins]
        if inside:
            alignment = math.lcm(*(problem.alignment_of(buffer) for buffer in inside))
            begin = settle(top, size, alignment, sorted(problem.memory.reserved))
            offsets |= {b.name: (begin + begins[b.name],) for b in inside}
            top = begin + size
    fits = problem.capacity is None or top <= problem.capacity
    plan = Plan(offsets, top, 0, stock_pass, Status.FEASIBLE if fits else Status.NOT_FOUND)
    return replace(plan, penalty=sum(charge(problem, plan, p) for p in problem.penalties))


def remark(problem: Problem, plan: Plan) -> str:
    """Say what a stock plan is, and the first rule of the problem that it breaks, if it does."""
    # An allocation may end above all that is shown of it.
    highest = max((plan.offsets[b.name][0] + b.size for b in problem.buffers), default=0)
    found = verify(problem, replace(plan, peak=highest))
    broken = [one.message for one in found if one.kind != "capacity"]
    text = "TVM's allocations, one after another"
    return f"{text}; {broken[0]}" if broken else text
