# SPDX-License-Identifier: Apache-2.0
"""Which storages a Relax function allocates, and where its tensors stand in them: its placement.

A plan of another planner than the default one is taken as it is, and so is one whose tensors have
addresses. The default one's is taken where TVM's pool takes no more for it than for the sharing of
`StaticPlanBlockMemory`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain

from tvm.tirx import Var

from passes.driver import place
from passes.gmem.analysis.stock_sharing import stock_placement
from passes.gmem.options import BEST, LOGGER, SHORT_NODES, GMEMOptions
from passes.gmem.planning.pieces import in_one_piece, in_slots, with_returned
from passes.gmem.planning.pool import (
    PAGE,
    Blocks,
    Pieces,
    Placement,
    PoolAllocation,
    blocks_taken,
    bytes_of_blocks,
    cost,
    skipped_on_paths,
    storages,
)
from passes.planning import Bindings, Buffer, Problem, does_not_fit, live_bytes
from passes.relax import (
    HOST,
    KernelUses,
    RelaxMemory,
    TensorGroup,
    UnknownSizeError,
    same_device,
    value_of,
)

LEAST_SHARE = 32
"""Tensors may be placed in results that are at least 1 / `LEAST_SHARE` as large as the peak."""

_SIZES = (*range(1, 65), 96, 128, 256, 1024, 4096, 1 << 20)
"""Values of dimensions without a bound at which what the pool takes is compared."""


def placement_of(
    memory: RelaxMemory, planner: str, options: GMEMOptions, slots_of_units: bool = False
) -> Placement:
    """Return the storages of a function, for each group of its tensors.

    With `slots_of_units`, tensors of a size that only the running program knows are in whole slots.
    """
    return tuple(
        pieces_of_group(memory, group, planner, options, slots_of_units and group.unit is not None)
        for group in memory.groups
    )


def pieces_of_group(
    memory: RelaxMemory,
    group: TensorGroup,
    planner: str,
    options: GMEMOptions,
    whole_slots: bool = False,
) -> Pieces:
    """Return the way to place a group for which the pool takes the fewest bytes."""
    form, problem, uses = options.form(memory.mod, group), group.problem, memory.kernel_arguments
    if group.is_main and options.has_addresses():
        overflow = partial(does_not_fit, places=Bindings(memory.bindings))
        solver = options.solver(planner) if form.offsets else options.slot_solver()
        plan = place(problem, solver, overflow=overflow)
        return in_one_piece(plan) if form.offsets else in_slots(problem, plan)
    page = PAGE if group.unit is None else 1
    if form.offsets and uses is None and not whole_slots:
        plan = place(problem, options.solver(planner))
        ways = [in_one_piece(plan)]
        if planner == BEST:
            ways += _in_results(group, plan.peak, page, options)
    else:
        ways = [_in_slots(problem, options)]
        if form.offsets and uses is not None:
            ways += _in_kernels(uses, group, form.most, planner, options)
    return min(ways, key=lambda pieces: cost((*group.allocated, *group.alone), pieces, page))


def _in_slots(problem: Problem, options: GMEMOptions) -> Pieces:
    """Return buffers in whole slots: a storage of its own needs no padding."""
    unaligned = replace(problem, memory=replace(problem.memory, alignment=1))
    return in_slots(unaligned, place(unaligned, options.slot_solver()))


def _in_results(group: TensorGroup, peak: int, page: int, options: GMEMOptions) -> Iterator[Pieces]:
    """Yield a way in which tensors stand in the memory of results, where that may take less."""
    results = sum(buffer.size for buffer in group.returned)
    every = replace(group.problem, buffers=group.allocated)
    most_live = max((nbytes for _, nbytes in live_bytes(every)), default=0)
    if results * LEAST_SHARE > peak and most_live < peak + results:
        again = options.solver(BEST, most=SHORT_NODES)
        yield with_returned(group.problem, group.returned, again, page)


def _in_kernels(
    uses: KernelUses, group: TensorGroup, most: int | None, planner: str, options: GMEMOptions
) -> Iterator[Pieces]:
    """Yield a way in which only kernels see an offset, if they see at most so many bytes."""
    buffers = group.problem.buffers
    moved = tuple(buffer for buffer in buffers if buffer.name not in uses.from_start)
    fixed = tuple(buffer for buffer in buffers if buffer.name in uses.from_start)
    plan = place(replace(group.problem, buffers=moved), options.solver(planner))
    if most is None or plan.peak <= most:
        rest = replace(group.problem, buffers=fixed)
        yield (*in_one_piece(plan), *_in_slots(rest, options))


# ------------------------------------------------------------------------ beside the stock pass


def choose_placements(
    memories: Sequence[RelaxMemory], callers: Mapping[str, frozenset[str]], options: GMEMOptions
) -> dict[str, Placement]:
    """Return our placement of each function where the pool takes no more than for the stock pass's.

    Else tensors of unknown sizes are in whole slots, or all share as under that pass. All functions
    of a module are compared together. One that calls another, that others call (`callers`) or that
    has too many paths to follow shares as the stock pass does. Storages that CUDA graphs keep from
    call to call are not the pool's, and ours in any case.
    """
    handed_on = any(memory.hands_on for memory in memories)
    ours: dict[str, Placement] = {}
    stock: dict[str, Placement] = {}
    for memory in memories:
        name, theirs = memory.name, stock_placement(memory, options.upper_bounds)
        is_known = memory.has_all_allocations and not (handed_on and memory.calls_unknown)
        is_judged = is_known and not callers[name] and skipped_on_paths(memory.branches) is not None
        if theirs is None or is_judged or memory.keeps_storages:
            ours[name] = placement_of(memory, BEST, options)
        if theirs is not None:
            if memory.keeps_storages:
                pairs = zip(memory.groups, theirs, ours[name], strict=True)
                theirs = tuple(own if g.unit is None else other for g, other, own in pairs)
            stock[name] = theirs
            ours[name] = ours[name] if is_judged else theirs
    compared = [memory for memory in memories if memory.name in stock]
    is_constant = all(group.unit is None for m in compared for group in m.groups)
    sizes = (1,) if is_constant else _SIZES
    taken = partial(_taken, sizes=sizes, host=options.host_device())
    try:
        under_stock = {m.name: taken(m, stock[m.name]) for m in compared}
    except UnknownSizeError:
        return {**ours, **stock}
    if _never_above([taken(m, ours[m.name]) for m in compared], under_stock.values()):
        return ours

    chosen, under_ours = {**ours, **stock}, dict(under_stock)
    for memory in compared:
        name = memory.name
        for way in _ways(memory, ours[name], options) if ours[name] != stock[name] else ():
            attempt = {**under_ours, name: taken(memory, way)}
            if _never_above(attempt.values(), under_stock.values()):
                chosen[name], under_ours = way, attempt
                break
        if any(stock[name]) and chosen[name] == stock[name]:
            LOGGER.info("function %r: tensors share as StaticPlanBlockMemory shares them", name)
    return chosen


def _ways(memory: RelaxMemory, ours: Placement, options: GMEMOptions) -> Iterator[Placement]:
    """Yield our placement; then, planned only if that takes more, slots for unknown sizes."""
    yield ours
    if any(group.unit is not None for group in memory.groups):
        yield placement_of(memory, BEST, options, slots_of_units=True)


Taken = list[list[Blocks]]
"""What a function takes from the pool: at each of some sizes, on each of its paths."""


def _taken(
    memory: RelaxMemory, placement: Placement, sizes: Sequence[int], host: int | None
) -> Taken:
    allocations = list(allocations_of(memory, placement, host))

    def taken_at(size: int) -> list[Blocks]:
        return blocks_on_paths(memory, allocations, lambda _variable: size)

    return list(map(taken_at, sizes))


def _never_above(ours: Iterable[Taken], stocks: Iterable[Taken]) -> bool:
    """Whether the pool takes no more for any call, nor for all functions at size after size.

    The pool is empty before each call; and, once more, all functions run on all paths at the first
    size, at the first two, and so on, from one pool.
    """
    mine: Blocks = Counter()
    theirs: Blocks = Counter()
    by_size = zip(zip(*ours, strict=True), zip(*stocks, strict=True), strict=True)
    for one_size, other_size in by_size:
        for one, other in zip(chain(*one_size), chain(*other_size), strict=True):
            if bytes_of_blocks(one) > bytes_of_blocks(other):
                return False
            mine |= one
            theirs |= other
        if bytes_of_blocks(mine) > bytes_of_blocks(theirs):
            return False
    return True


def blocks_on_paths(
    memory: RelaxMemory, allocations: Sequence[PoolAllocation], value: Callable[[Var], int]
) -> list[Blocks]:
    """Return what a call takes from an empty pool on each path, at some values of dimensions."""
    units = (group.unit for group in memory.groups)
    values = (1, *(1 if unit is None else max(value_of(unit, value), 0) for unit in units))
    paths = skipped_on_paths(memory.branches) or [()]
    return [blocks_taken(allocations, values, skipped) for skipped in paths]


def allocations_of(
    memory: RelaxMemory, placement: Sequence[Pieces], host: int | None
) -> Iterator[PoolAllocation]:
    """Yield what a function allocates at run time, by the device whose pool serves it.

    `host` is the device that has the memory of the virtual machine, if one of the devices has.
    """
    if memory.variables and host is not None:  # They are kept in the host's memory.
        yield PoolAllocation(host, 1, 0, 0, len(memory.bindings))
    for number, (group, pieces) in enumerate(zip(memory.groups, placement, strict=True), 1):
        device = same_device(memory.mod, group.device)[0]
        if device == HOST and host is not None:
            device = host
        results = {buffer.name for buffer in (*group.returned, *group.alone)}
        for size, inside in storages((*group.allocated, *group.alone), pieces):
            returned = any(buffer.name in results for buffer in inside)
            span = storage_span(memory, group, inside)
            yield PoolAllocation(device, size, number, *span, returned)


def storage_span(
    memory: RelaxMemory, group: TensorGroup, inside: Sequence[Buffer]
) -> tuple[int, int]:
    """Return the span of positions in which a storage of some buffers is in use.

    That is in the innermost sequence of bindings that has all of the buffers, up to its last one
    that uses one of them; an `if` is one such binding. A tuple may keep it longer.
    """
    uses = [group.uses[buffer.name] for buffer in inside]
    paths = [of.path for of in uses]
    depth = 0
    while all(len(path) > depth and path[depth] == paths[0][depth] for path in paths):
        depth += 1
    begins = [of.path[depth][0] if len(of.path) > depth else of.made_at for of in uses]
    if any(of.is_kept for of in uses):
        last = len(memory.bindings)
    else:
        last = max(one.live[-1][1] for one in inside)
    around = {position for position, _ in paths[0][:depth]}
    ends = [
        behind[1]
        for position, (_, behind) in memory.branches.items()
        if position not in around and position < last <= behind[1]
    ]
    return min(begins), max([last, *ends])
