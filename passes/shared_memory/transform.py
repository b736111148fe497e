# SPDX-License-Identifier: Apache-2.0
"""`PlanSharedMemory`: one allocation of a kernel's shared memory, by epochs between barriers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import combinations
from typing import Any, Literal, get_args

from passes.driver import Solver, place
from passes.ir import (
    STOCK_MERGE,
    IRModule,
    Pass,
    PrimFunc,
    Target,
    as_target,
    make_function_pass,
    name_of,
    new_dtype,
    printed,
    structural_mutate,
    target_kind,
    tir,
    with_body,
    without_instruments,
)
from passes.ir.operators import STORAGE_SYNC, new_call
from passes.pass_errors import error_context
from passes.planning import Places, Plan, Problem, does_not_fit, get_planner, live_together, solve
from passes.prim_func import (
    ADDRESS_SPACES,
    Arena,
    has_exact_dtype,
    memory_of,
    warn_of_limit,
    write_arenas,
)
from passes.shared_memory.analysis.kernel_memory import (
    SCOPES,
    KernelMemory,
    find_shared_memory,
)
from passes.shared_memory.analysis.stock_bytes import stock_bytes
from passes.shared_memory.planning.epochs import (
    ThreadBlock,
    barriers_to_add,
    find_epochs,
    shared_memory_problem,
)
from target_hw.memory import MemoryHierarchy, MemoryScope

LOGGER = logging.getLogger("tvm_ext.PlanSharedMemory")
"""Says at level INFO which buffers are left alone and which barriers are added.

Warns of functions that are left to TVM's own pass, and of kernels that need more than a target has
by TVM's own account.
"""

_STOCK_LIMIT = "max_shared_memory_per_block"

Placer = Callable[..., Plan]
"""From a problem to a plan; ``overflow`` says what is the matter with one that does not fit."""

Barriers = Literal["existing", "insert"]
"""The permission to add barriers: at places where that lowers the bytes of a kernel by much."""


@dataclass(frozen=True, eq=False)
class SharedMemoryPlan:
    """Offsets of the buffers of one kernel in one storage scope."""

    memory: KernelMemory  # The function's shared memory
    kernel: ThreadBlock  # Its part that was planned
    problem: Problem  # Its positions are the kernel's epochs
    plan: Plan  # Verified, and within the capacity


def PlanSharedMemory(  # noqa: N802
    planner: str = "best",
    *,
    barriers: Barriers = "existing",
    target: Target | str | Mapping[str, Any] | None = None,
) -> Pass:
    """Give each kernel one allocation of shared memory, and its buffers offsets in it.

    The pass stands where `MergeSharedMemoryAllocations` stands, and in its place: after
    `ThreadSync` and `LowerThreadAllreduce`, before `SplitHostDevice`. Two buffers share bytes
    only if a barrier that all threads of a block meet lies between all that is done to one and all
    that is done to the other, or if each thread is done with an element of the one before it writes
    the other's in its place; see `passes.shared_memory.planning.epochs`. A buffer whose
    uses are not all understood shares with none.

    Parameters
    ----------
    planner : str
        The name of a planner; see `passes.planning.planner_names`.
    barriers : {"existing", "insert"}
        ``insert`` adds barriers where each lowers what the kernel needs by one part in
        `passes.shared_memory.planning.epochs.LEAST_GAIN` at least.
    target : Target or str or dict, optional
        The chip whose shared memory is not to be exceeded: its ``feature.memory`` if that
        describes ``shared`` or ``shared.dyn``, otherwise ``max_shared_memory_per_block``. By
        default what each function's own target describes; its ``max_shared_memory_per_block``,
        which TVM itself does not hold kernels to, then only makes the pass warn.

    Returns
    -------
    tvm.transform.Pass
        A function pass. It raises `ValueError`, naming the function, when a plan does not fit,
        with what is live in the fullest epoch. A function that it cannot read is left to
        `MergeSharedMemoryAllocations`, as is one for a target that cannot see one piece of memory
        as several types.

    Raises
    ------
    ValueError
        When an option is wrong.
    """
    get_planner(planner)
    with error_context("PlanSharedMemory"):
        if barriers not in get_args(Barriers):
            known = ", ".join(get_args(Barriers))
            raise ValueError(f"barriers must be one of {known}, got {barriers!r}")
        chip = as_target(target)
        if chip is not None:
            _limits(chip)  # A description that cannot be is an error here.

    def transform(func: PrimFunc, _mod: IRModule, _context: Any) -> PrimFunc:
        if has_exact_dtype(func):
            return _merged_by_stock(func)
        with error_context("PlanSharedMemory", partial(name_of, func)):
            return _planned(func, planner, barriers, chip)

    return make_function_pass("PlanSharedMemory", transform)


def _planned(func: PrimFunc, planner: str, barriers: Barriers, chip: Target | None) -> PrimFunc:
    """Plan one function's shared memory and write the plan into it; options as of the pass."""
    where, solver = f"function {name_of(func)!r}", partial(solve, planner=planner)
    try:
        func, kernels = read_shared_memory(func, solver, barriers)
    except ValueError as error:
        LOGGER.warning("%s: its shared memory is left to TVM: %s", where, error)
        return _merged_by_stock(func)
    for memory in kernels:
        for note in memory.left_alone:
            LOGGER.info("%s: left alone: %s", where, note)
    plans = [
        plan
        for memory in kernels
        for plan in place_shared_memory(func, memory, partial(place, solver=solver), chip)
    ]
    several = (p for p in plans if len(p.memory.kernels[p.kernel.name].buffers) > 1)
    try:
        return write_arenas(func, [_arena(plan, target_kind(func)) for plan in several])
    except ValueError as error:
        LOGGER.warning("%s: its shared memory is left to TVM: %s", where, error)
        return _merged_by_stock(func)


