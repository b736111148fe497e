# SPDX-License-Identifier: Apache-2.0
"""Which storages a Relax function allocates, and where its tensors stand in them: its placement.

A plan of another planner than the default one is taken as it is, and so is one whose tensors have
addresses. Of the others there are several for each group of tensors, and the best one is chosen for
which TVM's pool takes no more than for the sharing of `StaticPlanBlockMemory`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import compress, zip_longest

from tvm.tirx import Var

from passes.driver import place
from passes.gmem.analysis.stock_sharing import stock_placement
from passes.gmem.options import BEST, LOGGER, GMEMOptions
from passes.gmem.planning.pieces import (
    in_one_piece,
    in_slots,
    ways_at_offsets,
    ways_in_slots,
)
from passes.gmem.planning.pool import (
    PAGE,
    Calls,
    Pieces,
    Placement,
    PoolAllocation,
    blocks_taken,
    cost,
    never_above,
    skipped_on_paths,
    storages,
)
from passes.ir import nodes_in
from passes.planning import Bindings, Buffer, does_not_fit, live_together
from passes.relax import (
    KernelUses,
    RelaxMemory,
    TensorGroup,
    UnknownSizeError,
    same_device,
    value_of,
)

_SIZES = (*range(1, 65), 96, 128, 256, 1024, 4096, 1 << 20)
"""Values of dimensions without a bound at which what the pool takes is compared."""


def pieces_of_group(
    memory: RelaxMemory, group: TensorGroup, planner: str, options: GMEMOptions
) -> list[Pieces]:
    """Return ways to place a group, that for which the pool takes the fewest bytes first.

    There is one way where tensors have addresses, and for a planner other than the default one.
    """
    form, problem = options.form(memory.mod, group), group.problem
    others = (*group.returned, *group.alone)
    page = PAGE if group.unit is None else 1
    if group.is_main and options.has_addresses():
        solver = options.solver(planner) if form.offsets else options.slot_solver(planner)
        overflow = partial(does_not_fit, places=Bindings(memory.bindings))
        plan = place(problem, solver, overflow=overflow)
        return [in_one_piece(plan) if form.offsets else in_slots(problem, plan) or ()]
    if form.offsets and memory.kernel_arguments is None:
        plan = place(problem, options.solver(planner))
        if planner != BEST:
            return [in_one_piece(plan)]
        solver = options.short_solver()
        return ways_at_offsets(problem, plan, group.returned, solver, group.alone, page)
    # A storage of its own needs no padding.
    unaligned = replace(problem, memory=replace(problem.memory, alignment=1))
    plan = place(unaligned, options.slot_solver(planner))
    if planner != BEST:
        ways = [in_slots(unaligned, plan) or ()]
    else:
        ways = ways_in_slots(unaligned, plan, others, page)
    if form.offsets and memory.kernel_arguments is not None:
        ways += _pieces_in_kernels(memory.kernel_arguments, group, form.most, planner, options)
        ways.sort(key=lambda pieces: cost((*group.allocated, *group.alone), pieces, page))
    return ways if planner == BEST else ways[:1]


def _pieces_in_kernels(
    uses: KernelUses, group: TensorGroup, most: int | None, planner: str, options: GMEMOptions
) -> list[Pieces]:
    """Return a way in which only kernels see an offset, and see at most so many bytes."""
    moved: list[Buffer] = []
    fixed: list[Buffer] = []
    for buffer in sorted(group.problem.buffers, key=lambda buffer: -buffer.size):
        at_start = [one for one in moved if one.pinned is not None]
        if buffer.name not in uses.from_start:
            moved.append(buffer)
        elif any(live_together(one.live, buffer.live) for one in at_start):
            fixed.append(buffer)
        else:  # One at a time may begin where the piece does.
            moved.append(replace(buffer, pinned=(0,)))
    plan = place(replace(group.problem, buffers=tuple(moved)), options.solver(planner))
    if most is not None and plan.peak > most:
        return []
    unaligned = replace(group.problem.memory, alignment=1)
    rest = replace(group.problem, buffers=tuple(fixed), memory=unaligned)
    slots = in_slots(rest, place(rest, options.slot_solver(planner))) or ()
    return [(*in_one_piece(plan), *slots)]


# ------------------------------------------------------------------------ beside the stock pass


@dataclass(eq=False)
class _Function:
    """A function, the ways to place each group of its tensors, and what is chosen."""

    memory: RelaxMemory
    stock: Placement | None  # The stock pass's sharing; None where that pass fails
    groups: list[list[Pieces]] = field(default_factory=list)  # The best way first
    chosen: Placement = ()

    def best(self) -> Placement:
        return tuple(ways[0] for ways in self.groups)


def choose_placements(
    memories: Sequence[RelaxMemory], callers: Mapping[str, frozenset[str]], options: GMEMOptions
) -> dict[str, Placement]:
    """Choose for each function the best placement that takes no more than the stock pass's.

    The allocations of all functions of a module are compared where they are known: a function that
    calls another one, that others call (`callers`) or that has more paths than are followed shares
    as the stock pass does.
    """
    functions = []
    handed_on = any(memory.hands_on for memory in memories)
    for memory in memories:
        stock = stock_placement(memory, options.upper_bounds)
        is_known = memory.has_all_allocations and not (handed_on and memory.calls_unknown)
        is_judged = is_known and not callers[memory.name]
        function = _Function(memory, stock)
        for index, group in enumerate(memory.groups):
            if stock is None or is_judged or _is_kept(memory, group):
                function.groups.append(pieces_of_group(memory, group, BEST, options))
            else:
                function.groups.append([stock[index]])
        functions.append(function)
    if options.keeps_storages:
        _choose_kept(functions)
    _choose(functions, options)
    return {function.memory.name: function.chosen for function in functions}


def _is_kept(memory: RelaxMemory, group: TensorGroup) -> bool:
    """Whether `RewriteCUDAGraph` keeps a group's storages from call to call, and not the pool."""
    return memory.keeps_storages and group.unit is None


