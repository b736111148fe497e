# SPDX-License-Identifier: Apache-2.0
"""A group: consecutive layers of a network that run together in local memory, slice after slice."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from math import prod

from passes.layer_group.planning.network import Kind, Layer, Network, Tensor


class NetworkIndex:
    """Who makes and who reads each tensor of a network.

    Raises ValueError if a layer reads what it or a later layer makes.
    """

    def __init__(self, network: Network) -> None:
        self.network = network
        self.tensors = {tensor.name: tensor for tensor in network.tensors}
        self.elements = {tensor.name: prod(tensor.shape) for tensor in network.tensors}
        self.bytes = {tensor.name: tensor.bytes for tensor in network.tensors}
        activations = (tensor for tensor in network.tensors if tensor.kind is Kind.ACTIVATION)
        self.least_bits = min((tensor.bits for tensor in activations), default=8)
        self.maker: dict[str, int] = {}
        self.readers: dict[str, list[int]] = {name: [] for name in self.tensors}
        self._groups: dict[tuple[int, int], Group] = {}
        for number, layer in enumerate(network.layers):
            for name in dict.fromkeys(layer.inputs):
                self.readers[name].append(number)
            if self.readers[layer.output]:
                reader = network.layers[self.readers[layer.output][0]].name
                raise ValueError(
                    f"{network.name}: layer {reader!r} reads {layer.output!r} before it is made"
                )
            self.maker[layer.output] = number

    @cached_property
    def outputs(self) -> frozenset[str]:
        """Names of the tensors that something outside of the network reads."""
        return frozenset(self.network.outputs)

    def leaves(self, name: str, last: int) -> bool:
        """Whether a tensor that is made is read behind the layer of number `last`, or nowhere."""
        readers = self.readers[name]
        return name in self.outputs or not readers or readers[-1] > last

    def layouts(self, names: Iterable[str]) -> tuple[Layer, ...]:
        """Return the layers that lay out weights of these names."""
        makers = (self.network.layers[self.maker[name]] for name in names if name in self.maker)
        return tuple(layer for layer in makers if layer.lays_out)

    def group(self, first: int, last: int) -> Group:
        """Return the group of the layers from one number to another; the same object each time."""
        if (first, last) not in self._groups:
            self._groups[first, last] = Group(self, first, last)
        return self._groups[first, last]


@dataclass(frozen=True)
class Group:
    """Consecutive layers of a network, between any two of which no path leaves the group."""

    index: NetworkIndex  # The network
    first: int  # Number of the first layer in ``network.layers``
    last: int  # Number of the last layer, included

    @property
    def numbers(self) -> range:
        """Numbers of the layers in ``network.layers``."""
        return range(self.first, self.last + 1)

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        """The layers, in the network's order."""
        return self.index.network.layers[self.first : self.last + 1]

    @cached_property
    def made(self) -> tuple[str, ...]:
        """Names of the tensors that the layers make, in their order."""
        return tuple(layer.output for layer in self.layers)

    @cached_property
    def outputs(self) -> tuple[str, ...]:
        """Names of the tensors that are made here and stored, in the layers' order."""
        return tuple(name for name in self.made if self.index.leaves(name, self.last))

    @cached_property
    def loaded(self) -> tuple[str, ...]:
        """Names of activations and weights that come from outside, in the order of their use."""
        names = dict.fromkeys(name for layer in self.layers for name in layer.inputs)
        return tuple(name for name in names if not self.makes(name))

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of all tensors: loaded ones, then made ones."""
        return (*self.loaded, *self.made)

    def tensor(self, name: str) -> Tensor:
        """Return the tensor called `name`."""
        return self.index.tensors[name]

    def makes(self, name: str) -> bool:
        """Whether a layer of the group makes a tensor."""
        return self.first <= self.index.maker.get(name, -1) <= self.last

    def readers(self, name: str) -> tuple[int, ...]:
        """Positions in `layers` of those that read a tensor."""
        first, last = self.first, self.last
        return tuple(r - first for r in self.index.readers[name] if first <= r <= last)


def extent_of(tensor: Tensor, letter: str) -> int:
    """Elements on the first axis of a tensor that has this letter; 1 if none has."""
    at = tensor.axes.find(letter)
    return tensor.shape[at] if at >= 0 else 1


def channels_of(tensor: Tensor) -> int:
    """Channels of a tensor: elements on all its axes that lie across the lanes."""
    pairs = zip(tensor.axes, tensor.shape, strict=True)
    return prod(extent for letter, extent in pairs if letter == "c")
