# SPDX-License-Identifier: Apache-2.0
"""ExecuTorch's memory planning pass with one of our planners."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from passes.planning import Budget, Plan, Status, check, solve
from tvm_ext.hosts.executorch.specs import (
    DEFAULT_ARENA,
    Arena,
    GraphModule,
    PlannedTensors,
    Spec,
    read_specs,
    submodule_bytes,
)


def memory_planning_pass(
    planner: str = "best", *, budget: Budget | int | None = None, **options: Any
) -> Any:
    """Return a ``MemoryPlanningPass`` of ExecuTorch that asks one of our planners for offsets.

    It stands in the place of ``MemoryPlanningPass()`` in ``ExecutorchBackendConfig``. Arenas that
    custom passes chose (``mem_id``), views (``storage_base``), submodules of control flow, devices
    and padding are treated as ExecuTorch's own ``greedy`` treats them, and no arena is larger than
    ``greedy`` makes it.

    Parameters
    ----------
    planner : str
        The name of a planner.
    budget : Budget or int, optional
        Limits for planners that search.
    **options
        For ``MemoryPlanningPass``: ``alloc_graph_input``, ``alloc_graph_output``,
        ``alloc_mutable_buffers``, ``share_mutable_buffers``, ``alignment`` in bytes.

    Returns
    -------
    executorch.exir.passes.MemoryPlanningPass

    Raises
    ------
    ImportError
        If ExecuTorch is not installed.
    """
    from executorch.exir.memory_planning import MemoryPlanningAlgorithmSuite
    from executorch.exir.passes import MemoryPlanningPass

    algorithm = SpecPlanner(planner, budget)
    return MemoryPlanningPass(MemoryPlanningAlgorithmSuite([algorithm]), **options)


@dataclass(frozen=True)
class SpecPlanner:
    """A memory planning algorithm of ExecuTorch, for ``MemoryPlanningAlgorithmSuite``.

    Calling it places the tensors of one graph and returns a ``MemoryAlgoResult``: arena, offset
    and object of each tensor, and the bytes of each arena.
    """

    planner: str = "best"
    budget: Budget | int | None = None

    @property
    def __name__(self) -> str:
        """What the suite calls the algorithm."""
        return f"tvm_ext.{self.planner}"

    def __call__(
        self,
        alignment: int,
        specs: Iterable[Spec],
        graph_module: GraphModule,
        graph_signature: Any = None,
        extra_padding: int = 0,
    ) -> Any:
        """Place the tensors of one graph.

        Parameters
        ----------
        alignment : int
            Offsets are multiples of this many bytes.
        specs : iterable of TensorSpec
            The tensors to place.
        graph_module, graph_signature
            Where they come from.
        extra_padding : int
            Bytes behind the last tensor of each arena, which some delegates read.

        Returns
        -------
        executorch.exir.memory_planning.MemoryAlgoResult

        Raises
        ------
        ValueError
            As `read_specs` does.
        """
        from executorch.exir.memory_planning import greedy

        tensors = read_specs(specs, graph_module, alignment)
        plans = [solve(arena.problem, self.planner, self.budget) for arena in tensors.arenas]
        if any(plan.status is not Status.OPTIMAL for plan in plans):
            result = greedy(alignment, tensors.names, graph_module, graph_signature, 0)
            plans = [
                _lower(plan, _plan_of(arena, result.spec_dict))
                for arena, plan in zip(tensors.arenas, plans, strict=True)
            ]
        for arena, plan in zip(tensors.arenas, plans, strict=True):
            check(arena.problem, plan)
        return _result(tensors, plans, submodule_bytes(graph_module), extra_padding)


def _plan_of(arena: Arena, results: Any) -> Plan:
    """Return a plan with the offsets that ExecuTorch's ``greedy`` chose."""
    names = [buffer.name for buffer in arena.problem.buffers]
    offsets = {
        name: (int(results[spec].mem_offset),)
        for name, spec in zip(names, arena.owners, strict=True)
    }
    ends = (offsets[buffer.name][0] + buffer.size for buffer in arena.problem.buffers)
    return Plan(offsets, max(ends, default=0), 0, "greedy", Status.FEASIBLE)


def _lower(ours: Plan, greedy: Plan) -> Plan:
    return greedy if greedy.peak < ours.peak else ours


def _result(
    tensors: PlannedTensors, plans: list[Plan], submodules: Iterable[int], extra_padding: int
) -> Any:
    """Write plans as ExecuTorch's result: an arena, an offset and an object for each tensor."""
    from executorch.exir.memory_planning import MemoryAlgoResult, SpecAllocResult

    placed: dict[Spec, Any] = {}
    sizes = list(submodules)
    for arena, plan in zip(tensors.arenas, plans, strict=True):
        sizes += [0] * (max(arena.number, DEFAULT_ARENA) + 1 - len(sizes))
        sizes[arena.number] = max(arena.reserved, plan.peak) + extra_padding
        for spec, offset, number in _objects(arena, plan):
            placed[spec] = SpecAllocResult(arena.number, number, offset)
    for view in tensors.views:
        root = placed[view.root]
        offset = root.mem_offset + view.offset
        placed[view.spec] = SpecAllocResult(root.mem_id, root.mem_obj_id, offset)
    return MemoryAlgoResult(placed, sizes + [0] * (DEFAULT_ARENA + 1 - len(sizes)))


def _objects(arena: Arena, plan: Plan) -> Iterator[tuple[Spec, int, int]]:
    """Yield each tensor with its offset in bytes and the number of its object.

    ExecuTorch's verifier wants tensors that share bytes to be of one object. Objects are here the
    parts of an arena that no tensor straddles, from its start on.
    """
    spans = sorted(
        (plan.offsets[buffer.name][0], buffer.size, place)
        for place, buffer in enumerate(arena.problem.buffers)
    )
    number, reached = -1, -1
    for offset, size, place in spans:
        if offset >= reached:
            number += 1
        reached = max(reached, offset + size)
        yield arena.owners[place], offset, number
