# SPDX-License-Identifier: Apache-2.0
"""Slices of a group: which part of each tensor each slice holds, and which part it makes.

The group's outputs are cut evenly; what a slice needs of every other tensor follows backward
through the layers' maps (BackwardN and BackwardH of tpu-mlir's LayerGroup, for any axis). An axis
is cut on its own, because a map takes a range of one axis to a range of one axis.

Neighbouring slices may need the same elements of a tensor. Such a *halo* is computed or loaded
again (it is not kept), or it stays where it is until the next slice has read it (it is kept).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from math import prod

import numpy as np

from passes.layer_group.planning.group import Group, NetworkIndex, extent_of
from passes.layer_group.planning.network import Box, InputMap, Layer, Tensor
from passes.layer_group.planning.spans import Spans
from passes.layer_group.planning.streams import LayerRun, Parts, streamed_by, window_of

LETTERS = "nwh"
"""Letters of the axes that are cut, outermost first."""

ROWS = "h"
"""Letter of the axis along which halos may be kept."""

CHANNELS = "c"
"""Letter of the axis along which a layer may be made in parts."""


@dataclass(frozen=True)
class Cut:
    """How many slices a group's outputs have on each axis."""

    # Slices of the batch, of the rows and of the columns; positive. All rows of some columns come
    # before the next columns.
    n: int = 1
    h: int = 1
    w: int = 1
    # Bytes a lane that what comes in parts takes for each layer that is made, or sums, in parts
    # (see `runs`); zero: no layer does.
    part_bytes: int = 0
    # Cores that share the slices, each the same number of them one after the other; or, by
    # channels, the parts of each slice, so that each core has all slices (see `runs`).
    cores: int = 1
    by_channels: bool = False

    def __post_init__(self) -> None:
        if not self.can_share(self.cores):
            raise ValueError(f"{self.cores} cores cannot have equally many slices each: {self}")

    @property
    def steps(self) -> int:
        """Number of slices in all."""
        return self.n * self.h * self.w

    @property
    def turns(self) -> int:
        """Number of slices of one core."""
        return self.steps if self.by_channels else self.steps // self.cores

    def run(self, letter: str) -> int:
        """Slices on the axes with this letter that follow each other on one core.

        Cores share the slices of the outermost axis that is cut.
        """
        return self.count(letter) // (self.cores if letter == self.shared else 1)

    @property
    def shared(self) -> str:
        """Letter of the axis that several cores share; empty if one core has all."""
        return "" if self.cores == 1 else CHANNELS if self.by_channels else self.outermost

    @cached_property
    def outermost(self) -> str:
        """Letter of the outermost axis that is cut; empty if none is."""
        return next((letter for letter in LETTERS if self.count(letter) > 1), "")

    def can_share(self, cores: int) -> bool:
        """Whether so many cores have equally many slices each."""
        return self.by_channels or self.count(self.outermost or LETTERS[0]) % cores == 0

    def count(self, letter: str) -> int:
        """Slices on the axes with this letter."""
        return self.n if letter == "n" else self.h if letter == "h" else self.w

    def indices(self) -> list[dict[str, int]]:
        """Return the index of each slice on each axis, by letter, in the slices' order."""
        counts = [range(self.count(letter)) for letter in LETTERS]
        return [dict(zip(LETTERS, index, strict=True)) for index in product(*counts)]


@dataclass(frozen=True, eq=False)
class AxisSlices:
    """The slices of one axis of a tensor: ranges, one for each slice of the letter that cuts it."""

    letter: str  # Which cut it follows
    # What is in local memory during the slice: all that it reads, and what later slices read and is
    # there already, if that is kept.
    held: Spans
    # What the slice computes or loads: all that it holds, or only what is new if it is kept.
    made: Spans

    @cached_property
    def kept(self) -> int:
        """Elements that stay from one slice to the next at most."""
        held, made = self.held, self.made
        partly = (made.begin != held.begin) | (made.end != held.end)
        stay = np.minimum(held.end[:-1], held.end[1:]) - np.maximum(held.begin[:-1], held.begin[1:])
        return int(np.max(stay, where=partly[1:], initial=0))

    @property
    def repeated(self) -> int:
        """Elements that are made more than once, counted as often as they are made again."""
        return self.made.total - self.made.covered


