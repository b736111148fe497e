# SPDX-License-Identifier: Apache-2.0
"""The tensors of an ExecuTorch graph over the banks of a chip, so that the fewest bytes move.

A ``TargetMemoryMap`` lists banks with a capacity, the fastest first. Each tensor lies in one of
them for its whole life; what a run reads and writes in a slower one crosses its bus.

Source: ``exir/banked_memory_planning.py`` of ExecuTorch 1.5, whose rules for pins, padding,
alignments and submodules hold here too.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from passes.planning import Budget, MemoriesPlan, MemoriesProblem, Status, Traffic, check, solve
from passes.planning.memories import does_not_fit_in_memories, greedy
from target_hw.memory import MemoryScope
from tvm_ext.hosts.executorch.tensor_specs import Place, PlannedTensors, Spec


def in_banks(
    tensors: PlannedTensors, target: Any, budget: Budget | int | None, extra_padding: int
) -> dict[Spec, Place]:
    """Place tensors within the capacities of the banks of a ``TargetMemoryMap``.

    An arena that the map does not name is planned for the tensors that a custom pass has put there,
    and for no others. Raises BankPlacementError as `SpecPlanner` does.
    """
    from executorch.exir.banked_memory_planning import BankedGreedy, BankPlacementError

    theirs = BankedGreedy(target)
    theirs._check_bank_alignments(tensors.alignment)
    theirs._reject_non_cpu([*tensors.names])
    bank_of = {f"global.{bank.name}": bank for bank in target.banks}
    memories = {s: _memory(s, bank, tensors, extra_padding) for s, bank in bank_of.items()}
    touches, managed, traffic = _touches(tensors), [], {}
    for spec in tensors.buffers:
        if spec.mem_id is None or target.manages(spec.mem_id):
            pinned = [s for s, bank in bank_of.items() if bank.mem_id == spec.mem_id] or None
            uses = max(1, touches[spec])
            traffic[tensors.names[spec]] = Traffic(uses=uses, memories=pinned and tuple(pinned))
            managed.append(spec)
    buffers = tuple(tensors.buffers[spec] for spec in managed)
    problem = MemoriesProblem(buffers, tuple(memories.values()), traffic, name="banks")
    plan = solve(problem, budget=budget)
    found = _at_most_greedy(problem, plan)
    if found is None:
        words = {scope: bank.name for scope, bank in bank_of.items()}
        raise BankPlacementError(does_not_fit_in_memories(problem, plan, words))
    placed: dict[Spec, Place] = {}
    for spec in managed:
        where, offset = found[tensors.names[spec]]
        spec.realign(bank_of[where].alignment or tensors.alignment)
        placed[spec] = bank_of[where].mem_id, offset
    others = [spec for spec in tensors.buffers if spec not in placed]
    for arena, (owners, alone) in tensors.arenas(others).items():
        own = solve(alone)
        check(alone, own)
        placed |= {spec: (arena, own.offsets[tensors.names[spec]][0]) for spec in owners}
    return placed


def _memory(scope: str, bank: Any, tensors: PlannedTensors, extra_padding: int) -> MemoryScope:
    """Return a bank as a memory whose offsets and sizes are multiples of the bank's alignment.

    The padding of a bank is no room for tensors.
    """
    unit = bank.alignment or tensors.alignment
    room = (bank.size - extra_padding) // unit * unit
    reserved = min(tensors.reserved(bank.mem_id), room)
    if room <= 0:
        room = reserved = unit  # Nothing fits beside the padding.
    return MemoryScope(scope, room, unit, reserved=((0, reserved),) if reserved else ())


def _touches(tensors: PlannedTensors) -> Counter[Spec]:
    """Return how many nodes read or write each tensor, its views included.

    An allocation and a view move nothing. An input is written, and an output read, by the caller.
    """
    from executorch.exir import memory
    from executorch.exir.memory_planning import get_node_tensor_specs

    root = dict(zip(tensors.buffers, tensors.buffers, strict=True))
    root |= {view: owner for view, (owner, _) in tensors.views.items()}
    found: Counter[Spec] = Counter()
    for node in tensors.graph_module.graph.nodes:
        if node.target not in (memory.alloc, memory.view):
            near = [
                spec for n in (node, *node.all_input_nodes) for spec in get_node_tensor_specs(n)
            ]
            found.update({root[spec]: 1 for spec in near if spec in root})
    return found


def _at_most_greedy(
    problem: MemoriesProblem, plan: MemoriesPlan
) -> dict[str, tuple[str, int]] | None:
    """Return the memory and offset of each buffer: the plan's, or those of ``greedy`` if better."""
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
