"""Slices of a group: which part of each tensor each slice holds, and which part it makes.

The group's outputs are cut evenly; what a slice needs of every other tensor follows backward
through the layers' maps (BackwardN and BackwardH of tpu-mlir's LayerGroup, for any axis). An axis
is cut on its own, because a map takes a range of one axis to a range of one axis.

Neighbouring slices may need the same elements of a tensor. Such a *halo* is computed or loaded
again (it is not kept), or it stays where it is until the next slice has read it (it is kept).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise, product

import numpy as np
from numpy.typing import NDArray

from passes.planning.layer_group.group import Group, extent_of
from passes.planning.layer_group.network import AxisMap, Box, Range, Tensor

LETTERS = "nhw"
"""Letters of the axes that can be cut."""

OVERLAP_RULES = (None, "half")
"""Names of the rules that refuse slices which repeat too much; see `repeats_too_much`."""

_Ends = NDArray[np.int64]
_NOWHERE = 1 << 40
"""Begin of an empty range; its end is the negative, so that a union needs no special case."""


@dataclass(frozen=True)
class Cut:
    """How many slices a group's outputs have on each axis.

    Parameters
    ----------
    n, h, w : int
        Slices of the batch, of the rows and of the columns; positive.
    inner : str
        The letter of the axis along which slices follow each other directly, ``h`` or ``w``. The
        batch is always outermost.
    """

    n: int = 1
    h: int = 1
    w: int = 1
    inner: str = "h"

    @property
    def order(self) -> str:
        """The letters, outermost first."""
        return "nwh" if self.inner == "h" else "nhw"

    @property
    def steps(self) -> int:
        """Number of slices in all."""
        return self.n * self.h * self.w

    def count(self, letter: str) -> int:
        """Slices on the axes with this letter."""
        return {"n": self.n, "h": self.h, "w": self.w}[letter]

    def indices(self) -> list[dict[str, int]]:
        """Return the index of each slice on each axis, by letter, in the slices' order."""
        counts = [range(self.count(letter)) for letter in self.order]
        return [dict(zip(self.order, index, strict=True)) for index in product(*counts)]


