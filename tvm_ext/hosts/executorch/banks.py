# SPDX-License-Identifier: Apache-2.0
"""The tensors of an ExecuTorch graph over the banks of a chip, so that the fewest bytes move.

A ``TargetMemoryMap`` lists banks with a capacity, the fastest first. Each tensor lies in one of
them for its whole life; what a run reads and writes in a slower one crosses its bus.

Source: ``exir/banked_memory_planning.py`` of ExecuTorch 1.5, whose rules for pins, padding,
alignments and submodules hold here too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from passes.planning import Budget, MemoriesPlan, MemoriesProblem, Status, Traffic, check, solve
from passes.planning.memories import does_not_fit_in_memories, greedy
from target_hw.memory import MemoryScope
from tvm_ext.hosts.executorch.result import FilledArena, algorithm_result
from tvm_ext.hosts.executorch.specs import (
    GraphModule,
    PlannedTensors,
    Spec,
    arenas_of,
    read_specs,
    reserved_bytes,
    submodule_bytes,
)


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

        given = list(specs)
        theirs = BankedGreedy(self.target)
        theirs._check_bank_alignments(alignment)
        theirs._reject_non_cpu(given)
        tensors = read_specs(given, graph_module, alignment)
        managed = [s for s in tensors.buffers if s.mem_id is None or self.target.manages(s.mem_id)]
        others = [spec for spec in tensors.buffers if spec not in set(managed)]
        problem = _problem(self.target, tensors, managed, alignment, graph_module, extra_padding)
        plan = solve(problem, budget=self.budget)
        placed = _at_most_greedy(problem, plan)
        if placed is None:
            words = {_scope(bank): bank.name for bank in self.target.banks}
            raise BankPlacementError(does_not_fit_in_memories(problem, plan, words))
        filled = []
        for bank in self.target.banks:
            offsets = {}
            for spec in managed:
                where, offset = placed[tensors.names[spec]]
                if where == _scope(bank):
                    spec.realign(bank.alignment or alignment)
                    offsets[spec] = offset
            reserved = reserved_bytes(graph_module, bank.mem_id)
            filled.append(FilledArena(bank.mem_id, offsets, reserved))
        for arena in arenas_of(tensors, others, graph_module):
            alone = solve(arena.problem)
            check(arena.problem, alone)
            filled.append(FilledArena.of_plan(arena, alone))
        kept = [arena for arena in filled if arena.offsets]
        sizes = [*submodule_bytes(graph_module)]
        sizes += [0] * (max(self.target.mem_ids()) + 1 - len(sizes))
        return algorithm_result(tensors, kept, sizes, extra_padding)


def _scope(bank: Any) -> str:
    """Return what a bank is called as a memory of a problem."""
    return f"global.{bank.name}"


def _problem(
    target: Any,
    tensors: PlannedTensors,
    owners: Sequence[Spec],
    alignment: int,
    graph_module: GraphModule,
    extra_padding: int,
) -> MemoriesProblem:
    """Return the problem of the banks; the padding of a bank is no room for tensors."""
    memories = [_memory(bank, alignment, graph_module, extra_padding) for bank in target.banks]
    touches = _touches(tensors, graph_module)
    traffic = {}
    for spec in owners:
        pinned = None if spec.mem_id is None else (_scope(target.bank(spec.mem_id)),)
        traffic[tensors.names[spec]] = Traffic(uses=max(1, touches[spec]), memories=pinned)
    buffers = tuple(tensors.buffers[spec] for spec in owners)
    return MemoriesProblem(buffers, tuple(memories), traffic, name="banks")


def _memory(
    bank: Any, alignment: int, graph_module: GraphModule, extra_padding: int
) -> MemoryScope:
    """Return a bank as a memory whose offsets and sizes are multiples of the bank's alignment."""
    unit = bank.alignment or alignment
    room = (bank.size - extra_padding) // unit * unit
    reserved = min(reserved_bytes(graph_module, bank.mem_id), room)
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

    root = {spec: spec for spec in tensors.buffers} | {v.spec: v.root for v in tensors.views}
    found: Counter[Spec] = Counter()
    for node in graph_module.graph.nodes:
        if node.target in (memory.alloc, memory.view):
            continue
        near = [node, *node.all_input_nodes]
        touched = dict.fromkeys(spec for n in near for spec in get_node_tensor_specs(n))
        found.update(list(dict.fromkeys(root[spec] for spec in touched if spec in root)))
    return found


def _at_most_greedy(
    problem: MemoriesProblem, plan: MemoriesPlan
) -> dict[str, tuple[str, int]] | None:
    """Return the memory and offset of each buffer: the plan's, or those of ``greedy`` if better.

    None where neither fits.
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
        return None
    check(problem, plan)
    return {name: (where, plan.offsets[name][0]) for name, where in plan.memory.items()}
