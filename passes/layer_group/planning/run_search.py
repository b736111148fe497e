# SPDX-License-Identifier: Apache-2.0
"""Groups whose layers run in one loop over parts with those that sum over them, as they fit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from passes.layer_group.planning.cost import group_cost, layer_cycles
from passes.layer_group.planning.group import Group, bytes_of, element_count
from passes.layer_group.planning.layer_facts import LayerFacts
from passes.layer_group.planning.local_memory import of_time_steps
from passes.layer_group.planning.network import Kind, Layer
from passes.layer_group.planning.planned_group import can_be_cut, laid_out
from passes.layer_group.planning.runs import streams_of
from passes.layer_group.planning.slicing import Cut
from passes.layer_group.planning.streams import Run
from passes.layer_group.planning.sweep import Estimate

PATIENCE = 2
"""How many groups, each one layer longer, may fit in no cut before no longer one is looked at."""


def groups_in_runs(
    facts: LayerFacts, last: int, most: Mapping[int, int], cuts: Sequence[Cut]
) -> tuple[list[Estimate], int]:
    """Return groups that end with one layer, shortest first, and move fewer bytes than `most`.

    `most` are bytes by the number of the first layer. Of the `cuts`, ever more slices, the first
    one that fits is taken: more load weights more often. Beside the groups comes the first layer
    that was looked at.
    """
    every: list[Estimate] = []
    vain, first = 0, last
    for first, bytes_moved in most.items():
        group = facts.index.group(tuple(range(first, last + 1)))
        least = _least(group)
        if least >= bytes_moved:
            continue
        found = list(_found(group, facts, cuts, least, bytes_moved))
        every += found
        vain = 0 if found else vain + 1
        if vain == PATIENCE:
            break
    return every, first


def groups_on_cores(
    facts: LayerFacts, last: int, first: int, cuts: Sequence[Cut]
) -> tuple[list[Estimate], int]:
    """Return groups that end with one layer and whose channels cores share, shortest first.

    The `cuts` are as in `groups_in_runs`; the first layer is that of the longest group at most.
    Beside the groups comes the first layer that was looked at.
    """
    every: list[Estimate] = []
    vain, number = 0, last
    for number in range(last, first - 1, -1):
        group, found = facts.index.group(tuple(range(number, last + 1))), []
        streams = streams_of(group, facts.chip.lanes, cuts[0])
        whole = [layer for layer in group.layers if layer.name not in streams]
        if streams and not any(_takes_long(group, facts, layer) for layer in whole):
            able = [cut for cut in cuts if can_be_cut(group, cut, facts.chip)]
            found = list(_fewest(group, facts, streams, able))
        every += found
        vain = 0 if found else vain + 1
        if vain == PATIENCE:
            break
    return every, number


def _takes_long(group: Group, facts: LayerFacts, layer: Layer) -> bool:
    """Whether each core had better load the result of a layer than make all of it."""
    chip, output = facts.chip, group.tensor(layer.output)
    cycles = layer_cycles(chip.machine, chip.lanes, group, layer, element_count(output))
    return cycles > (chip.cores + 1) * facts.transfer_cycles(bytes_of(output))


def _found(
    group: Group, facts: LayerFacts, cuts: Sequence[Cut], least: int, most: int
) -> Iterator[Estimate]:
    """Yield a group in the runs that it can have, as they fit and move fewer bytes than `most`."""
    known: Mapping[str, Run] = {}
    for sums in (1, 2) if least < most else ():
        streams = streams_of(group, facts.chip.lanes, replace(cuts[0], sums=sums))
        if streams == known or not any(map(_passes_by, streams.values())):
            continue
        known = streams
        again = sum(bytes_of(group.tensor(name)) for name in _weights(group, streams))
        able = [
            replace(cut, sums=sums)
            for cut in cuts
            if least + (cut.steps - 1) * again < most and can_be_cut(group, cut, facts.chip)
        ]
        for estimate in _fewest(group, facts, streams, able):
            yield estimate
            if estimate.moved == least:
                return


def _least(group: Group) -> int:
    """Return the bytes that a group moves if it moves each tensor once."""
    whole = group.index.bytes
    return sum(whole[name] for name in (*group.loaded, *group.outputs))


def _passes_by(run: Run) -> bool:
    """Whether a run has more in parts than the weights of one layer."""
    return bool(run.sums or run.stores or len(run.layers) > 1)


def _weights(group: Group, streams: Mapping[str, Run]) -> dict[str, None]:
    """Return the weights that each slice loads anew."""
    names = (name for run in streams.values() for name in run.loads)
    return dict.fromkeys(n for n in names if group.tensor(n).kind is Kind.WEIGHT)


def _fewest(
    group: Group, facts: LayerFacts, streams: Mapping[str, Run], cuts: Sequence[Cut]
) -> Iterator[Estimate]:
    """Yield the group in the first cut that fits; none where the last one does not."""
    chip = facts.chip

    def estimate(cut: Cut) -> Estimate | None:
        slices, sizes, steps = laid_out(group, cut, chip, streams)
        live = max(of_time_steps(slices, steps, chip.memory, sizes).live_bytes)
        if live > chip.capacity:
            return None
        cost, _ = group_cost(slices, steps, chip.machine, chip.lanes, sizes, balance=False)
        ends = group.numbers[0], group.numbers[-1]
        numbers = facts.repeats.group(*ends, cut, "")
        return Estimate(*ends, *numbers, cut, "", cost.price, cost.moved, live)

    # Where the most slices do not do, fewer need not be looked at.
    whole = estimate(cuts[0]) if cuts else None
    if whole is not None:
        yield whole
    elif len(cuts) > 1 and (most := estimate(cuts[-1])) is not None:
        yield next((one for one in map(estimate, cuts[1:-1]) if one is not None), most)
