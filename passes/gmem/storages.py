# SPDX-License-Identifier: Apache-2.0
"""Which storages a Relax function allocates, and where its tensors stand in them: its placement.

A plan of another planner than the default one is taken as it is, and so is one whose tensors have
addresses. Of the others there are several for each group of tensors, and the best one is chosen for
which TVM's pool takes no more than for the sharing of `StaticPlanBlockMemory`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain

from tvm.tirx import Var

from passes.driver import place
from passes.gmem.analysis.stock_sharing import stock_placement
from passes.gmem.options import BEST, FEW_NODES, LOGGER, SHORT_NODES, GMEMOptions
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
from passes.ir import nodes_in
from passes.planning import Bindings, Buffer, Problem, does_not_fit, live_bytes, live_together
from passes.relax import (
    KernelUses,
    RelaxMemory,
    TensorGroup,
    UnknownSizeError,
    same_device,
    value_of,
)

LEAST_SHARE = 32
"""Tensors are placed in results that have at least one part in so many of the others' bytes."""

_SIZES = (*range(1, 65), 96, 128, 256, 1024, 4096, 1 << 20)
"""Values of dimensions without a bound at which what the pool takes is compared."""


def pieces_of_group(
    memory: RelaxMemory, group: TensorGroup, planner: str, options: GMEMOptions
) -> list[Pieces]:
    """Return ways to place a group, that for which the pool takes the fewest bytes first.

    There is one way where tensors have addresses, and for a planner other than the default one.
    """
    form, problem = options.form(memory.mod, group), group.problem
    solver = options.solver(planner, slots=not form.offsets)
    if group.is_main and options.has_addresses():
        overflow = partial(does_not_fit, places=Bindings(memory.bindings))
        plan = place(problem, solver, overflow=overflow)
        return [in_one_piece(plan) if form.offsets else in_slots(problem, plan) or ()]
    page = PAGE if group.unit is None else 1
    if form.offsets and memory.kernel_arguments is None:
        plan = place(problem, solver)
        ways = [in_one_piece(plan)]
        if planner == BEST:
            ways += _in_results(group, plan.peak, page, options)
    else:
        ways = [_in_slots(problem, planner, options)]
        if form.offsets and memory.kernel_arguments is not None:
            ways += _in_kernels(memory.kernel_arguments, group, form.most, planner, options)
    ways.sort(key=lambda pieces: cost((*group.allocated, *group.alone), pieces, page))
    return ways if planner == BEST else ways[:1]


def _in_slots(
    problem: Problem, planner: str, options: GMEMOptions, most: int | None = None
) -> Pieces:
    """Return buffers in whole slots: a storage of its own needs no padding."""
    unaligned = replace(problem, memory=replace(problem.memory, alignment=1))
    plan = place(unaligned, options.solver(planner, slots=True, most=most))
    return in_slots(unaligned, plan) or ()


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
) -> list[Pieces]:
    """Return a way in which only kernels see an offset, and see at most so many bytes."""
    moved: list[Buffer] = []
    fixed: list[Buffer] = []
    at_start: list[Buffer] = []  # One at a time may begin where the piece does.
    for buffer in sorted(group.problem.buffers, key=lambda buffer: -buffer.size):
        if buffer.name not in uses.from_start:
            moved.append(buffer)
        elif any(live_together(one.live, buffer.live) for one in at_start):
            fixed.append(buffer)
        else:
            at_start.append(replace(buffer, pinned=(0,)))
            moved.append(at_start[-1])
    plan = place(replace(group.problem, buffers=tuple(moved)), options.solver(planner))
    if most is not None and plan.peak > most:
        return []
    rest = replace(group.problem, buffers=tuple(fixed))
    return [(*in_one_piece(plan), *_in_slots(rest, planner, options))]


# ------------------------------------------------------------------------ beside the stock pass


@dataclass(eq=False)
class _Function:
    """A function, the ways to place each group of its tensors, and what is chosen."""

    memory: RelaxMemory
    stock: list[Pieces] | None  # The stock pass's sharing; None where that pass fails
    groups: list[list[Pieces]] = field(default_factory=list)  # The best way first
    chosen: list[Pieces] = field(default_factory=list)

    def best(self) -> list[Pieces]:
        return [ways[0] for ways in self.groups]


def choose_placements(
    memories: Sequence[RelaxMemory], callers: Mapping[str, frozenset[str]], options: GMEMOptions
) -> dict[str, Placement]:
    """Choose for each function the best placement that takes no more than the stock pass's.

    The allocations of all functions of a module are compared where they are known: a function that
    calls another one, that others call (`callers`) or that has more paths than are followed shares
    as the stock pass does. Storages that CUDA graphs keep from call to call are not the pool's, so
    the fewest bytes are taken.
    """
    functions = []
    handed_on = any(memory.hands_on for memory in memories)
    for memory in memories:
        stock = stock_placement(memory, options.upper_bounds)
        is_known = memory.has_all_allocations and not (handed_on and memory.calls_unknown)
        is_judged = is_known and not callers[memory.name]
        function = _Function(memory, stock)
        for index, group in enumerate(memory.groups):
            is_kept = memory.keeps_storages and group.unit is None
            ways = [] if stock is None else [stock[index]]
            if stock is None or is_judged or is_kept:
                ways = pieces_of_group(memory, group, BEST, options)
            if is_kept:
                ways = [min(ways, key=lambda p: (sum(piece.size for piece in p), len(p)))]
                if stock is not None:
                    stock[index] = ways[0]
            function.groups.append(ways)
        functions.append(function)
    _choose(functions, options)
    return {function.memory.name: tuple(function.chosen) for function in functions}


