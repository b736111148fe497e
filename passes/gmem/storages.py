# SPDX-License-Identifier: Apache-2.0
"""What Relax functions allocate at run time: plans cut into storages, held against the stock pass.

A plan of another planner than the default one is written as it is, and so is one whose tensors have
addresses. The others are `passes.gmem.never_above`'s to choose from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

from passes.driver import error_context, place
from passes.gmem.analysis.registers import read_machine_function
from passes.gmem.analysis.stock_sharing import stock_sharing
from passes.gmem.forms import IN_KERNELS, Form
from passes.gmem.kernel_offsets import MOST_GROWTH, growth
from passes.gmem.never_above import Candidates, choose
from passes.gmem.options import BEST, HOST_KINDS, LOGGER, PASS, GMEMOptions
from passes.gmem.planning.cuts import (
    divided,
    in_fewer,
    in_one_piece,
    ways_to_cut,
)
from passes.gmem.planning.gmem_layout import GMEMLayout
from passes.gmem.planning.machine import Function
from passes.gmem.planning.pieces import PAGE, Cut, Piece, cost
from passes.gmem.planning.slots import in_given_slots, in_slots, ways_in_slots
from passes.gmem.relax_memory import write_storages
from passes.planning import Buffer, Plan, Problem
from passes.planning.live_ranges import live_together
from passes.relax.facts import KernelUses, RelaxMemory, TensorGroup


@dataclass(frozen=True, eq=False)
class FunctionPlan:
    """One Relax function with its plan."""

    memory: RelaxMemory  # What was read: also which tensors are left to the run time, and why
    # The tensors of constant size on the main device: offsets from the start of their memory.
    problem: Problem
    plan: Plan  # Of that problem; verified, and within the capacity
    layout: GMEMLayout  # The addresses that follow
    # The same as `memory`, but with all tensors of a function that may be called again while it
    # runs: some of them may share memory as in the stock pass. Its groups are allocated.
    whole: RelaxMemory
    form: Form  # Of the main group, and why
    cut: Cut = ()  # What is allocated at run time: of all groups, the tensors of the plan too
    copied: int = 0  # Bytes that the run time copies in a call, since a tensor is at an offset


def cut_plans(
    plans: Sequence[FunctionPlan],
    callers: Mapping[str, frozenset[str]],
    planner: str,
    options: GMEMOptions,
) -> tuple[FunctionPlan, ...]:
    """Return plans with what each function allocates.

    `callers` has for each function all that may be waiting for it to return.
    """
    ways = []
    for planned in plans:
        with error_context(PASS, planned.memory.name):
            is_left = planned.memory is not planned.whole
            groups: list[list[tuple[Piece, ...]]] = [
                [()] if is_left else _group_ways(planned, group, planner, options)
                for group in planned.whole.groups
            ]
            ways.append(_Ways(planned, groups))
    if planner == BEST and not options.has_addresses():
        _choose(ways, callers, options)
    return tuple(way.result(options) for way in ways)


@dataclass(eq=False)
class _Ways:
    """The ways to cut one function's plan: for each group of its tensors, the best one first."""

    planned: FunctionPlan
    groups: list[list[tuple[Piece, ...]]]
    stock: Cut | None = None
    chosen: tuple[int, ...] = ()  # For each group, the best way where there is none

    @property
    def memory(self) -> RelaxMemory:
        return self.planned.whole

    def cut(self, indices: Sequence[int] = ()) -> Cut:
        """Return one way of each group; the best ones where none are named."""
        return tuple(
            ways[index]
            for ways, index in zip(self.groups, indices or [0] * len(self.groups), strict=True)
        )

    def machine(self, indices: Sequence[int]) -> Function:
        """Return the function with one way of each group, as the machine runs it."""
        mod, name = self.memory.mod, self.memory.name
        func = write_storages(self.memory, self.cut(indices))
        return read_machine_function(mod, mod.get_global_var(name), func)

    def result(self, options: GMEMOptions) -> FunctionPlan:
        """Return the plan with the pieces that were chosen."""
        cut = self.cut(self.chosen)
        copied = 0
        for group, pieces in zip(self.memory.groups, cut, strict=True):
            if (
                options.offsets != IN_KERNELS
                and not replace(options, offsets=None).form(self.memory.mod, group).offsets
            ):
                moved = {name for piece in pieces for name, at in piece.offsets.items() if at}
                copied += sum(buffer.size for buffer in group.allocated if buffer.name in moved)
        if any(cut) and cut == self.stock:
            LOGGER.info(
                "function %r: its tensors share storages as StaticPlanBlockMemory shares them: no "
                "other plan is shown to take less",
                self.memory.name,
            )
        return replace(self.planned, cut=cut, copied=copied)


