# SPDX-License-Identifier: Apache-2.0
"""Hardware roles of tensor axes: batch, channels across the lanes, rows, the rest.

All operators together say it: axes that are mapped onto each other through the whole network are
one class, and a class has one letter. A reduction axis that a weight has too is channels, and so is
an axis whose extent comes from a weight alone; channels that are split are channels in both parts,
such as heads and the channels of each head. Of the other axes, the one that most layers go along is
the rows; an axis that no layer ever needs as a whole is the batch. Where windows slide along three
axes, the first is the depth.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from passes.layer_group.planning.network import WeightRole
from passes.layer_group.planning.spans import AxisMaps, Spans, even_spans

_USUAL = {0: "", 1: "c", 2: "nc", 3: "nhc", 4: "nchw"}

Axis = tuple[str, int]
"""A tensor's name, and the number of one of its axes."""


class Reads(NamedTuple):
    """The elements that one call reads of its inputs, for its output."""

    output: str
    inputs: Sequence[str]
    maps: Sequence[AxisMaps]  # Of each input
    # For each axis of each input the sums that it is contracted by.
    contractions: Sequence[Sequence[frozenset[int]]]


def _usual_letters(rank: int) -> str:
    """Return the letters of a tensor for which only the number of axes is known."""
    return _USUAL.get(rank, "nch" + "w" * (rank - 3))


@dataclass(eq=False)
class _Class:
    """Axes that are mapped onto each other; at most one of each tensor."""

    members: dict[str, int]  # Axes by tensor
    first: int  # When it was met
    along: int = 0  # Number of times that a layer goes along it
    whole: int = 0  # Number of times that a layer needs all of it
    moves: bool = False  # Whether a layer reads other indices of it than that of its result
    is_channels: bool = False  # It is summed over with a weight, or made by one
    of: list[Axis] = field(default_factory=list)  # Axes of whose pieces it has the elements
    letter: str = ""


class _Classes:
    """The classes of the axes of a network's activations."""

    def __init__(self, shapes: Mapping[str, Sequence[int]], weights: set[str]) -> None:
        self.shapes, self.weights = shapes, weights
        self.of: dict[Axis, _Class] = {}

    def at(self, axis: Axis) -> _Class:
        if axis not in self.of:
            self.of[axis] = _Class(dict([axis]), len(self.of))
        return self.of[axis]

    def join(self, one: _Class, other: _Class) -> bool:
        """Make two classes one; False if they have axes of one tensor."""
        if one is other:
            return True
        if one.members.keys() & other.members.keys():
            return False
        if len(one.members) < len(other.members):
            one, other = other, one
        one.members |= other.members
        one.first = min(one.first, other.first)
        one.along, one.whole = one.along + other.along, one.whole + other.whole
        one.moves, one.is_channels = one.moves or other.moves, one.is_channels or other.is_channels
        one.of += other.of
        self.of |= dict.fromkeys(other.members.items(), one)
        return True

    def go_along(self, read: Axis, made: Axis, moves: bool) -> None:
        here = self.at(read)
        if self.join(here, self.at(made)):
            here = self.at(read)
            here.along += 1
            here.moves = here.moves or moves
        else:
            here.whole += 1

    def read(self, call: Reads) -> None:
        """Note what one call says of the axes that it reads and makes."""
        shapes, made = self.shapes, self.shapes[call.output]
        for name in (*call.inputs, call.output):
            for axis, extent in enumerate(() if name in self.weights else shapes[name]):
                if extent > 1:
                    self.at((name, axis))
        mapped: set[int] = set()
        split: list[tuple[Axis, int]] = []  # Axes that are read in pieces of so many elements.
        for name, axis_maps, sums in zip(call.inputs, call.maps, call.contractions, strict=True):
            for axis, m in enumerate(() if name in self.weights else axis_maps):
                extent = shapes[name][axis]
                if extent == 1:
                    continue
                if m is None or made[m.axis] == 1:
                    if self._is_whole((name, axis), sums[axis], call):
                        mapped.add(axis)
                    continue
                mapped.add(m.axis)
                size, rest = divmod(extent, made[m.axis])
                if size > 1 and not rest and m.spans == even_spans(extent, made[m.axis]):
                    split.append(((name, axis), size))
                at = np.flatnonzero(m.spans.sizes)
                read = Spans(m.spans.begin[at], m.spans.end[at])
                self.go_along((name, axis), (call.output, m.axis), read != Spans(at, at + 1))
        for whole, size in split:
            for axis, extent in enumerate(made):
                if axis not in mapped and extent == size:
                    self.at((call.output, axis)).of.append(whole)
        if len(mapped) < len(made) and not self.weights.issuperset(call.inputs):
            for name, axis_maps in zip(call.inputs, call.maps, strict=True):
                for m in axis_maps if name in self.weights else ():
                    if m is not None and m.axis not in mapped and made[m.axis] > 1:
                        self.at((call.output, m.axis)).is_channels = True

    def _is_whole(self, at: Axis, sums: frozenset[int], call: Reads) -> bool:
        """Note that a call needs all of an axis; whether it makes that axis, as a softmax does."""
        name, axis = at
        # The other inputs that some of the axis's sums go along, too.
        others = {
            other
            for other, of_axes in zip(call.inputs, call.contractions, strict=True)
            if other != name and any(sums & along for along in of_axes)
        }
        here = self.at(at)
        here.whole += 1
        here.is_channels = here.is_channels or bool(others & self.weights)
        if others or tuple(self.shapes[name]) != tuple(self.shapes[call.output]):
            return False
        self.join(here, self.at((call.output, axis)))
        return True

    def decide(self) -> None:
        """Give each class its letter, starting with those that operators say most about."""
        distinct = {id(one): one for one in self.of.values()}.values()
        found = sorted(distinct, key=lambda one: one.first)
        for one in found:
            if one.is_channels:
                one.letter = "c"
            elif not one.whole and all(
                axis == 0 and len(self.shapes[name]) > 1 for name, axis in one.members.items()
            ):
                one.letter = "n"
        for one in found:
            # Channels that are split are channels in both parts, such as heads and what each has.
            if not one.letter and any(self.of[axis].letter == "c" for axis in one.of):
                one.letter = "c"

        # Where windows slide along three axes of a tensor, the first of them is the depth.
        for name, shape in self.shapes.items():
            axes = (self.of.get((name, axis)) for axis in range(len(shape)))
            moving = [one for one in axes if one is not None and one.moves and not one.letter]
            self._give("d", moving[:1] if len(moving) > 2 else [])
        rows = (one for one in found if one.along)
        self._give("h", sorted(rows, key=lambda one: (not one.moves, one.whole - one.along)))
        self._give("c", sorted(found, key=lambda one: -one.whole))

    def _give(self, letter: str, candidates: list[_Class]) -> None:
        """Give classes without a letter this one, where no tensor of theirs has it yet."""
        for one in candidates:
            near = (
                self.of.get((name, axis))
                for name in one.members
                for axis in range(len(self.shapes[name]))
            )
            if not one.letter and all(other is None or other.letter != letter for other in near):
                one.letter = letter

    def letters(self, name: str) -> str:
        """Return the letters of a tensor, those of its axes of one element as they are usual."""
        rank = len(self.shapes[name])
        classes = [self.of.get((name, axis)) for axis in range(rank)]
        letters = ["" if one is None else one.letter or "w" for one in classes]
        for axis, usual in enumerate(_usual_letters(rank)):
            if not letters[axis]:
                letters[axis] = usual if usual not in letters else "w"
        return "".join(letters)


