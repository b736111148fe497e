# SPDX-License-Identifier: Apache-2.0
"""The tensors of an ExecuTorch graph as problems, one for each arena.

ExecuTorch describes a tensor by a ``TensorSpec``: its bytes, its lifetime as the first and the last
node that touch it, the arena (``mem_id``) that a custom pass chose, and for a view the tensor whose
bytes it shares (``storage_base``). Sizes and offsets are in bytes.

Source: ``exir/memory_planning.py`` and ``exir/tensor.py`` of ExecuTorch 1.5.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from passes.planning import Buffer, Problem
from target_hw.memory import MemoryScope

Spec = Any  # executorch.exir.tensor.TensorSpec
GraphModule = Any  # torch.fx.GraphModule

DEFAULT_ARENA = 1
"""The arena of a tensor that no pass has assigned; arena 0 holds the constants."""


@dataclass(frozen=True)
class View:
    """A tensor that lies inside another one's bytes."""

    spec: Spec
    root: Spec  # The tensor that owns the bytes
    offset: int  # Bytes from the root's first byte


@dataclass(frozen=True)
class PlannedTensors:
    """All tensors that one call of a planning algorithm has to place."""

    buffers: dict[Spec, Buffer]  # The tensors that own their bytes
    views: tuple[View, ...]
    names: dict[Spec, str]  # The nodes that make them


@dataclass(frozen=True)
class Arena:
    """Tensors of one arena, and their problem."""

    number: int  # ExecuTorch's mem_id
    owners: tuple[Spec, ...]  # In the order of the problem's buffers
    problem: Problem
    reserved: int  # Bytes at the arena's start that belong to submodules of control flow


def read_specs(specs: Iterable[Spec], graph_module: GraphModule, alignment: int) -> PlannedTensors:
    """Read the tensors of a graph.

    Parameters
    ----------
    specs : iterable of TensorSpec
        The tensors to place, with lifetimes. Each is realigned, as ExecuTorch's own algorithms do:
        its size is then a multiple of `alignment`.
    graph_module : torch.fx.GraphModule
        Names the tensors.
    alignment : int
        Offsets are multiples of this many bytes.

    Raises
    ------
    ValueError
        If a tensor has no lifetime, or a view does not lie within a tensor that is planned; the
        message names the tensors.
    """
    given = list(dict.fromkeys(specs))
    names = _names(given, graph_module)
    for spec in given:
        spec.realign(alignment)
    owners = [spec for spec in given if spec.storage_base is None]
    views = tuple(_view(spec, set(owners), names, alignment) for spec in given if spec.storage_base)
    live = _live_ranges(owners, views, names)
    buffers = {
        spec: Buffer(names[spec], spec.allocated_memory, (live[spec],), alignment)
        for spec in sorted(owners, key=lambda spec: (live[spec], -spec.allocated_memory))
    }
    return PlannedTensors(buffers, views, names)


def arenas_of(
    tensors: PlannedTensors, owners: Iterable[Spec], graph_module: GraphModule
) -> list[Arena]:
    """Return the problem of each arena that some tensors are to lie in, by number.

    The bytes that submodules take at the start of an arena (``input_mem_buffer_sizes``) are kept
    free all the time: the result of a branch stays where the branch has put it.
    """
    by_number: dict[int, list[Spec]] = {}
    for spec in owners:
        by_number.setdefault(arena_of(spec), []).append(spec)
    arenas = []
    for number, members in sorted(by_number.items()):
        reserved = reserved_bytes(graph_module, number)
        memory = MemoryScope("global", reserved=((0, reserved),) if reserved else ())
        buffers = tuple(tensors.buffers[spec] for spec in members)
        problem = Problem(buffers, memory, name=f"arena {number}")
        arenas.append(Arena(number, tuple(members), problem, reserved))
    return arenas


def arena_of(spec: Spec) -> int:
    """Return the arena that a custom pass chose for a tensor, or the default one."""
    return DEFAULT_ARENA if spec.mem_id is None else int(spec.mem_id)


def submodule_bytes(graph_module: GraphModule) -> Sequence[int]:
    """Return how many bytes the submodules of control flow take at the start of each arena."""
    return tuple(getattr(graph_module, "input_mem_buffer_sizes", None) or ())


def reserved_bytes(graph_module: GraphModule, arena: int) -> int:
    """Return how many bytes the submodules of control flow take at the start of an arena."""
    sizes = submodule_bytes(graph_module)
    return sizes[arena] if arena < len(sizes) else 0


def _names(specs: Sequence[Spec], graph_module: GraphModule) -> dict[Spec, str]:
    """Name each tensor by the node that makes it; a tensor without a node by its place."""
    from executorch.exir.memory_planning import get_node_tensor_specs

    wanted = set(specs)
    names: dict[Spec, str] = {}
    for node in graph_module.graph.nodes:
        for number, spec in enumerate(get_node_tensor_specs(node)):
            if spec in wanted:
                names.setdefault(spec, f"{node.name}[{number}]" if number else node.name)
    taken = set(names.values())
    for place, spec in enumerate(specs):
        if spec not in names:
            names[spec] = next(n for n in (f"tensor {place}", f"tensor {place}'") if n not in taken)
    return names


def _view(spec: Spec, owners: set[Spec], names: dict[Spec, str], alignment: int) -> View:
    """Find the tensor that owns a view's bytes, and where in it the view lies."""
    offset, base, seen = 0, spec, {spec}
    while base.storage_base is not None:
        inner, base = base, base.storage_base
        what = f"{names[spec]!r}, a view of {inner.storage_base_offset} bytes on in "
        what += repr(names.get(base, "a tensor that is not planned"))
        if base in seen:
            raise ValueError(f"{what}: its storage_base leads back to itself (circular)")
        seen.add(base)
        if inner.storage_base_offset < 0:
            raise ValueError(f"{what}: the offset must not be negative")
        if inner.storage_base_offset + inner.allocated_memory > base.allocated_memory:
            raise ValueError(
                f"{what}: its {inner.allocated_memory} bytes end behind the "
                f"{base.allocated_memory} bytes there"
            )
        offset += inner.storage_base_offset
    if base not in owners:
        raise ValueError(f"{names[spec]!r}: its storage_base is not among the planned tensors")
    if offset % alignment:
        raise ValueError(
            f"{names[spec]!r}: lies {offset} bytes behind the start of {names[base]!r}, which is "
            f"not a multiple of the alignment of {alignment} bytes"
        )
    return View(spec, base, offset)


def _live_ranges(
    owners: Sequence[Spec], views: Sequence[View], names: dict[Spec, str]
) -> dict[Spec, tuple[int, int]]:
    """Return the half-open live range of each owner: its own nodes, and those of its views."""
    live = {spec: _live_range(spec, names) for spec in owners}
    for view in views:
        (begin, end), (first, last) = live[view.root], _live_range(view.spec, names)
        live[view.root] = (min(begin, first), max(end, last))
    return live


def _live_range(spec: Spec, names: dict[Spec, str]) -> tuple[int, int]:
    first, last = spec.lifetime
    if first is None or last is None:
        raise ValueError(f"{names[spec]!r}: has no lifetime: no node of the graph touches it")
    return int(first), int(last) + 1
