# SPDX-License-Identifier: Apache-2.0
"""Run-time allocations of a Relax function, with live ranges, under our placement or TVM's.

Everything that counts memory reads it here: the choice between plans, the figure for a server, and
the tables that compare planners.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from passes.gmem.planning.pool import (
    Blocks,
    Pieces,
    PoolAllocation,
    blocks_taken,
    each_storage,
    skipped_on_paths,
)
from passes.ir import tir
from passes.planning import Buffer
from passes.relax import SCOPE, RelaxMemory, TensorGroup, same_device, value_of


def allocations_of(
    memory: RelaxMemory, placement: Sequence[Pieces], host: int | None
) -> Iterator[PoolAllocation]:
    """Yield what a function allocates at run time, by the pool that serves it.

    `host` is the device that has the memory of the virtual machine, if one of the devices has.
    """
    if memory.variables and host is not None:  # They are kept in the host's memory.
        yield PoolAllocation((host, ""), 1, 0, 0, len(memory.bindings))
    for number, (group, pieces) in enumerate(zip(memory.groups, placement, strict=True), 1):
        device = same_device(memory.mod, group.device)[0]
        pool = device, "" if group.scope == SCOPE else group.scope
        results = {name for name, of in group.uses.items() if of.is_result}
        for size, inside in each_storage(group.every, pieces):
            returned = any(buffer.name in results for buffer in inside)
            span = storage_span(memory, group, inside)
            yield PoolAllocation(pool, size, number, *span, returned)


def storage_span(
    memory: RelaxMemory, group: TensorGroup, inside: Sequence[Buffer]
) -> tuple[int, int]:
    """Return the span of positions in which a storage of some buffers is in use.

    It is allocated in the innermost sequence of bindings that has all of the buffers, and given
    back after its last use there. From the first `if` of a sequence on, TVM's `KillAfterLastUse`
    gives nothing back that the sequence has made: then that stays until the function returns, as
    what a branch returns and what a tuple keeps do.
    """
    uses = [group.uses[buffer.name] for buffer in inside]
    paths = [of.path for of in uses]
    depth = 0
    while all(len(path) > depth and path[depth] == paths[0][depth] for path in paths):
        depth += 1
    begins = [of.path[depth][0] if len(of.path) > depth else of.made_at for of in uses]
    start, stop = 0, len(memory.bindings)
    if depth:
        position, taken = paths[0][depth - 1]
        start, stop = memory.branches[position][taken]
    last = max(one.live[-1][1] for one in inside)
    first_if = min((at for at in memory.branches if start <= at < stop), default=stop)
    is_freed = last <= first_if and not any(of.is_kept for of in uses)
    return min(begins), last if is_freed else len(memory.bindings)


def blocks_on_paths(
    memory: RelaxMemory, allocations: Iterable[PoolAllocation], value: Callable[[tir.Var], int]
) -> list[Blocks]:
    """Return what a call takes from an empty pool on each path, at some values of dimensions.

    Raises UnknownSizeError where one has none.
    """
    units = (group.unit for group in memory.groups)
    values = (1, *(1 if unit is None else max(value_of(unit, value), 0) for unit in units))
    made, paths = list(allocations), skipped_on_paths(memory.branches) or [()]
    return [blocks_taken(made, values, skipped) for skipped in paths]