def decide_letters(
    shapes: Mapping[str, Sequence[int]], calls: Sequence[Reads], weights: set[str]
) -> dict[str, str]:
    """Return the letters of all tensors; axes of one element have the usual ones if these are free.

    A tensor made of weights alone is a weight, too.
    """
    weights = set(weights)
    for call in calls:
        if weights.issuperset(call.inputs):
            weights.add(call.output)
    classes = _Classes(shapes, weights)
    for call in calls:
        classes.read(call)
    classes.decide()
    letters = {name: classes.letters(name) for name in shapes if name not in weights}
    # A weight lies as the channels of what it is read for.
    for call in reversed(calls):
        output = letters.get(call.output) or _usual_letters(len(shapes[call.output]))
        for name, axis_maps in zip(call.inputs, call.maps, strict=True):
            if name in weights:
                own = ("w" if m is None else output[m.axis] for m in axis_maps)
                letters[name] = "c" if len(axis_maps) == 1 else "".join(own)
    return {name: letters.get(name, _usual_letters(len(shape))) for name, shape in shapes.items()}


def weight_roles(
    shapes: Mapping[str, Sequence[int]], calls: Sequence[Reads], weights: set[str]
) -> dict[str, tuple[WeightRole, int | None]]:
    """Return what each weight is for the first call that reads it, and a filter's input axis.

    A filter is contracted along all its axes but one, and has three at least. A weight for each
    channel lies as a filter does, unless it goes with the product of a matrix. (tpu-mlir,
    `is_eu_align`.)
    """
    found: dict[str, tuple[WeightRole, int | None]] = {}
    for call in calls:
        read = list(zip(call.inputs, call.maps, call.contractions, strict=True))
        along = {
            name: [at for at, m in enumerate(maps) if m is not None and shapes[name][at] > 1]
            for name, maps, _ in read
        }
        filters, multiplies = {}, False
        for name, maps, sums in read:
            if name in weights and any(sums):
                if len(maps) > 2 and len(along[name]) <= 1:
                    filters[name] = _input_axis(call, name, sums)
                else:
                    multiplies = True
        for name in (x for x in call.inputs if x in weights and x not in found):
            if name in filters:
                axis = filters[name]
                found[name] = (WeightRole.DEPTHWISE if axis is None else WeightRole.FILTER), axis
            else:
                sizes = [n for n in shapes[name] if n > 1]
                per_channel = len(sizes) <= 1 and not multiplies
                found[name] = (WeightRole.FILTER if per_channel else WeightRole.OTHER), None
    return found


def _input_axis(call: Reads, name: str, sums: Sequence[frozenset[int]]) -> int | None:
    """Return the axis of a filter that is contracted with an axis of another input."""
    others = [
        along
        for other, of_axes in zip(call.inputs, call.contractions, strict=True)
        for along in of_axes
        if other != name
    ]
    shared = (at for at, own in enumerate(sums) if any(own & along for along in others))
    return next(shared, None)
