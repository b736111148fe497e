# SPDX-License-Identifier: Apache-2.0
"""ExecuTorch's memory planning pass with one of our planners.

Tensors lie in arenas without an end, or over the banks of a chip so that the fewest bytes move: a
``TargetMemoryMap`` lists banks with a capacity, the fastest first. Each tensor lies in one of them
for its whole life; what a run reads and writes in a slower one crosses its bus.

Source: ``exir/banked_memory_planning.py`` of ExecuTorch 1.5, whose rules for pins, padding,
alignments and submodules hold here too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from passes.planning import Budget, MemoriesProblem, Plan, Status, Traffic, check, solve
from passes.planning.memories import does_not_fit_in_memories
from target_hw.memory import MemoryScope
from tvm_ext.hosts.executorch.tensor_specs import GraphModule, Place, PlannedTensors, Spec


def memory_planning_pass(
    planner: str = "best",
    *,
    banks: Any = None,
    budget: Budget | int | None = None,
    **options: Any,
) -> Any:
    """Return a ``MemoryPlanningPass`` of ExecuTorch that asks one of our planners for offsets.

    It stands in the place of ``MemoryPlanningPass()`` in ``ExecutorchBackendConfig``. What custom
    passes chose, and options, are treated as ExecuTorch's own ``greedy`` treats them, and no arena
    is larger than ``greedy`` makes it. Raises ImportError if ExecuTorch is not installed, and
    ValueError for options that contradict one another.

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
        ``alloc_mutable_buffers``, ``share_mutable_buffers`` (not with banks, as ExecuTorch puts the
        shared state behind arena 1), ``alignment`` in bytes.
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
    """An algorithm for ExecuTorch's suite, with the parameters of `memory_planning_pass`."""

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
        """Place the tensors `specs` of one graph; return a ``MemoryAlgoResult``.

        Offsets are multiples of `alignment` bytes; `extra_padding` bytes behind the last tensor of
        each arena are for delegates that read them. Raises ValueError as `PlannedTensors.read`
        does; BankPlacementError if no plan fits the banks, a bank's alignment is no multiple of
        `alignment`, or a tensor is on another device, as banks are memory of the CPU.
        """
        tensors = PlannedTensors.read(specs, graph_module, alignment)
        if self.banks is not None:
            placed = _in_banks(tensors, self.banks, self.budget, extra_padding)
            return tensors.result(placed, extra_padding, max(self.banks.mem_ids()) + 1)
        return tensors.result(self._in_arenas(tensors, graph_signature), extra_padding)

    def _in_arenas(self, tensors: PlannedTensors, graph_signature: Any) -> dict[Spec, Place]:
        """Return the places by our plans, or by ``greedy`` in an arena that it makes smaller."""
        from executorch.exir.memory_planning import greedy as their_greedy

        arenas = tensors.arenas(tensors.buffers)
        plans = {arena: solve(p, self.planner, self.budget) for arena, (_, p) in arenas.items()}
        if any(plan.status is not Status.OPTIMAL for plan in plans.values()):
            graph = tensors.graph_module, graph_signature
            theirs = their_greedy(tensors.alignment, tensors.names, *graph, 0).spec_dict
            for arena, (owners, _) in arenas.items():
                at = {spec: int(theirs[spec].mem_offset) for spec in owners}
                peak = max(at[spec] + spec.allocated_memory for spec in owners)
                if peak < plans[arena].peak:
                    offsets = {tensors.names[spec]: (offset,) for spec, offset in at.items()}
                    plans[arena] = Plan(offsets, peak, 0, "greedy", Status.FEASIBLE)
        placed: dict[Spec, Place] = {}
        for arena, (owners, problem) in arenas.items():
            check(problem, plans[arena])
            placed |= {s: (arena, plans[arena].offsets[tensors.names[s]][0]) for s in owners}
        return placed


def _in_banks(
    tensors: PlannedTensors, target: Any, budget: Budget | int | None, extra_padding: int
) -> dict[Spec, Place]:
    """Place tensors within the banks of a map; other arenas hold what a pass has put there."""
    from executorch.exir.banked_memory_planning import BankedGreedy, BankPlacementError

    theirs = BankedGreedy(target)
    theirs._check_bank_alignments(tensors.alignment)
    theirs._reject_non_cpu([*tensors.names])
    bank_of = {f"global.{bank.name}": bank for bank in target.banks}
    memories = [_memory(scope, bank, tensors, extra_padding) for scope, bank in bank_of.items()]
    touches, managed, traffic = _touches(tensors), [], {}
    for spec in tensors.buffers:
        if spec.mem_id is None or target.manages(spec.mem_id):
            pinned = tuple(s for s, bank in bank_of.items() if bank.mem_id == spec.mem_id) or None
            traffic[tensors.names[spec]] = Traffic(uses=max(1, touches[spec]), memories=pinned)
            managed.append(spec)
    buffers = tuple(tensors.buffers[spec] for spec in managed)
    problem = MemoriesProblem(buffers, tuple(memories), traffic, name="banks")
    plan = solve(problem, budget=budget)
    if not plan.fits:
        words = {scope: bank.name for scope, bank in bank_of.items()}
        raise BankPlacementError(does_not_fit_in_memories(problem, plan, words))
    check(problem, plan)
    placed: dict[Spec, Place] = {}
    for spec in managed:
        where, (offset, *_) = plan.memory[tensors.names[spec]], plan.offsets[tensors.names[spec]]
        spec.realign(bank_of[where].alignment or tensors.alignment)
        placed[spec] = bank_of[where].mem_id, offset
    others = tensors.arenas(spec for spec in tensors.buffers if spec not in placed)
    for arena, (owners, alone) in others.items():
        own = solve(alone)
        check(alone, own)
        placed |= {spec: (arena, own.offsets[tensors.names[spec]][0]) for spec in owners}
    return placed


def _memory(scope: str, bank: Any, tensors: PlannedTensors, extra_padding: int) -> MemoryScope:
    """Return a bank, without its padding, as a memory in units of the bank's alignment."""
    unit = bank.alignment or tensors.alignment
    room = (bank.size - extra_padding) // unit * unit
    reserved = min(tensors.reserved[bank.mem_id], room)
    if room <= 0:
        room = reserved = unit  # Nothing fits beside the padding.
    return MemoryScope(scope, room, unit, reserved=((0, reserved),) if reserved else ())


def _touches(tensors: PlannedTensors) -> Counter[Spec]:
    """Return how many nodes read or write each tensor, its views included.

    An allocation and a view move nothing. An input is written, and an output read, by the caller.
    """
    from executorch.exir import memory
    from executorch.exir.memory_planning import get_node_tensor_specs

    root = {spec: spec for spec in tensors.buffers}
    root |= {view: owner for view, (owner, _) in tensors.views.items()}
    found: Counter[Spec] = Counter()
    for node in tensors.graph_module.graph.nodes:
        if node.target not in (memory.alloc, memory.view):
            near = [s for n in (node, *node.all_input_nodes) for s in get_node_tensor_specs(n)]
            found.update({root[spec]: 1 for spec in near if spec in root})
    return found
