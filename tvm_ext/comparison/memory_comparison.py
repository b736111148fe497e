"""What the tensors of a Relax function take, planned by the stock pass and by each planner."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import astuple, dataclass

from tvm import DataType, relax
from tvm.ir import IRModule, Op
from tvm.target import Target
from tvm.tirx import IntImm

from passes.gmem import FunctionPlan, GMEMOptions, plan_gmem
from passes.planning import Budget, Problem, Status, check, lower_bound, planner_names, solve
from tvm_ext.lowering import capture_relax, first_line, known_target

SEARCH_NODES = 100_000
"""Placements that a planner may try by default: an answer within seconds."""

_READER = "best"
"""The planner that is asked first: where its plan does not fit the memory, that is an error."""


@dataclass(frozen=True)
class AllocatedMemory:
    """What a call of a Relax function allocates.

    Attributes
    ----------
    nbytes : int
        Bytes of the storages of constant size.
    left : int
        Tensors that are not in one: the runtime allocates each by itself.
    left_bytes : int
        Bytes of those of constant size.
    symbolic : int
        Storages of a size that only the running program knows.
    """

    nbytes: int = 0
    left: int = 0
    left_bytes: int = 0
    symbolic: int = 0

    def then(self, other: AllocatedMemory) -> AllocatedMemory:
        """Return what both allocate together."""
        return self._joined(other, lambda a, b: a + b)

    def instead(self, other: AllocatedMemory) -> AllocatedMemory:
        """Return what one of the two allocates at most."""
        return self._joined(other, max)

    def _joined(self, other: AllocatedMemory, join: Callable[[int, int], int]) -> AllocatedMemory:
        return AllocatedMemory(*map(join, astuple(self), astuple(other)))


@dataclass(frozen=True)
class PlannedMemory:
    """What one planner made of a function's tensors.

    Attributes
    ----------
    planner : str
        Its name.
    nbytes : int
        The peak of its plan.
    fits : bool
        Whether that is within the memory's capacity.
    optimal : bool
        Whether it fits, and it is proven that no plan needs less.
    seconds : float
        Time that the planner took.
    """

    planner: str
    nbytes: int
    fits: bool
    optimal: bool
    seconds: float


@dataclass(frozen=True)
class ActivationMemory:
    """The memory of one Relax function.

    Attributes
    ----------
    function : str
        Its name in the module.
    fused : bool
        Whether operators were fused before.
    tensors : int
        Pieces of memory that are planned. A tensor and a reshape of it are one.
    left : int
        Tensors that are left to the runtime: the caller gets them, or their size is not known.
    no_reuse : int
        The sum of the planned tensors' bytes, each rounded up to the alignment.
    stock : AllocatedMemory
        What there is after ``StaticPlanBlockMemory``.
    plans : tuple of PlannedMemory
        In alphabetical order of the planners' names.
    lower_bound : int
        Bytes that no plan can do with less than.
    weights : int
        Parameters and constants that lie in the region of weights.
    weight_bytes : int
        The size of that region.
    """

    function: str
    fused: bool
    tensors: int
    left: int
    no_reuse: int
    stock: AllocatedMemory
    plans: tuple[PlannedMemory, ...]
    lower_bound: int
    weights: int
    weight_bytes: int

    def bytes_of(self, planner: str) -> int:
        """Return the peak of a planner's plan; KeyError if the planner was not asked."""
        return {plan.planner: plan.nbytes for plan in self.plans}[planner]


