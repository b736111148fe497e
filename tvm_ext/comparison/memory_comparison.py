# SPDX-License-Identifier: Apache-2.0
"""Memories planned by the stock pass and by each planner: as data, and as tables.

A memory is one storage scope of a function, or what the tensors of a Relax function lie in.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tvm import DataType, relax
from tvm.ir import IRModule
from tvm.target import Target

from passes.gmem import ServedMemory, served_memory
from passes.ir.operators import operator_name
from passes.ir.relax_operators import ALLOC_PLANNED_STORAGE, ALLOC_TENSOR
from passes.planning import Budget, Problem, as_budget, planner_names
from passes.relax import Sizes
from target_hw.memory import round_up
from tvm_ext.lowering import as_module, known_target
from tvm_ext.named_planners import listed
from tvm_ext.planned.placements import MapOptions, PlannedMemory, PlannedProblem, planned_memory
from tvm_ext.planned.relax_function import PlannedNetwork, plan_network, unit_of
from tvm_ext.text import Table, Tabular, counted, format_bytes, format_seconds
from tvm_ext.weights import as_built

SEARCH_NODES = 100_000
"""Placements that a planner may try by default: an answer within seconds."""

_HEADER = ("", "bytes", "of stock", "of bound", "fits", "proven", "penalty", "time")
_UNSOUND = "it lets buffers share that are live together (docs/stock-differences.md)"


@dataclass(frozen=True)
class ScopeResult:
    """A memory of one function, planned in every way; all bytes include those reserved below."""

    function: str
    scope: str  # A storage scope; of a network ``tensors, fused`` or ``tensors, not fused``
    buffers: int  # Number of buffers
    capacity: int | None  # Bytes of the memory
    no_reuse: int  # Bytes of all slots of all buffers, each rounded up to its alignment
    # Bytes after the stock pass; None where a buffer has several slots, or where that pass takes
    # less than any plan of these buffers can: `note` says why.
    stock: int | None
    plans: tuple[PlannedMemory, ...]  # In the order in which the planners were asked
    lower_bound: int  # Bytes that every plan needs
    reserved: int = 0  # Bytes of the capacity that are not for buffers
    note: str = ""


def scope_result(
    function: str,
    scope: str,
    memories: Sequence[Sequence[PlannedProblem]],
    stock: int | None = None,
    why_less: str = _UNSOUND,
) -> ScopeResult:
    """Add up the plans of one memory of a function, for each point at which it is attached.

    `stock` is what the stock pass allocates, and `why_less` why that can be less than any plan.
    """
    firsts, note = [placements[0] for placements in memories], ""
    outer, no_reuse = firsts[0].problem, 0
    buffers = [buffer for one in firsts for buffer in one.problem.buffers]
    for problem, base in ((one.problem, one.base) for one in firsts):
        sizes = (round_up(b.size, problem.alignment_of(b)) * b.slots for b in problem.buffers)
        no_reuse += end_of(problem, sum(sizes)) - base
    bound = sum(one.bound - one.base for one in firsts)
    if stock is not None:
        has_slots = any(buffer.slots > 1 for buffer in buffers)
        stock = None if has_slots else end_of(outer, stock)
    if stock is not None and stock < bound:
        note = (
            f"{function}, {scope}: the stock pass takes {stock:,} bytes, less than any plan of "
            f"the same buffers can: {why_less}"
        )
        stock = None
    return ScopeResult(
        function,
        scope,
        len(buffers),
        outer.capacity,
        no_reuse,
        stock,
        tuple(planned_memory(plans) for plans in zip(*memories, strict=True)),
        bound,
        sum(end - begin for begin, end in outer.memory.reserved),
        note,
    )


def end_of(problem: Problem, nbytes: int) -> int:
    """Return where so many bytes end in a memory, the ranges that it reserves below included."""
    for begin, end in problem.memory.reserved:
        nbytes += end - begin if begin < nbytes else 0
    return nbytes


def scope_table(results: Sequence[ScopeResult], notes: Sequence[str] = ()) -> Table:
    """Return a row for each plan of one memory, added up over functions."""
    first = results[0]
    where = f"{len(results)} functions" if len(results) > 1 else first.function
    title = f"{first.scope}: {counted(sum(r.buffers for r in results), 'buffer')} of {where}"
    if first.capacity is not None:
        title += f", capacity {format_bytes(first.capacity)}"
    if first.reserved:
        title += f", {format_bytes(first.reserved)} reserved"
    bound = sum(result.lower_bound for result in results)
    known = [result.stock for result in results if result.stock is not None]
    stock = sum(known) if len(known) == len(results) else None

    def row(name: str, nbytes: int, *more: str) -> tuple[str, ...]:
        of_stock = f"{nbytes / stock:.1%}" if stock else ""
        of_bound = f"{nbytes / bound:.3f}" if bound else ""
        return name, f"{nbytes:,}", of_stock, of_bound, *(more or ("",) * 4)

    rows = [_HEADER, row("no reuse", sum(result.no_reuse for result in results))]
    rows += [] if stock is None else [row("stock", stock)]
    by_planner = defaultdict(list)
    for plan in (plan for result in results for plan in result.plans):
        by_planner[plan.planner].append(plan)
    for planner, plans in by_planner.items():
        if len(plans) == len(results):
            penalty = sum(plan.penalty or 0 for plan in plans)
            fits = _for_all(["yes" if plan.fits else "" for plan in plans])
            more = (
                "" if first.capacity is None else fits,
                _for_all([plan.proven for plan in plans]),
                f"{penalty:,}" if penalty else "",
                format_seconds(sum(plan.seconds for plan in plans)),
            )
            rows.append(row(planner, sum(plan.nbytes for plan in plans), *more))
    return Table(title, [*rows, row("lower bound", bound)], notes)


def _for_all(answers: Sequence[str]) -> str:
    """Return the common answer, ``no`` for an empty text; of several, how many are not empty."""
    if len(set(answers)) == 1:
        return answers[0] or "no"
    return f"{sum(map(bool, answers))}/{len(answers)}"


# ------------------------------------------------------------------ the tensors of a network


@dataclass(frozen=True)
class AllocatedMemory:
    """The memory that a call of a Relax function allocates."""

    nbytes: int = 0
    """Bytes of the storages of constant size."""
    left: int = 0
    """Tensors outside of storages: the runtime allocates each by itself."""
    left_bytes: int = 0
    """Bytes of the tensors outside of storages whose size is constant."""
    units: tuple[tuple[str, int], ...] = ()
    """Storages of symbolic size: a product of symbolic dimensions, and the bytes for each of it."""


@dataclass(frozen=True)
class ActivationMemory(Tabular):
    """The memory of one Relax function."""

    planned: ScopeResult
    """The plans of the tensors of constant size. A tensor and a reshape of it count once."""
    fused: bool
    """Whether operators are fused."""
    left: int
    """Tensors left to the runtime: the function returns them, or their size is not known."""
    stock: AllocatedMemory
    """The memory after ``StaticPlanBlockMemory``, bytes that the memory reserves included."""
    weights: int
    weight_bytes: int
    """Parameters and constants, and the bytes of their region, or their sum where there is none."""
    symbolic: tuple[ScopeResult, ...] = ()
    """The plans of tensors of symbolic size: one for each product of symbolic dimensions, with the
    bytes for each of it. All other numbers leave them out."""
    form: str = ""
    """Whether the target takes tensors at offsets or ``whole slots``, as its only plan is called
    then, and why."""
    copied: int = 0
    """Bytes that a call copies because the target does not take the tensors' offsets."""
    served: ServedMemory = field(default_factory=lambda: ServedMemory(None))
    """Bytes of TVM's pool under `GMEMAllocate` when all functions of the module run in turns; equal
    for all functions of a module."""

    @property
    def function(self) -> str:
        """The function's name in the module."""
        return self.planned.function

    @property
    def tensors(self) -> int:
        """Number of planned tensors."""
        return self.planned.buffers

    @property
    def no_reuse(self) -> int:
        """Sum of the planned tensors' bytes, each rounded up to the alignment."""
        return self.planned.no_reuse

    @property
    def plans(self) -> tuple[PlannedMemory, ...]:
        """The plan of each planner, in alphabetical order of the planners."""
        return self.planned.plans

    @property
    def lower_bound(self) -> int:
        """Bytes that every plan needs."""
        return self.planned.lower_bound

    def bytes_of(self, planner: str) -> int:
        """Return the peak of a planner's plan; KeyError if the planner was not asked."""
        return {plan.planner: plan.nbytes for plan in self.plans}[planner]

    def table(self) -> Table:
        """Return a row for each planner, and below what the numbers leave out."""
        weights = f"weights: {self.weights}, {self.weight_bytes:,} bytes"
        return scope_table([self.planned], [*self.not_counted(), weights])

    def not_counted(self) -> list[str]:
        """Say what the numbers of bytes leave out, a line for each kind."""
        how = "fused" if self.fused else "not fused"
        copied = f"; a call copies {self.copied:,} bytes" if self.copied else ""
        lines = [f"{how}: {self.form}{copied}"] if self.form else []
        if self.left != self.stock.left:
            left = f"{how}: {self.left} tensors are left to the runtime"
            lines.append(f"{left}, by the stock pass {self.stock.left}")
        return lines


