# SPDX-License-Identifier: Apache-2.0
"""The order of the bindings of a Relax function: searched by live bytes, chosen by its plan."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from passes.driver import Solver, place
from passes.gmem import BEST, GMEMOptions, Solvers
from passes.ir import IRModule, structural_mutate, tir
from passes.order.analysis.effects import runs_before
from passes.order.analysis.kept_bytes import Block, FunctionMemory, Unit, blocks_of, read_function
from passes.order.planning.operator_graph import FoundOrder, peak_of
from passes.order.planning.order_search import find_order
from passes.planning import Budget, Problem
from passes.relax import EXPECTED, MAIN_DEVICE, SCOPE, rx
from target_hw.memory import MemoryScope, round_up

Kind = tuple[Unit, bool]
"""Tensors that share memory: those of one unit, and whether the returned ones are among them."""


@dataclass(frozen=True, eq=False)
class FunctionOrder:
    """A Relax function with the order that was found for it."""

    name: str
    func: rx.Function  # With that order; the given function where nothing moves
    operators: int  # Bindings of its dataflow blocks
    reason: str = ""  # The reason for which nothing moves, if nothing does
    given: int = 0  # Most bytes of the main memory that live at once, as written
    found: int = 0  # The same in the order that was taken
    bound: int = 0  # Bytes of the main memory that no order has less than, where it was searched
    needs: str = ""  # The binding that needs as many bytes by itself, if one does
    moved: tuple[str, ...] = ()  # The fewest bindings without which the others are as written

    @property
    def optimal(self) -> bool:
        """Whether no order needs less of the main memory."""
        return 0 < self.found <= self.bound


def order_function(
    mod: IRModule,
    variable: tir.GlobalVar,
    options: GMEMOptions,
    budget: Budget | None = None,
    planner: str = BEST,
) -> FunctionOrder:
    """Find an order of the bindings of a function's dataflow blocks.

    ValueError is raised when what its bindings become is not found, or by `read_relax_memory`.
    """
    name, func = str(variable.name_hint), mod[variable]
    counts = [len(block.bindings) for block in blocks_of(func)]
    if max(counts, default=0) < 2:
        reason = "it has no dataflow block with something to reorder"
        return FunctionOrder(name, func, sum(counts), reason)
    written = _read(mod, variable, options, planner)
    main = (MAIN_DEVICE, SCOPE, ""), False
    ordered, reason, bound, needs = _lower_order(written, main, variable, options, budget)
    for kind in written.problems:
        if kind != main:
            ordered, *_ = _lower_order(ordered, kind, variable, options, budget)
    found = ordered.mod[variable]
    given, most, moved = written.live[main], ordered.live[main], _moved(func, found)
    reason = "" if moved else reason
    return FunctionOrder(name, found, sum(counts), reason, given, most, bound, needs, moved)


@dataclass(frozen=True, eq=False)
class _Ordered:
    """A module with an order of one of its functions, and what that order needs."""

    mod: IRModule
    planner: str
    read: FunctionMemory
    problems: Mapping[Kind, Problem]
    solvers: Mapping[Kind, Solver]
    live: Mapping[Kind, int]  # The most bytes that live at once
    _planned: dict[Kind, int] = field(default_factory=dict)

    def planned(self, kind: Kind) -> int:
        """Return the bytes that a plan takes, the last tensor padded as `live` counts it."""
        if kind not in self._planned:
            problem = self.problems[kind]
            peak = place(problem, self.solvers[kind]).peak
            self._planned[kind] = round_up(peak, problem.memory.alignment)
        return self._planned[kind]

    def is_below(self, other: _Ordered, lower: Kind) -> bool:
        """Return whether a plan takes less of one kind of memory, and more of none.

        The bytes live at once are no more than a plan takes, and known without one.
        """
        return self.live.keys() == other.live.keys() and all(
            self.planned(kind) + (kind == lower) <= other.live[kind]
            or self.planned(kind) + (kind == lower) <= other.planned(kind)
            for kind in self.live
        )


def _read(mod: IRModule, variable: tir.GlobalVar, options: GMEMOptions, planner: str) -> _Ordered:
    """Read what the function of a module needs in the order that it has there."""
    read = read_function(mod, variable, options.read)
    memory = MemoryScope(SCOPE, alignment=options.gmem().offset_alignment)
    problems: dict[Kind, Problem] = {}
    solvers: dict[Kind, Solver] = {}
    for unit, group in read.groups().items():
        kinds = {(unit, False): group.problem.buffers}
        if group.returned and not options.has_addresses():
            kinds[unit, True] = group.allocated
        for kind, buffers in kinds.items():
            problems[kind] = Problem(buffers, memory, name=f"function {read.memory.name!r}")
            own, at_offsets = Solvers(planner, options), options.form(mod, group).offsets
            solvers[kind] = own.offsets if at_offsets else own.slots
    live = {kind: max(read.live_bytes(problem)) for kind, problem in problems.items()}
    return _Ordered(mod, planner, read, problems, solvers, live)


def _lower_order(
    given: _Ordered,
    kind: Kind,
    variable: tir.GlobalVar,
    options: GMEMOptions,
    budget: Budget | None,
) -> tuple[_Ordered, str, int, str]:
    """Look for an order that needs less of one kind of memory, and more of none.

    Returns that order, or the given one and why; a lower bound in bytes of any order; and which
    binding needs as many bytes by itself, where one does.
    """
    mod, read, tensors = given.mod, given.read, given.problems[kind]
    blocks, reason = _reorderable(mod[variable], read)
    inside = {number for block in blocks for number in block.numbers}
    live = enumerate(read.live_bytes(tensors))
    floor = max((nbytes for number, nbytes in live if number not in inside), default=0)
    problems = [
        (block, read.problem(block, runs_before(mod, block.bindings), tensors)) for block in blocks
    ]
    peaks = [peak_of(problem, range(len(problem.before))) for _, problem in problems]
    found: list[tuple[Block, FoundOrder]] = []
    for _, (block, problem) in sorted(zip(peaks, problems, strict=True), key=lambda one: -one[0]):
        found.append((block, find_order(replace(problem, floor=floor), budget)))
        floor = max(floor, found[-1][1].bound)
    needs = ""
    for block, one in found:
        if one.bound == floor and one.needs is not None:
            name, padded = block.bindings[one.needs].var.name, tensors.memory.alignment
            needs = f"{str(name)!r} needs {floor} bytes in any order, padded to {padded}"
    orders = {
        block.block.__chandle__(): one.order
        for block, one in found
        if one.order != tuple(range(len(one.order)))
    }
    if orders:
        reordered = with_block_orders(mod, variable, orders)
        lower = _read(reordered, variable, options, given.planner)
        if lower.is_below(given, kind):
            return lower, "", floor, needs
        reason = reason or "the plan of a lower order is not lower"
    elif max(peaks, default=0) > floor:
        reason = reason or f"the search stopped without a proof: no order has less than {floor}"
    return given, reason or needs or "no order is lower", floor, needs


def _reorderable(func: rx.Function, read: FunctionMemory) -> tuple[list[Block], str]:
    """Return the blocks whose memory is all known, and why another one stays."""
    left = {one.name: one for one in read.memory.left if one.reason not in EXPECTED}
    blocks, reason = [], ""
    for block in blocks_of(func):
        names = read.names_within(block)
        unknown = [left[name] for name in names if name in left]
        if unknown:
            reason = f"{unknown[0].name!r} is left to the runtime: {unknown[0].reason}"
            for name, binding in names.items():
                reason = reason.replace(repr(name), repr(binding))
        else:
            blocks.append(block)
    return blocks, reason


def with_block_orders(
    mod: IRModule, variable: tir.GlobalVar, order_of: Mapping[int, Sequence[int]]
) -> IRModule:
    """Return a module with new orders of some blocks of a function, by the blocks' handles."""

    def reorder(block: Any, _mutator: Any) -> Any:
        bindings, order = list(block.bindings), order_of.get(block.__chandle__())
        if order is None:
            return block
        return rx.DataflowBlock([bindings[number] for number in order], block.span)

    result = mod.clone()
    result.update_func(variable, structural_mutate(mod[variable], [(rx.DataflowBlock, reorder)]))
    return result


def _moved(given: rx.Function, found: rx.Function) -> tuple[str, ...]:
    """Return the fewest bindings without which the others are in the written order.

    The others are a longest ascending subsequence: of each length, the lowest end is kept.
    """
    variables = [binding.var for block in blocks_of(given) for binding in block.bindings]
    written = {variable.__chandle__(): number for number, variable in enumerate(variables)}
    bindings = [binding for block in blocks_of(found) for binding in block.bindings]
    order = [written[binding.var.__chandle__()] for binding in bindings]
    ends: list[int] = []
    before: dict[int, int | None] = {}
    for number in order:
        length = bisect_left(ends, number)
        before[number] = ends[length - 1] if length else None
        ends[length : length + 1] = [number]
    kept, last = set[int](), ends[-1] if ends else None
    while last is not None:
        kept.add(last)
        last = before[last]
    return tuple(str(variables[number].name) for number in order if number not in kept)
