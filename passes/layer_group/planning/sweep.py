# SPDX-License-Identifier: Apache-2.0
"""What every group that ends with one layer takes, found in one sweep towards the front.

A group that begins one layer earlier has the same slices of all tensors that it had, but for what
the new layer reads. So slices, live bytes and cycles of all groups with one end and one cut come
from one walk, where each step looks at one layer only. The cycles are estimates: `cost` has the
full model of filling, draining and re-balancing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from passes.layer_group.planning.group import element_count, rows_of
from passes.layer_group.planning.in_place import lie_alike
from passes.layer_group.planning.layer_facts import LayerFacts
from passes.layer_group.planning.network import Kind, Layer, Tensor
from passes.layer_group.planning.slicing import LETTERS, ROWS, Cut, cut_output, needed_of
from passes.layer_group.planning.spans import (
    AxisSpans,
    Spans,
    same_spans,
    settle_spans,
    unite,
)
from passes.layer_group.planning.streams import Stream, passing_axis, window_of


@dataclass(frozen=True)
class Estimate:
    """What the search knows of a group."""

    # Numbers of its first and last layer; it has all layers between them.
    first: int
    last: int
    # Numbers in `Repeats`: of these layers, and of a group of these layers with this cut and halo.
    run: int
    group: int
    cut: Cut  # How many slices
    keep: str  # Letters of the cuts along which halos are kept
    price: int  # About what `cost.group_cost` says
    moved: int  # Bytes between global and local memory
    live_bytes: int  # Bytes a lane that are live in one step at most

    def behind(self, layers: int) -> Estimate:
        """Return the estimate of a group that is alike, so many layers behind this one."""
        first, last = self.first + layers, self.last + layers
        facts = (self.cut, self.keep, self.price, self.moved, self.live_bytes)
        return Estimate(first, last, self.run, self.group, *facts)


@dataclass
class _Measure:
    """What the slices of one tensor take."""

    lane_bytes: int
    elements: int
    everywhere: bool
    is_whole: bool


@dataclass
class _Result:
    """A result that may lie in the place of an operand."""

    operands: list[str]  # Names of those that nothing in the group reads later
    made: AxisSpans  # What is made of it
    lane_bytes: int
    in_last: bool  # Whether it lives in the row of the group's last layer


@dataclass
class _Loaded:
    """A tensor that is loaded, as long as the group does not begin early enough to make it."""

    measure: _Measure
    nbytes: float  # That are moved for all slices
    reader: int
    last_reader: int
    stream: Stream | None  # In whose parts it is loaded


class Sweep:
    """The groups that end with one layer, under one cut, halos kept along the letters `keep`."""

    def __init__(self, facts: LayerFacts, last: int, cut: Cut, keep: str) -> None:
        self.facts = facts
        self.index = facts.index
        self.layers = facts.index.network.layers
        self.last = self.first = last  # The first layer is the one that was looked at last.
        self.cut = cut
        self.keep = keep
        self._needs: dict[str, AxisSpans] = {}
        self._loaded: dict[str, _Loaded] = {}
        # By the layer's distance from the last one: live bytes, cycles computing, transferring.
        self._live: list[int] = []
        self._compute: list[float] = []
        self._move: list[float] = []
        self._in_place: dict[int, _Result] = {}  # By the number of their layer
        self._everywhere = 0
        self._whole_activations = 0
        self._held_cycles = 0.0
        self._moved = 0.0
        self._stored = (0, 0.0)

    def run(self, first: int) -> Iterator[Estimate]:
        """Yield the groups that fit, shortest first, back to the one that begins with `first`.

        It ends where no longer group can fit.
        """
        capacity = self.facts.chip.capacity
        for number in range(self.last, first - 1, -1):
            self.first = number
            if not self._extend(number):
                return
            if self._floor(number) > capacity:
                return
            live, price = self._whole(number)
            if live <= capacity:
                moved = int(self._moved)
                run, same = self.facts.repeats.group(number, self.last, self.cut, self.keep)
                facts = (self.cut, self.keep, int(price), moved, live)
                yield Estimate(number, self.last, run, same, *facts)

    def _extend(self, number: int) -> bool:
        """Put a layer before the others; False if it cannot be cut so."""
        layer = self.layers[number]
        if self.cut.w > 1 and not layer.by_columns:
            return False
        tensor = self.index.tensors[layer.output]
        readers, leaves = self.index.readers[tensor.name], self.index.leaves(tensor.name, self.last)
        needs = self._needs.get(tensor.name)
        inside = [r for r in readers if r <= self.last]
        share = None
        if layer.adds and self.cut.h > 1 and not inside:
            rows = rows_of(self.index, layer)
            if rows < self.cut.h:
                return False
            share = self.index.even(rows, self.cut.h)
        if leaves:
            unit = self.facts.chip.lanes.batch_unit(tensor.bits)
            try:
                own = cut_output(self.index, tensor, self.cut, unit, adds=share is not None)
            except ValueError:
                return False
            needs = own if needs is None else unite(needs, own)
        assert needs is not None  # A reader in the group has said what it needs, or it leaves.
        self._live.append(0)
        self._move.append(0.0)
        loaded = self._loaded.pop(tensor.name, None)
        if loaded is not None:
            self._account(tensor.name, loaded, -1, head=number + 1)
        # What only waited for a new head now loads beside this layer.
        for other in self._read_first_by(number + 1):
            self._beside(other, number, 1)
        stream = self.facts.stream(number, self.cut.part_bytes)
        parts = None
        if stream is not None and self.cut.passing and not inside:
            parts = (stream.axis, stream)
        keep = "" if parts is not None else self.keep if share is None else ROWS
        measure, made = self._measure(tensor, needs, keep, parts)
        self._compute.append(self.facts.compute_cycles(number, measure.elements / self.cut.steps))
        if stream is not None and stream.loads:
            self._stream(number, stream)
        self._add_life(measure, number, max([number, *inside]), 1)
        if leaves:
            nbytes = self.index.bytes[tensor.name]
            cycles = self.facts.transfer_cycles(nbytes / self.cut.steps)
            self._moved += nbytes
            if parts is not None:
                self._pass_by(number, nbytes / self.cut.steps, parts[1], 1)
            elif number == self.last:
                self._stored = (0 if measure.everywhere else measure.lane_bytes, cycles)
            else:
                self._move[self._at(number + 1)] += cycles
                if not measure.everywhere and not inside:
                    self._live[self._at(number + 1)] += measure.lane_bytes
        bits = layer.buffer_bits if stream is None else dict(layer.part_bits)[stream.axis]
        if bits:
            buffer = -(-bits * self._lane_elements(tensor, made, stream) // 8)
            self._live[self._at(number)] += buffer
        if stream is None and not measure.everywhere:
            operands = [
                name
                for name in layer.in_place
                if max(r for r in self.index.readers[name] if r <= self.last) == number
                and lie_alike(self.index.tensors[name], tensor)
            ]
            if operands:
                ends = max(inside, default=number)
                in_last = ends == self.last or (leaves and number + 1 == self.last)
                self._in_place[number] = _Result(operands, made, measure.lane_bytes, in_last)
        self._read(number, layer, made, stream, share)
        return True

    def _shared(self, number: int) -> dict[int, int]:
        """Return, for the group that begins with `number`, the bytes of results in place, by row.

        What the first layer reads lives in the last row, too, and what the last one makes in the
        first.
        """
        found = {}
        for layer, result in self._in_place.items():
            for name in result.operands:
                loaded = self._loaded.get(name)
                if loaded is not None and loaded.reader == number < self.last and result.in_last:
                    continue  # It is loaded in that row.
                begin = self.index.maker[name] if loaded is None else loaded.reader - 1
                if loaded is None and begin + 1 == layer and self.index.leaves(name, self.last):
                    continue  # It is stored while its reader runs.
                wraps = layer == self.last > number >= begin
                stays = loaded is not None and loaded.measure.everywhere
                if not wraps and not stays and same_spans(self._needs[name], result.made):
                    found[self._at(layer)] = result.lane_bytes
        return found

    def _stream(self, number: int, stream: Stream) -> None:
        """Note that a layer loads its weights part by part."""
        nbytes = sum(self.index.bytes[name] for name, _ in stream.loads)
        self._moved += nbytes * self.cut.steps
        self._pass_by(number, nbytes, stream, 1)
        for name, at in stream.loads:
            tensor = self.index.tensors[name]
            extents = window_of(tensor.shape, at, stream.window)
            self._live[self._at(number)] += self.facts.lane_bytes(tensor, extents)

    def _pass_by(self, number: int, nbytes: float, stream: Stream, sign: int) -> None:
        """Add or take away a transfer part by part, of which the layer waits for one part."""
        cycles = sign * self.facts.transfer_cycles(nbytes / stream.count)
        self._compute[self._at(number)] += cycles
        self._move[self._at(number)] += cycles * stream.count

    def _read(
        self,
        number: int,
        layer: Layer,
        made: AxisSpans,
        stream: Stream | None,
        share: Spans | None,
    ) -> None:
        """Note what the layer needs of its inputs, loaded as long as nothing makes them."""
        for at, name in enumerate(layer.inputs):
            need = needed_of(layer, at, made, self.index.tensors[name].shape, share)
            known = self._needs.get(name)
            self._needs[name] = need if known is None else unite(known, need)
        streamed = {name for name, _ in stream.loads} if stream is not None else ()
        for name in dict.fromkeys(n for n in layer.inputs if n not in streamed):
            tensor = self.index.tensors[name]
            old = self._loaded.get(name)
            last_reader, parts = number, None
            if old is None and stream is not None and self.cut.passing:
                axis = passing_axis(self.index, number, stream, name)
                parts = None if axis is None else (axis, stream)
            elif old is not None:
                last_reader = old.last_reader
                self._account(name, old, -1, head=number)
            passing = None if parts is None else parts[1]
            measured = self._measure_loaded(tensor, self._needs[name], parts)
            self._loaded[name] = _Loaded(*measured, number, last_reader, passing)
            self._account(name, self._loaded[name], 1, head=number)

    def _read_first_by(self, number: int) -> list[_Loaded]:
        """Return what is loaded for a layer, as the first one that reads it."""
        if number > self.last:
            return []
        names = dict.fromkeys(self.layers[number].inputs)
        loaded = (self._loaded[name] for name in names if name in self._loaded)
        return [x for x in loaded if x.reader == number and x.stream is None]

    def _at(self, number: int) -> int:
        return self.last - number

    def _add_life(self, measure: _Measure, first: int, last: int, sign: int) -> None:
        if measure.everywhere:
            self._everywhere += sign * measure.lane_bytes
            return
        for number in range(first, min(last, self.last) + 1):
            self._live[self._at(number)] += sign * measure.lane_bytes

    def _account(self, name: str, loaded: _Loaded, sign: int, head: int) -> None:
        """Add or take away what a loaded tensor takes, if the group begins with layer `head`.

        What the first layer reads is loaded in the last row, or before it; `_whole` adds that.
        """
        self._add_life(loaded.measure, loaded.reader, loaded.last_reader, sign)
        self._moved += sign * loaded.nbytes
        if loaded.stream is not None:
            self._pass_by(loaded.reader, loaded.nbytes / self.cut.steps, loaded.stream, sign)
            return
        if loaded.measure.is_whole and self.cut.steps > 1:
            self._held_cycles += sign * self.facts.transfer_cycles(loaded.nbytes)
            if self.index.tensors[name].kind is Kind.ACTIVATION:
                self._whole_activations += sign * loaded.measure.lane_bytes
        if loaded.reader > head:
            self._beside(loaded, loaded.reader - 1, sign)

    def _beside(self, loaded: _Loaded, row: int, sign: int) -> None:
        """Add or take away a load that runs beside layer `row`."""
        if not loaded.measure.everywhere:
            self._live[self._at(row)] += sign * loaded.measure.lane_bytes
        self._move[self._at(row)] += sign * self._load_cycles(loaded)

    def _load_cycles(self, loaded: _Loaded) -> float:
        """Return the cycles of a tensor's load for one slice; zero if it is loaded only once."""
        if loaded.measure.is_whole and self.cut.steps > 1:
            return 0.0
        return self.facts.transfer_cycles(loaded.nbytes / self.cut.steps)

    def _floor(self, number: int) -> int:
        """Return live bytes that all longer groups have, too."""
        # A tensor that is loaded can only come to be made, and then it lives longer, unless it is
        # a whole activation that stays for all slices.
        shared = {self._at(layer): x.lane_bytes for layer, x in self._in_place.items()}
        return self._everywhere - self._whole_activations + self._most_live(shared)

    def _most_live(self, shared: dict[int, int]) -> int:
        """Return the live bytes of the fullest row, without those that results share in theirs."""
        if not shared:
            return max(self._live)
        return max(nbytes - shared.get(row, 0) for row, nbytes in enumerate(self._live))

    def _whole(self, number: int) -> tuple[int, float]:
        """Return live bytes and price of the group that begins with layer `number`."""
        stored_bytes, stored_cycles = self._stored
        first = self._read_first_by(number)
        load_bytes = sum(x.measure.lane_bytes for x in first if not x.measure.everywhere)
        load_cycles = sum(map(self._load_cycles, first))
        head, tail = self._at(number), 0
        shared = self._shared(number) if self._in_place else {}
        if number == self.last:
            moving = load_cycles + self._move[0] + stored_cycles
            cycles = (moving + self._compute[0]) * self.cut.steps + self._held_cycles
            price = cycles + moving * self.cut.steps + self._held_cycles
            return self._everywhere + self._live[0] - shared.get(0, 0), price
        late = [x for x in first if x.last_reader == self.last]
        late_bytes = sum(x.measure.lane_bytes for x in late if not x.measure.everywhere)
        live = max(
            self._most_live(shared),
            self._live[tail] + load_bytes - late_bytes - shared.get(tail, 0),
            self._live[head] + stored_bytes - shared.get(head, 0),
        )
        count = self.cut.steps
        cycles = self._held_cycles + load_cycles + stored_cycles
        if count == 1:
            cycles += self._turn(0.0, 0.0)
        else:
            # The first turn has nothing to store yet, and the last one nothing to load.
            cycles += self._turn(load_cycles, 0.0) + self._turn(0.0, stored_cycles)
            if count > 2:
                cycles += (count - 2) * self._turn(load_cycles, stored_cycles)
        moving = load_cycles + stored_cycles + sum(self._move)
        return self._everywhere + live, cycles + moving * count + self._held_cycles

    def _turn(self, load_cycles: float, stored_cycles: float) -> float:
        """Return the cycles of all rows, with loads in the last and stores in the first one.

        Re-balancing moves transfers to where layers take longer: half of what that can win.
        """
        move = list(self._move)
        move[0] += load_cycles
        move[-1] += stored_cycles
        return (sum(map(max, self._compute, move)) + max(sum(self._compute), sum(move))) / 2

    def _measure(
        self, tensor: Tensor, needs: AxisSpans, keep: str, parts: tuple[int, Stream] | None
    ) -> tuple[_Measure, AxisSpans]:
        """Return what a tensor takes, and what of it is made; one axis may pass by in parts."""
        held, made = settle_spans(needs, keep, self.cut.run)
        extents, elements, kept = [], 1, False
        # Of all slices along a letter: what each makes, and the sum of it.
        sizes: dict[str, NDArray[np.int64]] = {}
        totals: dict[str, int] = {}
        for extent, window, fresh in zip(tensor.shape, held, made, strict=True):
            if window is None or fresh is None:
                extents.append(extent)
                elements *= extent
                continue
            letter, new = fresh
            extents.append(window[1].longest)
            if letter in sizes:
                sizes[letter] = new.sizes * sizes[letter]
                totals[letter] = int(sizes[letter].sum())
            else:
                sizes[letter], totals[letter] = new.sizes, new.total
            kept = kept or (letter in keep and new.total < window[1].total)
        elements *= prod(totals.values())
        for letter in LETTERS:
            if letter in sizes or self.cut.count(letter) == 1:
                continue
            if letter in keep:
                kept = True
            else:
                elements *= self.cut.count(letter)
        if parts is not None:
            extents[parts[0]] = parts[1].window
        nbytes = self.facts.lane_bytes(tensor, tuple(extents))
        return _Measure(nbytes, elements, kept, not sizes), made

    def _measure_loaded(
        self, tensor: Tensor, needs: AxisSpans, parts: tuple[int, Stream] | None
    ) -> tuple[_Measure, float]:
        """Return what a tensor takes that is loaded, and its bytes.

        A whole one is loaded once, if it does not pass by.
        """
        if any(needs) or parts is not None:
            keep = self.keep if parts is None else ""
            measure = self._measure(tensor, needs, keep, parts)[0]
        else:
            nbytes = self.facts.lane_bytes(tensor, tensor.shape)
            measure = _Measure(nbytes, element_count(tensor), self.cut.steps > 1, True)
        return measure, measure.elements * tensor.bits / 8

    def _lane_elements(self, tensor: Tensor, made: AxisSpans, stream: Stream | None) -> int:
        extents = tuple(
            extent if part is None else part[1].longest
            for extent, part in zip(tensor.shape, made, strict=True)
        )
        if stream is not None:
            extents = window_of(extents, stream.axis, stream.chunk)
        return self.facts.chip.lanes.elements(tensor, extents)
