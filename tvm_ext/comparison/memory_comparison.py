# SPDX-License-Identifier: Apache-2.0
"""What the tensors of a Relax function take, planned by the stock pass and by each planner."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

from tvm import DataType, relax
from tvm.ir import IRModule
from tvm.sym import Analyzer
from tvm.target import Target

from passes.gmem import (
    FunctionPlan,
    GMEMOptions,
    ServedMemory,
    plan_gmem,
    plan_slots,
    served_memory,
    write_function,
)
from passes.ir import UPPER_BOUND
from passes.ir.operators import operator_name
from passes.ir.relax_operators import ALLOC_PLANNED_STORAGE, ALLOC_TENSOR
from passes.planning import Budget, Problem, planner_names
from passes.relax import RelaxMemory, Sizes, TensorGroup, product
from tvm_ext.comparison.planner_results import (
    SEARCH_NODES,
    ScopeResult,
    end_of,
    plan_scope,
    scope_table,
)
from tvm_ext.lowering import as_module, capture_relax, has_relax, known_target, lowered_for
from tvm_ext.named_planners import PlannedMemory, listed
from tvm_ext.text import Table, Tabular, formula

SLOTS = "whole slots"
"""What stands for the plan in whole slots in the place of a planner's name."""

READER = "best"
"""The planner that is asked first: where its plan does not fit the memory, that is an error."""


@dataclass(frozen=True)
class AllocatedMemory:
    """What a call of a Relax function allocates."""

    nbytes: int = 0
    """Bytes of the storages of constant size."""
    left: int = 0
    """Tensors that are not in one: the runtime allocates each by itself."""
    left_bytes: int = 0
    """Bytes of those of constant size."""
    symbolic: int = 0
    """Storages of a size that only the running program knows."""
    units: tuple[tuple[str, int], ...] = ()
    """What those take: for each product of symbolic dimensions, the bytes for each of it."""


@dataclass(frozen=True)
class SymbolicMemory:
    """The tensors of one function whose bytes are multiples of one symbolic product.

    All numbers of bytes are for each of that product.
    """

    unit: str  # The product of symbolic dimensions without an upper bound
    result: ScopeResult  # What these tensors take, planned in every way
    # What `GMEMAllocate` allocates by its default plan. Where tensors are in the memory of one that
    # the function returns, that one's bytes count too.
    allocated: int


@dataclass(frozen=True)
class ActivationMemory(Tabular):
    """The memory of one Relax function."""

    planned: ScopeResult
    """What the tensors take, planned in every way. A tensor and a reshape of it are one."""
    fused: bool
    """Whether operators were fused before."""
    left: int
    """Tensors that are left to the runtime: the caller gets them, or their size is not known."""
    stock: AllocatedMemory
    """What there is after ``StaticPlanBlockMemory``. Bytes that the memory reserves below count as
    in the others."""
    weights: int
    """Parameters and constants that lie in the region of weights; all of them where the target has
    several memories, and so no such region."""
    weight_bytes: int
    """The size of that region, or the sum of their bytes."""
    symbolic: tuple[SymbolicMemory, ...] = ()
    """The tensors whose sizes are known at run time only, one entry for each product of symbolic
    dimensions; none of them is in the numbers above."""
    form: str = ""
    """Whether the target takes tensors at offsets or whole slots, and why. Of whole slots, `plans`
    has one, ``whole slots``, and `lower_bound` is theirs."""
    copied: int = 0
    """Bytes that a call copies, because tensors stand at offsets that the target does not take."""
    served: ServedMemory = field(default_factory=lambda: ServedMemory(None))
    """What the pool takes when all functions of the module run in turns, under `GMEMAllocate`; the
    same for each function of a module."""

    @property
    def function(self) -> str:
        """The function's name in the module."""
        return self.planned.function

    @property
    def tensors(self) -> int:
        """Pieces of memory that are planned."""
        return self.planned.buffers

    @property
    def no_reuse(self) -> int:
        """The sum of the planned tensors' bytes, each rounded up to the alignment."""
        return self.planned.no_reuse

    @property
    def plans(self) -> tuple[PlannedMemory, ...]:
        """One for each planner, in alphabetical order of their names."""
        return self.planned.plans

    @property
    def lower_bound(self) -> int:
        """Bytes that no plan can do with less than."""
        return self.planned.lower_bound

    def bytes_of(self, planner: str) -> int:
        """Return the peak of a planner's plan; KeyError if the planner was not asked."""
        return {plan.planner: plan.nbytes for plan in self.plans}[planner]

    def table(self) -> Table:
        """Return a row for each planner, with what the numbers leave out below."""
        weights = f"weights: {self.weights}, {self.weight_bytes:,} bytes"
        return scope_table([self.planned], [*self.not_counted(), weights])

    def not_counted(self) -> list[str]:
        """Say what the numbers of bytes leave out, a line for each kind."""
        how = "fused" if self.fused else "not fused"
        copied = f"; a call copies {self.copied:,} bytes" if self.copied else ""
        lines = [f"{how}: {self.form}{copied}"] if self.form else []
        lines += [
            f"{how}: for each {one.unit}, GMEMAllocate allocates {one.allocated:,} bytes, "
            f"StaticPlanBlockMemory {one.result.stock or 0:,}"
            for one in self.symbolic
        ]
        if self.left != self.stock.left:
            lines.append(
                f"{how}: {self.left} tensors are left to the runtime, by the stock pass "
                f"{self.stock.left}"
            )
        return lines


