# SPDX-License-Identifier: Apache-2.0
"""The order of the bindings of a Relax function: searched by live bytes, chosen by its plan."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from tvm import relax
from tvm.ir import GlobalVar, IRModule

from passes.driver import Solver, place
from passes.gmem import BEST, GMEMOptions
from passes.ir import structural_mutate
from passes.order.analysis.effects import runs_before
from passes.order.analysis.kept_bytes import Block, FunctionMemory, Unit, blocks_of, read_function
from passes.order.planning.operator_graph import FoundOrder, peak_of
from passes.order.planning.order_search import find_order
from passes.planning import Budget, Problem
from passes.relax import EXPECTED, MAIN_DEVICE, SCOPE
from target_hw.memory import MemoryScope, round_up

Kind = tuple[Unit, bool]
"""Tensors that share memory: those of one unit, and whether the returned ones are among them."""

Before = tuple[tuple[int, ...], ...]
"""For each binding of a block, those that have to run before it."""

MAIN: Kind = ((MAIN_DEVICE, SCOPE, ""), False)
"""The tensors of constant size on the main device, without those that are returned."""


@dataclass(frozen=True, eq=False)
class FunctionOrder:
    """A Relax function with the order that was found for it."""

    name: str
    func: relax.Function  # With that order; the given function where nothing moves
    operators: int  # Bindings of its dataflow blocks
    reason: str = ""  # Why nothing moves, where nothing does
    given: int = 0  # Most bytes of the main memory that live at once, as written
    found: int = 0  # The same in the order that was taken
    bound: int = 0  # Bytes of the main memory that no order has less than, where it was searched
    needs: str = ""  # Which binding needs as many bytes by itself, where one does
    moved: tuple[str, ...] = ()  # The fewest bindings without which the others are as written

    @property
    def optimal(self) -> bool:
        """Whether no order needs less of the main memory."""
        return 0 < self.found <= self.bound


def order_function(
    mod: IRModule, variable: GlobalVar, options: GMEMOptions, budget: Budget
) -> FunctionOrder:
    """Find an order of the bindings of a function's dataflow blocks.

    ValueError is raised when what its bindings become is not found, or by `read_relax_memory`.
    """
    name, func = str(variable.name_hint), mod[variable]
    counts = [len(block.bindings) for block in blocks_of(func)]
    if max(counts, default=0) < 2:
        reason = "it has no dataflow block with something to reorder"
        return FunctionOrder(name, func, sum(counts), reason)
    written = ordered = _read(mod, variable, options)
    found = []  # Of each kind of memory; the main one is the first
    for kind in written.problems:
        found.append(_lower_order(ordered, kind, variable, options, budget))
        ordered = found[-1].best
    main, moved = found[0], _moved(func, ordered.mod[variable])
    return FunctionOrder(
        name,
        ordered.mod[variable],
        sum(counts),
        "" if moved else main.reason,
        written.live[MAIN],
        ordered.live[MAIN],
        main.bound,
        main.needs,
        moved,
    )


@dataclass(frozen=True, eq=False)
class _Ordered:
    """A module with an order of one of its functions, and what that order needs."""

    mod: IRModule
    read: FunctionMemory
    problems: Mapping[Kind, Problem]  # The tensors of each kind of memory; the main one first
    solvers: Mapping[Kind, Solver]
    live: Mapping[Kind, int]  # The most bytes that live at once
    _planned: dict[Kind, int] = field(default_factory=dict)

    @cached_property
    def blocks(self) -> tuple[list[tuple[Block, Before]], str]:
        """The blocks of which all memory is known, and why another one stays."""
        func = self.mod[self.mod.get_global_var(self.read.memory.name)]
        blocks, reason = _reorderable(func, self.read)
        return [(block, runs_before(self.mod, block.bindings)) for block in blocks], reason

    def planned(self, kind: Kind) -> int:
        """Return the bytes that a plan takes, the last tensor padded as `live` counts it."""
        if kind not in self._planned:
            problem = self.problems[kind]
            peak = place(problem, self.solvers[kind]).peak
            self._planned[kind] = round_up(peak, problem.memory.alignment)
        return self._planned[kind]

    def is_below(self, other: _Ordered, lower: Kind) -> bool:
        """Whether a plan takes less of one kind of memory, and more of none.

        What lives at once is no more than a plan takes, and known without one.
        """

        def most(kind: Kind, less: int) -> bool:
            mine = self.planned(kind)
            return mine + less <= other.live[kind] or mine + less <= other.planned(kind)

        return self.live.keys() == other.live.keys() and all(
            most(kind, int(kind == lower)) for kind in self.live
        )


def _read(mod: IRModule, variable: GlobalVar, options: GMEMOptions) -> _Ordered:
    """Read what the function of a module needs in the order that it has there."""
    read = read_function(mod, variable, options.read)
    memory = MemoryScope(SCOPE, alignment=options.gmem().offset_alignment)
    problems: dict[Kind, Problem] = {}
    solvers: dict[Kind, Solver] = {}
    for unit, group in read.groups().items():
        offsets = options.form(mod, group).offsets
        solver = options.solver(BEST) if offsets else options.slot_solver(BEST)
        kinds = {(unit, False): group.problem.buffers}
        if group.returned and not options.has_addresses():
            kinds[unit, True] = group.allocated
        for kind, buffers in kinds.items():
            problems[kind] = Problem(buffers, memory, name=f"function {read.memory.name!r}")
            solvers[kind] = solver
    live = {kind: max(read.live_bytes(problem)) for kind, problem in problems.items()}
    return _Ordered(mod, read, problems, solvers, live)


@dataclass(frozen=True, eq=False)
class _Lower:
    """What a search for a lower order of one kind of memory found."""

    best: _Ordered  # Needs less of it, and more of none; the given one where none is found
    bound: int  # Bytes that no order has less than
    needs: str  # Which binding needs as many by itself, where one does
    reason: str  # Why no order is taken, where none is


def _lower_order(
    given: _Ordered, kind: Kind, variable: GlobalVar, options: GMEMOptions, budget: Budget
) -> _Lower:
    """Look for an order that needs less of one kind of memory, and more of none."""
    mod, read, tensors = given.mod, given.read, given.problems[kind]
    blocks, reason = given.blocks
    inside = {number for block, _ in blocks for number in block.numbers}
    live = enumerate(read.live_bytes(tensors))
    floor = max((nbytes for number, nbytes in live if number not in inside), default=0)
    problems = [read.problem(block, before, tensors) for block, before in blocks]
    peaks = [peak_of(problem, range(len(problem.before))) for problem in problems]
    found: list[tuple[Block, FoundOrder]] = []
    for index in sorted(range(len(blocks)), key=lambda index: -peaks[index]):
        found.append((blocks[index][0], find_order(replace(problems[index], floor=floor), budget)))
        floor = max(floor, found[-1][1].bound)
    needs = ""
    for block, one in found:
        if one.bound == floor and one.needs is not None:
            name, padded = block.bindings[one.needs].var.name, tensors.memory.alignment
            needs = f"{str(name)!r} needs {floor} bytes in any order, padded to {padded}"
    orders = {
        block.block.__chandle__(): one.order
        for block, one in found
        if one.order != tuple(sorted(one.order))
    }
    if orders:
        lower = _read(with_block_orders(mod, variable, orders), variable, options)
        if lower.is_below(given, kind):
            return _Lower(lower, floor, needs, "")
        reason = reason or "the plan of a lower order is not lower"
    elif max(peaks, default=0) > floor:
        reason = reason or f"the search stopped without a proof: no order has less than {floor}"
    return _Lower(given, floor, needs, reason or needs or "no order is lower")


def _reorderable(func: relax.Function, read: FunctionMemory) -> tuple[list[Block], str]:
    """Return the blocks of which all memory is known, and why another one stays."""
    left = {one.name: one for one in read.memory.left if one.reason not in EXPECTED}
    blocks, reason = [], ""
    for block in blocks_of(func):
        names = read.names_within(block)
        unknown = [left[name] for name in names if name in left]
        if unknown:
            reason = f"{unknown[0].name!r} is left to the run time: {unknown[0].reason}"
            for name, binding in names.items():
                reason = reason.replace(repr(name), repr(binding))
        else:
            blocks.append(block)
    return blocks, reason


def with_block_orders(
    mod: IRModule, variable: GlobalVar, order_of: Mapping[int, Sequence[int]]
) -> IRModule:
    """Return a module in which blocks of a function, by their handles, have other orders."""

    def reorder(block: Any, _mutator: Any) -> Any:
        bindings, order = list(block.bindings), order_of.get(block.__chandle__())
        if order is None:
            return block
        return relax.DataflowBlock([bindings[number] for number in order], block.span)

    result = mod.clone()
    result.update_func(variable, structural_mutate(mod[variable], [(relax.DataflowBlock, reorder)]))
    return result


def _moved(given: relax.Function, found: relax.Function) -> tuple[str, ...]:
    """Return the fewest bindings without which the others run as they were written."""
    written = [binding.var for block in blocks_of(given) for binding in block.bindings]
    number_of = {variable.__chandle__(): number for number, variable in enumerate(written)}
    order = [
        number_of[binding.var.__chandle__()]
        for block in blocks_of(found)
        for binding in block.bindings
    ]
    ends: list[int] = []  # By length, the least number that an ascending run of others ends with
    lengths = []
    for number in order:
        length = bisect_left(ends, number)
        ends[length : length + 1] = [number]
        lengths.append(length)
    kept, wanted = set(), len(ends) - 1
    for at in reversed(range(len(order))):
        if lengths[at] == wanted:
            kept.add(order[at])
            wanted -= 1
    return tuple(str(written[number].name) for number in order if number not in kept)