def _choose_kept(functions: Sequence[_Function]) -> None:
    """Choose the storages that are kept: of all functions, the k-th largest share one."""

    def kept(placements: Iterable[Iterable[Pieces]]) -> int:
        sizes = (
            sorted((piece.size for pieces in placement for piece in pieces), reverse=True)
            for placement in placements
        )
        return sum(map(max, zip_longest(*sizes, fillvalue=0)))

    best, stock = [], []
    for one in functions:
        is_kept = [_is_kept(one.memory, group) for group in one.memory.groups]
        for ways in compress(one.groups, is_kept):
            ways[:] = [min(ways, key=lambda pieces: (sum(p.size for p in pieces), len(pieces)))]
        best.append(list(compress(one.best(), is_kept)))
        stock.append(list(compress(one.stock or one.best(), is_kept)))
    is_above = kept(best) > kept(stock)
    for one in functions:
        for index, group in enumerate(one.memory.groups):
            if one.stock is not None and _is_kept(one.memory, group):
                own = one.stock[index] if is_above else one.groups[index][0]
                one.groups[index] = [own]
                one.stock = (*one.stock[:index], own, *one.stock[index + 1 :])


def _choose(functions: Sequence[_Function], options: GMEMOptions) -> None:
    """Take the best of all where the pool takes no more, or else what does, group by group."""
    for function in functions:
        function.chosen = function.best()
    if _accepted(functions, options):
        return
    for function in functions:
        function.chosen = function.stock or function.best()
    for function in functions:
        stock = function.stock
        if stock is None or _accepts(function, function.best(), functions, options):
            continue
        for index, ways in enumerate(function.groups):
            for pieces in ways:
                changed = (*function.chosen[:index], pieces, *function.chosen[index + 1 :])
                if _accepts(function, changed, functions, options):
                    break
        if any(stock) and function.chosen == stock:
            LOGGER.info(
                "function %r: its tensors share storages as StaticPlanBlockMemory shares them: no "
                "other plan is shown to take less",
                function.memory.name,
            )


def _accepts(
    function: _Function, placement: Placement, functions: Sequence[_Function], options: GMEMOptions
) -> bool:
    """Whether a function may have a placement, which it then has."""
    before, function.chosen = function.chosen, placement
    if _accepted(functions, options):
        return True
    function.chosen = before
    return False


def _accepted(functions: Sequence[_Function], options: GMEMOptions) -> bool:
    """Whether the pool takes no more for the chosen placements than for the stock pass's."""
    judged = [one for one in functions if one.stock is not None]
    if all(one.chosen == one.stock for one in judged):
        return True
    units = (group.unit for one in judged for group in one.memory.groups)
    names = {str(v.name) for unit in units if unit is not None for v in nodes_in(unit, Var)}
    sizes, host = _SIZES if names else (1,), options.host_device()
    if any(skipped_on_paths(f.memory.branches) is None and f.chosen != f.stock for f in judged):
        return False
    try:
        return all(
            never_above(
                (
                    _calls(one.memory, one.chosen, alone, sizes, host),
                    _calls(one.memory, one.stock or (), alone, sizes, host),
                )
                for one in judged
            )
            for alone in (None, *(sorted(names) if len(names) > 1 else ()))
        )
    except UnknownSizeError:
        return False


def _calls(
    memory: RelaxMemory,
    placement: Placement,
    alone: str | None,
    sizes: Sequence[int],
    host: int | None,
) -> Calls:
    """Yield what calls take where all dimensions, or one alone, have a size."""
    most = {bound.variable.__chandle__(): bound.upper for bound in memory.bounds}

    def value(variable: Var, size: int) -> int:
        wanted = size if alone in (None, str(variable.name)) else 1
        return min(wanted, most.get(variable.__chandle__(), wanted))

    allocations = list(allocations_of(memory, placement, host))
    paths = skipped_on_paths(memory.branches) or [()]
    for size in sizes:
        units = units_at(memory, partial(value, size=size))
        yield [blocks_taken(allocations, units, skipped) for skipped in paths]


def units_at(memory: RelaxMemory, value: Callable[[Var], int]) -> tuple[int, ...]:
    """Return 1, and the unit of each group, at some values of dimensions."""
    units = (group.unit for group in memory.groups)
    return (1, *(1 if unit is None else max(value_of(unit, value), 0) for unit in units))


def allocations_of(
    memory: RelaxMemory, placement: Placement, host: int | None
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
    paths = [group.paths.get(buffer.name, ()) for buffer in inside]
    depth = 0
    while all(len(path) > depth and path[depth] == paths[0][depth] for path in paths):
        depth += 1
    begins = [
        path[depth][0] if len(path) > depth else group.made_at[buffer.name]
        for path, buffer in zip(paths, inside, strict=True)
    ]
    last = max(one.live[-1][1] for one in inside)
    around = {position for position, _ in paths[0][:depth]}
    ends = [
        behind[1]
        for position, (_, behind) in memory.branches.items()
        if position not in around and position < last <= behind[1]
    ]
    return min(begins), max([last, *ends])