def _merged_by_stock(func: PrimFunc) -> PrimFunc:
    with without_instruments():
        merged: PrimFunc = STOCK_MERGE()(IRModule({"main": func}))["main"]
    return merged


def read_shared_memory(
    func: PrimFunc, solver: Solver, barriers: Barriers
) -> tuple[PrimFunc, tuple[KernelMemory, ...]]:
    """Return a function with the barriers that are added to it, and its kernels.

    Raises ValueError as `find_shared_memory` does.
    """
    find = partial(find_shared_memory, by_address_space=target_kind(func) in ADDRESS_SPACES)
    kernels = find(func)
    for scope in SCOPES:
        more = _with_barriers(func, kernels, scope, solver, barriers)
        if not more.same_as(func):
            func, kernels = more, find(more)
    return func, kernels


def _with_barriers(
    func: PrimFunc,
    kernels: Sequence[KernelMemory],
    scope: str,
    solver: Solver,
    barriers: Barriers,
) -> PrimFunc:
    """Return the function with barriers where they let much of a storage scope be shared.

    Where TVM's `StorageRewrite` shares, its `ThreadSync` adds barriers, so those that are needed
    to come down to the same number of bytes are not more than TVM's own.
    """
    if all(len(m.kernels[scope].buffers) < 2 for m in kernels if scope in m.kernels):
        return func
    places = []
    for memory, enough in zip(kernels, stock_bytes(func, scope, LOGGER), strict=True):
        kernel, any_size = memory.kernels.get(scope), MemoryScope(scope)
        if kernel is None:
            continue
        enough -= memory.bytes_left_alone[scope]
        added = barriers_to_add(kernel, any_size, enough, solver, more=barriers == "insert")
        places += [memory.places[number] for number in added]
        if added:
            before, after = (
                solver(shared_memory_problem(kernel, any_size, at)).peak for at in ((), added)
            )
            text = "function %r: barriers added: %d, for %d bytes of %s rather than %d"
            LOGGER.info(text, name_of(func), len(added), after, scope, before)
    return _add_barriers(func, scope, places) if places else func


def _add_barriers(
    func: PrimFunc, scope: str, places: Iterable[tuple[tir.Sequence, int]]
) -> PrimFunc:
    """Return a function with a barrier of a storage scope before statements.

    Each place is a sequence of the function, and the index in it of the statement.
    """
    wanted = {(sequence.__chandle__(), at) for sequence, at in places}

    def rewrite(op: tir.Sequence, mutator: Any) -> Any:
        parts: list[Any] = []
        for at, inner in enumerate(op.seq):
            if (op.__chandle__(), at) in wanted:
                parts.append(tir.Evaluation(new_call("int32", STORAGE_SYNC, scope)))
            parts.append(mutator.mutate(inner))
        return tir.Sequence(parts)

    return with_body(func, structural_mutate(func.body, [(tir.Sequence, rewrite)]))


