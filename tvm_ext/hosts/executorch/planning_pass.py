# SPDX-License-Identifier: Apache-2.0
"""ExecuTorch's memory planning pass with one of our planners."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from passes.planning import Budget, Plan, Status, check, solve
from tvm_ext.hosts.executorch.banks import in_banks
from tvm_ext.hosts.executorch.tensor_specs import GraphModule, Place, PlannedTensors, Spec


def memory_planning_pass(
    planner: str = "best",
    *,
    banks: Any = None,
    budget: Budget | int | None = None,
    **options: Any,
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
    banks : executorch.exir.banked_memory_planning.TargetMemoryMap, optional
        Memories with capacities, the fastest first. Tensors are then spread over them so that a run
        moves the fewest bytes over the slow buses, in the place of ``banked_memory_planning_pass``.
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
    ValueError
        If ``allow_overlapping_allocations`` is False, which asks for whole objects that share no
        bytes otherwise; or if a planner or ``share_mutable_buffers`` is given with banks: those are
        planned in one way, and ExecuTorch puts the shared state behind arena 1.
    """
    from executorch.exir.memory_planning import MemoryPlanningAlgorithmSuite
    from executorch.exir.passes import MemoryPlanningPass

    if not options.pop("allow_overlapping_allocations", True):
        raise ValueError(
            "memory_planning_pass places tensors at offsets, which run times that share whole "
            "objects do not take: use ExecuTorch's greedy for allow_overlapping_allocations=False"
        )
    if banks is not None and planner != "best":
        raise ValueError(f"banks are planned in one way, got the planner {planner!r}")
    if banks is not None and options.get("share_mutable_buffers"):
        raise ValueError(
            "share_mutable_buffers needs all tensors in arena 1, and banks have other arenas"
        )
    algorithm = SpecPlanner(planner, budget, banks)
    return MemoryPlanningPass(MemoryPlanningAlgorithmSuite([algorithm]), **options)


@dataclass(frozen=True)
class SpecPlanner:
    """A memory planning algorithm for ExecuTorch's ``MemoryPlanningAlgorithmSuite``.

    The parameters are those of `memory_planning_pass`.
    """

    planner: str = "best"
    budget: Budget | int | None = None
    banks: Any = None

    @property
    def __name__(self) -> str:
        """What the suite calls the algorithm."""
        return f"tvm_ext.{self.planner if self.banks is None else 'banks'}"

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
            Arena, offset and object of each tensor, and the bytes of each arena.

        Raises
        ------
        BankPlacementError
            With banks: if no plan fits, a bank's alignment is no multiple of `alignment`, or a
            tensor is on another device, as banks are memory of the CPU.
        ValueError
            As `PlannedTensors.read` does.
        """
        tensors = PlannedTensors.read(specs, graph_module, alignment)
        if self.banks is not None:
            placed = in_banks(tensors, self.banks, self.budget, extra_padding)
            return tensors.result(placed, extra_padding, max(self.banks.mem_ids()) + 1)
        return tensors.result(self._in_arenas(tensors, graph_signature), extra_padding)

    def _in_arenas(self, tensors: PlannedTensors, graph_signature: Any) -> dict[Spec, Place]:
        """Return the places by our plans, or by ``greedy`` in an arena that it makes smaller."""
        from executorch.exir.memory_planning import greedy

        arenas = tensors.arenas(tensors.buffers)
        plans = {arena: solve(p, self.planner, self.budget) for arena, (_, p) in arenas.items()}
        if any(plan.status is not Status.OPTIMAL for plan in plans.values()):
            graph = tensors.graph_module, graph_signature
            theirs = greedy(tensors.alignment, tensors.names, *graph, 0).spec_dict
            for arena, (owners, _) in arenas.items():
                at = {spec: int(theirs[spec].mem_offset) for spec in owners}
                peak = max(at[spec] + spec.allocated_memory for spec in owners)
                if peak < plans[arena].peak:
                    offsets = {tensors.names[spec]: (offset,) for spec, offset in at.items()}
                    plans[arena] = Plan(offsets, peak, 0, "greedy", Status.FEASIBLE)
        placed = {}
        for arena, (owners, problem) in arenas.items():
            check(problem, plans[arena])
            for spec in owners:
                placed[spec] = arena, plans[arena].offsets[tensors.names[spec]][0]
        return placed
