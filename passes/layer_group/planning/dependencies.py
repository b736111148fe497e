# SPDX-License-Identifier: Apache-2.0
"""An order of a network's layers in which those that cannot be grouped part as few as can be.

A program's order is one of many. Layers have a stage: it grows by one where a layer that cannot be
grouped reads what one that can makes. Within a stage the former come first, so that all others of
the stage follow each other, and any run of these is convex: no path leaves it and comes back.
"""

from __future__ import annotations

from dataclasses import replace

from passes.layer_group.planning.group import NetworkIndex
from passes.layer_group.planning.network import Network


def by_dependencies(network: Network) -> Network:
    """Return a network with its layers by stage, and else in their order.

    Raises ValueError if the network is not well formed.
    """
    index = NetworkIndex(network)
    stage: list[int] = []
    for layer in network.layers:
        earlier = (*layer.inputs, *layer.behind)
        makers = [index.maker[name] for name in earlier if name in index.maker]
        steps = (stage[n] + bool(layer.reason and not network.layers[n].reason) for n in makers)
        stage.append(max(steps, default=0))
    # What needs nothing of its own stage, such as a weight's layout, waits for who reads it.
    for number in reversed(range(len(network.layers))):
        layer = network.layers[number]
        makers = [index.maker[name] for name in layer.inputs if name in index.maker]
        near = any(stage[n] == stage[number] and not network.layers[n].reason for n in makers)
        readers = index.readers[layer.output]
        if not layer.reason and not near and readers and layer.output not in index.outputs:
            latest = min(stage[n] - bool(network.layers[n].reason) for n in readers)
            stage[number] = max(stage[number], latest)
    order = sorted(
        range(len(network.layers)), key=lambda n: (stage[n], not network.layers[n].reason, n)
    )
    return replace(network, layers=tuple(network.layers[n] for n in order))