def place_shared_memory(
    func: PrimFunc, memory: KernelMemory, placed: Placer, chip: Target | None
) -> Iterator[SharedMemoryPlan]:
    """Plan the storage scopes of one kernel: they are one memory of the chip.

    Raises ValueError when what is left alone leaves nothing, or `placed` does.
    """
    limits = _limits(chip) if chip is not None else _described(memory_of(func))
    taken = sum(memory.bytes_left_alone.values())
    for scope, kernel in memory.kernels.items():
        limit = limits.get(scope)
        if limit is not None and limit <= taken:
            rest = f"the kernel takes {taken} of the same memory before"
            raise ValueError(f"scope {scope!r} has {limit} bytes, and {rest}")
        capacity = None if limit is None else limit - taken
        problem = shared_memory_problem(kernel, MemoryScope(scope, capacity=capacity))
        plan = placed(problem, overflow=partial(_overflow, EpochPlaces(func, memory, kernel)))
        taken += plan.peak
        warn_of_limit(func, scope, taken, LOGGER)
        yield SharedMemoryPlan(memory, kernel, problem, plan)


def _overflow(places: Places, problem: Problem, plan: Plan, base: int) -> str:
    """Say what does not fit. One thread may read while another writes, so few are in place."""
    pairs = combinations(problem.buffers, 2)
    in_place = {frozenset(pair) for pair in problem.in_place}
    apart = (
        (a.name, b.name)
        for a, b in pairs
        if live_together(a.live, b.live) and frozenset((a.name, b.name)) not in in_place
    )
    return does_not_fit(replace(problem, separations=tuple(apart)), plan, base, places=places)


def _limits(chip: Target) -> dict[str, int]:
    """Return the bytes of shared memory that a block may have, by storage scope."""
    described = chip.features.memory
    limits = _described(None if described is None else MemoryHierarchy.from_target(chip))
    most = chip.attrs.get(_STOCK_LIMIT)
    return limits or ({} if most is None else dict.fromkeys(SCOPES, int(most)))


def _described(memory: MemoryHierarchy | None) -> dict[str, int]:
    scopes = () if memory is None else memory
    return {s.name: s.capacity for s in scopes if s.name in SCOPES and s.capacity is not None}


def _arena(planned: SharedMemoryPlan, kind: str) -> Arena:
    """Return the allocation of a plan, for a kind of target.

    Its elements are of the type of its buffers, or numbers of the width of the widest. Where TVM
    writes no alignment, an array has that of its elements, so these are vectors.
    """
    memory, buffers = planned.memory, planned.problem.buffers
    uses = {buffer.name: memory.allocations[buffer.name] for buffer in buffers}
    types = {dtype for use in uses.values() for dtype in use.dtypes}
    scalars = {str(dtype.with_lanes(1)) for dtype in types}
    widest = max(dtype.bits for dtype in types)
    dtype = new_dtype(scalars.pop() if len(scalars) == 1 else f"uint{widest}")
    lanes = max(dtype.lanes for dtype in types) if kind in ADDRESS_SPACES else 1
    members = tuple((uses[name], at) for name, at in planned.plan.offsets.items())
    return Arena(
        planned.kernel.name,
        planned.plan.peak,
        memory.owner.__chandle__(),
        members,
        max(buffer.alignment for buffer in buffers),
        dtype.with_lanes(lanes),
    )


@dataclass(frozen=True, eq=False)
class EpochPlaces(Places):
    """The positions of a kernel are its epochs."""

    func: PrimFunc
    memory: KernelMemory
    kernel: ThreadBlock

    @cached_property
    def _epochs(self) -> tuple[str, ...]:
        statements = self.memory.statements
        _, lines_of = printed(self.func.without_attr("target"), statements)
        names: list[str] = []
        for epoch in find_epochs(self.kernel):
            barrier = None if epoch.begin is None else statements[epoch.begin.number]
            lines = () if barrier is None else lines_of.get(barrier.__chandle__(), ())
            behind = f"after the barrier on line {lines[0] + 1}" if lines else "at the beginning"
            names.append(f"epoch {len(names)}, {behind}")
        return tuple(names)

    def at(self, position: int) -> str:
        """Return the epoch and where it begins."""
        return self._epochs[position]

    def during(self, begin: int, end: int) -> str:
        """Return the first and the last epoch."""
        return f"in epoch {begin}" if end == begin + 1 else f"in epochs {begin} to {end - 1}"

    def legend(self) -> str:
        """Say which text the lines are of."""
        return "lines are those of the function's script, as it is planned, without target"
