# SPDX-License-Identifier: Apache-2.0
"""A group: layers of a network that run together, slice after slice, in local memory."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from math import prod
from typing import Any

from passes.layer_group.planning.network import Kind, Layer, Network, Tensor
from passes.layer_group.planning.spans import Spans, even_ranges
from passes.layer_group.planning.strided import Steps, loaded_maps, loaded_tensor, steps_of


class NetworkIndex:
    """Who makes and who reads each tensor of a network, and whether the network is well formed.

    Raises ValueError if a name is unknown or used twice, a layer reads what is made after it, or
    the maps of a layer do not fit its tensors; the message names the network, the layer and the
    tensor.
    """

    def __init__(self, network: Network) -> None:
        self.network = network
        self.tensors: dict[str, Tensor] = {}
        for tensor in network.tensors:
            if tensor.name in self.tensors:
                raise ValueError(f"{network.name}: two tensors are called {tensor.name!r}")
            if len(tensor.axes) != len(tensor.shape):
                raise ValueError(
                    f"{network.name}: tensor {tensor.name!r} has {len(tensor.shape)} axes, "
                    f"its letters are {tensor.axes!r}"
                )
            self.tensors[tensor.name] = tensor
        self.elements = {tensor.name: element_count(tensor) for tensor in network.tensors}
        self.bytes = {tensor.name: bytes_of(tensor) for tensor in network.tensors}
        self.maker: dict[str, int] = {}
        self._strided: set[str] = set()  # What a layer reads in larger steps than it makes
        self._steps: dict[tuple[str, tuple[int, ...]], Steps | None] = {}
        # What `stream_of` and `runs_of` have found out, each by what it was asked.
        self.streams: dict[Hashable, Any] = {}
        self.runs: dict[Hashable, list[Any]] = {}
        self._even: dict[tuple[int, int, int], Spans] = {}
        self.readers: dict[str, list[int]] = {name: [] for name in self.tensors}
        for number, layer in enumerate(network.layers):
            self._add(number, layer)
        for name in network.outputs:
            if name not in self.tensors:
                raise ValueError(f"{network.name}: output {name!r} is no tensor of it")

    def _add(self, number: int, layer: Layer) -> None:
        where = f"{self.network.name}: layer {layer.name!r}"
        for name in (*layer.inputs, layer.output):
            if name not in self.tensors:
                raise ValueError(f"{where} names an unknown tensor {name!r}")
        if layer.output in self.maker or self.readers[layer.output]:
            raise ValueError(f"{where} makes {layer.output!r}, which is made or read before it")
        if layer.output in layer.inputs:
            raise ValueError(f"{where} reads {layer.output!r}, which it makes")
        if len(layer.maps) != len(layer.inputs):
            raise ValueError(f"{where} has {len(layer.inputs)} inputs and {len(layer.maps)} maps")
        rank = len(self.tensors[layer.output].shape)
        for name, axis_maps in zip(layer.inputs, layer.maps, strict=True):
            if len(axis_maps) != len(self.tensors[name].shape):
                raise ValueError(f"{where}: the map of {name!r} has {len(axis_maps)} axes")
            for axis_map in axis_maps:
                if axis_map is not None and not 0 <= axis_map.axis < rank:
                    raise ValueError(f"{where}: the map of {name!r} names axis {axis_map.axis}")
                if axis_map is not None and axis_map.stride > 1:
                    self._strided.add(name)
        self.maker[layer.output] = number
        for name in dict.fromkeys(layer.inputs):
            self.readers[name].append(number)

    @cached_property
    def outputs(self) -> frozenset[str]:
        """Names of the tensors that something outside of the network reads."""
        return frozenset(self.network.outputs)

    def leaves(self, name: str, last: int) -> bool:
        """Whether a tensor that is made is read behind the layer of number `last`, or nowhere."""
        readers = self.readers[name]
        return name in self.outputs or not readers or readers[-1] > last

    def even(self, length: int, count: int, unit: int = 1) -> Spans:
        """Return an axis cut as by `even_ranges`, with what was found to follow of it."""
        key = (length, count, unit)
        if key not in self._even:
            self._even[key] = Spans.of(even_ranges(length, count, unit))
        return self._even[key]

    def layouts(self, names: Iterable[str]) -> tuple[Layer, ...]:
        """Return the layers that lay out weights of these names."""
        makers = (self.network.layers[self.maker[name]] for name in names if name in self.maker)
        return tuple(layer for layer in makers if layer.lays_out)

    def steps(self, name: str, readers: Iterable[int]) -> Steps | None:
        """Return what of a tensor is loaded for these layers; see `steps_of`."""
        if name not in self._strided:
            return None
        key = (name, tuple(readers))
        if key not in self._steps:
            layers = [self.network.layers[number] for number in key[1]]
            pairs = (pair for x in layers for pair in zip(x.inputs, x.maps, strict=True))
            maps = [axis_maps for other, axis_maps in pairs if other == name]
            self._steps[key] = steps_of(self.tensors[name], maps)
        return self._steps[key]

    def group(self, layers: tuple[int, ...]) -> Group:
        """Return the group of the layers with these numbers."""
        return Group(self, tuple(sorted(layers)))


@dataclass(frozen=True)
class Group:
    """Some layers of a network, in the network's order.

    Raises ValueError if a path between two of the layers leaves the group, so that it cannot run as
    one.
    """

    index: NetworkIndex  # The network
    numbers: tuple[int, ...]  # Numbers of the layers in ``network.layers``, ascending
    # Whether what is read late is stored and loaded again, so that its place is free meanwhile.
    reloads: bool = False

    def __post_init__(self) -> None:
        inside, outside = set(self.numbers), set[str]()
        for number in range(self.numbers[0], self.numbers[-1] + 1):
            layer = self.index.network.layers[number]
            if number in inside:
                for name in layer.inputs:
                    if name in outside:
                        raise ValueError(
                            f"{self.index.network.name}: layers {self.numbers} are no group, "
                            f"{name!r} is made outside from what is made inside"
                        )
            elif any(
                self.index.maker.get(name) in inside or name in outside
                for name in (*layer.inputs, *layer.behind)
            ):
                outside.add(layer.output)

    def reloading(self, reloads: bool) -> Group:
        """Return the group that loads again what it reads late, or the one that does not."""
        return self if reloads == self.reloads else replace(self, reloads=reloads)

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        """The layers, that read what is loaded of tensors, and load again what they read late."""
        layers = []
        for position, layer in enumerate(self._layers):
            new = {n: a for a, n in self.again.items() if position in self._late[n]}
            names = [new.get(name, name) for name in layer.inputs]
            if new or any(name in self.steps for name in names):
                pairs = zip(names, layer.maps, strict=True)
                maps = tuple(
                    loaded_maps(axes, self.steps[n]) if n in self.steps else axes
                    for n, axes in pairs
                )
                layer = replace(
                    layer,
                    inputs=tuple(names),
                    maps=maps,
                    in_place=tuple(new.get(n, n) for n in layer.in_place),
                    sums=tuple((new.get(n, n), axis) for n, axis in layer.sums),
                    late=tuple((new.get(n, n), axis, to) for n, axis, to in layer.late),
                )
            layers.append(layer)
        return tuple(layers)

    @cached_property
    def _layers(self) -> tuple[Layer, ...]:
        return tuple(self.index.network.layers[number] for number in self.numbers)

    @cached_property
    def again(self) -> dict[str, str]:
        """Tensors that are made here, stored and loaded again, by the name of what is loaded."""
        return {f"{name} again": name for name in self._late}

    @cached_property
    def _late(self) -> dict[str, tuple[int, ...]]:
        """Positions of the layers that load a tensor again which is made here.

        These are the readers behind the most layers that read nothing of it.
        """
        found: dict[str, tuple[int, ...]] = {}
        names = dict.fromkeys(n for x in self._layers for n in (*x.inputs, x.output))
        for name in names if self.reloads else ():
            if self.index.tensors[name].kind is Kind.WEIGHT:
                continue
            readers = self._readers(name)
            apart = max((b - a for a, b in pairwise(readers)), default=1)
            if apart > 1:
                late = next(b for a, b in pairwise(readers) if b - a == apart)
                found[name] = tuple(r for r in readers if r >= late)
        return found

    @cached_property
    def steps(self) -> dict[str, Steps]:
        """Of each tensor that is not loaded as a whole: what is loaded of it."""
        found = {}
        for name in self.loaded:
            readers = (self.numbers[position] for position in self.readers(name))
            steps = self.index.steps(self.again.get(name, name), readers)
            if steps is not None:
                found[name] = steps
        return found

    @cached_property
    def made(self) -> tuple[str, ...]:
        """Names of the tensors that the layers make, in their order."""
        return tuple(layer.output for layer in self._layers)

    @cached_property
    def outputs(self) -> tuple[str, ...]:
        """Names of the tensors that are made here and stored, in the layers' order."""
        inside = set(self.numbers)
        return tuple(
            name
            for name in self.made
            if name in self.index.outputs
            or not self.index.readers[name]
            or any(reader not in inside for reader in self.index.readers[name])
            or name in self._late
        )

    @cached_property
    def loaded(self) -> tuple[str, ...]:
        """Names of activations and weights that come from outside, in the order of their use."""
        made = set(self.made)
        names = (name for layer in self._layers for name in layer.inputs if name not in made)
        return (*dict.fromkeys(names), *self.again)

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """Names of the activations that come from outside."""
        return tuple(n for n in self.loaded if self.tensor(n).kind is Kind.ACTIVATION)

    @cached_property
    def weights(self) -> tuple[str, ...]:
        """Names of the weights."""
        return tuple(n for n in self.loaded if self.tensor(n).kind is Kind.WEIGHT)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of all tensors: loaded ones, then made ones."""
        return (*self.loaded, *self.made)

    def tensor(self, name: str) -> Tensor:
        """Return the tensor called `name`, or what is loaded of it."""
        tensor = self.index.tensors[self.again.get(name, name)]
        if name in self.again:
            tensor = replace(tensor, name=name)
        return loaded_tensor(tensor, self.steps[name]) if name in self.steps else tensor

    def adds(self, layer: Layer) -> bool:
        """Whether a layer adds up rows slice by slice: nothing in the group reads the sum."""
        return bool(layer.adds) and not self.readers(layer.output)

    def readers(self, name: str) -> tuple[int, ...]:
        """Positions in `layers` of those that read a tensor, which may be loaded again."""
        if name in self.again:
            return self._late[self.again[name]]
        late = self._late.get(name, ())
        return tuple(reader for reader in self._readers(name) if reader not in late)

    def _readers(self, name: str) -> tuple[int, ...]:
        return tuple(self._position[r] for r in self.index.readers[name] if r in self._position)

    @cached_property
    def _position(self) -> dict[int, int]:
        return {number: position for position, number in enumerate(self.numbers)}


def extent_of(tensor: Tensor, letter: str) -> int:
    """Elements on the first axis of a tensor that has this letter; 1 if none has."""
    at = tensor.axes.find(letter)
    return tensor.shape[at] if at >= 0 else 1


def channels_of(tensor: Tensor) -> int:
    """Channels of a tensor: elements on all its axes that lie across the lanes."""
    pairs = zip(tensor.axes, tensor.shape, strict=True)
    return prod(extent for letter, extent in pairs if letter == "c")


def rows_of(index: NetworkIndex, layer: Layer) -> int:
    """Rows that a layer makes, or that it adds up."""
    for number, axis in layer.adds:
        # A group's layer may call it by the name of what is loaded again.
        inputs = index.network.layers[index.maker[layer.output]].inputs
        return index.tensors[inputs[number]].shape[axis]
    return extent_of(index.tensors[layer.output], "h")


def element_count(tensor: Tensor) -> int:
    """Elements of a tensor."""
    count = 1
    for extent in tensor.shape:
        count *= extent
    return count


def bytes_of(tensor: Tensor) -> int:
    """Bytes of a tensor in global memory; 0 where its shape is not known."""
    return -(-element_count(tensor) * tensor.bits // 8) if tensor.is_known else 0