def activation_memory(
    mod: IRModule,
    target: str | Target = "llvm",
    *,
    fuse: bool = True,
    names: str | Sequence[str] | None = None,
    budget: Budget | int | None = None,
    upper_bounds: Mapping[str, int] | None = None,
) -> tuple[ActivationMemory, ...]:
    """Plan the tensors of a Relax module's functions by the stock pass and by each planner.

    The module is lowered by the stock pipeline of the target up to the planning of its memory, as
    it would be built: what depends on weights alone is not computed in a call (`as_built`).
    Every plan that fits is verified. Functions with tensors to plan are returned, by name.

    Parameters
    ----------
    mod : tvm.IRModule
        With at least one Relax function; it stays as it is. What is no module is a TypeError.
    target : str or tvm.target.Target
        What it is lowered for; says the alignment, if it describes its ``global`` memory.
    fuse : bool
        Whether to fuse operators first.
    names : str or sequence of str
        The planners to ask; by default all.
    budget : Budget or int, optional
        What each planner may spend; by default `SEARCH_NODES` placements.
    upper_bounds : mapping of str to int, optional
        Most elements of symbolic dimensions, by name, for the stock pass too.

    Raises
    ------
    ValueError
        When there is no Relax function, the target or a planner is not known, TVM cannot lower the
        module or plan its memory, or nothing fits the target's memory.
    """
    limits = Budget(SEARCH_NODES) if budget is None else as_budget(budget)
    asked = sorted(planner_names() if names is None else listed(names))
    options = MapOptions(asked, budget=limits)
    return memory_as_given(
        as_built(as_module(mod)), known_target(target), options, fuse, upper_bounds
    )