@dataclass(frozen=True)
class TensorSlices:
    """The slices of one tensor."""

    tensor: Tensor  # Which one
    # One entry an axis; None where every slice has the whole axis.
    axes: tuple[AxisSlices | None, ...]
    keep: str = ""  # Letters of the cuts along which its halo is kept
    cut: Cut = Cut()  # How many slices there are, and on how many cores

    @cached_property
    def letters(self) -> frozenset[str]:
        """Letters of the cuts that change what is held."""
        return frozenset(axis.letter for axis in self.axes if axis is not None)

    @cached_property
    def window(self) -> tuple[int, ...]:
        """Elements on each axis of what is held at once, at most."""
        return tuple(
            extent if axis is None else axis.held.longest
            for extent, axis in zip(self.tensor.shape, self.axes, strict=True)
        )

    @cached_property
    def repeated_rows(self) -> int:
        """Rows that are made or loaded again, each time counted.

        A tensor that every slice makes whole repeats all its rows with each slice but the first.
        """
        rows = [axis for axis in self.axes if axis is not None and axis.letter == ROWS]
        if rows:
            return rows[0].repeated
        return 0 if ROWS in self.keep else (self.cut.h - 1) * extent_of(self.tensor, ROWS)

    @property
    def is_whole(self) -> bool:
        """Whether every slice has the whole tensor."""
        return not self.letters

    def held(self, index: Mapping[str, int]) -> Box:
        """Return what is in local memory during a slice, by the slice's index on each axis."""
        return tuple(
            (0, extent) if axis is None else axis.held.ranges[index[axis.letter]]
            for extent, axis in zip(self.tensor.shape, self.axes, strict=True)
        )

    def made(self, index: Mapping[str, int]) -> Box:
        """Return what a slice computes or loads; all ranges are empty if that is nothing."""
        box = tuple(
            (0, extent) if axis is None else axis.made.ranges[index[axis.letter]]
            for extent, axis in zip(self.tensor.shape, self.axes, strict=True)
        )
        again = any(index[x] % self.cut.run(x) and x not in self.letters for x in self.keep)
        if again or any(begin == end for begin, end in box):
            return tuple((0, 0) for _ in box)
        return box

    def in_parts(self, parts: Parts) -> TensorSlices:
        """Return the slices with one axis in parts."""
        spans = Spans.of(parts.ranges)
        axis = AxisSlices(CHANNELS, spans, spans)
        before, behind = self.axes[: parts.axis], self.axes[parts.axis + 1 :]
        return replace(self, axes=(*before, axis, *behind))

    @cached_property
    def made_elements(self) -> int:
        """Elements that all slices make together, repeated ones each time."""
        count, cut = 1, self.cut
        for extent, axis in zip(self.tensor.shape, self.axes, strict=True):
            if axis is None:
                count *= extent
        for letter in LETTERS:
            lines = [axis for axis in self.axes if axis is not None and axis.letter == letter]
            if len(lines) == 1:
                count *= lines[0].made.total
            elif lines:
                count *= sum(
                    map(prod, zip(*(axis.made.sizes.tolist() for axis in lines), strict=True))
                )
            elif letter in self.keep:
                count *= cut.count(letter) // cut.run(letter)
            else:
                count *= cut.count(letter)
        return count


