# SPDX-License-Identifier: Apache-2.0
"""Which storages a Relax function allocates, and where its tensors stand in them: its placement.

A plan of another planner than the default one is taken as it is, and so is one whose tensors have
addresses. Of the others there are several for each group of tensors, and the best one is chosen for
which TVM's pool takes no more than for the sharing of `StaticPlanBlockMemory`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest

from tvm.tirx import Var

from passes.driver import place
from passes.gmem.analysis.stock_sharing import stock_sharing
from passes.gmem.forms import IN_KERNELS
from passes.gmem.kernel_offsets import MOST_GROWTH, growth
from passes.gmem.options import BEST, HOST_KINDS, LOGGER, GMEMOptions
from passes.gmem.planning.cuts import divided, in_fewer, in_one_piece, ways_to_cut
from passes.gmem.planning.pieces import PAGE, Piece, Placement, cost
from passes.gmem.planning.pool import Allocation, Call, never_above, skipped_on_paths
from passes.gmem.planning.slots import in_given_slots, in_slots, ways_in_slots
from passes.ir import nodes_in
from passes.planning import Buffer, live_together
from passes.relax import KernelUses, RelaxMemory, TensorGroup, UnknownSizeError, value_of

_SIZES = (*range(1, 65), 96, 128, 256, 1024, 4096, 1 << 20)
"""Values of dimensions without a bound at which what the pool takes is compared."""

Pieces = tuple[Piece, ...]


def pieces_of_group(
    memory: RelaxMemory, group: TensorGroup, planner: str, options: GMEMOptions
) -> list[Pieces]:
    """Return ways to place a group, that for which the pool takes the fewest bytes first.

    A planner other than the default one has one way.
    """
    page = PAGE if group.unit is None else 1
    uses = memory.kernel_arguments
    if not options.form(memory.mod, group).offsets:
        # A storage of its own needs no padding.
        problem = replace(group.problem, memory=replace(group.problem.memory, alignment=1))
        plan = place(problem, options.slot_solver(planner))
        if planner != BEST:
            return [in_slots(problem, plan) or ()]
        return ways_in_slots(problem, group.returned, plan, group.alone, page)
    if uses is not None:
        return _pieces_in_kernels(memory, uses, group, planner, options)
    plan = place(group.problem, options.solver(planner))
    if planner != BEST:
        return [in_one_piece(plan)]
    solver = options.short_solver()
    return ways_to_cut(group.problem, group.returned, plan, solver, group.alone, page)


def _pieces_in_kernels(
    memory: RelaxMemory, uses: KernelUses, group: TensorGroup, planner: str, options: GMEMOptions
) -> list[Pieces]:
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
    pieces: Pieces | None = in_one_piece(place(in_kernels, options.solver(planner)))
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


# ------------------------------------------------------------------------ beside the stock pass


def choose_placements(
    memories: Sequence[RelaxMemory], callers: Mapping[str, frozenset[str]], options: GMEMOptions
) -> dict[str, Placement]:
    """Choose for each function the best placement that takes no more than the stock pass's.

    The functions' allocations are compared where all of them are known: a function that calls
    another one, that others call or that has more paths than are followed shares as the stock pass
    does.

    Parameters
    ----------
    memories : sequence of RelaxMemory
        All functions of a module.
    callers : mapping of str to frozenset of str
        For each function all that may be waiting for it to return.
    options : GMEMOptions
        What the pass is told.
    """
    functions = [_Function(memory, _stock_placement(memory, options)) for memory in memories]
    handed_on = any(memory.hands_on for memory in memories)
    for function in functions:
        memory = function.memory
        is_known = memory.has_all_allocations and not (handed_on and memory.calls_unknown)
        if function.stock is None or (is_known and not callers[memory.name]):
            function.groups = [pieces_of_group(memory, g, BEST, options) for g in memory.groups]
        elif memory.keeps_storages:
            function.groups = [
                pieces_of_group(memory, group, BEST, options) if group.unit is None else [own]
                for group, own in zip(memory.groups, function.stock, strict=True)
            ]
        else:
            function.groups = [[own] for own in function.stock]
    if options.keeps_storages:
        _choose_kept(functions)
    _choose(functions, options)
    return {function.memory.name: function.chosen for function in functions}


@dataclass(eq=False)
class _Function:
    """A function, the ways to place each group of its tensors, and what is chosen."""

    memory: RelaxMemory
    stock: Placement | None  # The stock pass's sharing; None where that pass fails
    groups: list[list[Pieces]] = field(default_factory=list)  # The best way first
    chosen: Placement = ()

    def best(self) -> Placement:
        return tuple(ways[0] for ways in self.groups)


def _choose(functions: Sequence[_Function], options: GMEMOptions) -> None:
    """Take the best of all where the pool takes no more, or else what does, group by group."""
    for function in functions:
        function.chosen = function.best()
    if _accepted(functions, options):
        return
    for function in functions:
        function.chosen = function.best() if function.stock is None else function.stock
    for function in functions:
        best, stock = function.best(), function.stock
        if stock is None or _accepts(function, best, functions, options):
            continue
        for index, ways in enumerate(function.groups):
            solver, group = options.short_solver(), function.memory.groups[index]
            if _takes_offsets(function.memory, group, options):
                fewer = in_fewer(group.problem, stock[index], solver)
                ways = [*ways, *([] if fewer is None else [fewer])]
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


def _takes_offsets(memory: RelaxMemory, group: TensorGroup, options: GMEMOptions) -> bool:
    return options.offsets != IN_KERNELS and options.form(memory.mod, group).offsets


def _accepts(
    function: _Function,
    placement: Placement,
    functions: Sequence[_Function],
    options: GMEMOptions,
) -> bool:
    """Whether a function may have a placement, which it then has."""
    before, function.chosen = function.chosen, placement
    if _accepted(functions, options):
        return True
    function.chosen = before
    return False


def _accepted(functions: Sequence[_Function], options: GMEMOptions) -> bool:
    """Whether the pool takes no more for the chosen placements than for the stock pass's."""
    host = 0 if options.target_kind() in HOST_KINDS else None
    judged = [one for one in functions if one.stock is not None]
    if all(one.chosen == one.stock for one in judged):
        return True
    names = sorted({name for one in judged for name in _unknown(one.memory)})
    sizes: list[tuple[str | None, int]] = [(None, size) for size in (_SIZES if names else (1,))]
    try:
        for alone in (None, *(names if len(names) > 1 else ())):
            at = [(alone, size) for _, size in sizes]
            if not never_above([_call(one, at, host) for one in judged]):
                return False
    except UnknownSizeError:
        return False
    return True


