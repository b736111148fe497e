# SPDX-License-Identifier: Apache-2.0
"""A network as LayerGroup meets it: layers in the order in which they run, and their tensors.

A layer computes one output tensor from input tensors. For each axis of each input, an `AxisMap`
says which elements each index of an axis of the output needs, so that a slice of an output tells
the slices of all its inputs. Nothing here knows TVM.
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
    # What each axis is to the hardware, a letter an axis: ``n`` batch, ``c`` channels, which lie
    # across the lanes, ``h`` rows, ``w`` what is left. NCHW is ``nchw``; a sequence of embeddings
    # is ``nhc``. A letter may stand more than once.
    axes: str
    kind: Kind = Kind.ACTIVATION  # Weights are there before the network runs
    aligned: bool = True  # Whether its rows in a lane are padded to the chip's execution unit
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
    # Whether it only moves elements of one weight, for one layer that can load them so; it
    # has a reason, and is left where that layer is.
    lays_out: bool = False
    # Names of inputs in whose place the result may lie, as far as its kernel goes.
    in_place: tuple[str, ...] = ()
    # Names of tensors that it does not read and runs behind, as what makes them may have a state.
    behind: tuple[str, ...] = ()
    # Inputs that are read along an axis, one index after the other, as the outermost sum goes: all
    # that is summed into the output can be added part by part of these.
    sums: tuple[tuple[str, int], ...] = ()
    # Inputs that are read behind the outermost sum alone, with an axis of each and the axis of the
    # output that it follows: what is left to do for a part of the output needs that part alone, of
    # these and of all sums.
    late: tuple[tuple[str, int, int], ...] = ()


@dataclass(frozen=True)
class Network:
    """Layers in an order in which they can run."""

    tensors: tuple[Tensor, ...]  # All of them, inputs and weights too
    layers: tuple[Layer, ...]  # Each after the layers that make its inputs
    outputs: tuple[str, ...]  # Tensors that something outside of the network reads
    name: str = "network"  # For messages
