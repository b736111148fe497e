# SPDX-License-Identifier: Apache-2.0
"""`PlanAddresses`: byte offsets for the allocations of each function, in one of two forms."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from tvm.backend.trn.transform import TrnNaiveAllocator

from passes import driver
from passes.addresses.tile_problems import SBUF, has_tiles, tile_address, tile_problems
from passes.ir import (
    IRModule,
    Pass,
    PrimFunc,
    Target,
    as_target,
    find_accesses,
    find_linear_access,
    make_function_pass,
    nodes_in,
    outermost_threads,
    tir,
)
from passes.ir.operators import MERGES_STATIC_SHARED
from passes.pass_errors import error_context
from passes.pass_options import as_bounds, as_memory, check_flags
from passes.planning import Budget, as_budget, get_planner, solve
from passes.prim_func import (
    AllocationNote,
    Callers,
    ProblemOptions,
    before_branches,
    before_carrying_loops,
    drop_addresses,
    find_problems,
    limits_of,
    memory_of,
    overflow_in,
    warn_of_limit,
    write_addresses,
)
from target_hw.memory import MemoryHierarchy
from target_hw.storage_scope import parse_storage_scope

LOGGER = logging.getLogger("tvm_ext.PlanAddresses")
"""Says at level INFO why an allocation is left alone, or gets fewer slots than it asks for.

Warns of those that are used, in memory that is described, and get no address; of those in a chip's
memory that the target does not describe; and of functions that an arena cannot hold.
"""


def PlanAddresses(  # noqa: N802
    planner: str = "best",
    form: driver.Form = "address",
    scopes: Sequence[str] | None = None,
    target: Target | str | Mapping[str, Any] | None = None,
    *,
    memory: MemoryHierarchy | None = None,
    upper_bounds: Mapping[str, int] | None = None,
    detect_inplace: bool = True,
    budget: Budget | int | None = None,
) -> Pass:
    """Give the allocations of each function byte offsets in the memory of their scope.

    The pass stands where `StorageRewrite` stands, and in its place: after `FlattenBuffer`,
    `VectorizeLoop` and `InjectDoubleBuffer`. Allocations that the pass leaves alone share no
    memory; `StorageRewrite(sound=True)` after it lets them share.

    Functions with tiles of a Trainium core (``trn.sbuf``, ``trn.psum``) are planned before
    `TilePrimitiveDispatch`, where TVM's `TrnNaiveAllocator` stands. Capacities are those of a
    partition; addresses that a kernel gives are kept. Each function is planned by itself: TVM's
    code generator for Trainium compiles no calls of functions.

    In address form the plan of any other function avoids the bytes that its callers hold while it
    runs; a function that may call itself again gets no addresses. A buffer that a call may still
    read or write after it has returned, such as an asynchronous copy, shares its bytes with no
    other: see `passes.ir.find_accesses`.

    Parameters
    ----------
    planner : str
        The name of a planner; see `passes.planning.planner_names`.
    form : {"address", "arena"}
        ``address`` writes ``allocated_addr``, in bytes, one for each slot, onto each allocation,
        for a code generator; see `DropAddresses` for building such a module for a CPU. ``arena``
        makes one allocation for each scope and attach point and puts the offsets in the indices:
        that runs anywhere. Memory that the threads of a kernel share is left to `PlanSharedMemory`,
        and a buffer that a function of the module is handed, or that a pointer with a name reaches,
        keeps its allocation. A function is left alone, with a warning, if its target sees a piece
        of memory as one type only, or if it hands a whole buffer to a call.
    scopes : sequence of str, optional
        The storage scopes to plan, such as ``local.UB``. By default all that the target
        describes; all of them where none is described. Allocations that become registers are
        left alone unless their scope is named here.
    target : Target or str or dict, optional
        The chip, whose ``feature.memory`` says what memory there is. By default each function's
        own target, if that describes any.
    memory : MemoryHierarchy, optional
        What memory there is, in the place of a target.
    upper_bounds : mapping of str to int, optional
        Plan allocations of symbolic size at these values of their variables, by name; the
        function then asserts at run time that they are not exceeded. The function attribute
        ``tir_var_upper_bound`` does the same. When the pass runs, the bound of a variable that no
        function has is an error.
    detect_inplace : bool
        Whether a result may take the place of an operand that dies in the same statement.
    budget : Budget or int, optional
        Limits for planners that search, or how many placements they may try.

    Returns
    -------
    tvm.transform.Pass
        A module pass. It raises `ValueError`, naming the function, when a plan does not fit the
        capacity (with what was live at the peak), or when a function cannot be planned.

    Raises
    ------
    ValueError
        When an option is wrong.
    """
    get_planner(planner)
    with error_context("PlanAddresses"):
        if form not in driver.FORMS:
            raise ValueError(f"form must be one of {', '.join(driver.FORMS)}, got {form!r}")
        if target is not None and memory is not None:
            raise ValueError("give a target or a memory, not both")
        if isinstance(scopes, str):
            raise ValueError(f"scopes must be a sequence of names, got {scopes!r}")
        check_flags(detect_inplace=detect_inplace)
        chip = as_target(target)
        if chip is not None:
            memory = MemoryHierarchy.from_target(chip)
        work = as_budget(budget)
        options = ProblemOptions(
            scopes=None if scopes is None else tuple(scopes),
            memory=as_memory(memory),
            upper_bounds=tuple(sorted(as_bounds(upper_bounds).items())),
            detect_inplace=detect_inplace,
            addressed=form == "address",
            is_native=chip is not None and chip.kind.name == "ext_dev",
        )

    def transform(
        name: str, func: PrimFunc, callers: Callers
    ) -> tuple[PrimFunc, driver.AddressPlan | None]:
        if has_tiles(func):
            if form == "arena":
                raise ValueError("tiles of a Trainium core have addresses, and no arena: see form")
            return _with_tile_addresses(func, planner, options, work), None
        memory = memory_of(func) if options.memory is None else options.memory
        limits = limits_of(func, is_held=True)
        mine = replace(options, callers=callers, memory=memory, limits=limits)
        plan = plan_addresses(func, planner, mine, work)
        where = f"PlanAddresses: function {name!r}"
        for note in plan.found.left_alone:
            level = logging.WARNING if _should_warn(note, mine) else logging.INFO
            LOGGER.log(level, "%s: left alone: %s", where, note)
        for note in plan.found.remarks:
            LOGGER.info("%s: %s", where, note)
        try:
            written = driver.write_address_plan(func, plan, form)
        except ValueError as error:
            if form == "address":
                raise
            LOGGER.warning("%s: left alone: %s", where, error)
            return func, plan
        for scope in plan.scopes:
            warn_of_limit(func, scope.problem.memory.name, scope.plan.peak, LOGGER)
        return written, plan

    return driver.per_function("PlanAddresses", transform, form, options.upper_bounds)


def _with_tile_addresses(
    func: PrimFunc, planner: str, options: ProblemOptions, budget: Budget | None
) -> PrimFunc:
    """Return a function of tile primitives whose tiles have addresses in SBUF and PSUM.

    ValueError is raised if a tile has a symbolic size, or no plan fits a capacity.
    """
    memory = options.memory or memory_of(func) or limits_of(func)
    addresses = []
    for found in tile_problems(func, memory):
        scope = found.problem.memory.name
        if options.scopes is None or scope in options.scopes:
            plan = driver.place(found.problem, partial(solve, planner=planner, budget=budget))
            for statement, buffer in zip(found.allocations, found.problem.buffers, strict=True):
                (offset,) = plan.offsets[buffer.name]
                addresses.append((statement, tile_address(scope, offset)))
    return write_addresses(func, addresses)


def naive_bytes(func: PrimFunc) -> dict[str, int]:
    """Return the bytes of a partition at which TVM's `TrnNaiveAllocator` ends, for SBUF."""
    allocated = TrnNaiveAllocator()(IRModule({"main": func}))["main"]
    problems = [found.problem for found in tile_problems(allocated, MemoryHierarchy())]
    return {
        problem.memory.name: max(max(b.pinned or (0,)) + b.size for b in problem.buffers)
        for problem in problems
        if problem.memory.name == SBUF
    }