@dataclass(frozen=True)
class GroupSlices:
    """The slices of a group."""

    group: Group  # The layers
    cut: Cut  # How many slices
    tensors: Mapping[str, TensorSlices]  # By name, for every tensor of the group
    # By name, for every output of the group: what each slice writes to global memory. It covers the
    # output exactly, each element once.
    stored: Mapping[str, TensorSlices]
    streams: Mapping[str, LayerRun]  # By name, for the layers that compute part by part

    @cached_property
    def streamed(self) -> dict[str, tuple[Parts, int]]:
        """Of what only parts are there: these, and elements that are there at once."""
        return streamed_by(self.streams)

    @cached_property
    def resident(self) -> tuple[str, ...]:
        """Names of what is loaded once and stays for all slices; empty if a core has one slice."""
        if self.cut.turns == 1:
            return ()
        return tuple(
            name
            for name in self.group.loaded
            if self.tensors[name].is_whole and name not in self.streamed
        )

    @cached_property
    def kept(self) -> tuple[str, ...]:
        """Names of what else stays in local memory from one slice to the next, at least in part."""
        return tuple(
            name
            for name in self.group.names
            if name not in (*self.resident, *self.streamed) and self._is_kept(self.tensors[name])
        )

    def _is_kept(self, slices: TensorSlices) -> bool:
        for letter in slices.keep:
            if self.cut.count(letter) == 1:
                continue
            lines = [axis for axis in slices.axes if axis is not None and axis.letter == letter]
            if not lines or any(axis.kept for axis in lines):
                return True
        return False

    def window(self, name: str) -> tuple[int, ...]:
        """Return the elements on each axis of what is held of a tensor at once, at most."""
        window = self.tensors[name].window
        if name not in self.streamed:
            return window
        parts, elements = self.streamed[name]
        return window_of(window, parts.axis, elements)

    def in_parts(self, layer: Layer) -> TensorSlices:
        """Return what a layer makes, one axis in parts if it is made so."""
        made, run = self.tensors[layer.output], self.streams.get(layer.name)
        parts = None if run is None else run.made.get(layer.name)
        return made if parts is None else made.in_parts(parts)

    def repeated_rows(self, name: str) -> int:
        """Rows of a tensor that are computed or loaded again, each time counted."""
        return 0 if name in self.streamed else self.tensors[name].repeated_rows


def slice_group(
    group: Group,
    cut: Cut,
    keep: str = "",
    *,
    n_unit: int = 1,
    streams: Mapping[str, LayerRun] | None = None,
) -> GroupSlices:
    """Cut a group's outputs evenly and find what every slice needs of its other tensors.

    A tensor that is read several times, or that is read and stored, is held as far as any of them
    needs it: the hull of all ranges.

    `keep` has the letters of the cuts along which halos are kept. Where two axes of one tensor
    follow the same letter, its halo on that letter is not kept; nor is a tensor kept along the
    batch that follows other cuts alone. `n_unit` entries of the batch cannot be separated.

    Raises ValueError if an output has fewer elements on an axis than it is to have slices, or none
    such axis.
    """
    streams = streams or {}
    slicer = Slicer(group.index, cut, keep, n_unit, frozenset(streamed_by(streams)))
    slicer.add_all(group)
    return slicer.slices(group, streams)