def _call(function: _Function, sizes: Sequence[tuple[str | None, int]], host: int | None) -> Call:
    memory, stock = function.memory, function.stock or ()
    paths = skipped_on_paths(memory.branches)
    if paths is None and function.chosen != stock:
        raise UnknownSizeError("too many paths")
    return Call(
        list(_allocations(memory, function.chosen, host)),
        list(_allocations(memory, stock, host)),
        paths or [()],
        [_units(memory, alone, size) for alone, size in sizes],
    )


def _unknown(memory: RelaxMemory) -> list[str]:
    """Return the names of the variables without a bound in sizes of a function."""
    units = [group.unit for group in memory.groups if group.unit is not None]
    return [str(variable.name) for unit in units for variable in nodes_in(unit, Var)]


def _units(memory: RelaxMemory, alone: str | None, size: int) -> tuple[int, ...]:
    """Return 1, and the unit of each group where all dimensions, or one alone, have a size."""
    most = {bound.variable.__chandle__(): bound.upper for bound in memory.bounds}

    def value(variable: Var) -> int:
        wanted = size if alone in (None, str(variable.name)) else 1
        return min(wanted, most.get(variable.__chandle__(), wanted))

    units = (group.unit for group in memory.groups)
    return (1, *(1 if unit is None else max(value_of(unit, value), 0) for unit in units))


