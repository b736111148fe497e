# SPDX-License-Identifier: Apache-2.0
"""Breadth-first ids and periods: live ranges as the first version of LayerGroup had them.

Everything that needs local memory has an id, in the order in which a breadth-first walk meets it:
what a layer reads and was not met before, the layer itself, what it makes. A period is a range of
ids: local memory is requested at its beginning and released at its end.
"""

from __future__ import annotations

from dataclasses import dataclass

from passes.layer_group.planning.group import Group
from passes.layer_group.planning.network import Kind
from passes.layer_group.planning.time_steps import Life


@dataclass(frozen=True)
class Period:
    """When one thing takes local memory."""

    name: str  # Of the tensor, or of the layer whose working memory it is
    id: int  # Where the walk met it
    # The time step in which it is loaded, made or computed: one more with each layer, and with each
    # output of the group. A weight that is met after a layer has that layer's step: it is loaded
    # while the layer computes.
    step: int
    # Ids at which it is requested and released.
    first: int
    last: int
    stays: bool = False  # Whether it is never released: a weight, if there is more than one slice

    @property
    def life(self) -> Life:
        """The period as a life, with ids in the place of rows."""
        return Life(self.first, self.last, self.stays)


def periods(group: Group, sliced: bool) -> tuple[Period, ...]:
    """Return the period of every tensor and layer of a group, in the order of their ids.

    Parameters
    ----------
    group : Group
        The layers.
    sliced : bool
        Whether there is more than one slice, so that weights stay.
    """
    ids, steps = _walk(group)
    first, last = dict(ids), dict(ids)
    for layer in group.layers:
        at = ids[layer.name]
        first[layer.output] = last[layer.output] = at
        for name in layer.inputs:
            last[name] = at
    layer_at: dict[int, int] = {}
    for layer in group.layers:
        layer_at.setdefault(steps[layer.name], ids[layer.name])
    for name in group.loaded:
        first[name] = _first_reader(group, ids, name)
        # It is loaded while an earlier layer computes, and takes memory from there on.
        first[name] = min(first[name], layer_at.get(steps[name], first[name]))
    return tuple(
        Period(name, at, steps[name], first[name], last[name], sliced and _is_weight(group, name))
        for name, at in ids.items()
    )


def _walk(group: Group) -> tuple[dict[str, int], dict[str, int]]:
    """Return id and time step of everything, in the order of the ids."""
    ids: dict[str, int] = {}
    steps: dict[str, int] = {}
    step = 0

    def meet(name: str) -> None:
        if name not in ids:
            ids[name], steps[name] = len(ids), step

    outputs = set(group.outputs)
    for layer in group.layers:
        for name in layer.inputs:
            meet(name)
        step += 1
        meet(layer.name)
        if layer.output in outputs:
            step += 1
        meet(layer.output)
    return ids, steps


def _first_reader(group: Group, ids: dict[str, int], name: str) -> int:
    return min(ids[layer.name] for layer in group.layers if name in layer.inputs)


def _is_weight(group: Group, name: str) -> bool:
    return name in group.weights and group.tensor(name).kind is Kind.WEIGHT
