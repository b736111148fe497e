# SPDX-License-Identifier: Apache-2.0
"""A group that is ready to run: its slices, time steps, cost and addresses in local memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

from passes.layer_group.planning.banks import bank_conflicts, in_banks
from passes.layer_group.planning.cost import LANES, TRANSFERS, Cost, group_cost
from passes.layer_group.planning.cut import Cut
from passes.layer_group.planning.lanes import Lanes
from passes.layer_group.planning.local_memory import LocalMemory, lane_bytes, of_time_steps
from passes.layer_group.planning.loops import PartLoop, part_loops
from passes.layer_group.planning.network import Group
from passes.layer_group.planning.slicing import GroupSlices, slice_group
from passes.layer_group.planning.time_steps import TimeSteps, time_steps
from passes.planning import Budget, Plan, get_planner, solve
from target_hw.machine import Machine
from target_hw.memory import MemoryScope

PORTFOLIO, QUICK = "best", "first_fit"
"""The search that also looks at banks, and the fast planner whose plan is used if it fits."""

GROUP_BUDGET = Budget(nodes=1_000)
"""The budget of a planner that searches, for one group."""


@dataclass(frozen=True)
class Chip:
    """The chip that groups run on, and the planner of its local memory.

    Raises ValueError if the memory has no capacity or lanes, or a pipe or the planner is unknown.
    """

    memory: MemoryScope  # One lane's, with the facts ``lanes`` and ``eu_bytes`` and a capacity
    machine: Machine  # The pipes that `cost` names
    planner: str = "best"  # Of `passes.planning.planners`

    def __post_init__(self) -> None:
        if self.memory.capacity is None:
            raise ValueError(f"memory scope {self.memory.name!r} has no capacity")
        Lanes.of(self.memory)
        get_planner(self.planner)
        for pipe in (TRANSFERS, LANES):
            self.machine[pipe]

    @cached_property
    def lanes(self) -> Lanes:
        """The chip's lanes."""
        return Lanes.of(self.memory)

    @cached_property
    def cores(self) -> int:
        """The number of cores of the chip, each with such a memory."""
        return dict(self.memory.facts).get("cores", 1)

    @property
    def capacity(self) -> int:
        """Bytes a lane."""
        return self.memory.capacity or 0


@dataclass(frozen=True, eq=False)
class Draft:
    """All that is decided about a group but addresses."""

    slices: GroupSlices  # The slices of all its tensors
    steps: TimeSteps  # When each layer computes and each transfer runs
    local: LocalMemory  # The items in local memory, with their lives
    cost: Cost  # Cycles and bytes moved


@dataclass(frozen=True, eq=False)
class PlannedGroup(Draft):
    """A group with everything that is decided about it."""

    # Offsets in bytes a lane, by the name of the tensor, or of the layer for working memory.
    plan: Plan

    @property
    def group(self) -> Group:
        """The layers."""
        return self.slices.group

    @property
    def cut(self) -> Cut:
        """The cut of the group into slices."""
        return self.slices.cut

    @property
    def halo(self) -> str:
        """``keep`` if all halos are kept, ``recompute`` if none is, else ``mixed``."""
        kept = self.slices.kept
        if not kept:
            return "recompute"
        again = any(self.slices.repeated_rows(n) for n in self.group.names if n not in kept)
        return "mixed" if again else "keep"

    @cached_property
    def bank_conflicts(self) -> int:
        """Time steps in which operands, or an operand and a transfer, share a bank."""
        return bank_conflicts(self.local, self.steps, self.plan)

    @property
    def repeated_rows(self) -> int:
        """Rows of the tensors that the group computes, each time that they are made again."""
        return sum(self.slices.repeated_rows(name) for name in self.group.made)


def place(local: LocalMemory, planner: str, steps: TimeSteps | None = None) -> Plan | None:
    """Return offsets for what takes local memory, or None if the planner finds none that fit.

    Given the time steps, `PORTFOLIO` looks at banks, too: see `banks`.
    """
    if local.most_live > (local.memory.capacity or 0):
        return None
    quick = (QUICK,) if planner == PORTFOLIO else ()
    plans = (solve(local.problem, name, GROUP_BUDGET) for name in (*quick, planner))
    plan = next((plan for plan in plans if plan.fits), None)
    if plan is None or steps is None or planner != PORTFOLIO:
        return plan
    return in_banks(local, steps, plan)


def can_be_cut(group: Group, cut: Cut, chip: Chip) -> bool:
    """Return whether each output of a group has as many slices, and each layer can be cut so."""
    index, last = group.index, group.last
    return all(
        chip.lanes.can_be_cut(index, layer, cut, stored=index.leaves(layer.output, last))
        for layer in group.layers
    )


def sliced(
    group: Group, cut: Cut, chip: Chip, loops: Mapping[str, PartLoop] | None = None
) -> GroupSlices:
    """Return the slices of a group that can be cut so, with its `loops`, if these are known."""
    if loops is None:
        cores = cut.cores if cut.by_channels else 1
        loops = part_loops(group, chip.lanes, cut.part_bytes, cores)
    return slice_group(group, cut, loops)


def unbalanced_memory(slices: GroupSlices, chip: Chip) -> LocalMemory:
    """Return what takes local memory before any transfer is moved to another time step."""
    steps = time_steps(slices.group, slices.loops)
    return of_time_steps(slices, steps, chip.memory, lane_bytes(slices, chip.lanes))


def draft_slices(slices: GroupSlices, chip: Chip) -> Draft | None:
    """Return a draft of a group with these slices, or None if more is live than there is."""
    steps = time_steps(slices.group, slices.loops)
    sizes = lane_bytes(slices, chip.lanes)
    local = of_time_steps(slices, steps, chip.memory, sizes)
    if local.most_live > chip.capacity:
        return None
    cost, final = group_cost(slices, steps, chip.machine, chip.lanes, sizes)
    if final != steps:
        # A transfer that was moved holds its bytes for longer.
        moved = of_time_steps(slices, final, chip.memory, sizes)
        if moved.most_live <= chip.capacity:
            return Draft(slices, final, moved, cost)
        cost, _ = group_cost(slices, steps, chip.machine, chip.lanes, sizes, balance=False)
    return Draft(slices, steps, local, cost)


def plan_group(
    group: Group,
    cut: Cut,
    chip: Chip,
    placed: Callable[[LocalMemory, str], Plan | None] = place,
) -> PlannedGroup | None:
    """Return a group planned with a given cut by `placed`, or None if it does not fit."""
    draft = draft_slices(sliced(group, cut, chip), chip) if can_be_cut(group, cut, chip) else None
    plan = None if draft is None else placed(draft.local, chip.planner)
    if draft is None or plan is None:
        return None
    return PlannedGroup(draft.slices, draft.steps, draft.local, draft.cost, plan)