class Slicer:
    """Finds the slices of a group layer by layer, the last layer first.

    A layer that is put before a group changes nothing of what the group makes, so all groups that
    end with one layer take their slices from one `Slicer`, the shortest group first.
    """

    def __init__(
        self,
        index: NetworkIndex,
        cut: Cut,
        keep: str,
        n_unit: int = 1,
        streamed: frozenset[str] = frozenset(),
    ) -> None:
        self._cut = cut
        self._n_unit = n_unit
        self._index, self._keep = index, keep
        self._streamed = streamed  # Only parts of these tensors are resident: no halo is kept
        self._needs: dict[str, AxisSpans] = {}  # Of each tensor, by all layers that read it
        self.made: dict[str, TensorSlices] = {}
        self.loaded: dict[str, TensorSlices] = {}
        self._stored: dict[str, TensorSlices] = {}

    def add_all(self, group: Group) -> None:
        """Put the layers of a group before the others; ValueError as `slice_group` raises it."""
        outputs = frozenset(group.outputs)
        for layer in reversed(group.layers):
            self.add(layer, stored=layer.output in outputs)

    def add(self, layer: Layer, *, stored: bool) -> None:
        """Put a layer before the others; whether its result is stored.

        Raises ValueError as `slice_group` does.
        """
        tensor = self._index.tensors[layer.output]
        needs = self._needs.get(tensor.name)
        if stored:
            own = self._cut_output(tensor)
            axes = tuple(part and AxisSlices(part[0], part[1], part[1]) for part in own)
            self._stored[tensor.name] = TensorSlices(tensor, axes, "", self._cut)
            needs = own if needs is None else unite(needs, own)
        if needs is None:
            raise ValueError(f"layer {layer.name!r} makes nothing that is read or stored")
        keep = "" if tensor.name in self._streamed else self._keep
        made = self.made[tensor.name] = _settled(tensor, needs, self._cut, keep)
        self.loaded.pop(tensor.name, None)
        for number, name in enumerate(layer.inputs):
            need = needed_by(layer.maps[number], made, self._index.tensors[name].shape)
            self._needs[name] = unite(self._needs[name], need) if name in self._needs else need
        for name in dict.fromkeys(layer.inputs):
            self.loaded[name] = self._load(name)

    def _load(self, name: str) -> TensorSlices:
        """Return the slices of a tensor that is loaded; a whole tensor is loaded once."""
        is_streamed = name in self._streamed
        keep = "" if is_streamed else self._keep
        tensor, needs = self._index.tensors[name], self._needs[name]
        if not is_streamed and not any(needs):
            return TensorSlices(tensor, (None,) * len(needs), LETTERS, self._cut)
        return _settled(tensor, needs, self._cut, keep)

    def _cut_output(self, tensor: Tensor) -> AxisSpans:
        """Return what slices make of an output; ValueError if it cannot have so many."""
        spans: AxisSpans = [None] * len(tensor.shape)
        for letter in LETTERS:
            count = self._cut.count(letter)
            if count == 1:
                continue
            at = tensor.axes.find(letter)
            if at < 0:
                raise ValueError(f"tensor {tensor.name!r} has no axis {letter!r} to cut")
            unit = self._n_unit if letter == "n" else 1
            spans[at] = (letter, self._index.even(tensor.shape[at], count, unit))
        return spans

    def slices(self, group: Group, streams: Mapping[str, LayerRun]) -> GroupSlices:
        """Return the slices of the group of all layers that were added."""
        tensors = {name: self.loaded[name] for name in group.loaded}
        tensors |= {name: self.made[name] for name in group.made}
        stored = {name: self._stored[name] for name in group.outputs}
        return GroupSlices(group, self._cut, tensors, stored, streams)


AxisSpans = list[tuple[str, Spans] | None]
"""For each axis of a tensor: the letter that it follows and its spans, or None for all of it."""


def needed_by(maps: InputMap, made: TensorSlices, shape: tuple[int, ...]) -> AxisSpans:
    """Return what an input of this shape needs for what is made of the output."""
    return [
        None
        if axis_map is None or (axis := made.axes[axis_map.axis]) is None
        else (axis.letter, axis.made.needed(axis_map, extent))
        for axis_map, extent in zip(maps, shape, strict=True)
    ]


def unite(one: AxisSpans, other: AxisSpans) -> AxisSpans:
    """Return what two readers need together.

    That is all of an axis if one of them needs that, or if they follow two letters.
    """
    return [
        None if a is None or b is None or a[0] != b[0] else (a[0], a[1].union(b[1]))
        for a, b in zip(one, other, strict=True)
    ]


def _settled(tensor: Tensor, needs: AxisSpans, cut: Cut, keep: str) -> TensorSlices:
    """Return the slices of a tensor of which all that is needed is known."""
    letters = [part[0] for part in needs if part is not None]
    # What lies across the other cuts has moved on when the next entry of the batch comes.
    passes_by = bool(letters) and "n" not in letters
    axes: list[AxisSlices | None] = []
    for part in needs:
        if part is None:
            axes.append(None)
            continue
        letter, spans = part
        is_kept = letter in keep and letters.count(letter) == 1
        held, made = spans.kept(cut.run(letter)) if is_kept else (spans, spans)
        axes.append(AxisSlices(letter, held, made))
    kept = "".join(
        x
        for x in keep
        if letters.count(x) <= 1 and cut.count(x) > 1 and not (x == "n" and passes_by)
    )
    return TensorSlices(tensor, tuple(axes), kept, cut)
