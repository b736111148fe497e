# SPDX-License-Identifier: Apache-2.0
"""Which storages a Relax function allocates, and where its tensors stand in them: its placement.

A plan of another planner than the default one is taken as it is, and so is one whose tensors have
addresses. Of the others there are several for each group of tensors, and the best one is chosen for
which TVM's pool takes no more than for the sharing of `StaticPlanBlockMemory`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress, zip_longest
from typing import Any

import tvm
from tvm import relax
from tvm.tirx import Var

from passes.driver import place
from passes.gmem.options import BEST, HOST_KINDS, IN_KERNELS, LOGGER, GMEMOptions
from passes.gmem.planning.pieces import (
    in_fewer,
    in_given_slots,
    in_one_piece,
    in_slots,
    ways_at_offsets,
    ways_in_slots,
)
from passes.gmem.planning.pool import (
    PAGE,
    Pieces,
    Placement,
    PoolAllocation,
    PoolCall,
    cost,
    never_above,
    skipped_on_paths,
    storages,
)
from passes.ir import UPPER_BOUND, nodes_in
from passes.ir.operators import operator_name
from passes.ir.relax_operators import ALLOC_PLANNED_TENSOR, ALLOC_TENSOR
from passes.planning import Buffer, live_together
from passes.relax import (
    UNCAPTURED,
    KernelUses,
    RelaxMemory,
    TensorGroup,
    UnknownSizeError,
    bindings_of,
    same_device,
    value_of,
)

_SIZES = (*range(1, 65), 96, 128, 256, 1024, 4096, 1 << 20)
"""Values of dimensions without a bound at which what the pool takes is compared."""


def pieces_of_group(
    memory: RelaxMemory, group: TensorGroup, planner: str, options: GMEMOptions
) -> list[Pieces]:
    """Return ways to place a group, that for which the pool takes the fewest bytes first.

    A planner other than the default one has one way.
    """
    page = PAGE if group.unit is None else 1
    others = (*group.returned, *group.alone)
    form = options.form(memory.mod, group)
    if not form.offsets or memory.kernel_arguments is not None:
        # A storage of its own needs no padding.
        problem = replace(group.problem, memory=replace(group.problem.memory, alignment=1))
        plan = place(problem, options.slot_solver(planner))
        ways = ways_in_slots(problem, plan, others, page)
        if form.offsets and memory.kernel_arguments is not None:
            uses, most = memory.kernel_arguments, form.most
            ways += _pieces_in_kernels(uses, group, most, planner, options)
            ways.sort(key=lambda pieces: cost((*group.allocated, *group.alone), pieces, page))
        elif planner != BEST:
            return [in_slots(problem, plan) or ()]
        return ways if planner == BEST else ways[:1]
    plan = place(group.problem, options.solver(planner))
    if planner != BEST:
        return [in_one_piece(plan)]
    solver = options.short_solver()
    return ways_at_offsets(group.problem, plan, group.returned, solver, group.alone, page)


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
        memory, stock = function.memory, function.stock
        is_known = memory.has_all_allocations and not (handed_on and memory.calls_unknown)
        is_judged = is_known and not callers[memory.name]
        for index, group in enumerate(memory.groups):
            is_kept = memory.keeps_storages and group.unit is None
            if stock is None or is_judged or is_kept:
                ways = pieces_of_group(memory, group, BEST, options)
            else:
                ways = [stock[index]]
            function.groups.append([min(ways, key=_asked_for)] if is_kept else ways)
    if options.keeps_storages:
        _choose_kept(functions)
    _choose(functions, options)
    return {function.memory.name: function.chosen for function in functions}


def _choose_kept(functions: Sequence[_Function]) -> None:
    """Choose storages of constant size, which `RewriteCUDAGraph` keeps and not the pool."""

    def kept(placements: Iterable[Placement]) -> int:
        """Return the bytes that serve all functions: the k-th largest storages of all share one."""
        sizes = (
            sorted((p.size for pieces in one for p in pieces), reverse=True) for one in placements
        )
        return sum(map(max, zip_longest(*sizes, fillvalue=0)))

    best, stock = [], []
    for function in functions:
        constant = [group.unit is None for group in function.memory.groups]
        best.append(tuple(compress(function.best(), constant)))
        stock.append(tuple(compress(function.stock or function.best(), constant)))
    is_above = kept(best) > kept(stock)
    for function in functions:
        for index, group in enumerate(function.memory.groups):
            if group.unit is None and function.stock is not None:
                if is_above:
                    function.groups[index] = [function.stock[index]]
                own = function.groups[index][0]
                function.stock = (*function.stock[:index], own, *function.stock[index + 1 :])


def _asked_for(pieces: Pieces) -> tuple[int, int]:
    return sum(piece.size for piece in pieces), len(pieces)


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
            group = function.memory.groups[index]
            if options.offsets != IN_KERNELS and options.form(function.memory.mod, group).offsets:
                fewer = in_fewer(group.problem, stock[index], options.short_solver())
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
    judged = [one for one in functions if one.stock is not None]
    if all(one.chosen == one.stock for one in judged):
        return True
    host = 0 if options.target_kind() in HOST_KINDS else None
    names = sorted({name for one in judged for name in _unknown(one.memory)})
    try:
        return all(
            never_above([_call(one, alone, _SIZES if names else (1,), host) for one in judged])
            for alone in (None, *(names if len(names) > 1 else ()))
        )
    except UnknownSizeError:
        return False


def _call(
    function: _Function, alone: str | None, sizes: Sequence[int], host: int | None
) -> PoolCall:
    memory, stock = function.memory, function.stock or ()
    paths = skipped_on_paths(memory.branches)
    if paths is None and function.chosen != stock:
        raise UnknownSizeError("too many paths")
    return PoolCall(
        list(allocations_of(memory, function.chosen, host)),
        list(allocations_of(memory, stock, host)),
        paths or [()],
        [_units(memory, alone, size) for size in sizes],
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

    return units_at(memory, value)


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
            yield PoolAllocation(device, size, number, *_span(memory, group, inside), returned)


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
        known = group.problem.index
        paths = {n: group.paths[n] for n in known if len(group.tensors[n]) == 1}
        names = [[memory.buffer_of.get(tensor, "") for tensor in tensors] for tensors in shared]
        single = [[name for name in same if name in paths] for same in names]
        placement.append(in_given_slots(group.problem, single, paths))
    return tuple(placement)


def kept_as_stock(memory: RelaxMemory, options: GMEMOptions) -> RelaxMemory:
    """Return a function with what the stock pass leaves to the run time left there, too.

    `RewriteCUDAGraph` captures a kernel where all its tensors stand in storages that are kept. So
    it captures the same kernels, in as many graphs, as under the stock pass.
    """
    variable = memory.mod.get_global_var(memory.name)
    shared = stock_sharing(memory.mod, variable, options.upper_bounds)
    if shared is None:
        return memory
    stocks = {handle for handles in shared for handle in handles}
    others = {name for handle, name in memory.buffer_of.items() if handle not in stocks}
    planned = {
        buffer.name
        for group in memory.groups
        for buffer in group.problem.buffers
        if group.unit is not None or buffer.name not in others
    }
    return memory.leaving(planned, f"the stock pass leaves it there, {UNCAPTURED}")


def stock_sharing(
    mod: tvm.IRModule, variable: tvm.ir.GlobalVar, upper_bounds: Mapping[str, int]
) -> list[list[int]] | None:
    """Run `StaticPlanBlockMemory` on one function, and return which tensors share a storage.

    Tensors are named by the handles of their variables. The result is None where the pass fails.
    Whether the sharing is right is for others to judge: the pass has faults with branches and with
    packed functions (apache/tvm 20191).
    """
    func = mod[variable]
    own = func.attrs.get(UPPER_BOUND, {}) if func.attrs else {}
    bounded = func.with_attr(UPPER_BOUND, {**upper_bounds, **own}) if upper_bounds else func
    kernels = {v: f for v, f in mod.functions.items() if not isinstance(f, relax.Function)}
    alone = tvm.IRModule({**kernels, variable: bounded}, global_infos=mod.global_infos)
    try:
        planned = relax.transform.StaticPlanBlockMemory()(alone)[variable]
    except Exception:
        return None
    before, behind = _tensors(func), _tensors(planned)
    if len(before) != len(behind):
        return None
    shared: dict[int, list[int]] = {}
    for one, other in zip(before, behind, strict=True):
        names = operator_name(one.value.op), operator_name(other.value.op)
        if names == (ALLOC_TENSOR, ALLOC_PLANNED_TENSOR):
            storage = other.value.args[0].__chandle__()
            shared.setdefault(storage, []).append(one.var.__chandle__())
    return list(shared.values())


def _tensors(func: relax.Function) -> list[Any]:
    """Return the bindings that make tensors, in program order."""
    bindings = (b for b in bindings_of(func.body) if isinstance(b.value, relax.Call))
    makes = (ALLOC_TENSOR, ALLOC_PLANNED_TENSOR)
    return [binding for binding in bindings if operator_name(binding.value.op) in makes]