def even_ranges(length: int, count: int, unit: int = 1) -> tuple[Range, ...]:
    """Cut ``[0, length)`` into ranges whose sizes differ by one unit at most, larger ones first.

    Parameters
    ----------
    length : int
        Elements; all of them are covered.
    count : int
        Number of ranges, at most the number of units.
    unit : int
        Every range but the last is a multiple of this many elements.
    """
    units = -(-length // unit)
    if not 1 <= count <= units:
        raise ValueError(f"cannot cut {length} elements in units of {unit} into {count} ranges")
    size, more = divmod(units, count)
    begins = [(size * i + min(i, more)) * unit for i in range(count + 1)]
    return tuple((a, min(b, length)) for a, b in pairwise(begins))


def needed_range(
    axis_map: AxisMap, output: Range, output_extent: int, input_extent: int, *, to_end: bool = False
) -> Range:
    """Return which elements of an input's axis a range of the output's axis needs.

    Parameters
    ----------
    axis_map : AxisMap
        How the two axes hang together.
    output : Range
        Elements of the output's axis; ``(0, 0)`` if empty.
    output_extent, input_extent : int
        Elements on the two axes.
    to_end : bool
        Whether the last range reaches the end of the input even where nothing reads it, as
        tpu-mlir has it.
    """
    spans = Spans.of((output,))
    return spans.needed(axis_map, output_extent, input_extent, to_end).ranges()[0]


@dataclass(frozen=True)
class AxisSlices:
    """The slices of one axis of a tensor, one entry a slice of the letter that cuts it.

    Parameters
    ----------
    letter : str
        Which cut it follows.
    held : tuple of Range
        What is in local memory during the slice: all that it reads, and what later slices read
        and is there already, if that is kept.
    made : tuple of Range
        What the slice computes or loads: all that it holds, or only what is new if it is kept.
    """

    letter: str
    held: tuple[Range, ...]
    made: tuple[Range, ...]

    @cached_property
    def window(self) -> int:
        """Elements that are held at once at most."""
        return max(end - begin for begin, end in self.held)

    @cached_property
    def fresh(self) -> int:
        """Elements that one slice makes at most."""
        return max(end - begin for begin, end in self.made)

    @cached_property
    def kept(self) -> int:
        """Elements that stay from one slice to the next at most."""
        pairs = zip(self.held, self.held[1:], self.made[1:], strict=False)
        kept = [
            max(0, min(before[1], after[1]) - max(before[0], after[0]))
            for before, after, made in pairs
            if made != after
        ]
        return max(kept, default=0)

    @cached_property
    def covered(self) -> int:
        """Elements that any slice makes, each counted once."""
        count, reached = 0, -1
        for begin, end in sorted(self.made):
            count += max(0, end - max(begin, reached))
            reached = max(reached, end)
        return count

    @property
    def repeated(self) -> int:
        """Elements that are made more than once, counted as often as they are made again."""
        return sum(end - begin for begin, end in self.made) - self.covered


@dataclass(frozen=True)
class TensorSlices:
    """The slices of one tensor.

    Parameters
    ----------
    tensor : Tensor
        Which one.
    axes : tuple of AxisSlices or None
        One entry an axis; None where every slice has the whole axis.
    keep : str
        Letters of the cuts along which its halo is kept.
    """

    tensor: Tensor
    axes: tuple[AxisSlices | None, ...]
    keep: str = ""

    @cached_property
    def letters(self) -> frozenset[str]:
        """Letters of the cuts that change what is held."""
        return frozenset(axis.letter for axis in self.axes if axis is not None)

    @property
    def is_whole(self) -> bool:
        """Whether every slice has the whole tensor."""
        return not self.letters

    def held(self, index: Mapping[str, int]) -> Box:
        """Return what is in local memory during a slice, by the slice's index on each axis."""
        return tuple(
            (0, extent) if axis is None else axis.held[index[axis.letter]]
            for extent, axis in zip(self.tensor.shape, self.axes, strict=True)
        )

    def made(self, index: Mapping[str, int]) -> Box:
        """Return what a slice computes or loads; all ranges are empty if that is nothing."""
        box = tuple(
            (0, extent) if axis is None else axis.made[index[axis.letter]]
            for extent, axis in zip(self.tensor.shape, self.axes, strict=True)
        )
        again = any(index[x] > 0 and x not in self.letters for x in self.keep)
        if again or any(begin == end for begin, end in box):
            return tuple((0, 0) for _ in box)
        return box

    def made_elements(self, cut: Cut) -> int:
        """Return how many elements all slices make together, repeated ones each time."""
        count = 1
        for extent, axis in zip(self.tensor.shape, self.axes, strict=True):
            if axis is None:
                count *= extent
        for letter in LETTERS:
            lines = [axis for axis in self.axes if axis is not None and axis.letter == letter]
            if lines:
                boxes = zip(*(axis.made for axis in lines), strict=True)
                count *= sum(_volume(box) for box in boxes)
            elif letter not in self.keep:
                count *= cut.count(letter)
        return count


def _volume(box: Box) -> int:
    volume = 1
    for begin, end in box:
        volume *= end - begin
    return volume


@dataclass(frozen=True)
class GroupSlices:
    """The slices of a group.

    Parameters
    ----------
    group : Group
        The layers.
    cut : Cut
        How many slices.
    tensors : Mapping of str to TensorSlices
        By name, for every tensor of the group.
    stored : Mapping of str to TensorSlices
        By name, for every output of the group: what each slice writes to global memory. It covers
        the output exactly, each element once.
    """

    group: Group
    cut: Cut
    tensors: Mapping[str, TensorSlices]
    stored: Mapping[str, TensorSlices]

    @cached_property
    def resident(self) -> tuple[str, ...]:
        """Names of what is loaded once and stays for all slices; empty if there is one slice."""
        if self.cut.steps == 1:
            return ()
        return tuple(name for name in self.group.loaded if self.tensors[name].is_whole)

    @cached_property
    def kept(self) -> tuple[str, ...]:
        """Names of what else stays in local memory from one slice to the next, at least in part."""
        return tuple(
            name
            for name in self.group.names
            if name not in self.resident and self._is_kept(self.tensors[name])
        )

    def _is_kept(self, slices: TensorSlices) -> bool:
        for letter in slices.keep:
            if self.cut.count(letter) == 1:
                continue
            lines = [axis for axis in slices.axes if axis is not None and axis.letter == letter]
            if not lines or any(axis.kept for axis in lines):
                return True
        return False

    def repeated_rows(self, name: str) -> int:
        """Rows of a tensor that are computed or loaded again, each time counted.

        A tensor that every slice makes whole repeats all its rows with each slice but the first.
        """
        slices = self.tensors[name]
        rows = [axis for axis in slices.axes if axis is not None and axis.letter == "h"]
        if rows:
            return rows[0].repeated
        if "h" in slices.keep or name in self.resident:
            return 0
        return (self.cut.h - 1) * extent_of(slices.tensor, "h")


def repeats_too_much(slices: GroupSlices) -> str:
    """Return the name of a tensor that breaks the overlap rule, or an empty string.

    The rule of tpu-mlir's LayerGroup: slices fail if the rows of a layer's input that are repeated
    are more than half of its height, over all slices together. Whole tensors that stay for all
    slices repeat nothing.
    """
    for layer in slices.group.layers:
        for name in layer.inputs:
            tensor = slices.group.tensor(name)
            if 2 * slices.repeated_rows(name) > extent_of(tensor, "h"):
                return name
    return ""


def slice_group(
    group: Group,
    cut: Cut,
    keep: str | Mapping[str, str] = "",
    *,
    outputs: Mapping[str, Mapping[str, tuple[Range, ...]]] | None = None,
    n_unit: int = 1,
) -> GroupSlices:
    """Cut a group's outputs evenly and find what every slice needs of its other tensors.

    A tensor that is read several times, or that is read and stored, is held as far as any of them
    needs it: the hull of all ranges.

    Parameters
    ----------
    group : Group
        The layers.
    cut : Cut
        How many slices.
    keep : str or Mapping of str to str
        Letters of the cuts along which a tensor's halo is kept: for all tensors, or by name. Where
        two axes of one tensor follow the same letter, its halo on that letter is not kept.
    outputs : Mapping, optional
        For an output by name and letter: its ranges, in the place of even ones.
    n_unit : int
        Entries of the batch that cannot be separated.

    Raises
    ------
    ValueError
        If an output has fewer elements on an axis than it is to have slices, or none such axis.
    """
    stored = {
        name: _cut_output(group.tensor(name), cut, n_unit, (outputs or {}).get(name, {}))
        for name in group.outputs
    }
    needs: dict[str, AxisSpans] = {
        name: [None if a is None else (a.letter, Spans.of(a.made)) for a in slices.axes]
        for name, slices in stored.items()
    }
    tensors = {}
    for layer in reversed(group.layers):
        tensor = group.tensor(layer.output)
        kept = keep if isinstance(keep, str) else keep.get(tensor.name, "")
        sliced, made = _settle(tensor, needs[tensor.name], cut, kept)
        tensors[tensor.name] = sliced
        for name, axis_maps in zip(layer.inputs, layer.maps, strict=True):
            spans = zip(axis_maps, group.tensor(name).shape, strict=True)
            need = [through(m, made, tensor.shape, e) for m, e in spans]
            needs[name] = unite(needs[name], need) if name in needs else need
    for name in group.loaded:
        tensor = group.tensor(name)
        kept = keep if isinstance(keep, str) else keep.get(name, "")
        sliced, _ = _settle(tensor, needs[name], cut, kept)
        tensors[name] = replace(sliced, keep=LETTERS) if sliced.is_whole else sliced
    return GroupSlices(group, cut, {name: tensors[name] for name in group.names}, stored)


def _cut_output(
    tensor: Tensor, cut: Cut, n_unit: int, given: Mapping[str, tuple[Range, ...]]
) -> TensorSlices:
    axes: list[AxisSlices | None] = [None] * len(tensor.shape)
    for letter in LETTERS:
        count = cut.count(letter)
        if count == 1:
            continue
        at = tensor.axes.find(letter)
        if at < 0:
            raise ValueError(f"tensor {tensor.name!r} has no axis {letter!r} to cut")
        if letter in given:
            ranges = given[letter]
        else:
            unit = n_unit if letter == "n" else 1
            ranges = even_ranges(tensor.shape[at], count, unit)
        axes[at] = AxisSlices(letter, ranges, ranges)
    return TensorSlices(tensor, tuple(axes))


@dataclass(frozen=True, eq=False)
class Spans:
    """Ranges, one a slice, as two arrays; an empty one begins beyond all and ends before all.

    What follows from spans is remembered with them: a search asks for it again and again.
    """

    begin: _Ends
    end: _Ends
    _known: dict[object, Spans] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, ranges: tuple[Range, ...]) -> Spans:
        """Return the spans of ranges."""
        pairs = np.array(ranges, np.int64).reshape(-1, 2)
        return cls(pairs[:, 0], pairs[:, 1])._marked()

    def _marked(self) -> Spans:
        empty = self.begin >= self.end
        if not empty.any():
            return self
        return Spans(np.where(empty, _NOWHERE, self.begin), np.where(empty, -_NOWHERE, self.end))

    def ranges(self) -> tuple[Range, ...]:
        """Return them as ranges; empty ones are ``(0, 0)``."""
        pairs = zip(self.begin.tolist(), self.end.tolist(), strict=True)
        return tuple((a, b) if a < b else (0, 0) for a, b in pairs)

    @cached_property
    def sizes(self) -> _Ends:
        """The elements of each range."""
        sizes: _Ends = np.maximum(self.end - self.begin, 0)
        return sizes

    @cached_property
    def longest(self) -> int:
        """The elements of the longest range."""
        return int(self.sizes.max())

    @cached_property
    def total(self) -> int:
        """The elements of all ranges, those of two counted twice."""
        return int(self.sizes.sum())

    def covered(self) -> int:
        """Return how many elements any range has, each counted once."""
        order = np.argsort(self.begin, kind="stable")
        begin, end = self.begin[order], self.end[order]
        before = np.concatenate((begin[:1], np.maximum.accumulate(end)[:-1]))
        return int(np.maximum(end - np.maximum(begin, before), 0).sum())

    def union(self, other: Spans) -> Spans:
        """Return the hulls of each two ranges."""
        if other is self:
            return self
        if other not in self._known:
            self._known[other] = Spans(
                np.minimum(self.begin, other.begin), np.maximum(self.end, other.end)
            )
        return self._known[other]

    def needed(
        self, m: AxisMap, output_extent: int, input_extent: int, to_end: bool = False
    ) -> Spans:
        """Return what they need through a map; see `needed_range`."""
        key = (m, output_extent, input_extent, to_end)
        if key not in self._known:
            begin, end = self.begin * m.stride + m.first, (self.end - 1) * m.stride + m.last
            if m.divide > 1:
                begin, end = begin // m.divide, end // m.divide
            # Empty ranges are far out: they stay empty.
            begin, end = np.maximum(begin, 0), np.minimum(end + 1, input_extent)
            if to_end:
                end = np.where(self.end == output_extent, input_extent, end)
            self._known[key] = Spans(begin, end)._marked()
        return self._known[key]

    def kept(self) -> tuple[Spans, Spans]:
        """Return what is held and what is made if no element is made twice.

        Held is all from the first element that this or a later slice needs to the last one that
        this or an earlier slice needs; made is what of it no earlier slice has made.
        """
        if "held" not in self._known:
            first = np.minimum.accumulate(self.begin[::-1])[::-1]
            last = np.maximum.accumulate(self.end)
            before = np.concatenate(([-_NOWHERE], last[:-1]))
            self._known["held"] = Spans(first, last)._marked()
            self._known["made"] = Spans(np.maximum(first, before), last)._marked()
        return self._known["held"], self._known["made"]


