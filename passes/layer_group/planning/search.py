# SPDX-License-Identifier: Apache-2.0
"""The groups of a network that fit, in the cuts that are tried, and their plans."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from itertools import islice

from passes.layer_group.planning.cost import GroupCost
from passes.layer_group.planning.cuts import Cuts
from passes.layer_group.planning.group import NetworkIndex
from passes.layer_group.planning.layer_facts import Alone, LayerFacts
from passes.layer_group.planning.local_memory import LocalMemory
from passes.layer_group.planning.planned_group import (
    Chip,
    GroupDraft,
    PlannedGroup,
    draft_group,
    place,
)
from passes.layer_group.planning.repeats import memory_content
from passes.layer_group.planning.run_search import groups_in_runs, groups_on_cores
from passes.layer_group.planning.slicing import Cut
from passes.layer_group.planning.sweep import Estimate, Sweep
from passes.planning.plan import Plan

PATIENCE = 2
"""How often more slices, or longer groups with more slices, win nothing before it stops."""

LEAST_GAIN = 0.01
"""Share of a group's price below which a lower one counts as nothing won."""

DOUBT = 0.03
"""Share of its estimated price that a group may turn out to cost less, once it is drafted."""

PARTS = 16
"""Share of a lane's memory that the weights of one layer may take, where they come in parts."""

RUN_CUTS = 4
"""How many cuts are tried, of few slices, where layers run in one loop over parts."""

Progress = Callable[[int, int], object]
"""Is told how many layers a search has looked at, and how many there are; at times from anew."""


def silent(_done: int, _layers: int) -> None:
    """Show no progress."""


KEEPS = {"recompute": ("",), "keep": ("h",), "cheapest": ("", "h")}
"""For each way with halos, the letters of the cuts along which the search may keep them."""


