# SPDX-License-Identifier: Apache-2.0
"""Groups whose layers run in one loop over parts with those that sum over them, as they fit."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace

from passes.layer_group.planning.cost import group_cost
from passes.layer_group.planning.group import Group, NetworkIndex, bytes_of
from passes.layer_group.planning.local_memory import of_time_steps
from passes.layer_group.planning.network import Kind
from passes.layer_group.planning.planned_group import Chip, can_be_cut, laid_out
from passes.layer_group.planning.runs import streams_of
from passes.layer_group.planning.slicing import Cut
from passes.layer_group.planning.streams import Run
from passes.layer_group.planning.sweep import Estimate

PATIENCE = 2
"""How many groups, each one layer longer, may fit in no cut before no longer one is looked at."""


class RunSearch:
    """Looks for such groups of a network; equal ones, as its blocks have them, are found once."""

    def __init__(self, index: NetworkIndex, chip: Chip) -> None:
        self._index = index
        self._chip = chip
        self._kinds: dict[Hashable, int] = {}  # A number for layers that differ in names alone
        self._kind_of: dict[int, int] = {}  # By the number of the layer
        self._known: dict[Hashable, tuple[Estimate, ...]] = {}

    def ending_with(
        self, last: int, most: Mapping[int, int], cuts: Sequence[Cut]
    ) -> Iterator[Estimate]:
        """Yield groups that end with one layer, shortest first, and move fewer bytes than `most`.

        `most` are bytes by the number of the first layer. Of the `cuts`, ever more slices, the
        first one that fits is taken: more load weights more often.
        """
        vain = 0
        for first, bytes_moved in most.items():
            group = self._index.group(tuple(range(first, last + 1)))
            least = sum(bytes_of(group.tensor(name)) for name in (*group.loaded, *group.outputs))
            if least >= bytes_moved:
                continue
            key = (self._alike(group), bytes_moved, tuple(cuts))
            if key not in self._known:
                self._known[key] = tuple(_found(group, self._chip, cuts, least, bytes_moved))
            found = self._known[key]
            yield from (replace(one, first=first, last=last) for one in found)
            vain = 0 if found else vain + 1
            if vain == PATIENCE:
                return

    def _alike(self, group: Group) -> Hashable:
        """Return what is equal for groups that differ in names alone."""
        number: dict[str, int] = {}
        layers = tuple(
            (
                self._kind(at),
                tuple(number.setdefault(name, len(number)) for name in (*x.inputs, x.output)),
            )
            for at, x in zip(group.numbers, group.layers, strict=True)
        )
        return layers, tuple(number[name] for name in group.outputs)

    def _kind(self, at: int) -> int:
        if at not in self._kind_of:
            layer = self._index.network.layers[at]
            names = (*layer.inputs, layer.output)
            tensors = [self._index.tensors[name] for name in names]
            made = tuple(name in self._index.maker for name in names)
            laid_out = tuple(bool(self._index.layouts((name,))) for name in layer.inputs)
            sums = tuple((layer.inputs.index(name), axis) for name, axis in layer.sums)
            places = tuple(layer.inputs.index(name) for name in layer.in_place)
            late = tuple((layer.inputs.index(name), *axes) for name, *axes in layer.late)
            plain = replace(layer, name="", inputs=(), output="", sums=(), late=(), in_place=())
            facts = tuple(replace(tensor, name="") for tensor in tensors)
            key = (plain, facts, made, laid_out, sums, late, places)
            self._kind_of[at] = self._kinds.setdefault(key, len(self._kinds))
        return self._kind_of[at]


def _found(
    group: Group, chip: Chip, cuts: Sequence[Cut], least: int, most: int
) -> Iterator[Estimate]:
    """Yield a group in the runs that it can have, as they fit and move fewer bytes than `most`."""
    known: Mapping[str, Run] = {}
    for sums in (1, 2):
        streams = streams_of(group, chip.lanes, cuts[0].part_bytes, False, sums)
        if streams == known or not any(map(_passes_by, streams.values())):
            continue
        known = streams
        again = sum(bytes_of(group.tensor(name)) for name in _weights(group, streams))
        able = [
            replace(cut, sums=sums)
            for cut in cuts
            if least + (cut.steps - 1) * again < most and can_be_cut(group, cut, chip)
        ]
        for estimate in _fewest(group, chip, streams, able):
            yield estimate
            if estimate.moved == least:
                return


def _passes_by(run: Run) -> bool:
    """Whether a run has more in parts than the weights of one layer."""
    return bool(run.sums or run.stores or len(run.layers) > 1)


def _weights(group: Group, streams: Mapping[str, Run]) -> dict[str, None]:
    """Return the weights that each slice loads anew."""
    names = (name for run in streams.values() for name in run.loads)
    return dict.fromkeys(n for n in names if group.tensor(n).kind is Kind.WEIGHT)


def _fewest(
    group: Group, chip: Chip, streams: Mapping[str, Run], cuts: Sequence[Cut]
) -> Iterator[Estimate]:
    """Yield the group in the first cut that fits; none where the last one does not."""

    def estimate(cut: Cut) -> Estimate | None:
        slices, sizes, steps = laid_out(group, cut, chip, streams)
        live = max(of_time_steps(slices, steps, chip.memory, sizes).live_bytes)
        if live > chip.capacity:
            return None
        cost, _ = group_cost(slices, steps, chip.machine, chip.lanes, sizes, balance=False)
        ends = group.numbers[0], group.numbers[-1]
        return Estimate(*ends, cut, "", cost.price, cost.moved, live)

    # Where the most slices do not do, fewer need not be looked at.
    whole = estimate(cuts[0]) if cuts else None
    if whole is not None:
        yield whole
    elif len(cuts) > 1 and (most := estimate(cuts[-1])) is not None:
        yield next((one for one in map(estimate, cuts[1:-1]) if one is not None), most)