def activation_memory(
    mod: IRModule,
    target: str | Target = "llvm",
    *,
    fuse: bool = True,
    names: str | Sequence[str] | None = None,
    budget: Budget | None = None,
    upper_bounds: Mapping[str, int] | None = None,
) -> tuple[ActivationMemory, ...]:
    """Plan the tensors of a Relax module's functions in every way, and say what each takes.

    The module is lowered by the stock pipeline of the target up to the planning of its memory.
    Every plan that fits is verified.

    Parameters
    ----------
    mod : tvm.IRModule
        With at least one Relax function; it stays as it is.
    target : str or tvm.target.Target
        What it is lowered for; says the alignment, if it describes its ``global`` memory.
    fuse : bool
        Whether to fuse operators first.
    names : str or sequence of str, optional
        The planners to ask; by default all.
    budget : Budget, optional
        What each planner may spend; by default `SEARCH_NODES` placements.
    upper_bounds : mapping of str to int, optional
        Most elements of symbolic dimensions, by name, for the stock pass too.

    Returns
    -------
    tuple of ActivationMemory
        For each Relax function with tensors to plan, in alphabetical order of their names.

    Raises
    ------
    ValueError
        When there is no Relax function, the target or a planner is not known, TVM cannot lower the
        module or plan its memory, or nothing fits the target's memory.
    """
    mod, resolved = as_module(mod), known_target(target)
    if not has_relax(mod):
        raise ValueError("activation_memory: there is no Relax function in the module")
    lowered, stock = _lowered(mod, resolved, fuse, upper_bounds or {})
    budget = budget or Budget(SEARCH_NODES)
    options = GMEMOptions(target=resolved, budget=budget, upper_bounds=upper_bounds or {})
    asked = planner_names() if names is None else listed(names)
    plans = plan_gmem(lowered, READER, options)
    served = served_memory(plans, options)
    return tuple(
        replace(_row(found, fuse, stock[found.memory.name], sorted(asked), budget), served=served)
        for found in plans
        if any(group.problem.buffers for group in found.memory.groups)
    )


def _lowered(
    mod: IRModule, target: Target, fuse: bool, upper_bounds: Mapping[str, int]
) -> tuple[IRModule, IRModule]:
    """Return a module as the stock pass is given it, and as it leaves it."""
    lowered = capture_relax(mod, target, fuse=fuse)
    for variable in lowered.get_global_vars():
        func = lowered[variable]
        if upper_bounds and isinstance(func, relax.Function):
            own = func.attrs.get(UPPER_BOUND, {}) if func.attrs else {}
            lowered[variable] = func.with_attr(UPPER_BOUND, {**upper_bounds, **own})
    stock = relax.transform.StaticPlanBlockMemory()
    return lowered, lowered_for(target, lambda: stock(lowered))


def _row(
    found: FunctionPlan,
    fused: bool,
    stock: relax.Function,
    planners: Sequence[str],
    budget: Budget,
) -> ActivationMemory:
    allocated = allocated_memory(stock)
    planned = _planned(found, _scope(fused), (found.problem,), planners, budget, allocated.nbytes)
    region, weights = found.layout.weights, found.memory.weights
    several = found.over is not None
    return ActivationMemory(
        planned,
        fused,
        len(found.memory.left),
        replace(allocated, nbytes=end_of((found.problem,), allocated.nbytes)),
        len(weights) if several else len(region.tensors),
        sum(weight.size for weight in weights) if several else region.size,
        tuple(_symbolic(found, fused, stock, planners, budget)),
        str(found.form),
        found.copied,
    )


def _scope(fused: bool) -> str:
    return "tensors, fused" if fused else "tensors, not fused"