def activation_memory(
    mod: IRModule,
    target: str | Target = "llvm",
    *,
    fuse: bool = True,
    names: Iterable[str] | None = None,
    budget: Budget | None = None,
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
    names : iterable of str, optional
        The planners to ask; by default all.
    budget : Budget, optional
        What each planner may spend; by default `SEARCH_NODES` placements.

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
    resolved = known_target(target)
    lowered, stock = _lowered(mod, resolved, fuse)
    budget = budget or Budget(SEARCH_NODES)
    options = GMEMOptions(target=resolved, budget=budget)
    rows = []
    for found in plan_gmem(lowered, _READER, options):
        if found.memory.storages:
            asked = planner_names() if names is None else names
            plans = tuple(_planned(found.problem, name, budget) for name in sorted(asked))
            allocated = allocated_memory(stock[found.memory.name])
            rows.append(_row(found, fuse, allocated, plans))
    return tuple(rows)


def _lowered(mod: IRModule, target: Target, fuse: bool) -> tuple[IRModule, IRModule]:
    """Return a module as the stock pass is given it, and as it leaves it."""
    try:
        lowered = capture_relax(mod, target, fuse=fuse)
        return lowered, relax.transform.StaticPlanBlockMemory()(lowered)
    except ValueError:
        raise
    except Exception as error:  # any pass of the pipeline may raise anything
        raise ValueError(
            f"cannot lower the Relax functions for target kind {target.kind.name!r}: "
            f"{first_line(error)}"
        ) from error


def _row(
    found: FunctionPlan,
    fused: bool,
    stock: AllocatedMemory,
    plans: tuple[PlannedMemory, ...],
) -> ActivationMemory:
    problem, weights = found.problem, found.layout.weights
    return ActivationMemory(
        function=found.memory.name,
        fused=fused,
        tensors=len(problem.buffers),
        left=len(found.memory.left),
        no_reuse=sum(_padded(b.size, problem.alignment_of(b)) for b in problem.buffers),
        stock=stock,
        plans=plans,
        lower_bound=lower_bound(problem),
        weights=len(weights.tensors),
        weight_bytes=weights.size,
    )


def _padded(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment


def _planned(problem: Problem, planner: str, budget: Budget) -> PlannedMemory:
    begin = time.perf_counter()
    plan = solve(problem, planner, budget)
    seconds = time.perf_counter() - begin
    if plan.fits:
        check(problem, plan)
    return PlannedMemory(planner, plan.peak, plan.fits, plan.status is Status.OPTIMAL, seconds)


def allocated_memory(func: relax.Function) -> AllocatedMemory:
    """Read off a function what a call of it allocates.

    Of the two sides of an ``if``, one runs: the one that allocates more counts. A storage counts
    from the beginning of the call to its end.

    Parameters
    ----------
    func : tvm.relax.Function
        After its memory was planned, and before allocations are lowered to calls of the runtime.
    """
    return _allocated(func.body)


_ALLOC_STORAGE = Op.get("relax.memory.alloc_storage")
_ALLOC_TENSOR = Op.get("relax.builtin.alloc_tensor")


def _allocated(body: relax.Expr) -> AllocatedMemory:
    total = AllocatedMemory()
    if isinstance(body, relax.SeqExpr):
        for block in body.blocks:
            for binding in block.bindings:
                total = total.then(_allocated_by(binding.value))
    return total


def _allocated_by(value: relax.Expr) -> AllocatedMemory:
    if isinstance(value, relax.If):
        return _allocated(value.true_branch).instead(_allocated(value.false_branch))
    if not isinstance(value, relax.Call) or value.op not in (_ALLOC_STORAGE, _ALLOC_TENSOR):
        return AllocatedMemory()
    count = _constant_size(value.args[0])
    if value.op == _ALLOC_STORAGE:
        return AllocatedMemory(symbolic=1) if count is None else AllocatedMemory(nbytes=count)
    if count is None:
        return AllocatedMemory(left=1)
    dtype = DataType(value.args[1].value)
    return AllocatedMemory(left=1, left_bytes=-(-count * dtype.bits * dtype.lanes // 8))


def _constant_size(shape: relax.ShapeExpr) -> int | None:
    """Return the product of the extents, or None if one of them is not constant."""
    extents = list(shape.values)
    if not all(isinstance(extent, IntImm) for extent in extents):
        return None
    return math.prod(int(extent) for extent in extents)