def _allocations(
    memory: RelaxMemory, placement: Placement, host: int | None
) -> Iterator[Allocation]:
    """Yield what a function allocates at run time."""
    end = len(memory.bindings)
    if memory.variables and host is not None:  # They are kept in the host's memory.
        yield Allocation(host, 1, 0, 0, end)
    for number, (group, pieces) in enumerate(zip(memory.groups, placement, strict=True), 1):
        buffers = {one.name: one for one in (*group.allocated, *group.alone)}
        in_pieces = {name for piece in pieces for name in piece.offsets}
        storages = [(piece.size, tuple(piece.offsets)) for piece in pieces]
        storages += [
            (one.size, (one.name,)) for one in buffers.values() if one.name not in in_pieces
        ]
        for size, names in storages:
            begin, stop = _span(memory, group, [buffers[name] for name in names])
            yield Allocation(group.device, size, number, begin, stop)


def _span(memory: RelaxMemory, group: TensorGroup, inside: Sequence[Buffer]) -> tuple[int, int]:
    """Return from where to where a storage of some buffers is in use.

    It is allocated in the innermost sequence of bindings that has all of the buffers, and is there
    until the last binding of that sequence that uses one of them; an `if` is one such binding.
    """
    paths = [group.paths.get(buffer.name, ()) for buffer in inside]
    depth = 0
    while all(len(path) > depth and path[depth] == paths[0][depth] for path in paths):
        depth += 1
    begins = [
        path[depth][0] if len(path) > depth else group.made_at.get(one.name, one.live[0][0])
        for path, one in zip(paths, inside, strict=True)
    ]
    last = max(one.live[-1][1] for one in inside)
    around = {position for position, _ in paths[0][:depth]}
    ends = [
        behind[1]
        for position, (_, behind) in memory.branches.items()
        if position not in around and position < last <= behind[1]
    ]
    return min(begins), max([last, *ends])


# ------------------------------------------------------------------------------- CUDA graphs


def _choose_kept(functions: Sequence[_Function]) -> None:
    """Choose one way for each group of constant sizes, where storages are kept from call to call.

    `RewriteCUDAGraph` keeps those of all functions together: as many as one function has at most,
    and the k-th largest of all has the bytes of any function's k-th largest. So one piece a group
    is best, unless that is above what the stock pass's sharing takes.
    """
    ours: list[int] = []
    theirs: list[int] = []
    for function in functions:
        constant = [i for i, group in enumerate(function.memory.groups) if group.unit is None]
        for index in constant:
            function.groups[index] = [min(function.groups[index], key=_bytes_of)]
        cut = function.stock
        ours = _kept_together(ours, [p.size for i in constant for p in function.groups[i][0]])
        theirs = _kept_together(theirs, [p.size for i in constant for p in (cut or {i: ()})[i]])
    is_above = sum(ours) > sum(theirs) and all(one.stock is not None for one in functions)
    for function in functions:
        for index, group in enumerate(function.memory.groups):
            if group.unit is None and function.stock is not None:
                if is_above:
                    function.groups[index] = [function.stock[index]]
                else:  # What is kept is not the pool's to compare.
                    own = function.groups[index][0]
                    function.stock = (*function.stock[:index], own, *function.stock[index + 1 :])


def _kept_together(kept: Sequence[int], sizes: Sequence[int]) -> list[int]:
    """Return the bytes of storages that serve one function more, largest first."""
    both = zip_longest(kept, sorted(sizes, reverse=True), fillvalue=0)
    return [max(one, other) for one, other in both]


def _bytes_of(pieces: Pieces) -> tuple[int, int]:
    return sum(piece.size for piece in pieces), len(pieces)


# ------------------------------------------------------------------------------- the stock pass


def _stock_placement(memory: RelaxMemory, options: GMEMOptions) -> Placement | None:
    """Return the stock pass's sharing, as far as our live ranges accept it."""
    variable = memory.mod.get_global_var(memory.name)
    shared = stock_sharing(memory.mod, variable, options.upper_bounds)
    if shared is None:
        return None
    placement = []
    for group in memory.groups:
        # A buffer for the results of both branches is no single tensor of the stock pass.
        paths = {n: path for n, path in group.paths.items() if len(group.tensors[n]) == 1}
        names = [[memory.buffer_of.get(tensor, "") for tensor in tensors] for tensors in shared]
        single = [[name for name in same if name in paths] for same in names]
        placement.append(in_given_slots(group.problem, single, paths))
    return tuple(placement)
