# SPDX-License-Identifier: Apache-2.0
"""The tensors of an ExecuTorch graph over the banks of a chip, so that the fewest bytes move.

A ``TargetMemoryMap`` lists banks with a capacity, the fastest first. Each tensor lies in one of
them for its whole life; what a run reads and writes in a slower one crosses its bus.

Source: ``exir/banked_memory_planning.py`` of ExecuTorch 1.5, whose rules for pins, padding,
alignments and submodules hold here too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from passes.planning import Budget, MemoriesPlan, MemoriesProblem, Status, Traffic, check, solve
from passes.planning.memories import does_not_fit_in_memories, greedy
from target_hw.memory import MemoryScope
from tvm_ext.hosts.executorch.tensor_specs import GraphModule, PlannedTensors, Spec, read_specs


@dataclass(frozen=True)
class BankPlanner:
    """A memory planning algorithm of ExecuTorch that spreads tensors over banks.

    Parameters
    ----------
    target : executorch.exir.banked_memory_planning.TargetMemoryMap
        The banks that may be filled, the fastest first. An arena that it does not name is planned
        for the tensors that a custom pass has put there, and for no others.
    budget : Budget or int, optional
        Limits for the search.
    """

    target: Any
    budget: Budget | int | None = None

    @property
    def __name__(self) -> str:
        """What the suite calls the algorithm."""
        return "tvm_ext.banks"

    def __call__(
        self,
        alignment: int,
        specs: Iterable[Spec],
        graph_module: GraphModule,
        graph_signature: Any = None,
        extra_padding: int = 0,
    ) -> Any:
        """Place the tensors of one graph within the capacities of the banks.

        The parameters and the result are those of `SpecPlanner`.

        Raises
        ------
        BankPlacementError
            If no plan fits, a bank's alignment is no multiple of `alignment`, or a tensor is on
            another device: banks are memory of the CPU.
        ValueError
            As `read_specs` does.
        """
        from executorch.exir.banked_memory_planning import BankedGreedy, BankPlacementError

        given, banks = list(specs), self.target.banks
        theirs = BankedGreedy(self.target)
        theirs._check_bank_alignments(alignment)
        theirs._reject_non_cpu(given)
        tensors = read_specs(given, graph_module, alignment)
        managed = [s for s in tensors.buffers if s.mem_id is None or self.target.manages(s.mem_id)]
        traffic = {}
        touches = _touches(tensors, graph_module)
        for spec in managed:
            pinned = None if spec.mem_id is None else (_scope(self.target.bank(spec.mem_id)),)
            uses = max(1, touches[spec])
            traffic[tensors.names[spec]] = Traffic(uses=uses, memories=pinned)
        memories = (_memory(bank, alignment, tensors, extra_padding) for bank in banks)
        buffers = tuple(tensors.buffers[spec] for spec in managed)
        problem = MemoriesProblem(buffers, tuple(memories), traffic, name="banks")
        found = _at_most_greedy(problem, solve(problem, budget=self.budget))
        if isinstance(found, MemoriesPlan):
            words = {_scope(bank): bank.name for bank in banks}
            raise BankPlacementError(does_not_fit_in_memories(problem, found, words))
        bank_of = {_scope(bank): bank for bank in banks}
        placed = {}
        for spec in managed:
            where, offset = found[tensors.names[spec]]
            spec.realign(bank_of[where].alignment or alignment)
            placed[spec] = bank_of[where].mem_id, offset
        others = [spec for spec in tensors.buffers if spec not in placed]
        for arena, (owners, alone) in tensors.arenas(others).items():
            plan = solve(alone)
            check(alone, plan)
            placed |= {spec: (arena, plan.offsets[tensors.names[spec]][0]) for spec in owners}
        return tensors.result(placed, extra_padding, max(self.target.mem_ids()) + 1)


def _scope(bank: Any) -> str:
    """Return what a bank is called as a memory of a problem."""
    return f"global.{bank.name}"


def _memory(bank: Any, alignment: int, tensors: PlannedTensors, extra_padding: int) -> MemoryScope:
    """Return a bank as a memory whose offsets and sizes are multiples of the bank's alignment.

    The padding of a bank is no room for tensors.
    """
    unit = bank.alignment or alignment
    room = (bank.size - extra_padding) // unit * unit
    reserved = min(tensors.reserved(bank.mem_id), room)
    if room <= 0:
        room = reserved = unit  # Nothing fits beside the padding.
    ranges = ((0, reserved),) if reserved else ()
    return MemoryScope(_scope(bank), room, unit, reserved=ranges)


def _touches(tensors: PlannedTensors, graph_module: GraphModule) -> Counter[Spec]:
    """Return how many nodes read or write each tensor, its views included.

    An allocation and a view move nothing. An input is written, and an output read, by the caller.
    """
    from executorch.exir import memory
    from executorch.exir.memory_planning import get_node_tensor_specs

    root = dict(zip(tensors.buffers, tensors.buffers, strict=True))
    root |= {view: owner for view, (owner, _) in tensors.views.items()}
    found: Counter[Spec] = Counter()
    for node in graph_module.graph.nodes:
        if node.target not in (memory.alloc, memory.view):
            near = [
                spec for n in (node, *node.all_input_nodes) for spec in get_node_tensor_specs(n)
            ]
            found.update({root[spec]: 1 for spec in near if spec in root})
    return found


def _at_most_greedy(
    problem: MemoriesProblem, plan: MemoriesPlan
) -> dict[str, tuple[str, int]] | MemoriesPlan:
    """Return the memory and offset of each buffer: the plan's, or those of ``greedy`` if better.

    Where neither fits, that is the plan, which says why.
    """
    other = None if plan.status is Status.OPTIMAL else greedy(problem)
    if other is not None:
        moved: Counter[str] = Counter()
        for buffer in problem.buffers:
            where = other[buffer.name][0]
            moved[where] += problem.cost(buffer, problem.memory_index[where])
        if not plan.fits or problem.objective(moved) < problem.objective(plan.moved):
            return other
    if not plan.fits:
        return plan
    check(problem, plan)
    return {name: (where, plan.offsets[name][0]) for name, where in plan.memory.items()}