def _planned(
    found: FunctionPlan,
    scope: str,
    problems: Sequence[Problem],
    planners: Sequence[str],
    budget: Budget,
    stock: int,
) -> ScopeResult:
    """Plan one function's problems with every planner; in whole slots if the device has those."""
    name, asked = found.memory.name, planners if found.form.offsets else ()
    planned, _ = plan_scope(name, scope, problems, asked, budget, stock)
    if found.form.offsets:
        return planned
    begin = perf_counter()
    plans = [plan_slots(problem, budget) for problem in problems]
    seconds, bound = perf_counter() - begin, sum(one.bound for one in plans)
    peak = sum(one.plan.peak for one in plans)
    fits = all(one.plan.fits for one in plans)
    proven = "lowest peak" if peak == bound else ""
    whole = PlannedMemory(SLOTS, peak, fits, proven, None, seconds)
    return replace(planned, plans=(whole,), lower_bound=bound)


def _symbolic(
    found: FunctionPlan,
    fused: bool,
    stock: relax.Function,
    planners: Sequence[str],
    budget: Budget,
) -> Iterator[SymbolicMemory]:
    """Yield what the tensors of sizes known at run time take, unit by unit."""
    allocated, stock_units = allocated_units(write_function(found)), allocated_units(stock)
    for unit, groups in groups_by_unit(found.memory).items():
        unaligned = replace(groups[0].problem.memory, alignment=1)
        problems = [replace(group.problem, memory=unaligned) for group in groups]
        each = f"{_scope(fused)}, for each {unit}"
        by_stock = _bytes_per(groups[0].unit, stock_units)
        result = _planned(found, each, problems, planners, budget, by_stock)
        yield SymbolicMemory(unit, result, _bytes_per(groups[0].unit, allocated))


def groups_by_unit(memory: RelaxMemory) -> dict[str, list[TensorGroup]]:
    """Return the tensors of sizes known at run time, by the product that they are multiples of."""
    groups: dict[str, list[TensorGroup]] = {}
    for group in memory.groups:
        if group.unit is not None and group.problem.buffers:
            groups.setdefault(formula(group.unit), []).append(group)
    return groups


def _bytes_per(unit: Any, allocated: Sequence[tuple[Any, int]]) -> int:
    """Return the bytes of the allocations of a unit."""
    return sum(nbytes for other, nbytes in allocated if is_same_unit(unit, other))


def is_same_unit(first: Any | None, second: Any | None) -> bool:
    """Return whether two products of dimensions are equal, in any order; None has no factors."""
    if first is None or second is None:
        return first is second
    return bool(Analyzer().can_prove_equal(first, second))


def allocated_memory(func: relax.Function) -> AllocatedMemory:
    """Read off a function whose memory was planned what a call of it allocates.

    Of the two sides of an ``if``, one runs: the one that allocates more counts. A storage counts
    from the beginning of the call to its end. Allocations must not yet be calls of the runtime.
    """
    counts, _ = _allocated(func)
    units = sorted((unit, nbytes) for (_, unit), nbytes in counts.items() if unit)
    fields = {field: count for (field, unit), count in counts.items() if not unit}
    return AllocatedMemory(**fields, units=tuple(units))


def allocated_units(func: relax.Function) -> list[tuple[Any, int]]:
    """Return the units of `allocated_memory` as expressions, each with its bytes."""
    counts, expressions = _allocated(func)
    return [(expressions[unit], nbytes) for (_, unit), nbytes in counts.items() if unit]


def _allocated(func: relax.Function) -> tuple[Counter[tuple[str, str]], dict[str, Any]]:
    """Return the numbers of `AllocatedMemory`, by field and unit, and the units by their text."""
    sizes = Sizes(func, {})
    expressions: dict[str, Any] = {}

    def count(value: relax.Expr) -> Counter[tuple[str, str]]:
        if isinstance(value, relax.SeqExpr):
            bindings = (binding for block in value.blocks for binding in block.bindings)
            return sum((count(binding.value) for binding in bindings), Counter())
        if isinstance(value, relax.If):
            return count(value.true_branch) | count(value.false_branch)
        operator = operator_name(value.op) if isinstance(value, relax.Call) else None
        if operator not in (ALLOC_PLANNED_STORAGE, ALLOC_TENSOR):
            return Counter()
        is_storage = operator == ALLOC_PLANNED_STORAGE
        dtype = DataType("uint8") if is_storage else DataType(value.args[1].value)
        size = sizes.of(value.args[0].values, dtype)
        if is_storage and size.factors:
            unit = product(sorted(size.factors, key=str))
            expressions.setdefault(formula(unit), unit)
            return Counter({("symbolic", ""): 1, ("units", formula(unit)): size.count})
        if is_storage:
            return Counter({("nbytes", ""): size.count})
        return Counter({("left", ""): 1, ("left_bytes", ""): 0 if size.factors else size.count})

    return count(func.body), expressions
