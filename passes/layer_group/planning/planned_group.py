# SPDX-License-Identifier: Apache-2.0
"""A group that is ready to run: its slices, time steps, cost and addresses in local memory."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from passes.layer_group.planning.cost import LANES, TRANSFERS, GroupCost, group_cost
from passes.layer_group.planning.group import Group, NetworkIndex
from passes.layer_group.planning.lanes import Lanes
from passes.layer_group.planning.local_memory import LocalMemory, item_bytes, of_time_steps
from passes.layer_group.planning.network import Layer
from passes.layer_group.planning.runs import streams_of
from passes.layer_group.planning.slicing import (
    Cut,
    GroupSlices,
    slice_group,
)
from passes.layer_group.planning.time_steps import TimeSteps, nearest, pipeline
from passes.planning import Budget, Plan, get_planner, solve
from target_hw.machine import Machine
from target_hw.memory import MemoryScope

PORTFOLIO, QUICK = "best", "first_fit"
"""The planner that tries all planners, and the one whose plan does where it fits."""

GROUP_BUDGET = Budget(nodes=1_000)
"""What a planner that searches may spend on one group."""


@dataclass(frozen=True)
class Chip:
    """The chip that groups run on, and the planner of its local memory.

    Raises ValueError if the memory has no capacity or no lanes, a pipe is missing, or the planner
    is unknown.
    """

    # One lane's local memory, with the facts ``lanes`` and ``eu_bytes`` and a capacity.
    memory: MemoryScope
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
        """How many cores the chip has, each with such a memory."""
        return dict(self.memory.facts).get("cores", 1)

    @property
    def capacity(self) -> int:
        """Bytes a lane."""
        return self.memory.capacity or 0


@dataclass(frozen=True)
class PlannedGroup:
    """A group with everything that is decided about it."""

    slices: GroupSlices  # The slices of all its tensors
    steps: TimeSteps  # When each layer computes and each transfer runs
    local: LocalMemory  # What takes local memory, and when
    cost: GroupCost  # Cycles and bytes moved
    # Offsets in bytes a lane, by the name of the tensor, or of the layer for working memory.
    plan: Plan

    @property
    def group(self) -> Group:
        """The layers."""
        return self.slices.group

    @property
    def numbers(self) -> tuple[int, ...]:
        """Numbers of the layers in the network."""
        return self.slices.group.numbers

    @property
    def cut(self) -> Cut:
        """How many slices."""
        return self.slices.cut

    @property
    def halo(self) -> str:
        """``keep`` if the rows of all tensors are kept, ``recompute`` if of none, else ``mixed``.

        Only tensors whose slices overlap count.
        """
        kept = self.slices.kept
        again = [n for n in self.group.names if n not in kept and self.slices.repeated_rows(n)]
        if not again:
            return "keep" if kept else "recompute"
        return "mixed" if kept else "recompute"


def place(local: LocalMemory, planner: str) -> Plan | None:
    """Return offsets for the items of a group, or None if the planner finds none that fit.

    ``best`` takes the plan of first fit where that fits.
    """
    if max(local.live_bytes, default=0) > (local.memory.capacity or 0):
        return None
    quick = (QUICK,) if planner == PORTFOLIO else ()
    plans = (solve(local.problem, name, GROUP_BUDGET) for name in (*quick, planner))
    return next((plan for plan in plans if plan.fits), None)


def can_be_cut(group: Group, cut: Cut, chip: Chip) -> bool:
    """Whether each output of a group has as many slices, and each layer can be cut so."""
    outputs = frozenset(group.outputs)
    return all(
        layer_can_be_cut(group.index, layer, cut, chip, stored=layer.output in outputs)
        for layer in group.layers
    )


def layer_can_be_cut(
    index: NetworkIndex, layer: Layer, cut: Cut, chip: Chip, *, stored: bool
) -> bool:
    """Whether a layer of a group can be cut so; whether its result is stored there."""
    sizes = chip.lanes.most_slices(index, layer.output)
    counts = (cut.n, cut.h, cut.w)
    fits = not stored or all(n <= most for n, most in zip(counts, sizes, strict=True))
    return fits and (cut.w == 1 or layer.by_columns)


def sliced(group: Group, cut: Cut, chip: Chip, keep: str = "") -> GroupSlices:
    """Return the slices of a group that can be cut so, its layers in parts as the cut says."""
    streams = streams_of(group, chip.lanes, cut)
    return slice_group(
        group, cut, keep, n_unit=chip.lanes.batch_unit(group.index.least_bits), streams=streams
    )


Draft = tuple[TimeSteps, LocalMemory, GroupCost]
"""All that is decided about a group with given slices but addresses; see `PlannedGroup`."""


def draft_slices(slices: GroupSlices, chip: Chip) -> Draft | None:
    """Return a draft of a group with these slices, or None if more is live than there is."""
    sizes = item_bytes(slices, chip.lanes)
    steps = pipeline(nearest(slices.group, slices.streams))
    local = of_time_steps(slices, steps, chip.memory, sizes)
    if max(local.live_bytes, default=0) > chip.capacity:
        return None
    cost, final = group_cost(slices, steps, chip.machine, chip.lanes, sizes)
    if final != steps:
        # A transfer that was moved holds its bytes for longer.
        moved = of_time_steps(slices, final, chip.memory, sizes)
        if max(moved.live_bytes, default=0) <= chip.capacity:
            return final, moved, cost
        cost, _ = group_cost(slices, steps, chip.machine, chip.lanes, sizes, balance=False)
    return steps, local, cost


def plan_group(group: Group, cut: Cut, chip: Chip, keep: str = "") -> PlannedGroup | None:
    """Return a group planned with a given cut, or None if it does not fit."""
    if not can_be_cut(group, cut, chip):
        return None
    slices = sliced(group, cut, chip, keep)
    draft = draft_slices(slices, chip)
    plan = None if draft is None else place(draft[1], chip.planner)
    return None if draft is None or plan is None else PlannedGroup(slices, *draft, plan)
