# SPDX-License-Identifier: Apache-2.0
"""The tensors of an ExecuTorch graph: read as buffers, and their places written back.

ExecuTorch describes a tensor by a ``TensorSpec``: its bytes, its lifetime as the first and the last
node that touch it, the arena (``mem_id``) that a custom pass chose, and for a view the tensor whose
bytes it shares (``storage_base``). Sizes and offsets are in bytes.

Source: ``exir/memory_planning.py`` and ``exir/tensor.py`` of ExecuTorch 1.5.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from passes.planning import Buffer, Problem
from target_hw.memory import MemoryScope

Spec = Any  # executorch.exir.tensor.TensorSpec
GraphModule = Any  # torch.fx.GraphModule

Place = tuple[int, int]
"""The arena of a tensor, and its offset there."""

DEFAULT_ARENA = 1
"""The arena of a tensor that no pass has assigned; arena 0 holds the constants."""


@dataclass(frozen=True)
class PlannedTensors:
    """All tensors that one call of a planning algorithm has to place."""

    buffers: dict[Spec, Buffer]  # The tensors that own their bytes
    views: dict[Spec, tuple[Spec, int]]  # The owner of a view's bytes, and where in them it begins
    names: dict[Spec, str]  # Of all of them, the nodes that make them
    graph_module: GraphModule
    alignment: int  # Of offsets and sizes

    @classmethod
    def read(
        cls, specs: Iterable[Spec], graph_module: GraphModule, alignment: int
    ) -> PlannedTensors:
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

    def arenas(self, owners: Iterable[Spec]) -> dict[int, tuple[list[Spec], Problem]]:
        """Return the tensors and the problem of each arena in which some of `owners` are to lie."""
        by_arena: dict[int, list[Spec]] = {}
        for spec in owners:
            arena = DEFAULT_ARENA if spec.mem_id is None else int(spec.mem_id)
            by_arena.setdefault(arena, []).append(spec)
        found = {}
        for arena, members in sorted(by_arena.items()):
            reserved = self.reserved[arena]
            memory = MemoryScope("global", reserved=((0, reserved),) if reserved else ())
            buffers = tuple(self.buffers[spec] for spec in members)
            found[arena] = members, Problem(buffers, memory, name=f"arena {arena}")
        return found

    def result(
        self, placed: Mapping[Spec, Place], extra_padding: int, arenas: int = DEFAULT_ARENA + 1
    ) -> Any:
        """Return the ``MemoryAlgoResult`` of owners that are placed, with `arenas` sizes or more.

        ExecuTorch's verifier wants tensors that share bytes to be of one object. Objects are here
        the parts of an arena that no tensor straddles, from its start on. Behind the last tensor of
        an arena are `extra_padding` bytes.
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


def _names(specs: Sequence[Spec], graph_module: GraphModule) -> dict[Spec, str]:
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
        room = f"its {spec.allocated_memory} bytes end behind the {root.allocated_memory} bytes"
        raise ValueError(f"{where}: {room} there, or begin before them")
    if offset % alignment:
        raise ValueError(f"{where}, which is no multiple of the alignment of {alignment} bytes")
    return root, offset


def _live_range(spec: Spec, names: Mapping[Spec, str]) -> tuple[int, int]:
    first, last = spec.lifetime
    if first is None or last is None:
        raise ValueError(f"{names[spec]!r}: has no lifetime: no node of the graph touches it")
    return int(first), int(last) + 1
