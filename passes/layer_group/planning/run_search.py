# SPDX-License-Identifier: Apache-2.0
"""Groups whose layers run in one loop over parts with those that sum over them, as they fit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from passes.layer_group.planning.cost import group_cost
from passes.layer_group.planning.group import Group, bytes_of
from passes.layer_group.planning.layer_facts import LayerFacts
from passes.layer_group.planning.local_memory import of_time_steps
from passes.layer_group.planning.planned_group import can_be_cut, laid_out
from passes.layer_group.planning.runs import streams_of
from passes.layer_group.planning.slicing import Cut
from passes.layer_group.planning.streams import Run
from passes.layer_group.planning.sweep import Estimate

PATIENCE = 2
"""How many groups, each one layer longer, may fit in no cut before no longer one is looked at."""


def groups_in_runs(
    facts: LayerFacts, numbers: Iterable[int], cuts: Sequence[Cut], moved: Mapping[int, int]
) -> tuple[list[Estimate], int]:
    """Return groups that end with the first of these numbers of layers, and begin with any.

    Of the `cuts`, ever more slices, the first one that fits is taken: more load weights more often.
    Where a group is known that has `moved` no more than each of its tensors once, by the number of
    its first layer, there is nothing to win. Beside the groups comes the first layer looked at.
    """
    every: list[Estimate] = []
    last, vain, first = -1, 0, 0
    for first in numbers:
        last = max(last, first)
        group = facts.index.group(tuple(range(first, last + 1)))
        least = _least(group)
        if moved.get(first) == least:
            continue
        found: list[Estimate] = []
        known: Mapping[str, Run] = {}
        for sums in (1, 2):
            streams = streams_of(group, facts.chip.lanes, cuts[0].part_bytes, False, sums)
            if streams != known and any(x.sums or len(x.layers) > 1 for x in streams.values()):
                found += _fewest(group, facts, streams, [replace(cut, sums=sums) for cut in cuts])
            if any(estimate.moved == least for estimate in found):
                break
            known = streams
        every += found
        vain = 0 if found else vain + 1
        if vain == PATIENCE:
            break
    return every, first


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
    cuts = [cut for cut in cuts if can_be_cut(group, cut, chip)]
    whole = estimate(cuts[0]) if cuts else None
    if whole is not None:
        yield whole
    elif len(cuts) > 1 and (most := estimate(cuts[-1])) is not None:
        yield next((one for one in map(estimate, cuts[1:-1]) if one is not None), most)


def _least(group: Group) -> int:
    """Return the bytes of all that a group loads and stores, each tensor once."""
    return sum(bytes_of(group.tensor(name)) for name in (*group.loaded, *group.outputs))