AxisSpans = list[tuple[str, Spans] | None]
"""For each axis of a tensor: the letter that it follows and its spans, or None for all of it."""


def through(
    axis_map: AxisMap | None,
    made: AxisSpans,
    output_shape: tuple[int, ...],
    extent: int,
) -> tuple[str, Spans] | None:
    """Return what an input's axis of `extent` elements needs for what is made of the output."""
    if axis_map is None:
        return None
    cut = made[axis_map.axis]
    if cut is None:
        return None
    letter, spans = cut
    return letter, spans.needed(axis_map, output_shape[axis_map.axis], extent)


def unite(one: AxisSpans, other: AxisSpans) -> AxisSpans:
    """Return what two readers need together.

    That is all of an axis if one of them needs that, or if they follow two letters.
    """
    united: AxisSpans = []
    for first, second in zip(one, other, strict=True):
        if first is None or second is None or first[0] != second[0]:
            united.append(None)
        else:
            united.append((first[0], first[1].union(second[1])))
    return united


def settle_spans(needs: AxisSpans, keep: str) -> tuple[AxisSpans, AxisSpans]:
    """Return what is held and what is made of a tensor of which all that is needed is known."""
    letters = [part[0] for part in needs if part is not None]
    held: AxisSpans = []
    made: AxisSpans = []
    for part in needs:
        if part is not None and part[0] in keep and letters.count(part[0]) == 1:
            stays, fresh = part[1].kept()
            held.append((part[0], stays))
            made.append((part[0], fresh))
        else:
            held.append(part)
            made.append(part)
    return held, made


def _settle(
    tensor: Tensor, needs: AxisSpans, cut: Cut, keep: str
) -> tuple[TensorSlices, AxisSpans]:
    """Return the slices of a tensor, and what of them is made."""
    held, made = settle_spans(needs, keep)
    axes = tuple(
        None if a is None or b is None else AxisSlices(a[0], a[1].ranges(), b[1].ranges())
        for a, b in zip(held, made, strict=True)
    )
    letters = [part[0] for part in needs if part is not None]
    kept = "".join(x for x in keep if letters.count(x) <= 1 and cut.count(x) > 1)
    return TensorSlices(tensor, axes, kept), made
