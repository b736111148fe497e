# SPDX-License-Identifier: Apache-2.0
"""A network: layers in the order in which they run, and their tensors. Nothing here knows TVM.

For each axis of each input of a layer an `AxisMap` says which elements each index of an axis of the
output needs, so that a slice of an output tells the slices of all its inputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from math import prod

from passes.layer_group.planning.spans import AxisMaps


class Kind(Enum):
    """What a tensor is for the group that uses it."""

    ACTIVATION = "activation"
    WEIGHT = "weight"


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

    def __hash__(self) -> int:
        return hash((self.name, self.shape))

    @property
    def bytes(self) -> int:
        """Bytes in global memory; 0 where its shape is not known."""
        return -(-prod(self.shape) * self.bits // 8) if self.is_known else 0


@dataclass(frozen=True)
class Layer:
    """One operator."""

    name: str  # Unique in its network
    operator: str  # What it is, for people: ``conv2d``, ``add``
    # Names of tensors, weights among them; one that is read twice stands twice.
    inputs: tuple[str, ...]
    output: str  # The name of the tensor that it makes
    maps: tuple[AxisMaps, ...]  # Of each input
    multiply_adds: int = 0  # For the whole output; a slice takes its share
    # Bits of working memory a lane for each element of the output's slice in that lane.
    buffer_bits: int = 0
    # Tileable output axes, each with the working bits of a lane for an element of a tile.
    part_bits: tuple[tuple[int, int], ...] = ()
    by_columns: bool = True  # Whether cutting columns leaves halo and working memory as they are
    reason: str = ""  # Why it cannot be cut or grouped; empty where it can
    # Whether it only moves elements of one weight, for the one layer that reads it: that layer can
    # load the weight in this order.
    lays_out: bool = False
    # Names of inputs in whose place the result may lie, as far as its kernel goes.
    in_place: tuple[str, ...] = ()
    # Names of tensors that it does not read and runs behind, as what makes them may have a state.
    behind: tuple[str, ...] = ()
    # Inputs with their reduction axis, where the output can be summed part by part along it.
    sums: tuple[tuple[str, int], ...] = ()
    # Inputs that are read after the sums alone, with an axis of each and the output's axis that it
    # follows: a part of the output needs only the same part of them and of the sums.
    late: tuple[tuple[str, int, int], ...] = ()


@dataclass(frozen=True)
class Network:
    """Layers in an order in which they can run."""

    tensors: tuple[Tensor, ...]  # All of them, inputs and weights too
    layers: tuple[Layer, ...]  # Each after the layers that make its inputs
    outputs: tuple[str, ...]  # Tensors that something outside of the network reads
    name: str = "network"  # For messages