def _choose(functions: Sequence[_Function], options: GMEMOptions) -> None:
    """Take the best of all where the pool takes no more, or else what does, group by group."""
    for function in functions:
        function.chosen = function.best()
    if _is_accepted(functions, options):
        return
    for function in functions:
        function.chosen = function.stock or function.best()

    def accepts(function: _Function, placement: list[Pieces]) -> bool:
        before, function.chosen = function.chosen, placement
        if not _is_accepted(functions, options):
            function.chosen = before
        return function.chosen is placement

    for function in functions:
        stock = function.stock
        if stock is None or accepts(function, function.best()):
            continue
        for index, ways in enumerate(function.groups):
            for pieces in chain(ways, _slots_at_last(function, index, options)):
                chosen = function.chosen
                if accepts(function, [*chosen[:index], pieces, *chosen[index + 1 :]]):
                    break
        if any(stock) and function.chosen == stock:
            LOGGER.info(
                "function %r: its tensors share storages as StaticPlanBlockMemory shares them: no "
                "other plan is shown to take less",
                function.memory.name,
            )


def _slots_at_last(function: _Function, index: int, options: GMEMOptions) -> Iterator[Pieces]:
    """Yield whole slots for a group at offsets: the pool may take more for offsets than for stock.

    They are planned only where that is so: on no exported network do they take less than offsets.
    """
    memory, group = function.memory, function.memory.groups[index]
    is_shared_as_stock = function.stock and function.groups[index] == [function.stock[index]]
    at_offsets = options.form(memory.mod, group).offsets and memory.kernel_arguments is None
    if at_offsets and not is_shared_as_stock:
        yield _in_slots(group.problem, BEST, options, FEW_NODES)


def _is_accepted(functions: Sequence[_Function], options: GMEMOptions) -> bool:
    """Whether the pool is known to take no more for what is chosen than for the stock pass's."""
    judged = [one for one in functions if one.stock is not None]
    changed = [one for one in judged if one.chosen != one.stock]
    if any(skipped_on_paths(one.memory.branches) is None for one in changed):
        return False
    units = (group.unit for one in judged for group in one.memory.groups)
    names = {str(v.name) for unit in units if unit is not None for v in nodes_in(unit, Var)}
    try:
        return not changed or all(
            _never_above(judged, _SIZES if names else (1,), alone, options.host_device())
            for alone in (None, *(sorted(names) if len(names) > 1 else ()))
        )
    except UnknownSizeError:
        return False


def _never_above(
    functions: Sequence[_Function], sizes: Sequence[int], alone: str | None, host: int | None
) -> bool:
    """Whether the pool takes no more where all dimensions, or one alone, have each of some sizes.

    The pool is empty before each call; and, once more, all functions run on all paths at the first
    size, at the first two, and so on, from one pool.
    """
    mine = [list(allocations_of(one.memory, one.chosen, host)) for one in functions]
    theirs = [list(allocations_of(one.memory, one.stock or [], host)) for one in functions]
    ours: Blocks = Counter()
    stocks: Blocks = Counter()
    for size in sizes:
        for memory, *both in zip((one.memory for one in functions), mine, theirs, strict=True):
            units = _units(memory, size, alone)
            for skipped in skipped_on_paths(memory.branches) or [()]:
                one, other = (blocks_taken(each, units, skipped) for each in both)
                if bytes_of_blocks(one) > bytes_of_blocks(other):
                    return False
                ours |= one
                stocks |= other
        if bytes_of_blocks(ours) > bytes_of_blocks(stocks):
            return False
    return True


def _units(memory: RelaxMemory, size: int, alone: str | None) -> tuple[int, ...]:
    """Return `units_at` a size of all dimensions, or of one alone, and at 1 of the others."""
    most = {bound.variable.__chandle__(): bound.upper for bound in memory.bounds}

    def value(variable: Var) -> int:
        wanted = size if alone in (None, str(variable.name)) else 1
        return min(wanted, most.get(variable.__chandle__(), wanted))

    return units_at(memory, value)


def units_at(memory: RelaxMemory, value: Callable[[Var], int]) -> tuple[int, ...]:
    """Return 1, and the unit of each group, at some values of dimensions."""
    units = (group.unit for group in memory.groups)
    return (1, *(1 if unit is None else max(value_of(unit, value), 0) for unit in units))


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
        results = {buffer.name for buffer in (*group.returned, *group.alone)}
        for size, inside in storages((*group.allocated, *group.alone), pieces):
            returned = any(buffer.name in results for buffer in inside)
            span = storage_span(memory, group, inside)
            yield PoolAllocation(device, size, number, *span, returned)


def storage_span(
    memory: RelaxMemory, group: TensorGroup, inside: Sequence[Buffer]
) -> tuple[int, int]:
    """Return from where to where a storage of some buffers is in use.

    It is allocated in the innermost sequence of bindings that has all of the buffers, and is there
    until the last binding of that sequence that uses one of them; an `if` is one such binding.
    """
    uses = [group.uses[buffer.name] for buffer in inside]
    paths = [of.path for of in uses]
    depth = 0
    while all(len(path) > depth and path[depth] == paths[0][depth] for path in paths):
        depth += 1
    begins = [of.path[depth][0] if len(of.path) > depth else of.made_at for of in uses]
    last = max(one.live[-1][1] for one in inside)
    around = {position for position, _ in paths[0][:depth]}
    ends = [
        behind[1]
        for position, (_, behind) in memory.branches.items()
        if position not in around and position < last <= behind[1]
    ]
    return min(begins), max([last, *ends])
