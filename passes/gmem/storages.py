# SPDX-License-Identifier: Apache-2.0
"""The ways to place a Relax function's tensors in storages: its placements.

A plan of another planner than the default one is taken as it is, and so is one whose tensors have
addresses. Of the default one, `passes.gmem.chosen_ways` takes the ways that serve a module best.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from passes.driver import place
from passes.gmem.allocations import storage_span
from passes.gmem.options import BEST, Form, GMEMOptions, Solvers
from passes.gmem.planning.pool import (
    PAGE,
    Piece,
    Pieces,
    Placement,
    cost,
    in_given_slots,
    in_one_piece,
    in_slots,
    with_returned,
)
from passes.planning import Bindings, Buffer, Problem, does_not_fit, join_ranges, live_bytes
from passes.relax import KernelUses, RelaxMemory, TensorGroup

LEAST_SHARE = 32
"""Tensors may be placed in results that are at least 1 / `LEAST_SHARE` as large as the peak."""


def placement_of(memory: RelaxMemory, options: GMEMOptions, solvers: Solvers) -> Placement:
    """Return the storages of a function, for each group of its tensors."""
    return with_own_storages(memory, cheapest_ways(memory, options, solvers), None)


def cheapest_ways(memory: RelaxMemory, options: GMEMOptions, solvers: Solvers) -> Placement:
    """Return for each group the way for which the pool takes the fewest bytes."""
    return tuple(pieces_of_group(memory, group, options, solvers) for group in memory.groups)


def pieces_of_group(
    memory: RelaxMemory, group: TensorGroup, options: GMEMOptions, solvers: Solvers
) -> Pieces:
    """Return the way to place a group for which the pool takes the fewest bytes."""
    return cheapest(group, ways_of_group(memory, group, options, solvers))


def cheapest(group: TensorGroup, ways: Sequence[Pieces]) -> Pieces:
    """Return the way for which the pool takes the fewest bytes; of equals, the first."""
    page = PAGE if group.unit is None else 1
    return min(ways, key=lambda pieces: cost(group.every, pieces, page))


def ways_of_group(
    memory: RelaxMemory, group: TensorGroup, options: GMEMOptions, solvers: Solvers
) -> list[Pieces]:
    """Return the ways to place a group in the form that its device takes."""
    form, problem, uses = options.form(memory.mod, group), group.problem, memory.kernel_arguments
    if group.is_main and options.has_addresses():
        overflow = partial(does_not_fit, places=Bindings(memory.bindings))
        plan = place(problem, solvers.offsets if form.offsets else solvers.slots, overflow=overflow)
        return [in_one_piece(plan) if form.offsets else in_slots(problem, plan)]
    if not form.offsets or uses is not None:
        in_kernels = _in_kernels(uses, group, form, solvers) if uses is not None else ()
        return [_in_slots(problem, solvers), *in_kernels]
    plan = place(problem, solvers.offsets)
    ways = [in_one_piece(plan)]
    if solvers.planner == BEST:
        ways += _in_results(group, plan.peak, solvers)
    if group.unit is not None and (solvers.planner != BEST or options.has_addresses()):
        # Padding multiplies, and there is no choice of ways that looks at slots, too.
        ways.append(_in_slots(problem, solvers))
    return ways


def slots_of_units(memory: RelaxMemory, placement: Placement, solvers: Solvers) -> Placement:
    """Return a placement with whole slots for sizes that only the running program knows."""
    pairs = zip(memory.groups, placement, strict=True)
    return tuple(
        own if group.unit is None else _in_slots(group.problem, solvers) for group, own in pairs
    )


def _in_slots(problem: Problem, solvers: Solvers) -> Pieces:
    """Return buffers in whole slots: a storage of its own needs no padding."""
    unaligned = replace(problem, memory=replace(problem.memory, alignment=1))
    return in_slots(unaligned, place(unaligned, solvers.slots))


def _in_results(group: TensorGroup, peak: int, solvers: Solvers) -> Iterator[Pieces]:
    """Yield a way in which tensors stand in the memory of results, where that may take less."""
    results = sum(buffer.size for buffer in group.returned)
    every = replace(group.problem, buffers=group.allocated)
    most_live = max((nbytes for _, nbytes in live_bytes(every)), default=0)
    if results * LEAST_SHARE > peak and most_live < peak + results:
        page = PAGE if group.unit is None else 1
        yield with_returned(group.problem, group.returned, solvers.again, page)


def keeping_largest(
    memory: RelaxMemory, group: TensorGroup, pieces: Pieces, options: GMEMOptions, solvers: Solvers
) -> Iterator[Pieces]:
    """Yield ways that keep one, two, ... of the largest storages of another plan, with one more.

    Each that is kept has its size, and is free where tensors of unknown size live for which the
    other plan's is: the pool serves those with it where by chance they are as large.
    """
    if memory.kernel_arguments is not None or memory.keeps_storages:
        return
    has_offsets, end = options.form(memory.mod, group).offsets, len(memory.bindings) + 1
    inside = {buffer.name: buffer for buffer in group.problem.buffers}
    unknown = [one for other in memory.groups if other.unit is not None for one in other.every]
    kept: list[Buffer] = []
    for piece in sorted(pieces, key=lambda piece: -piece.size):
        if not piece.offsets.keys() <= inside.keys():
            continue
        begin, after = storage_span(memory, group, [inside[name] for name in piece.offsets])
        others = (live for one in unknown for live in one.live)
        free = [live for live in others if live[1] <= begin or after <= live[0]]
        kept.append(Buffer(f" {len(kept)}", piece.size, join_ranges([*free, (end, end + 1)])))
        if has_offsets:
            made = with_returned(group.problem, kept, solvers.again)
        else:
            every = (*group.problem.buffers, *kept)
            made = _in_slots(replace(group.problem, buffers=every), solvers)
        named = [{n: at for n, at in one.offsets.items() if n in inside} for one in made]
        yield tuple(replace(one, offsets=of) for one, of in zip(made, named, strict=True) if of)


def _in_kernels(
    uses: KernelUses, group: TensorGroup, form: Form, solvers: Solvers
) -> Iterator[Pieces]:
    """Yield a way in which only kernels see an offset, if they see at most so many bytes."""
    if not form.offsets:
        return
    buffers = group.problem.buffers
    moved = tuple(buffer for buffer in buffers if buffer.name not in uses.from_start)
    fixed = tuple(buffer for buffer in buffers if buffer.name in uses.from_start)
    plan = place(replace(group.problem, buffers=moved), solvers.offsets)
    if form.most is None or plan.peak <= form.most:
        rest = replace(group.problem, buffers=fixed)
        yield (*in_one_piece(plan), *_in_slots(rest, solvers))


def as_stock_shares(memory: RelaxMemory, stock: Placement) -> Placement:
    """Return the sharing of `StaticPlanBlockMemory` as far as our live ranges accept it.

    A storage that it shares with what something unknown may keep has its size there, too.
    """
    placement = []
    for group, pieces in zip(memory.groups, stock, strict=True):
        paths = {name: of.path for name, of in group.uses.items()}
        slots: list[Piece] = []
        for piece in pieces:
            named = [name for name in piece.offsets if name in group.problem.index]
            own = in_given_slots(group.problem, [named], paths)
            whole = len(named) == len(piece.offsets)
            slots += own if whole else (replace(slot, size=piece.size) for slot in own)
        placement.append(tuple(slots))
    return with_own_storages(memory, tuple(placement), stock)


def with_own_storages(
    memory: RelaxMemory, placement: Placement, stock: Placement | None
) -> Placement:
    """Return a placement with storages of their own for tensors that share with no others.

    A tensor that `StaticPlanBlockMemory` shares, and that something unknown may keep, gets one of
    the size that it has there: where nothing keeps it, the pool serves the next with its block. But
    CUDA graphs keep storages from call to call.
    """
    result = []
    for number, (group, pieces) in enumerate(zip(memory.groups, placement, strict=True)):
        placed = {name for piece in pieces for name in piece.offsets}
        given = () if stock is None else stock[number]
        as_stock = {name: piece.size for piece in given for name in piece.offsets}
        own = []
        for buffer in group.every:
            uses = group.uses[buffer.name]
            if buffer.name in placed or (memory.keeps_storages and not uses.is_result):
                continue
            if uses.has_storage or buffer.name in as_stock:
                size = max(as_stock.get(buffer.name, 0), buffer.size)
                own.append(Piece(size, {buffer.name: 0}))
        result.append((*pieces, *own))
    return tuple(result)