def DropAddresses() -> Pass:  # noqa: N802
    """Take addresses off allocations whose scope TVM's own lowering for a CPU allows none in.

    `LowerTVMBuiltin` turns allocations into views, and views in ``global``, ``shared``,
    ``shared.dyn`` and ``local`` may not have an address. Other scopes keep theirs.

    Allocations in a ``while`` or an ``if`` move out of it, because the same pass makes code of
    them there that LLVM refuses. Those that carry a value from one round of a loop to the next move
    out of the loop: without an address they would be other memory in each round.

    Returns
    -------
    tvm.transform.Pass
        A function pass, to run before `LowerTVMBuiltin`.
    """

    def transform(func: PrimFunc, _mod: IRModule, _context: Any) -> PrimFunc:
        return before_branches(drop_addresses(_out_of_carrying_loops(func)))

    return make_function_pass("DropAddresses", transform)


def _out_of_carrying_loops(func: PrimFunc) -> PrimFunc:
    if not any(len(op.buffer.ty.allocated_addr) for op in nodes_in(func.body, tir.Allocation)):
        return func
    return before_carrying_loops(func, find_accesses(find_linear_access(func)).of)


def drop_for_kernels() -> Pass:
    """Take addresses off what TVM makes views of where it splits kernels from their host.

    That is all outside of a function's thread extents, and within them what
    `MergeSharedMemoryAllocations` merges. Functions without thread extents keep theirs.
    """

    def transform(func: PrimFunc, _mod: IRModule, context: Any) -> PrimFunc:
        merges_static = context.config.get(MERGES_STATIC_SHARED, False)
        merged = ("shared", "shared.dyn") if merges_static else ("shared.dyn",)
        kernels = outermost_threads(func.body)
        inside = (op for kernel in kernels for op in nodes_in(kernel, tir.Allocation))
        staying = [op for op in inside if op.buffer.ty.storage_scope not in merged]
        return drop_addresses(func, but=staying) if kernels else func

    return make_function_pass("drop_for_kernels", transform)


def _should_warn(note: AllocationNote, options: ProblemOptions) -> bool:
    """Return whether a used allocation stayed unplaced although its scope promises an address.

    That is memory which the chip describes, where addresses are asked for, and a memory of chips
    that this one does not describe: a misspelt name, or a kernel for another chip.
    """
    described = options.memory or MemoryHierarchy()
    if note.scope in described:
        return options.addressed and note.is_used
    is_of_chips = parse_storage_scope(note.scope).is_special
    return note.is_used and is_of_chips and options.memory is not None and options.scopes is None


def plan_addresses(
    func: PrimFunc,
    planner: str = "best",
    options: ProblemOptions | None = None,
    budget: Budget | None = None,
) -> driver.AddressPlan:
    """Decide where each allocation of a flat function lives; each plan is verified.

    ValueError is raised when a plan is above the capacity, and PlanError when one is wrong, which
    would be a fault of the planner.
    """
    found = find_problems(func, options)
    solver = partial(solve, planner=planner, budget=budget)
    return driver.place_function(found, solver, overflow=overflow_in(func, found))
