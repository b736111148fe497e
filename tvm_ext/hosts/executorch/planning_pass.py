# SPDX-License-Identifier: Apache-2.0
"""ExecuTorch's memory planning pass with one of our planners.

A ``TensorSpec`` has a tensor's bytes, the first and the last node that touch it, the arena
(``mem_id``) that a custom pass chose, and for a view the tensor whose bytes it shares. Tensors lie
in arenas without an end, or for their whole life in one of a chip's banks.

Source: ``exir/memory_planning.py``, ``exir/tensor.py`` and ``exir/banked_memory_planning.py`` of
ExecuTorch 1.5, whose rules for pins, padding, alignments and submodules hold here too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from passes.planning import Budget, Buffer, MemoriesProblem, Problem, Traffic, check, solve
from passes.planning.memories import does_not_fit_in_memories
from target_hw.memory import MemoryScope

Spec = Any  # executorch.exir.tensor.TensorSpec

Place = tuple[int, int]
"""The arena of a tensor, and its offset there."""

DEFAULT_ARENA = 1
"""The arena of a tensor that no pass has assigned; arena 0 holds the constants."""


def memory_planning_pass(
    planner: str = "best", *, banks: Any = None, budget: Budget | int | None = None, **options: Any
) -> Any:
    """Return a ``MemoryPlanningPass`` of ExecuTorch that asks one of our planners for offsets.

    It stands in the place of ``MemoryPlanningPass()`` in ``ExecutorchBackendConfig``. Choices of
    custom passes, and options, are treated as ExecuTorch's own ``greedy`` treats them. Raises
    ImportError without ExecuTorch, and ValueError for options that contradict one another.

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
        shared state after arena 1), ``alignment`` in bytes.
    """
    from executorch.exir.memory_planning import MemoryPlanningAlgorithmSuite
    from executorch.exir.passes import MemoryPlanningPass

    if not options.pop("allow_overlapping_allocations", True):
        raise ValueError(
            "memory_planning_pass places tensors at offsets, which runtimes that share whole "
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
        """The name by which the suite calls the algorithm."""
        return f"tvm_ext.{self.planner if self.banks is None else 'banks'}"

    def __call__(
        self,
        alignment: int,
        specs: Iterable[Spec],
        graph_module: Any,
        graph_signature: Any = None,
        extra_padding: int = 0,
    ) -> Any:
        """Place the tensors `specs` of one graph; return a ``MemoryAlgoResult``.

        `extra_padding` bytes after the last tensor of each arena are for delegates that read them.
        Raises ValueError as `PlannedTensors.read` does; BankPlacementError if no plan fits the
        banks, or they do not suit `alignment` or the device of a tensor.
        """
        tensors = PlannedTensors.read(specs, graph_module, alignment)
        if self.banks is not None:
            placed = _in_banks(tensors, self.banks, self.budget, extra_padding)
            return tensors.result(placed, extra_padding, max(self.banks.mem_ids()) + 1)
        places = tensors.in_arenas(tensors.buffers, self.planner, self.budget)
        return tensors.result(places, extra_padding)


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
    return placed | tensors.in_arenas(spec for spec in tensors.buffers if spec not in placed)


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


# ------------------------------------------------------------------ tensors as buffers, and back


@dataclass(frozen=True)
class PlannedTensors:
    """All tensors that one call of a planning algorithm has to place."""

    buffers: dict[Spec, Buffer]  # The tensors that own their bytes
    views: dict[Spec, tuple[Spec, int]]  # The owner of a view's bytes, and where in them it begins
    names: dict[Spec, str]  # Of all of them, the nodes that make them
    graph_module: Any
    alignment: int  # Of offsets and sizes

    @classmethod
    def read(cls, specs: Iterable[Spec], graph_module: Any, alignment: int) -> PlannedTensors:
        """Read the tensors of a graph, and round their sizes up to multiples of `alignment` bytes.

        An owner lives as long as its views. Raises ValueError, which names the tensors, when one
        has no lifetime or a view does not lie within a tensor that is planned.
        """
        given = list(dict.fromkeys(specs))
        names = _names(given, graph_module)
        for spec in given:
            spec.realign(alignment)
        live = {spec: _live_range(spec, names) for spec in given if spec.storage_base is None}
        views = {s: _root(s, live, names, alignment) for s in given if s.storage_base is not None}
        for view, (root, _) in views.items():
            (begin, end), (first, last) = live[root], _live_range(view, names)
            live[root] = min(begin, first), max(end, last)
        buffers = {
            spec: Buffer(names[spec], spec.allocated_memory, (live[spec],), alignment)
            for spec in sorted(live, key=lambda spec: (live[spec], -spec.allocated_memory))
        }
        return cls(buffers, views, names, graph_module, alignment)

    @property
    def reserved(self) -> Counter[int]:
        """The bytes at the start of each arena that submodules of control flow keep."""
        kept = getattr(self.graph_module, "input_mem_buffer_sizes", None) or ()
        return Counter(dict(enumerate(map(int, kept))))

    def in_arenas(
        self, owners: Iterable[Spec], planner: str = "best", budget: Budget | int | None = None
    ) -> dict[Spec, Place]:
        """Plan each arena in which some of `owners` are to lie; return their places."""
        by_arena: dict[int, list[Spec]] = {}
        for spec in owners:
            arena = DEFAULT_ARENA if spec.mem_id is None else int(spec.mem_id)
            by_arena.setdefault(arena, []).append(spec)
        placed: dict[Spec, Place] = {}
        for arena, specs in sorted(by_arena.items()):
            kept = self.reserved[arena]
            memory = MemoryScope("global", reserved=((0, kept),) if kept else ())
            buffers = tuple(self.buffers[spec] for spec in specs)
            problem = Problem(buffers, memory, name=f"arena {arena}")
            plan = solve(problem, planner, budget)
            check(problem, plan)
            placed |= {spec: (arena, plan.offsets[self.names[spec]][0]) for spec in specs}
        return placed

    def result(
        self, placed: Mapping[Spec, Place], extra_padding: int, arenas: int = DEFAULT_ARENA + 1
    ) -> Any:
        """Return the ``MemoryAlgoResult`` of owners that are placed, with `arenas` sizes or more.

        ExecuTorch's verifier wants tensors that share bytes to be of one object: of one part of an
        arena that no tensor straddles. `extra_padding` bytes are after the last tensor.
        """
        from executorch.exir.memory_planning import MemoryAlgoResult, SpecAllocResult

        reserved = self.reserved
        used = {arena for arena, _ in placed.values()}
        count = max(arenas, 1 + max((*reserved, *used), default=0))
        sizes = [reserved[arena] for arena in range(count)]
        found: dict[Spec, Any] = {}
        part, reached, last = -1, -1, -1
        for spec, (arena, offset) in sorted(placed.items(), key=lambda entry: entry[1]):
            if arena != last:
                part, reached, last = -1, -1, arena
            part += offset >= reached
            reached = max(reached, offset + spec.allocated_memory)
            sizes[arena] = max(sizes[arena], reached)
            found[spec] = SpecAllocResult(arena, part, offset)
        for spec, (root, offset) in self.views.items():
            at = found[root]
            found[spec] = SpecAllocResult(at.mem_id, at.mem_obj_id, at.mem_offset + offset)
        for arena in used:
            sizes[arena] += extra_padding
        return MemoryAlgoResult(found, sizes)


def _names(specs: Sequence[Spec], graph_module: Any) -> dict[Spec, str]:
    """Name each tensor by the node that makes it; a tensor without a node by its place."""
    from executorch.exir.memory_planning import get_node_tensor_specs

    wanted = set(specs)
    names: dict[Spec, str] = {}
    for node in graph_module.graph.nodes:
        for number, spec in enumerate(get_node_tensor_specs(node)):
            if spec in wanted:
                names.setdefault(spec, f"{node.name}[{number}]" if number else node.name)
    # No node's name has a space.
    return names | {s: f"tensor {at}" for at, s in enumerate(specs) if s not in names}


def _root(
    spec: Spec, owners: Mapping[Spec, object], names: Mapping[Spec, str], alignment: int
) -> tuple[Spec, int]:
    """Return the tensor that owns a view's bytes, and where in them the view begins."""
    chain, offset, what = [spec], 0, repr(names[spec])
    while (base := chain[-1].storage_base) is not None:
        if base in chain:
            raise ValueError(f"{what}: its storage_base leads back to itself (circular)")
        offset += chain[-1].storage_base_offset
        chain.append(base)
    root = chain[-1]
    if root not in owners:
        raise ValueError(f"{what}: its storage_base is not among the planned tensors")
    where = f"{what}: a view of {offset} bytes on in {names[root]!r}"
    if offset < 0 or offset + spec.allocated_memory > root.allocated_memory:
        room = f"its {spec.allocated_memory} bytes end after the {root.allocated_memory} bytes"
        raise ValueError(f"{where}: {room} there, or begin before them")
    if offset % alignment:
        raise ValueError(f"{where}, which is no multiple of the alignment of {alignment} bytes")
    return root, offset


def _live_range(spec: Spec, names: Mapping[Spec, str]) -> tuple[int, int]:
    first, last = spec.lifetime
    if first is None or last is None:
        raise ValueError(f"{names[spec]!r}: has no lifetime: no node of the graph touches it")
    return int(first), int(last) + 1