class GroupSearch:
    """The groups of a network that fit, and their plans."""

    def __init__(
        self, index: NetworkIndex, chip: Chip, halo: str, progress: Progress = silent
    ) -> None:
        self.index = index
        self.chip = chip
        self.keeps = KEEPS[halo]
        self._progress = progress
        self._most = most = chip.capacity // PARTS
        self.parts = (Cut(), Cut(part_bytes=most), Cut(part_bytes=most, passing=True))
        self.alone = [Alone.of(index, chip, number) for number in range(len(index.network.layers))]
        self._facts = LayerFacts(index, chip)
        self._cuts = Cuts(index, chip.lanes)
        self._repeats = self._facts.repeats
        # By what is alike: drafts of groups by their number in `Repeats`, offsets in local memory,
        # and groups by the run of layers that was looked at, with whether the search could have
        # looked at more.
        self._drafts: dict[int, GroupDraft | None] = {}
        self._places: dict[Hashable, tuple[Plan, list[tuple[int, ...]]] | None] = {}
        self._ending: dict[tuple[int, bool, Sequence[Cut]], tuple[Estimate, ...]] = {}
        self.tried: set[int] = set()  # Runs of layers of which a group was drafted.
        # What all drafted groups were estimated to cost, and what they cost.
        self._estimated = self._found = 1

    def cost(self, estimate: Estimate) -> GroupCost | None:
        """Return the cost of a group by its time steps; None if it does not fit after all."""
        if not self.is_drafted(estimate):
            draft = self._draft(estimate)
            self._drafts[estimate.group] = draft
            self.tried.add(estimate.run)
            if draft is not None and not _is_exact(estimate):
                self._estimated += self._on_cores_at_best(estimate)
                self._found += draft.cost.price
        draft = self._drafts[estimate.group]
        return None if draft is None else draft.cost

    def plan(self, estimate: Estimate) -> PlannedGroup | None:
        """Return the plan of a group; None if it does not fit after all."""
        if self.cost(estimate) is None:
            return None
        draft = self._drafts[estimate.group]
        if draft is None or draft.numbers[0] != estimate.first:
            draft = self._draft(estimate)
        plan = None if draft is None else self._placed(draft.local)
        if plan is None and draft is not None and draft.cut != estimate.cut:
            # What each core needs for itself finds no place.
            draft = self._drafts[estimate.group] = self._on_one_core(estimate)
            plan = None if draft is None else self._placed(draft.local)
        if draft is None or plan is None:
            self._drafts[estimate.group] = None
            return None
        return draft.placed(plan)

    def _draft(self, estimate: Estimate) -> GroupDraft | None:
        draft = self._on_one_core(estimate)
        return None if draft is None else self._on_cores(draft, estimate.keep)

    def _on_one_core(self, estimate: Estimate) -> GroupDraft | None:
        group = self.index.group(tuple(range(estimate.first, estimate.last + 1)))
        return draft_group(group, estimate.cut, self.chip, estimate.keep)

    def _placed(self, local: LocalMemory) -> Plan | None:
        """Return the offsets of the items, those of a memory of the same content if any."""
        key = memory_content(local)
        names = [item.name for item in local.items]
        if key not in self._places:
            plan = place(local, self.chip.planner)
            self._places[key] = (
                None if plan is None else (plan, [plan.offsets[name] for name in names])
            )
        known = self._places[key]
        if known is None:
            return None
        plan, offsets = known
        return replace(plan, offsets=dict(zip(names, offsets, strict=True)))

    def _on_cores(self, draft: GroupDraft, keep: str) -> GroupDraft:
        """Return a group whose slices all cores of the chip share, where that costs less.

        Each core loads weights, and rows that its first slice shares with the one before. A group
        never moves more than its layers alone.
        """
        group, cut = draft.group, draft.cut
        if cut.cores == self.chip.cores:
            return draft
        alone = sum(self.alone[number].moved for number in group.numbers)
        last = group.numbers[-1]
        for finer in (cut, *islice(self._cuts.finer(last, cut), PATIENCE)):
            # More slices, where cores cannot share as many as there are, or where the rows that
            # each core makes for itself find no room.
            other = draft_group(group, self._shared(finer), self.chip, keep)
            if other is not None:
                fewer = other.cost.moved <= alone and other.cost.price < draft.cost.price
                return other if fewer else draft
        return draft

    def _shared(self, cut: Cut) -> Cut:
        """Return a cut of as many slices or a few more, of which all cores have equally many."""
        letter, cores = cut.outermost or "h", self.chip.cores
        shared = {letter: -(-cut.count(letter) // cores) * cores, "cores": cores}
        return replace(cut, passing=False, by_channels=False, **shared)

    def price(self, estimate: Estimate) -> int | None:
        """Return a group's price, of its draft or the lowest that is likely.

        It is None if the group was found not to fit.
        """
        if not self.is_drafted(estimate):
            best = self._on_cores_at_best(estimate)
            doubt = self._found / self._estimated * (1 - DOUBT)
            return best if _is_exact(estimate) else int(best * doubt)
        cost = self.cost(estimate)
        return None if cost is None else cost.price

    def _on_cores_at_best(self, estimate: Estimate) -> int:
        """Return the estimated price of a group if all cores of the chip share what it computes."""
        if estimate.cut.cores == self.chip.cores:
            return estimate.price
        moving = self._facts.transfer_cycles(estimate.moved)
        cycles = max(0, estimate.price - moving)
        return moving + max(min(cycles, moving), cycles // self.chip.cores)

    def total(self, parts: Sequence[PlannedGroup | int]) -> int:
        """Return the price of groups, and of layers in none."""
        return sum(
            self.alone[part].price if isinstance(part, int) else part.cost.price for part in parts
        )

    def moved(self, parts: Sequence[PlannedGroup | int]) -> int:
        """Return the bytes that groups move, and layers in none."""
        return sum(
            self.alone[part].moved if isinstance(part, int) else part.cost.moved for part in parts
        )

    def is_drafted(self, estimate: Estimate) -> bool:
        """Whether a group, or one that is alike, was drafted, or found not to fit."""
        return estimate.group in self._drafts

    def ending_with(self, last: int, first: int, parts: Sequence[Cut]) -> tuple[Estimate, ...]:
        """Return the groups of layers from `first` or later to `last`, cut by cut, as they fit.

        Groups of one cut come shortest first; cuts come with fewer slices first, the batch before
        the rows, until more slices win nothing, and the columns last. `parts` say what comes in
        parts.
        """
        self._progress(last + 1, len(self.index.network.layers))
        for number in range(last, first - 1, -1):
            known = self._ending.get((self._repeats.run(number, last), number > first, parts))
            if known is not None:
                away = last - known[0].last if known else 0
                return tuple(one.behind(away) for one in known) if away else known
        found, reached = self._look(last, first, parts)
        run = self._repeats.run(reached, last)
        self._ending[run, reached > first, parts] = found
        return found

    def _look(
        self, last: int, first: int, parts: Sequence[Cut]
    ) -> tuple[tuple[Estimate, ...], int]:
        """Return what `ending_with` does, and the first layer that was looked at."""
        every: list[Estimate] = []
        plain, *in_parts = parts
        furthest = last
        for keep in self.keeps:
            if keep != self.keeps[0] and not self._overlaps(furthest, last):
                continue  # The groups are those whose halos are made again.
            furthest = min(furthest, self._in_slices(last, first, plain, keep, every))
        # In several slices weights would be loaded as often: runs do that, where they win by it.
        if in_parts and self._in_parts(furthest, last):
            for uncut in in_parts:
                sweep = Sweep(self._facts, last, uncut, self.keeps[0])
                every += sweep.run(first)
                furthest = min(furthest, sweep.first)
            furthest = min(furthest, self._in_runs(last, first, in_parts[0], every))
        return tuple(every), furthest

    def _in_slices(
        self, last: int, first: int, uncut: Cut, keep: str, every: list[Estimate]
    ) -> int:
        """Add groups in ever more slices, until these win nothing.

        The result is the first layer that was looked at.
        """
        best: dict[int, int] = {}
        looked, vain = last, 0
        for cut in self._cuts.slices(last, uncut):
            if vain == PATIENCE:
                break
            if cut.h == 1 and keep != self.keeps[0]:
                continue  # Without cut rows there is nothing to keep.
            sweep = Sweep(self._facts, last, cut, keep)
            won = _better(sweep, first, best, every)
            looked = min(looked, sweep.first)
            alone = min(best, default=last) == last > first
            vain = 0 if won or alone else vain + 1
        if keep == self.keeps[-1]:
            looked = min(looked, self._in_columns(last, first, uncut, keep, best, every))
        return looked

    def _in_runs(self, last: int, first: int, uncut: Cut, every: list[Estimate]) -> int:
        """Add groups with runs of layers, and those whose channels cores share.

        The result is the first layer that was looked at.
        """
        most, together = dict[int, int](), 0
        for number in range(last, first - 1, -1):
            together += self.alone[number].moved
            most[number] = together
        for one in every:
            most[one.first] = min(one.moved, most[one.first])
        cuts = self._cuts.slices(last, uncut)[:RUN_CUTS]
        found, looked = groups_in_runs(self._facts, last, most, cuts)
        every += found
        if (cores := self.chip.cores) > 1:
            shared = [replace(cut, cores=cores, by_channels=True) for cut in cuts]
            found, further = groups_on_cores(self._facts, last, first, shared)
            every += found
            looked = min(looked, further)
        return looked

    def _in_columns(
        self,
        last: int,
        first: int,
        uncut: Cut,
        keep: str,
        best: dict[int, int],
        every: list[Estimate],
    ) -> int:
        """Add groups whose columns are cut, too, if more layers fit than with rows alone.

        A slice has few rows then: fewer columns at a time are more that two slices need. The
        result is the first layer that was looked at.
        """
        by_columns = self._cuts.columns(last, uncut)
        if not by_columns or min(best, default=last + 1) == first:
            return last
        finest = Sweep(self._facts, last, by_columns[-1][0], keep)
        furthest = min((estimate.first for estimate in finest.run(first)), default=last + 1)
        looked = finest.first
        if furthest >= min(best, default=last + 1):
            return looked
        vain = 0
        for cuts in by_columns:
            vain += 1
            for cut in cuts:
                sweep = Sweep(self._facts, last, cut, keep)
                won = _better(sweep, first, best, every)
                looked = min(looked, sweep.first)
                if not won:
                    break
                vain = 0
            if vain >= PATIENCE and min(best, default=last + 1) <= furthest:
                break
        return looked

    def ways_to_cut(self, first: int, last: int) -> tuple[Estimate, ...]:
        """Return the group of these layers in all cuts that are tried and fit.

        A layer alone, and a group that fits in none of these, come in slices with weights in parts,
        too, loaded anew for each.
        """
        found = self.ending_with(last, first, self.parts)
        tried = tuple(one for one in found if one.first == first)
        if (tried and first < last) or not self._in_parts(first, last):
            return tried

        def whole(cut: Cut) -> tuple[Estimate, ...]:
            ways = Sweep(self._facts, last, cut, self.keeps[0]).run(first)
            return tuple(one for one in ways if one.first == first)

        uncut = self.parts[1]
        cuts = self._cuts.slices(last, uncut)
        if first == last:
            cuts += (cut for by_rows in self._cuts.columns(last, uncut) for cut in by_rows)
        elif not whole(cuts[-1]):
            return ()
        return (*tried, *(one for cut in cuts for one in whole(cut)))

    def finer(self, estimate: Estimate) -> Iterator[Estimate]:
        """Yield a group in more slices than those that were estimated, a few times.

        A group whose live bytes fit may find no place for them.
        """
        for cut in islice(self._cuts.finer(estimate.last, estimate.cut), PATIENCE):
            found = Sweep(self._facts, estimate.last, cut, estimate.keep).run(estimate.first)
            yield from (one for one in found if one.first == estimate.first)

    def _overlaps(self, first: int, last: int) -> bool:
        """Whether slices of any of these layers may need the same rows."""
        return any(self._facts.repeats_rows(number) for number in range(first, last + 1))

    def _in_parts(self, first: int, last: int) -> bool:
        """Whether any of these layers can be made in parts."""
        return any(self._facts.stream(n, self._most) for n in range(first, last + 1))


def _is_exact(estimate: Estimate) -> bool:
    """Whether an estimate comes from slices and time steps, as a plan does."""
    return bool(estimate.cut.sums or estimate.cut.by_channels)


def _better(sweep: Sweep, first: int, best: dict[int, int], every: list[Estimate]) -> bool:
    """Add a sweep's groups to all; whether one is new, or costs less than it is known to.

    `best` has the lowest price of each group, by its first layer.
    """
    won, worse, all_fit = False, 0, min(best, default=sweep.last) == first
    for estimate in sweep.run(first):
        known = best.get(estimate.first)
        worse += 1
        if known is None or estimate.price < known:
            best[estimate.first] = estimate.price
            worse = 0
            won = won or known is None or estimate.price < known * (1 - LEAST_GAIN)
        every.append(estimate)
        if all_fit and worse == PATIENCE:
            break  # Fewer slices do for all groups, in fewer cycles.
    return won
