# SPDX-License-Identifier: Apache-2.0
"""What each axis of a tensor is to the hardware: batch, channels across the lanes, rows, the rest.

Relax tensors do not say it. The operators do, all of them together: axes that are mapped onto each
other through the whole network are one class, and a class has one letter. What operators sum over
together with a weight are channels, and so is what only a weight gives its extent; channels
that are split are channels in both parts, such as heads and what each of them has. Of what is left,
the axis that most layers go along are rows; an axis of which no layer ever needs all is the batch.
Shapes decide nothing but between axes of which the operators say the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from passes.layer_group.planning.network import AxisMap, InputMap

_USUAL = {0: "", 1: "c", 2: "nc", 3: "nhc", 4: "nchw"}

Axis = tuple[str, int]
"""A tensor's name, and the number of one of its axes."""


@dataclass(frozen=True)
class Reads:
    """The elements that one call reads of its inputs, for its output."""

    output: str
    inputs: tuple[tuple[str, InputMap], ...]  # Each input with the maps of its axes
    # For each axis of each input the sums that it is contracted by.
    contractions: tuple[tuple[frozenset[int], ...], ...]


def _usual_letters(rank: int) -> str:
    """Return the letters of a tensor of which nothing is known but its number of axes."""
    return _USUAL.get(rank, "nch" + "w" * (rank - 3))


def _weight_letters(output: str, axis_maps: InputMap) -> str:
    """Return the letters of a weight: those of the output's axes that its axes are mapped onto."""
    letters = ["w" if m is None else output[m.axis] for m in axis_maps]
    return "c" if len(letters) == 1 else "".join(letters)


@dataclass(eq=False)
class _Class:
    """Axes that are mapped onto each other; at most one of each tensor."""

    members: dict[str, int]  # Axes by tensor
    first: int  # When it was met
    along: int = 0  # How often a layer goes along it
    whole: int = 0  # How often a layer needs all of it
    moves: bool = False  # Whether a layer reads other indices of it than that of its result
    is_channels: bool = False  # It is summed over with a weight, or made by one
    is_summed: bool = False  # It is summed over with another tensor
    of: list[Axis] = field(default_factory=list)  # Axes of whose pieces it has the elements
    letter: str = ""


class _Along(NamedTuple):
    """An axis of an input that is read along an axis of the output."""

    read: Axis
    made: Axis
    moves: bool  # Whether other indices are read than those that are made


@dataclass(eq=False)
class _Classes:
    shapes: Mapping[str, Sequence[int]]
    of: dict[Axis, _Class] = field(default_factory=dict)

    def at(self, name: str, axis: int) -> _Class:
        if (name, axis) not in self.of:
            self.of[name, axis] = _Class({name: axis}, len(self.of))
        return self.of[name, axis]

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
        for fact in ("moves", "is_channels", "is_summed"):
            setattr(one, fact, getattr(one, fact) or getattr(other, fact))
        one.of += other.of
        self.of.update(((name, axis), one) for name, axis in other.members.items())
        return True

    def all(self) -> list[_Class]:
        return sorted({id(one): one for one in self.of.values()}.values(), key=lambda c: c.first)


def decide_letters(
    shapes: Mapping[str, Sequence[int]], calls: Sequence[Reads], weights: set[str]
) -> dict[str, str]:
    """Return the letters of all tensors.

    What is made of weights alone is a weight, too. Axes of one element tell nothing; they have the
    usual letters as far as those are free.
    """
    weights = set(weights)
    for call in calls:
        if weights.issuperset(name for name, _ in call.inputs):
            weights.add(call.output)
    classes = _Classes(shapes)
    unsure: list[_Along] = []
    for call in calls:
        for name in (*(name for name, _ in call.inputs), call.output):
            if name not in weights:
                for axis, extent in enumerate(shapes[name]):
                    if extent > 1:
                        classes.at(name, axis)
        _read(classes, call, weights, unsure)
    # One index that needs all indices, or about all, tells less of an axis than any other map.
    for along in unsure:
        _go_along(classes, along)
    _decide(classes)
    letters = {
        name: _filled(name, shape, classes) for name, shape in shapes.items() if name not in weights
    }
    # A weight lies as the channels of what it is read for.
    for call in reversed(calls):
        for name, axis_maps in call.inputs:
            if name in weights:
                known = letters.get(call.output) or _usual_letters(len(shapes[call.output]))
                letters[name] = _weight_letters(known, axis_maps)
    return {name: letters.get(name, _usual_letters(len(shape))) for name, shape in shapes.items()}


