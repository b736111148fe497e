# SPDX-License-Identifier: Apache-2.0
"""A network, and its groups: consecutive layers that run together in local memory, in slices.

For each axis of each input of a layer an `AxisMap` says which elements each index of an axis of the
output needs, so that a slice of an output tells the slices of all its inputs. Nothing here knows
TVM.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from math import prod
from typing import NamedTuple

from passes.layer_group.planning.spans import AxisMaps


class Kind(Enum):
    """The role of a tensor in the group that uses it."""

    ACTIVATION = "activation"
    WEIGHT = "weight"


class WeightRole(Enum):
    """The role of a weight in the layer that reads it, which decides how it lies in a lane."""

    FILTER = "filter"  # Of a convolution, or a number for each channel: nothing is padded
    DEPTHWISE = "depthwise"  # Of a depthwise convolution: padded on some chips
    OTHER = "other"  # Padded as activations are


@dataclass(frozen=True)
class Tensor:
    """A tensor of a network."""

    name: str  # Unique in its network
    shape: tuple[int, ...]  # Elements on each axis
    bits: int  # Bits of one element (32 for float32, 4 for int4)
    # A letter for each axis: ``n`` batch, ``c`` channels, which lie across the lanes, ``h`` rows,
    # ``w`` what is left. A sequence of embeddings is ``nhc``. A letter may stand more than once.
    axes: str
    # Weights are there before the network runs. In a lane the rows of activations are padded to the
    # chip's execution unit.
    kind: Kind = Kind.ACTIVATION
    is_known: bool = True  # Whether its shape and bits are known before the network runs
    # Of a weight: what it is for the layer that reads it first, which says how it lies in a lane.
    role: WeightRole = WeightRole.FILTER
    # Of a filter: the axis of the input's channels, which lie in whole units.
    input_axis: int | None = None

    def __hash__(self) -> int:
        return hash(self.name)

    @property
    def bytes(self) -> int:
        """Bytes in global memory; 0 where its shape is not known."""
        return -(-prod(self.shape) * self.bits // 8) if self.is_known else 0


class WorkingBuffer(NamedTuple):
    """A buffer that a layer needs while it computes; it lies across lanes as the output does."""

    bits: int  # Of one element
    shape: tuple[int, ...]  # For the whole output
    maps: AxisMaps  # The part that it holds for a part of the output


@dataclass(frozen=True)
class Layer:
    """One operator."""

    name: str  # Unique in its network
    operator: str  # Its name for people: ``conv2d``, ``add``
    # Names of tensors, weights among them; one that is read twice stands twice.
    inputs: tuple[str, ...]
    output: str  # The name of the tensor that it makes
    maps: tuple[AxisMaps, ...]  # Of each input
    multiply_adds: int = 0  # For the whole output; a slice takes its share
    buffers: tuple[WorkingBuffer, ...] = ()  # Its working memory
    # Axes of the output that are not sliced, and of which a part needs only a part of each buffer.
    parts: tuple[int, ...] = ()
    uncut: str = ""  # Letters of axes of which each slice would need the whole of some buffer
    reason: str = ""  # The reason for which it cannot be cut or grouped; empty where it can
    # Names of tensors that it does not read and runs after, as what makes them may have a state.
    behind: tuple[str, ...] = ()
    # Inputs with their reduction axis, where the output can be summed part by part along it.
    sums: tuple[tuple[str, int], ...] = ()
    # Inputs that are read after the sums alone, with an axis of each and the output's axis that it
    # follows: a part of the output needs only the same part of them and of the sums.
    after_sums: tuple[tuple[str, int, int], ...] = ()


@dataclass(frozen=True)
class Network:
    """Layers in an order in which they can run."""

    tensors: tuple[Tensor, ...]  # All of them, inputs and weights too
    layers: tuple[Layer, ...]  # Each after the layers that make its inputs
    outputs: tuple[str, ...]  # Tensors that something outside of the network reads
    name: str = "network"  # For messages
    # Those that only move elements of a weight, for the one layer that reads it: that layer can
    # load the weight in this order, and without a group they run before it.
    layouts: tuple[Layer, ...] = ()


class NetworkIndex:
    """An index from each tensor of a network to its maker and its readers.

    Raises ValueError if a layer reads what it or a later layer makes.
    """

    def __init__(self, network: Network) -> None:
        self.network = network
        self.tensors = {tensor.name: tensor for tensor in network.tensors}
        self.elements = {tensor.name: prod(tensor.shape) for tensor in network.tensors}
        self.bytes = {tensor.name: tensor.bytes for tensor in network.tensors}
        self.channels = {tensor.name: channels_of(tensor) for tensor in network.tensors}
        activations = (tensor for tensor in network.tensors if tensor.kind is Kind.ACTIVATION)
        self.least_bits = min((tensor.bits for tensor in activations), default=8)
        self._layouts = {layer.output: layer for layer in network.layouts}
        # By the result of a layer: the bits of what it works on, which its cycles depend on.
        self.work_bits = {
            layer.output: max(self.tensors[x].bits for x in (*layer.inputs[:1], layer.output))
            for layer in (*network.layers, *network.layouts)
        }
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

    def makers(self, number: int) -> list[int]:
        """Return the layers that make what a layer reads, or that it runs after."""
        layer = self.network.layers[number]
        names = dict.fromkeys((*layer.inputs, *layer.behind))
        return [self.maker[name] for name in names if name in self.maker]

    def leaves(self, name: str, last: int) -> bool:
        """Return whether a made tensor is read after the layer of number `last`, or nowhere."""
        readers = self.readers[name]
        return name in self.outputs or not readers or readers[-1] > last

    def layouts(self, names: Iterable[str]) -> tuple[Layer, ...]:
        """Return the layers that lay out weights of these names."""
        return tuple(self._layouts[name] for name in names if name in self._layouts)

    def group(self, first: int, last: int) -> Group:
        """Return the group of the layers from one number to another; the same object each time."""
        if (first, last) not in self._groups:
            self._groups[first, last] = Group(self, first, last)
        return self._groups[first, last]


@dataclass(frozen=True)
class Group:
    """Consecutive layers of a network; no path between two of them leaves the group."""

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
        """Return whether a layer of the group makes a tensor."""
        return self.first <= self.index.maker.get(name, -1) <= self.last

    def readers(self, name: str) -> tuple[int, ...]:
        """Positions in `layers` of those that read a tensor."""
        first, last = self.first, self.last
        return tuple(r - first for r in self.index.readers[name] if first <= r <= last)


class Repeats:
    """Numbers of runs of layers that are alike but for names, in all that share `numbers`.

    Alike are the layers with their maps, the tensors with their extents, which of these are the
    same one, who else reads them, and which of them leave the run.
    """

    def __init__(self, index: NetworkIndex, numbers: dict[Hashable, int] | None = None) -> None:
        self._index = index
        self._numbers = {} if numbers is None else numbers
        self._layers = [self.number(self._content(n)) for n in range(len(index.network.layers))]
        # By the last layer: the numbers of the runs that end with it, shortest first, and the order
        # of their tensors.
        self._ending: dict[int, tuple[list[int], dict[str, int]]] = {}

    def run(self, first: int, last: int) -> int:
        """Return the number of the run of layers from `first` to `last`."""
        runs, order = self._ending.setdefault(last, ([], {}))
        for number in range(last - len(runs), first - 1, -1):
            layer = self._index.network.layers[number]
            names = (layer.output, *layer.inputs)
            same = tuple(order.setdefault(name, len(order)) for name in names)
            behind = self._index.leaves(layer.output, last)
            shorter = runs[-1] if runs else None
            runs.append(self.number((shorter, self._layers[number], same, behind)))
        return runs[last - first]

    def number(self, content: Hashable) -> int:
        """Return the number of anything that is there of a run, equal for what is equal."""
        return self._numbers.setdefault(content, len(self._numbers))

    def _content(self, number: int) -> Hashable:
        """Return what a layer is but for names."""
        index, layer = self._index, self._index.network.layers[number]
        operands, sums = [], dict(layer.sums)
        for name in layer.inputs:
            laid_out = [source for one in index.layouts((name,)) for source in one.inputs]
            own = index.readers[name] == [number], name in index.maker
            after = tuple((axis, to) for other, axis, to in layer.after_sums if other == name)
            operands.append((own, sums.get(name), after, self._tensors((name, *laid_out))))
        alone = replace(layer, name="", inputs=(), output="", sums=(), after_sums=())
        return alone, tuple(operands), self._tensors((layer.output,))

    def _tensors(self, names: tuple[str, ...]) -> Hashable:
        return tuple(replace(self._index.tensors[name], name="") for name in names)


def extent_of(tensor: Tensor, letter: str) -> int:
    """Elements on the first axis of a tensor that has this letter; 1 if none has."""
    at = tensor.axes.find(letter)
    return tensor.shape[at] if at >= 0 else 1


def channels_of(tensor: Tensor) -> int:
    """Channels of a tensor: elements on all its axes that lie across the lanes."""
    pairs = zip(tensor.axes, tensor.shape, strict=True)
    return prod(extent for letter, extent in pairs if letter == "c")
