# SPDX-License-Identifier: Apache-2.0
"""Groups that run slice by slice in one flat memory: what they hold, and what they compute again.

For the groups that end with one layer, a walk to the front decides for each tensor whether the
halos of its rows and of its columns are kept. How much of a tensor the slices make depends only on
what they make of the next one, so that a few states per tensor describe all choices.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from passes.layer_group.planning.group import (
    Group,
    NetworkIndex,
    bytes_of,
    element_count,
    extent_of,
)
from passes.layer_group.planning.lanes import Lanes, lane_bytes
from passes.layer_group.planning.network import Kind, Layer, Tensor
from passes.layer_group.planning.slicing import Cut, slice_group
from passes.layer_group.planning.spans import Spans, even_ranges

BEAM = 60
"""Ways to run the last layers of a group that are followed, beside those that are best so far."""

ONE_MEMORY = Lanes(1, 1)
"""A memory without lanes: bytes are those of the elements."""


@dataclass(frozen=True)
class FusedGroup:
    """Consecutive layers that run slice by slice."""

    # Numbers of its first and last layer.
    first: int
    last: int
    cut: Cut  # How many slices
    # Names of tensors between its layers, and the letters of the cuts along which their halos are
    # kept.
    keep: tuple[tuple[str, str], ...]
    held: int  # Bytes of what is held of the tensors between its layers
    peak: int  # Bytes with its inputs, outputs and what lives across it
    multiply_adds: int  # With those that are done again


@dataclass(frozen=True)
class Limits:
    """The most bytes, and the most multiply-adds above those of the network layer by layer."""

    bytes: int
    work: int


@dataclass(frozen=True)
class _Label:
    """A way to run the last layers of a group: what it takes, and the slices of what it reads."""

    work: int  # Multiply-adds that are done again
    # Which slices of the first tensor are made, as numbers that `_Chain` gives.
    rows: int
    columns: int
    stays: int = 0  # Bytes of what is kept, at least in part, from slice to slice
    passing: int = 0  # Bytes of the first tensor, if nothing of it is kept
    # Bytes of tensors of which nothing is kept, the most that one layer reads and makes.
    most_passing: int = 0
    kept: tuple[tuple[str, str], ...] = ()  # As in `FusedGroup`

    @property
    def held(self) -> int:
        """Bytes of all tensors at the layer where they take the most."""
        return self.stays + self.most_passing


def whole_bytes(index: NetworkIndex, first: int, last: int) -> int:
    """Return the bytes of tensors that are whole while the layers from `first` to `last` run.

    That is all that an earlier layer made and these or later ones read, and all that these make
    and later ones read. Outputs of the network leave at once.
    """
    return sum(
        bytes_of(index.tensors[name])
        for name, maker in index.maker.items()
        if index.readers[name]
        and (
            (maker < first <= index.readers[name][-1])
            or (first <= maker <= last < index.readers[name][-1])
        )
    )


def groups_ending_with(
    index: NetworkIndex, last: int, blocks: Sequence[tuple[int, int]], limits: Limits
) -> list[FusedGroup]:
    """Return the groups that end with a layer and may be part of a plan."""
    network = index.network
    found: list[FusedGroup] = []
    whole = [whole_bytes(index, first, last) for first in range(last + 1)]
    if whole[last] <= limits.bytes:
        work = network.layers[last].multiply_adds
        found.append(FusedGroup(last, last, Cut(inner="w"), (), 0, whole[last], work))
    if network.layers[last].reason:
        return found
    output = index.tensors[network.layers[last].output]
    height, width = extent_of(output, "h"), extent_of(output, "w")
    cuts = []
    for rows, columns in blocks:
        cut = Cut(h=-(-height // rows), w=-(-width // columns) if columns else 1, inner="w")
        if cut not in cuts:
            cuts.append(cut)
    for cut in cuts:
        start = last
        for group in _Chain(index, last, cut, limits, whole).run():
            found.append(group)
            start = min(start, group.first)
        if cut == cuts[0] or cut.w == width:
            found += _branching(index, start - 1, last, cut, limits, whole)
    return found


def _single_source(index: NetworkIndex, layer: Layer) -> str | None:
    """Return the only activation that a layer reads; None if there are several."""
    names = [n for n in dict.fromkeys(layer.inputs) if index.tensors[n].kind is Kind.ACTIVATION]
    return names[0] if len(names) == 1 else None


class _Chain:
    """The groups that end with one layer under one cut, as long as they are chains.

    Parameters
    ----------
    index : NetworkIndex
        The network.
    last : int
        The number of their last layer.
    cut : Cut
        How many slices.
    limits : Limits
        Beyond them a group is of no use.
    whole : list of int
        By the number of a group's first layer: bytes that it takes besides what it holds.
    """

    def __init__(
        self, index: NetworkIndex, last: int, cut: Cut, limits: Limits, whole: list[int]
    ) -> None:
        self.index = index
        self.layers = index.network.layers
        self.last = last
        self.cut = cut
        self.limits = limits
        self.whole = whole
        self.work = max(1, self.layers[last].multiply_adds)
        self._spans: list[Spans] = []
        self._numbers: dict[tuple[bytes, bytes], int] = {}
        self._totals: list[int] = []

    def run(self) -> Iterator[FusedGroup]:
        """Yield groups of at least two layers."""
        output = self.index.tensors[self.layers[self.last].output]
        rows = self._number(_even(output, "h", self.cut.h))
        columns = self._number(_even(output, "w", self.cut.w))
        labels = [_Label(0, rows, columns)]
        extra = 0
        for number in range(self.last, 0, -1):
            layer = self.layers[number]
            source = _single_source(self.index, layer)
            if source is None or layer.reason or not self._is_link(source, number):
                return
            if self.layers[number - 1].reason:
                return
            labels = self._through(number, source, labels)
            labels = [
                label
                for label in labels
                if label.held <= self.limits.bytes and label.work <= self.limits.work
            ]
            if not labels:
                return
            first = number - 1
            base = sum(x.multiply_adds for x in self.layers[first : self.last + 1]) + extra
            for label in labels:
                peak = label.held + self.whole[first]
                if peak <= self.limits.bytes:
                    work = base + label.work
                    yield FusedGroup(first, self.last, self.cut, label.kept, label.held, peak, work)

    def _is_link(self, source: str, number: int) -> bool:
        """Whether only the next layer reads what the layer before makes."""
        return (
            self.index.maker.get(source) == number - 1
            and self.index.readers[source] == [number]
            and source not in self.index.outputs
        )

    def _number(self, spans: Spans) -> int:
        key = (spans.begin.tobytes(), spans.end.tobytes())
        if key not in self._numbers:
            self._numbers[key] = len(self._spans)
            self._spans.append(spans)
            self._totals.append(spans.total)
        return self._numbers[key]

    def _through(self, number: int, source: str, labels: list[_Label]) -> list[_Label]:
        """Return the labels with one more tensor: what layer `number` reads of `source`."""
        tensor = self.index.tensors[source]
        ways = {
            letter: {
                state: self._choices(number, source, letter, state)
                for state in sorted({getattr(label, axis) for label in labels})
            }
            for letter, axis in (("h", "rows"), ("w", "columns"))
        }
        height, width = extent_of(tensor, "h"), extent_of(tensor, "w")
        per_place = element_count(tensor) // (height * width)
        work = self.layers[number - 1].multiply_adds
        found = []
        for label in labels:
            for rows in ways["h"][label.rows]:
                for columns in ways["w"][label.columns]:
                    lines = rows.kept if self.cut.w > 1 else 0
                    places = (rows.window - lines) * columns.window + lines * columns.covered
                    again = self._totals[rows.state] * self._totals[columns.state]
                    keep = ("h" if rows.keeps else "") + ("w" if columns.keeps else "")
                    nbytes = -(-places * per_place * tensor.bits // 8)
                    passing = 0 if keep else nbytes
                    found.append(
                        _Label(
                            label.work + max(0, work * again // (height * width) - work),
                            rows.state,
                            columns.state,
                            label.stays + nbytes - passing,
                            passing,
                            max(label.most_passing, label.passing + passing),
                            (*label.kept, (source, keep)) if keep else label.kept,
                        )
                    )
        return self._best(found)

    def _choices(self, number: int, source: str, letter: str, state: int) -> list[_Choice]:
        """Return what can be done with one axis of a tensor: its halo kept, or made again."""
        layer, tensor = self.layers[number], self.index.tensors[source]
        axis_map = layer.maps[layer.inputs.index(source)]
        axis = tensor.axes.find(letter)
        extent = extent_of(tensor, letter)
        output = self.index.tensors[layer.output]
        m = axis_map[axis] if axis >= 0 else None
        spans = self._spans[state]
        if m is None or m.axis != output.axes.find(letter):
            slices = len(spans.begin)
            need = Spans.of(((0, extent),) * slices)
        else:
            need = spans.needed(m, output.shape[m.axis], extent)
        again = _Choice(False, need.longest, 0, need.covered(), self._number(need))
        held, fresh = need.kept()
        if (held.sizes == fresh.sizes).all():
            return [again]
        overlap = int((held.sizes - fresh.sizes).max())
        window = held.longest
        return [again, _Choice(True, window, overlap, fresh.covered(), self._number(fresh))]

    def _best(self, labels: list[_Label]) -> list[_Label]:
        """Return the labels that no other one is at least as good as, in every respect."""

        def merits(x: _Label) -> tuple[int, ...]:
            totals = (self._totals[x.rows], self._totals[x.columns])
            return (x.held, x.work, x.stays, x.passing, *totals)

        kept: list[tuple[int, ...]] = []
        best: list[_Label] = []
        least_work = -1
        others: list[tuple[int, int]] = []
        for label in sorted(labels, key=lambda x: (merits(x), x.kept)):
            own = merits(label)
            if any(all(a <= b for a, b in zip(other, own, strict=True)) for other in kept):
                continue
            if least_work < 0 or label.work < least_work:
                least_work = label.work
            else:
                others.append(((own[0] + 1) * (own[1] + self.work), len(best)))
            kept.append(own)
            best.append(label)
        # Those with the fewest bytes for their multiply-adds stay, and of the others as many as
        # the beam is wide.
        dropped = {number for _, number in sorted(others)[BEAM:]}
        return [label for number, label in enumerate(best) if number not in dropped]


@dataclass(frozen=True)
class _Choice:
    """One axis of a tensor: whether its halo is kept, and what that means."""

    keeps: bool  # Whether it is
    # Elements that a slice holds, of which so many stay for the next one, and elements that all
    # slices have together.
    window: int
    kept: int
    covered: int
    state: int  # Which slices of it are made


def _even(tensor: Tensor, letter: str, count: int) -> Spans:
    return Spans.of(even_ranges(extent_of(tensor, letter), count))


def _branching(
    index: NetworkIndex, start: int, last: int, cut: Cut, limits: Limits, whole: list[int]
) -> list[FusedGroup]:
    """Return groups that end with a layer and begin with layer `start` or earlier; all is kept."""
    found = []
    for first in range(start, -1, -1):
        if index.network.layers[first].reason:
            break
        group = index.group(tuple(range(first, last + 1)))
        try:
            held, work = measure(group, cut, "hw")
        except ValueError:
            break  # An output has too few rows or columns, or none.
        if held > limits.bytes:
            break
        if held + whole[first] <= limits.bytes:
            keep = tuple((name, "hw") for name in group.made)
            found.append(FusedGroup(first, last, cut, keep, held, held + whole[first], work))
    return found


def measure(group: Group, cut: Cut, keep: str | Mapping[str, str]) -> tuple[int, int]:
    """Return the bytes that a group holds between its layers, and its multiply-adds.

    Parameters
    ----------
    group : Group
        The layers.
    cut : Cut
        How many slices.
    keep : str or Mapping of str to str
        See `slice_group`.
    """
    slices = slice_group(group, cut, keep)
    outputs, kept = set(group.outputs), set(slices.kept)
    live = [0] * len(group.layers)
    work = 0
    for position, layer in enumerate(group.layers):
        made = slices.tensors[layer.output]
        elements = element_count(made.tensor)
        work += max(layer.multiply_adds, layer.multiply_adds * made.made_elements(cut) // elements)
        if layer.output in outputs:
            continue
        first, last = position, group.readers(layer.output)[-1]
        if layer.output in kept:
            first, last = 0, len(live) - 1
        for row in range(first, last + 1):
            live[row] += lane_bytes(ONE_MEMORY, made, cut)
    return max(live), work