def _group_ways(
    planned: FunctionPlan, group: TensorGroup, planner: str, options: GMEMOptions
) -> list[tuple[Piece, ...]]:
    by_pool = planner == BEST and not (group.is_main and options.has_addresses())
    page = PAGE if group.unit is None else 1
    if not options.form(planned.memory.mod, group).offsets:
        # Where no addresses are asked for, a slot needs no padding.
        plan, problem = planned.plan, group.problem
        if not (group.is_main and options.has_addresses()):
            problem = replace(problem, memory=replace(problem.memory, alignment=1))
            plan = place(problem, options.slot_solver(planner))
        ways = ways_in_slots(problem, group.returned, plan, group.alone, page)
        return ways if by_pool else [in_slots(problem, plan) or ()]
    uses = planned.memory.kernel_arguments
    if uses is not None:
        return _kernel_ways(planned.memory, uses, group, planner, options)
    plan = planned.plan if group.is_main else place(group.problem, options.solver(planner))
    if not by_pool:
        return [in_one_piece(plan)]
    solver = options.short_solver()
    return ways_to_cut(group.problem, group.returned, plan, solver, group.alone, page)


def _kernel_ways(
    memory: RelaxMemory, uses: KernelUses, group: TensorGroup, planner: str, options: GMEMOptions
) -> list[tuple[Piece, ...]]:
    """Return ways in which only kernels see an offset, and see no more than they may."""
    most = options.form(memory.mod, group).most
    moved: list[Buffer] = []
    fixed: list[Buffer] = []
    for buffer in sorted(group.problem.buffers, key=lambda buffer: -buffer.size):
        at_start = [one for one in moved if one.pinned is not None]
        if most is not None and buffer.size > most:
            fixed.append(buffer)
        elif buffer.name not in uses.from_start:
            moved.append(buffer)
        elif any(live_together(one.live, buffer.live) for one in at_start):
            fixed.append(buffer)
        else:  # One at a time may begin where the piece does.
            moved.append(replace(buffer, pinned=(0,)))
    in_kernels = replace(group.problem, buffers=tuple(moved))
    unaligned = replace(group.problem, memory=replace(group.problem.memory, alignment=1))
    rest = replace(unaligned, buffers=tuple(fixed))
    slots = options.slot_solver(planner)
    page = PAGE if group.unit is None else 1
    plan = place(unaligned, slots)
    ways = ways_in_slots(unaligned, group.returned, plan, group.alone, page)
    pieces: tuple[Piece, ...] | None = in_one_piece(place(in_kernels, options.solver(planner)))
    whole = sum(piece.size for piece in pieces or ())
    if most is not None and whole > most:
        pieces = divided(in_kernels, 2 * whole, [most] * (whole // most), options.short_solver())
    if pieces is not None and all(most is None or piece.size <= most for piece in pieces):
        times = growth(memory.mod, uses, pieces)
        if times > MOST_GROWTH:
            text = "function %r: not in kernels, which would have %.2f times the code"
            LOGGER.info(text, memory.name, times)
        else:
            ways.insert(0, (*pieces, *(in_slots(rest, place(rest, slots)) or ())))
    ways.sort(key=lambda pieces: cost((*group.allocated, *group.alone), pieces, page))
    return ways if planner == BEST else ways[:1]


def _choose(
    ways: Sequence[_Ways], callers: Mapping[str, frozenset[str]], options: GMEMOptions
) -> None:
    """Choose for each function the best of the ways that take no more than the stock pass's."""
    if options.keeps_storages:
        _choose_kept(ways, options)
    memories = [way.memory for way in ways]
    handed_on = any(memory.hands_on for memory in memories)
    bounds = {str(b.variable.name): b.upper for memory in memories for b in memory.bounds}
    for way, memory in zip(ways, memories, strict=True):
        way.stock = _stock_cut(memory, options)
        if way.stock is not None:
            keeps = handed_on or memory.name in callers[memory.name]
            way.groups = [
                way.groups[index]
                if memory.keeps_storages and memory.groups[index].unit is None
                else [*([] if keeps else _others(way, index, stock, options)), stock]
                for index, stock in enumerate(way.stock)
            ]
    ordered = sorted(ways, key=lambda way: (-len(callers[way.memory.name]), way.memory.name))
    entries = [
        way.memory.name
        for way in ways
        if not callers[way.memory.name] or "global_symbol" in (way.memory.func.attrs or {})
    ]
    choices = [
        Candidates(way.memory.name, tuple(map(len, way.groups)), way.machine) for way in ordered
    ]
    chosen = choose(choices, entries, bounds, 0 if options.target_kind() in HOST_KINDS else None)
    for way in ways:
        way.chosen = chosen[way.memory.name]


def _choose_kept(ways: Sequence[_Ways], options: GMEMOptions) -> None:
    """Choose one way for each group of constant sizes, where storages are kept from call to call.

    `RewriteCUDAGraph` keeps those of all functions together: as many as one function has at most,
    and the k-th largest of all has the bytes of any function's k-th largest. So one piece a group
    is best, unless that is above what the stock pass's sharing takes.
    """
    stock = [_stock_cut(way.memory, options) for way in ways]
    ours: list[int] = []
    theirs: list[int] = []
    for way, cut in zip(ways, stock, strict=True):
        constant = [i for i, group in enumerate(way.memory.groups) if group.unit is None]
        for index in constant:
            way.groups[index] = [min(way.groups[index], key=_bytes_of)]
        ours = _kept_together(ours, [p.size for i in constant for p in way.groups[i][0]])
        theirs = _kept_together(theirs, [p.size for i in constant for p in (cut or {i: ()})[i]])
    if sum(ours) > sum(theirs) and None not in stock:
        for way, cut in zip(ways, stock, strict=True):
            for index, group in enumerate(way.memory.groups):
                if cut is not None and group.unit is None:
                    way.groups[index] = [cut[index]]


def _kept_together(kept: Sequence[int], sizes: Sequence[int]) -> list[int]:
    """Return the bytes of storages that serve one function more, largest first."""
    both = zip_longest(kept, sorted(sizes, reverse=True), fillvalue=0)
    return [max(one, other) for one, other in both]


def _bytes_of(pieces: tuple[Piece, ...]) -> tuple[int, int]:
    return sum(piece.size for piece in pieces), len(pieces)


def _others(
    way: _Ways, index: int, stock: tuple[Piece, ...], options: GMEMOptions
) -> list[tuple[Piece, ...]]:
    """Return the ways to cut a group that are not the stock pass's sharing, the best one first."""
    group, first, others = way.memory.groups[index], way.groups[index][0], way.groups[index][1:]
    fewer = None
    if options.offsets != IN_KERNELS and options.form(way.memory.mod, group).offsets:
        fewer = in_fewer(group.problem, stock, options.short_solver())
    return [one for one in (first, *([fewer] if fewer else []), *others) if one != stock]


def _stock_cut(memory: RelaxMemory, options: GMEMOptions) -> Cut | None:
    """Return the stock pass's sharing, as far as our live ranges accept it."""
    variable = memory.mod.get_global_var(memory.name)
    shared = stock_sharing(memory.mod, variable, options.upper_bounds)
    if shared is None:
        return None
    cut = []
    for group in memory.groups:
        # A buffer for the results of both branches is no single tensor of the stock pass.
        paths = {n: path for n, path in group.paths.items() if len(group.tensors[n]) == 1}
        names = [[memory.buffer_of.get(tensor, "") for tensor in tensors] for tensors in shared]
        single = [[name for name in same if name in paths] for same in names]
        cut.append(in_given_slots(group.problem, single, paths))
    return tuple(cut)
