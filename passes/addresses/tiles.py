# SPDX-License-Identifier: Apache-2.0
"""Addresses for the tiles of a Trainium core, in the place of TVM's `TrnNaiveAllocator`."""

from __future__ import annotations

from collections.abc import Collection

from tvm.backend.trn.transform import TrnNaiveAllocator
from tvm.ir import IRModule
from tvm.tirx import PrimFunc

from passes import driver
from passes.addresses.analysis.tile_problems import (
    PSUM,
    SBUF,
    has_tiles,
    tile_address,
    tile_problems,
)
from passes.planning import Budget, solve
from passes.prim_func import write_addresses
from target_hw.memory import MemoryHierarchy

__all__ = ["has_tiles", "naive_bytes", "tile_problems", "with_tile_addresses"]


def with_tile_addresses(
    func: PrimFunc,
    planner: str = "best",
    memory: MemoryHierarchy | None = None,
    budget: Budget | None = None,
    scopes: Collection[str] = (SBUF, PSUM),
) -> PrimFunc:
    """Return a function whose tiles have addresses in SBUF and PSUM.

    An address that the kernel gives is kept, and nothing is planned over it while its tile lives.

    Parameters
    ----------
    func : tvm.tirx.PrimFunc
        Tile primitives and NKI instructions, behind `TrnPrivateBufferAlloc`.
    planner : str
        The name of a planner.
    memory : MemoryHierarchy, optional
        Capacities in bytes of a partition; by default those that the function's target says.
    budget : Budget, optional
        Limits for planners that search.
    scopes : collection of str
        The memories to plan; tiles in any other keep their addresses, or none.

    Raises
    ------
    ValueError
        If a tile has a symbolic size, or no plan fits a capacity.
    """
    memory = memory or driver.memory_of(func) or driver.limits_of(func)
    addresses = []
    for found in tile_problems(func, memory):
        if found.problem.memory.name not in scopes:
            continue
        plan = driver.place(found.problem, lambda problem: solve(problem, planner, budget))
        scope = found.problem.memory.name
        for statement, buffer in zip(found.allocations, found.problem.buffers, strict=True):
            (offset,) = plan.offsets[buffer.name]
            addresses.append((statement, tile_address(scope, offset)))
    return write_addresses(func, addresses)


def naive_bytes(func: PrimFunc) -> dict[str, int]:
    """Return the bytes of a partition at which TVM's `TrnNaiveAllocator` ends, for SBUF."""
    allocated = TrnNaiveAllocator()(IRModule({"main": func}))["main"]
    return {
        found.problem.memory.name: max(
            max(buffer.pinned or (0,)) + buffer.size for buffer in found.problem.buffers
        )
        for found in tile_problems(allocated, MemoryHierarchy())
        if found.problem.memory.name == SBUF
    }
