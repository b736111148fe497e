# SPDX-License-Identifier: Apache-2.0
"""A group that is ready to run: its slices, time steps, cost and addresses; or bounds of these."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from passes.layer_group.planning.cost import LANES, TRANSFERS, Cost, group_cost, layer_cycles
from passes.layer_group.planning.cut import Cut
from passes.layer_group.planning.lanes import Lanes
from passes.layer_group.planning.local_memory import (
    LocalMemory,
    bank_conflicts,
    in_banks,
    lane_bytes,
    of_time_steps,
    working_bytes,
)
from passes.layer_group.planning.loops import PartLoop, part_loops
from passes.layer_group.planning.network import Group, Kind, NetworkIndex
from passes.layer_group.planning.slicing import GroupSlices, Slicer, slice_group
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
        others = (one for name, one in self.slices.tensors.items() if name not in kept)
        again = any(one.repeated_rows for one in others if not one.is_in_parts)
        return "mixed" if again else "keep"

    @property
    def content(self) -> Hashable:
        """The decisions, but for names."""
        offsets = tuple(self.plan.offsets[name] for name in self.local.sizes)
        return self.cut, self.local.content, offsets, self.plan.peak

    @cached_property
    def bank_conflicts(self) -> int:
        """Time steps in which operands, or an operand and a transfer, share a bank."""
        return bank_conflicts(self.local, self.steps, self.plan)

    @property
    def repeated_rows(self) -> int:
        """Rows of the tensors that the group computes, each time that they are made again."""
        made = (self.slices.tensors[name] for name in self.group.made)
        return sum(one.repeated_rows for one in made if not one.is_in_parts)


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


def draft_slices(slices: GroupSlices, chip: Chip) -> Draft | None:
    """Return a draft of a group with these slices, or None if more is live than there is."""
    steps = time_steps(slices.group, slices.loops)
    sizes = lane_bytes(slices, chip.lanes)
    local = of_time_steps(slices, steps, chip.memory, sizes)
    if local.most_live > chip.capacity:
        return None
    cost, final = group_cost(slices, steps, chip.machine, chip.lanes, sizes)
    if final.rows != steps.rows:
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


class Step(NamedTuple):
    """The facts about a group before it is drafted."""

    moving: int  # Cycles of all its transfers
    computing: int  # Cycles of all its layers on one core
    edges: int  # Cycles of a slice's first loads and last stores, beside which nothing computes
    moved: int  # Bytes between global and local memory
    fits: bool  # Whether each layer has room beside the weights that stay
    overlap: bool  # Whether any two slices share rows

    def bound(self, cores: int) -> int:
        """Return what the price is at least, if so many cores share what is computed.

        That is if layers compute while transfers run, and wait for nothing but the first layer's
        loads; the last layer's stores follow. No order of time steps costs less.
        """
        return self.moving + max(self.moving, self.computing // cores + self.edges)


class Walk:
    """All groups that end with the layer of number `last` and have one cut, the shortest first.

    They take their slices from one `Slicer`. Where it is `strict`, none has a tensor that is made
    too often: see `is_made_too_often`.
    """

    def __init__(
        self, index: NetworkIndex, chip: Chip, last: int, cut: Cut, *, strict: bool = False
    ) -> None:
        self._index, self._chip, self.last, self.cut = index, chip, last, cut
        self._strict = strict
        self._pipe = chip.machine[TRANSFERS]
        self._slicer = Slicer(index, cut)
        self._steps: list[Step | None] = []  # Of each group so far, the shortest first
        self._overlap = False
        self._computing = 0  # Cycles of the layers for all slices
        # Bytes of all slices of a tensor that is loaded or stored, and cycles of these transfers
        self._moves: dict[str, tuple[int, int]] = {}
        self._moved = self._moving = 0  # Their sums
        self._last_stores = 0  # Cycles of a slice's stores of the last layer
        self._stay: dict[str, int] = {}  # Bytes a lane of weights that stay for all slices
        self._staying = 0  # Their sum
        self._next: dict[str, int] = {}  # Bytes a lane of what else the next layer reads
        self._most = 0  # Bytes a lane, at most, that one layer needs beside what stays

    def to(self, number: int) -> Step | None:
        """Return the facts of the group that begins here; None if it cannot be cut so."""
        while len(self._steps) <= self.last - number:
            able = None not in self._steps[-1:]
            self._steps.append(self._add(self.last - len(self._steps)) if able else None)
        return self._steps[self.last - number]

    def slices(self, first: int) -> GroupSlices:
        """Return the slices of the group that begins with layer `first`, the longest so far."""
        self.to(first)
        return self._slicer.slices(self._index.group(first, self.last))

    def _add(self, number: int) -> Step | None:
        """Put the layer of this number before the others; None if it cannot be cut so."""
        index, chip, lanes, cut = self._index, self._chip, self._chip.lanes, self.cut
        layer, turns = index.network.layers[number], cut.turns
        stored = index.leaves(layer.output, self.last)
        if cut.steps > 1 and not lanes.can_be_cut(index, layer, cut, stored=stored):
            return None
        self._slicer.add(layer, stored=stored)
        made = self._slicer.tensors[layer.output]
        self._computing += layer_cycles(chip.machine, lanes, index, layer, made.made_elements)
        each = self._move(layer.output, index.bytes[layer.output] if stored else 0, turns)
        if number == self.last:
            self._last_stores = each
        edges, reads = self._last_stores, {}
        read = [self._slicer.tensors[name] for name in dict.fromkeys(layer.inputs)]
        for one in read:
            name, stays = one.tensor.name, turns > 1 and one.is_whole
            nbytes = one.bytes_in(lanes)
            if stays and one.tensor.kind is Kind.WEIGHT:
                self._staying += nbytes - self._stay.get(name, 0)
                self._stay[name] = nbytes
            else:
                reads[name] = nbytes
            loaded = -(-one.made_elements * one.tensor.bits // 8)
            edges += self._move(name, loaded, 1 if stays else turns)
        # A tensor that the next layer reads is there one step before.
        held = reads | self._next
        held[layer.output] = made.bytes_in(lanes)
        self._next = reads
        self._most = max(self._most, sum(held.values()) + working_bytes(layer, made, lanes))
        again = [one for one in (made, *read) if one.repeated_rows]
        self._overlap = self._overlap or bool(again)
        if self._strict and any(one.is_made_too_often for one in again):
            return None
        fits = self._most + self._staying <= chip.capacity
        return Step(self._moving, self._computing, edges, self._moved, fits, self._overlap)

    def _move(self, name: str, nbytes: int, times: int) -> int:
        """Move a tensor so often, not as before; return the cycles of each time."""
        cores = self.cut.cores
        each = self._pipe.cycles(-(-nbytes // (times * cores))) * cores if nbytes else 0
        moved, took = self._moves.get(name, (0, 0))
        self._moves[name] = nbytes, each * times
        self._moved, self._moving = self._moved + nbytes - moved, self._moving + each * times - took
        return each