def memory_as_given(
    mod: IRModule,
    target: Target,
    options: MapOptions,
    fuse: bool,
    upper_bounds: Mapping[str, int] | None = None,
) -> tuple[ActivationMemory, ...]:
    """Plan the tensors of a module, as `activation_memory` does, with all that a call computes."""
    networks = plan_network(
        mod, target, options, fuse=fuse, upper_bounds=upper_bounds, for_table=True
    )
    served = served_memory([network.found for network in networks], networks[0].options)
    return tuple(_row(network, fuse, served) for network in networks if network.has_tensors)


def _row(network: PlannedNetwork, fused: bool, served: ServedMemory) -> ActivationMemory:
    assert network.stock is not None, "It is asked for above."
    found, stock = network.found, allocated_memory(network.stock)
    scope, left = f"tensors, {'fused' if fused else 'not fused'}", len(found.memory.left)
    # A network's storages are counted as they stand in its IR; the runtime aligns each.
    why_less = "it counts no bytes for alignment"
    if stock.left > left:
        why_less = "it leaves more of them to the runtime"
    of_stock, by_unit = {"": stock.nbytes, **dict(stock.units)}, defaultdict(list)
    for unit, _, placements in network.tensors:
        by_unit[unit].append(placements)
    constant, *symbolic = (
        scope_result(
            network.name,
            f"{scope}, for each {unit}" if unit else scope,
            plans,
            of_stock.get(unit, 0),
            why_less,
        )
        for unit, plans in by_unit.items()
    )
    region, weights = found.layout.weights, found.memory.weights
    counts = len(region.tensors), region.size
    if found.over is not None:
        counts = len(weights), sum(weight.size for weight in weights)
    return ActivationMemory(
        constant,
        fused,
        left,
        replace(stock, nbytes=end_of(found.problem, stock.nbytes)),
        *counts,
        tuple(symbolic),
        str(found.form),
        found.copied,
        served,
    )


def allocated_memory(func: relax.Function) -> AllocatedMemory:
    """Return the memory that a call of a planned function allocates, and holds to its end.

    Of two branches, the larger counts. Allocations must not yet be calls of the runtime.
    """
    sizes = Sizes(func, {})

    def count(value: relax.Expr) -> Counter[tuple[str, str]]:
        """Return the numbers of `AllocatedMemory`, by field and unit."""
        if isinstance(value, relax.SeqExpr):
            bindings = (binding for block in value.blocks for binding in block.bindings)
            return sum((count(binding.value) for binding in bindings), Counter())
        if isinstance(value, relax.If):
            return count(value.true_branch) | count(value.false_branch)
        operator = operator_name(value.op) if isinstance(value, relax.Call) else None
        if operator not in (ALLOC_PLANNED_STORAGE, ALLOC_TENSOR):
            return Counter()
        is_storage = operator == ALLOC_PLANNED_STORAGE
        dtype = DataType("uint8" if is_storage else value.args[1].value)
        size = sizes.of(value.args[0].values, dtype)
        if not is_storage:
            return Counter({("left", ""): 1, ("left_bytes", ""): 0 if size.factors else size.count})
        return Counter({("units" if size.factors else "nbytes", unit_of(size)): size.count})

    counts = count(func.body)
    units = sorted((unit, nbytes) for (_, unit), nbytes in counts.items() if unit)
    fields = {name: number for (name, unit), number in counts.items() if not unit}
    return AllocatedMemory(**fields, units=tuple(units))
