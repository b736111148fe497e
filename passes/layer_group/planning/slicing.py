# SPDX-License-Identifier: Apache-2.0
"""Slices of a group: which part of each tensor each slice holds, and which part it makes.

The group's outputs are cut evenly; what a slice needs of every other tensor follows backward
through the layers' maps. An axis is cut on its own, because a map has a range of one axis for each
index of one axis.

Neighbouring slices may need the same elements of a tensor. Such a *halo* is computed or loaded
again, or, of rows, it stays in local memory until the next slice has read it (it is kept).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, reduce
from math import prod
from operator import mul

from passes.layer_group.planning.cut import CHANNELS, LETTERS, ROWS, Cut
from passes.layer_group.planning.lanes import Lanes
from passes.layer_group.planning.loops import PartLoop
from passes.layer_group.planning.network import (
    Group,
    Kind,
    Layer,
    NetworkIndex,
    Tensor,
    extent_of,
)
from passes.layer_group.planning.spans import AxisMaps, AxisPart, Region, Spans, even_spans, whole


@dataclass(frozen=True, eq=False)
class TensorSlices:
    """The slices of one tensor."""

    tensor: Tensor
    holds: Region  # The part in local memory: the slice's window, and the halo for later slices
    makes: Region  # The part that it computes or loads: all of it, or what no slice has made
    # Letters of cuts between whose slices rows stay; a tensor without such an axis stays whole.
    keep: str
    cut: Cut
    _bytes: dict[Lanes, int] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def letters(self) -> frozenset[str]:
        """Letters of the cuts that change which elements are resident."""
        return frozenset(part.letter for part in self.holds if part.letter)

    @cached_property
    def window(self) -> tuple[int, ...]:
        """The most elements on each axis that are resident at once."""
        return tuple(part.spans.longest for part in self.holds)

    def bytes_in(self, lanes: Lanes) -> int:
        """Return the bytes a lane of what is resident at once."""
        if lanes not in self._bytes:
            self._bytes[lanes] = lanes.tensor_bytes(self.tensor, self.window)
        return self._bytes[lanes]

    @cached_property
    def repeated_rows(self) -> int:
        """Rows that are made or loaded again, each time counted."""
        for part in self.makes:
            if part.letter == ROWS:
                return part.spans.repeated
        again = 0 if ROWS in self.keep else self.cut.counts[ROWS] - 1
        return again * extent_of(self.tensor, ROWS)

    @cached_property
    def is_made_too_often(self) -> bool:
        """Whether slices have more than one and a half times the rows that there are.

        (LayerGroup's document: "failed when the duplicated part is more than h / 2".)
        """
        is_activation = self.tensor.kind is Kind.ACTIVATION
        return is_activation and 2 * self.repeated_rows > extent_of(self.tensor, ROWS)

    @property
    def is_whole(self) -> bool:
        """Whether every slice has the whole tensor."""
        return not self.letters

    @property
    def is_kept(self) -> bool:
        """Whether some of the tensor stays in local memory from one slice to the next."""
        whole = any(self.cut.counts[x] > 1 for x in self.keep if x not in self.letters)
        pairs = zip(self.holds, self.makes, strict=True)
        return whole or any(held != made for held, made in pairs if made.letter != CHANNELS)

    @property
    def is_in_parts(self) -> bool:
        """Whether parts of it alone are in local memory."""
        return CHANNELS in self.letters

    def in_parts(self, axis: int, made: AxisPart, held: AxisPart | None = None) -> TensorSlices:
        """Return the slices with an axis that is made in parts; it is held in parts, or whole."""
        makes = (*self.makes[:axis], made, *self.makes[axis + 1 :])
        holds = self.holds
        if held is not None:
            holds = (*holds[:axis], held, *holds[axis + 1 :])
        return replace(self, holds=holds, makes=makes)

    @cached_property
    def made_elements(self) -> int:
        """Elements that all slices make together, repeated ones each time."""
        whole = (part.spans.hull for part in self.makes if part.letter in ("", CHANNELS))
        count = prod(end - begin for begin, end in whole)
        for letter, slices in self.cut.counts.items():
            sizes = [part.spans.sizes for part in self.makes if part.letter == letter]
            if sizes:
                count *= int(reduce(mul, sizes).sum())
            else:
                count *= slices // (self.cut.runs[letter] if letter in self.keep else 1)
        return count


@dataclass(frozen=True, eq=False)
class GroupSlices:
    """The slices of a group."""

    group: Group  # The layers
    cut: Cut  # The numbers of slices
    tensors: Mapping[str, TensorSlices]  # By name, for every tensor of the group
    # By name, for every output: what each slice stores; each element once.
    stored: Mapping[str, TensorSlices]
    # By name, for the layers that compute part by part.
    loops: Mapping[str, PartLoop] = field(default_factory=dict)

    @cached_property
    def resident(self) -> tuple[str, ...]:
        """Names of tensors loaded once for all slices; empty if a core has one slice."""
        loaded = self.group.loaded if self.cut.turns > 1 else ()
        return tuple(name for name in loaded if self.tensors[name].is_whole)

    @cached_property
    def kept(self) -> tuple[str, ...]:
        """Names of what else stays in local memory from one slice to the next, at least in part."""
        others = (name for name in self.group.names if name not in self.resident)
        return tuple(name for name in others if self.tensors[name].is_kept)


def slice_group(group: Group, cut: Cut, loops: Mapping[str, PartLoop] | None = None) -> GroupSlices:
    """Cut a group's outputs evenly and find what every slice needs of its other tensors.

    A tensor that is read several times, or read and stored, is held as far as any reader needs it.
    Where two axes of one tensor are rows, its halo is not kept.

    Raises ValueError if an output cannot have so many slices.
    """
    loops = loops or {}
    parted = frozenset(n for loop in loops.values() for n in (*loop.moved, *loop.between))
    slicer = Slicer(group.index, cut, parted)
    for layer in reversed(group.layers):
        slicer.add(layer, stored=group.index.leaves(layer.output, group.last))
    slices = slicer.slices(group)
    return _in_parts(slices, loops) if loops else slices


def _in_parts(slices: GroupSlices, loops: Mapping[str, PartLoop]) -> GroupSlices:
    """Return the slices of a group with the parts of loops."""
    tensors, stored = dict(slices.tensors), dict(slices.stored)
    for loop in (loop for name, loop in loops.items() if name == loop.layers[0]):
        held = {name: parts.held for name, parts in loop.moved.items()}
        held |= {name: parts.made for name, parts in loop.between.items()}
        for name, parts in {**loop.made, **loop.moved}.items():
            tensors[name] = tensors[name].in_parts(parts.axis, parts.made, held.get(name))
        for name, parts in loop.stores.items():
            stored[name] = stored[name].in_parts(parts.axis, parts.made)
    return replace(slices, tensors=tensors, stored=stored, loops=loops)


class Slicer:
    """Finds the slices of a group layer by layer, the last layer first.

    So all groups that end with one layer take their slices from one `Slicer`, the shortest first.
    """

    def __init__(self, index: NetworkIndex, cut: Cut, parted: frozenset[str] = frozenset()) -> None:
        self.index, self.cut = index, cut
        self._parted = parted  # Only parts of these tensors are resident: no halo is kept
        self._needs: dict[str, Region] = {}  # Of each tensor, by all layers that read it
        self.tensors: dict[str, TensorSlices] = {}
        self._stored: dict[str, TensorSlices] = {}

    def add(self, layer: Layer, *, stored: bool) -> None:
        """Put a layer before the others; whether its result is stored."""
        tensor = self.index.tensors[layer.output]
        if stored:
            own = self._cut_output(tensor)
            self._stored[tensor.name] = TensorSlices(tensor, own, own, "", self.cut)
            self._need(tensor, own)
        made = self.tensors[tensor.name] = self._sliced(tensor, may_load_once=False)
        read = [self.index.tensors[name] for name in layer.inputs]
        for maps, one in zip(layer.maps, read, strict=True):
            self._need(one, _needed_by(maps, made.makes, one.shape))
        for one in read:
            self.tensors[one.name] = self._sliced(one, may_load_once=True)

    def _need(self, tensor: Tensor, needs: Region) -> None:
        """Add what one reader needs of a tensor: all of an axis if readers follow two letters."""
        if tensor.name in self._needs:
            before = zip(self._needs[tensor.name], needs, tensor.shape, strict=True)
            needs = tuple(
                AxisPart(a.letter, a.spans.union(b.spans)) if a.letter == b.letter else whole(n)
                for a, b, n in before
            )
        self._needs[tensor.name] = needs

    def _sliced(self, tensor: Tensor, may_load_once: bool) -> TensorSlices:
        keep = LETTERS if may_load_once else ROWS if self.cut.keep_rows else ""
        keep = "" if tensor.name in self._parted else keep
        return _tensor_slices(tensor, self._needs[tensor.name], self.cut, keep)

    def _cut_output(self, tensor: Tensor) -> Region:
        """Return what slices make of an output; ValueError if it cannot have so many."""
        parts = [whole(extent) for extent in tensor.shape]
        for letter, count in self.cut.counts.items():
            if count == 1:
                continue
            at = tensor.axes.index(letter)
            parts[at] = AxisPart(letter, even_spans(tensor.shape[at], count))
        return tuple(parts)

    def slices(self, group: Group) -> GroupSlices:
        """Return the slices of the group of all layers that were added."""
        tensors = {name: self.tensors[name] for name in group.names}
        stored = {name: self._stored[name] for name in group.outputs}
        return GroupSlices(group, self.cut, tensors, stored)


@lru_cache(maxsize=1 << 14)
def _tensor_slices(tensor: Tensor, needs: Region, cut: Cut, keep: str) -> TensorSlices:
    """Return the slices of a tensor, given what each slice needs, and what may stay along it."""
    if keep == LETTERS:
        if not any(part.letter for part in needs):
            return TensorSlices(tensor, needs, needs, LETTERS, cut)
        keep = ROWS if cut.keep_rows else ""
    if not keep or sum(part.letter == ROWS for part in needs) > 1:
        return TensorSlices(tensor, needs, needs, "", cut)
    kept = [
        part.spans.kept(cut.runs[ROWS]) if part.letter == ROWS else (part.spans, part.spans)
        for part in needs
    ]
    holds, makes = (
        tuple(AxisPart(part.letter, spans) for part, spans in zip(needs, which, strict=True))
        for which in zip(*kept, strict=True)
    )
    return TensorSlices(tensor, holds, makes, ROWS, cut)


def region_needed(made: Region, maps: AxisMaps, shape: Sequence[int]) -> Region:
    """Return the part of a buffer that is needed for each slice of what is made of it.

    An axis is not cut if every slice needs as much of it.
    """
    found = []
    for m, extent in zip(maps, shape, strict=True):
        part = whole(extent) if m is None else made[m.axis].needed(m)
        if m is not None and all(needed == m.spans.hull for needed in part.spans.ranges):
            part = AxisPart("", Spans.of([m.spans.hull]))
        found.append(part)
    return tuple(found)


def _needed_by(maps: AxisMaps, made: Region, shape: tuple[int, ...]) -> Region:
    """Return what an input of this shape needs for what is made of the output."""
    found = []
    for m, extent in zip(maps, shape, strict=True):
        part = None if m is None else made[m.axis]
        found.append(part.needed(m) if m and part and part.letter else whole(extent))
    return tuple(found)