def _read(classes: _Classes, call: Reads, weights: set[str], unsure: list[_Along]) -> None:
    """Note what one call says of the axes that it reads and makes."""
    shapes = classes.shapes
    mapped: set[int] = set()
    split: list[tuple[Axis, int]] = []  # Axes that are read in pieces of so many elements.
    for (name, axis_maps), sums in zip(call.inputs, call.contractions, strict=True):
        if name in weights:
            continue
        for axis, m in enumerate(axis_maps):
            if shapes[name][axis] == 1:
                continue
            here = classes.at(name, axis)
            if m is None or shapes[call.output][m.axis] == 1:
                here.whole += 1
                summed = _summed_with(sums[axis], name, call)
                here.is_summed = here.is_summed or bool(summed)
                here.is_channels = here.is_channels or bool(summed & weights)
                if not summed and tuple(shapes[name]) == tuple(shapes[call.output]):
                    # A normalization needs all of an axis for each element of the same axis.
                    classes.join(here, classes.at(call.output, axis))
                    mapped.add(axis)
                continue
            mapped.add(m.axis)
            if m.stride > 1 and m == AxisMap(m.axis, m.stride, last=m.stride - 1):
                split.append(((name, axis), m.stride))
            along = _Along((name, axis), (call.output, m.axis), m != AxisMap(m.axis))
            if (m.last - m.first) // m.divide < shapes[name][axis] - 1:
                _go_along(classes, along)
            else:
                unsure.append(along)
    for whole, size in split:
        for axis, extent in enumerate(shapes[call.output]):
            if axis not in mapped and extent == size:
                classes.at(call.output, axis).of.append(whole)
    if len(mapped) < len(shapes[call.output]) and any(n not in weights for n, _ in call.inputs):
        for name, axis_maps in call.inputs:
            for m in axis_maps if name in weights else ():
                if m is not None and m.axis not in mapped and shapes[call.output][m.axis] > 1:
                    classes.at(call.output, m.axis).is_channels = True


def _go_along(classes: _Classes, along: _Along) -> None:
    here = classes.at(*along.read)
    if not classes.join(here, classes.at(*along.made)):
        here.whole += 1
        return
    here = classes.at(*along.read)
    here.along += 1
    here.moves = here.moves or along.moves


def _summed_with(sums: frozenset[int], name: str, call: Reads) -> set[str]:
    """Return the other inputs of a call that some of these sums go along, too."""
    return {
        other
        for (other, _), of_axes in zip(call.inputs, call.contractions, strict=True)
        if other != name and any(sums & along for along in of_axes)
    }


def _decide(classes: _Classes) -> None:
    """Give each class its letter, those first of which the operators say most."""
    found = classes.all()

    def give(letter: str, candidates: list[_Class]) -> None:
        for one in candidates:
            taken = (
                classes.of.get((name, axis))
                for name in one.members
                for axis in range(len(classes.shapes[name]))
            )
            if not any(other is not None and other.letter == letter for other in taken):
                one.letter = letter

    for one in found:
        if one.is_channels:
            one.letter = "c"
        elif not one.whole and all(
            axis == 0 and len(classes.shapes[name]) > 1 for name, axis in one.members.items()
        ):
            one.letter = "n"

    def unusual(one: _Class, letter: str) -> bool:
        """Whether this is not the usual place of a letter, where the channels are not known."""
        name, axis = next(iter(one.members.items()))
        rank = len(classes.shapes[name])
        if any(classes.of[name, n].letter == "c" for n in range(rank) if (name, n) in classes.of):
            return False
        return _usual_letters(rank)[axis] != letter

    for one in found:
        # Channels that are split are channels in both parts, such as heads and what each has.
        if not one.letter and any(classes.of[axis].letter == "c" for axis in one.of):
            one.letter = "c"
    rest = [one for one in found if not one.letter]
    give(
        "h",
        sorted(
            (one for one in rest if one.along),
            key=lambda c: (not c.moves, c.whole - c.along, unusual(c, "h"), c.first),
        ),
    )
    rest = [one for one in rest if not one.letter]
    give("c", sorted(rest, key=lambda c: (not c.is_summed, -c.whole, unusual(c, "c"), c.first)))


def _filled(name: str, shape: Sequence[int], classes: _Classes) -> str:
    """Return the letters of a tensor, those of its axes of one element as they are usual."""
    letters: list[str] = []
    for axis in range(len(shape)):
        known = classes.of.get((name, axis))
        letters.append(known.letter or "w" if known is not None else "")
    for axis, usual in enumerate(_usual_letters(len(shape))):
        if not letters[axis]:
            letters[axis] = usual if usual not in letters else "w"
    return "".join(letters)
