"""Which layers of a network form groups: the searches, and what they return."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from passes.planning.layer_group.network import Network
from passes.planning.layer_group.planned_group import Chip, PlannedGroup

SEARCHES = ("dynamic_programming", "tail_to_head")
HALOS = ("recompute", "keep", "cheapest")


@dataclass(frozen=True)
class LayerGroups:
    """A network cut into groups.

    Parameters
    ----------
    network : Network
        What was cut.
    groups : tuple of PlannedGroup
        In the order in which they run.
    left : Mapping of str to str
        Names of the layers in no group, and why.
    cycles : int
        Of all groups, and of the layers that are left.
    moved_before : int
        Bytes between global and local memory if every layer loads its inputs and stores its
        output, each once.
    moved_after : int
        Bytes with the groups.
    moved_least : int
        Bytes if every input, weight and output of the network moves once.
    """

    network: Network
    groups: tuple[PlannedGroup, ...]
    left: Mapping[str, str]
    cycles: int
    moved_before: int
    moved_after: int
    moved_least: int


def plan_layer_groups(
    network: Network,
    chip: Chip,
    *,
    search: str = "dynamic_programming",
    halo: str = "recompute",
) -> LayerGroups:
    """Cut a network into groups whose slices stay in local memory.

    Parameters
    ----------
    network : Network
        The layers in an order in which they can run.
    chip : Chip
        The local memory, the machine, the planner and the overlap rule.
    search : str
        ``dynamic_programming`` finds the groups of the fewest cycles; ``tail_to_head`` takes the
        longest group that fits, beginning with the last layer.
    halo : str
        ``recompute``, ``keep``, or ``cheapest``: which of them takes fewer cycles.

    Raises
    ------
    ValueError
        If an option is unknown or the network is not well formed.
    """
    raise NotImplementedError
