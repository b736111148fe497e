# SPDX-License-Identifier: Apache-2.0
"""Offsets as what ExecuTorch expects of a planning algorithm: a ``MemoryAlgoResult``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from passes.planning import Plan
from tvm_ext.hosts.executorch.specs import DEFAULT_ARENA, Arena, PlannedTensors, Spec


@dataclass(frozen=True)
class FilledArena:
    """One arena with its tensors in place."""

    number: int  # ExecuTorch's mem_id
    offsets: Mapping[Spec, int]  # Bytes from its start, of the tensors that own their bytes
    reserved: int = 0  # Bytes at its start that belong to submodules of control flow

    @classmethod
    def of_plan(cls, arena: Arena, plan: Plan) -> FilledArena:
        """Return an arena as a plan fills it."""
        names = (buffer.name for buffer in arena.problem.buffers)
        offsets = {s: plan.offsets[n][0] for s, n in zip(arena.owners, names, strict=True)}
        return cls(arena.number, offsets, arena.reserved)


def algorithm_result(
    tensors: PlannedTensors,
    arenas: Sequence[FilledArena],
    submodules: Sequence[int],
    extra_padding: int,
) -> Any:
    """Return an arena, an offset and an object for each tensor, and the bytes of each arena.

    Parameters
    ----------
    tensors : PlannedTensors
        All that were to be placed.
    arenas : sequence of FilledArena
        Where those that own their bytes lie.
    submodules : sequence of int
        Bytes that submodules take of each arena.
    extra_padding : int
        Bytes behind the last tensor of each arena that holds one.

    Returns
    -------
    executorch.exir.memory_planning.MemoryAlgoResult
    """
    from executorch.exir.memory_planning import MemoryAlgoResult, SpecAllocResult

    placed: dict[Spec, Any] = {}
    sizes = [*submodules, *[0] * (DEFAULT_ARENA + 1 - len(submodules))]
    for arena in arenas:
        sizes += [0] * (arena.number + 1 - len(sizes))
        ends = (at + spec.allocated_memory for spec, at in arena.offsets.items())
        sizes[arena.number] = max(arena.reserved, *ends) + extra_padding
        for spec, number in _objects(arena):
            placed[spec] = SpecAllocResult(arena.number, number, arena.offsets[spec])
    for view in tensors.views:
        root = placed[view.root]
        offset = root.mem_offset + view.offset
        placed[view.spec] = SpecAllocResult(root.mem_id, root.mem_obj_id, offset)
    return MemoryAlgoResult(placed, sizes)


def _objects(arena: FilledArena) -> Iterator[tuple[Spec, int]]:
    """Yield each tensor with the number of its object.

    ExecuTorch's verifier wants tensors that share bytes to be of one object. Objects are here the
    parts of an arena that no tensor straddles, from its start on.
    """
    number, reached = -1, -1
    for spec, offset in sorted(arena.offsets.items(), key=lambda entry: entry[1]):
        if offset >= reached:
            number += 1
        reached = max(reached, offset + spec.allocated_memory)
        yield spec, number
