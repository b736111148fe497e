# SPDX-License-Identifier: Apache-2.0
"""The three-level planner: no sharing where everything fits without, else levels of reuse.

After AscendNPU-IR's PlanMemory; `passes.ascend.planning.levels` says what a level is.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Literal, get_args

from passes.ascend.planning.levels import pipes_conflict, reuse_of
from passes.ascend.planning.mirror import bytes_apart, mirror
from passes.ascend.planning.mirror_entries import Entry, Strategy, granule, sequence
from passes.planning import (
    Budget,
    BudgetTracker,
    InPlacePair,
    Plan,
    Problem,
    Status,
    register,
    solve,
    widest_alignment,
)
from passes.planning.engine import BlockList, merged_groups
from target_hw.memory import round_up

Search = Literal["search", "mirror"]


@register("three_level")
def three_level(problem: Problem, budget: Budget) -> Plan:
    """Share nothing that fits without, else for the least penalty, then the lowest peak.

    The penalties are those of the problem; `with_level_penalties` adds those of the reuse levels.
    Buffers may get more offsets than slots where that costs less.
    """
    return plan_levels(problem, budget)


@register("three_level_mirror")
def three_level_mirror(problem: Problem, budget: Budget) -> Plan:
    """Share only in place where that fits, else fit first as AscendNPU-IR's PlanMemory does.

    Slots take turns in a fixed order, each at the best reuse level at which it finds a place, with
    rollback. Penalties are not weighed.
    """
    return plan_levels(problem, budget, search="mirror")


def plan_levels(
    problem: Problem,
    budget: Budget | None = None,
    *,
    search: Search = "search",
    strategy: Strategy = "default",
) -> Plan:
    """Plan with levels of reuse; the plan says each buffer's level.

    Options are as in `AscendPlanMemory`. A node of the budget is a slot tried at one level.
    """
    check_choice(f"{problem.name}: search", search, get_args(Search))
    check_choice(f"{problem.name}: strategy", strategy, get_args(Strategy))
    is_mirror = search == "mirror"
    name = "three_level_mirror" if is_mirror else "three_level"
    if _is_beyond_the_original(problem):
        plan = solve(problem, "bump")
        plan = plan if plan.fits else solve(problem, "best", budget)
        return replace(plan, planner=name, reuse=reuse_of(problem, plan.offsets))
    block_list, entries = BlockList(problem), entries_of(problem)
    for laid_out in (*([] if is_mirror else _entries_with_fewer_pairs(problem)), entries):
        plan = block_list.plan_of(_sequential(problem, laid_out), name)
        if plan.fits and (is_mirror or plan.penalty == 0):
            return replace(plan, reuse=reuse_of(problem, plan.offsets))
    if is_mirror:
        meter = BudgetTracker(budget or Budget())
        mirrored = mirror(problem, entries, meter, strategy)
        plan = block_list.plan_of(mirrored.by_buffer(), name, meter.used)
    else:
        plan = replace(solve(problem, "best", budget), planner=name)
    needed = bytes_apart(problem, entries, strategy)
    without = f"without such sharing first fit needs {needed} bytes"
    if plan.status is Status.OPTIMAL:
        without = f"proven: no plan within {problem.capacity} bytes makes pipelines wait less"
    reuse = reuse_of(problem, plan.offsets, without)
    return replace(plan, reuse=reuse, bytes_without_sharing=needed)


def check_choice(what: str, given: object, known: Sequence[str]) -> None:
    """Raise ValueError, with what it is, for an option that is not one of the known ones."""
    if given not in known:
        raise ValueError(f"{what} must be one of {', '.join(known)}, got {given!r}")


def _is_beyond_the_original(problem: Problem) -> bool:
    """Return whether bytes are reserved, offsets given, or no offset suits all alignments."""
    is_given = any(buffer.pinned is not None for buffer in problem.buffers)
    return is_given or bool(problem.memory.reserved) or granule(problem) > widest_alignment(problem)


def entries_of(problem: Problem, pairs: Collection[InPlacePair] | None = None) -> list[Entry]:
    """Return the entries in the order in which they become live.

    In-place pairs, or those given, are merged in the problem's order: a result joins the older
    value, which keeps its place. What may not be merged stays as it is; the original, which takes
    pairs one by one, would merge it.
    """
    begins = sorted(problem.buffers, key=lambda buffer: buffer.live[0][0])
    pairs = problem.sharing.pairs if pairs is None else pairs
    return [
        Entry(tuple(members), max(m.size for m in members), max(m.slots for m in members))
        for members in merged_groups(problem, begins, pairs).values()
    ]


def _entries_with_fewer_pairs(problem: Problem) -> list[list[Entry]]:
    """Return the entries with nothing in place, then with pairs in place that wait for nothing.

    The next iteration waits for a store where the stored buffer is in place of one that a compute
    unit wrote, and no level says so: the search merges such pairs only where bytes are short.
    """
    free = [p for p in problem.sharing.pairs if not pipes_conflict(p.source.use, p.destination.use)]
    return [entries_of(problem, ()), entries_of(problem, free)]


def plan_workspace(
    problem: Problem, budget: Budget | None = None, *, reuse: bool = False, search: str = "search"
) -> Plan:
    """Lay buffers out one after the other; with `reuse` those not live together may share bytes.

    Then "search" looks for the lowest peak, and "mirror" is the original: first fit. After
    AscendNPU-IR's PlanMemory, mode ``global-work-space-plan``.
    """
    if reuse and search == "search":
        return solve(problem, "best", budget)
    if _is_beyond_the_original(problem):
        return solve(problem, "best" if reuse else "bump", budget)
    entries, block_list = entries_of(problem), BlockList(problem)
    if not reuse:
        return block_list.plan_of(_sequential(problem, entries), "sequential")
    mirrored = mirror(problem, entries, BudgetTracker(budget or Budget()))
    return block_list.plan_of(mirrored.by_buffer(), "three_level_mirror")


def _sequential(problem: Problem, entries: Sequence[Entry]) -> dict[str, tuple[int, ...]]:
    """Return offsets, in bytes, with no bytes shared but by members of one entry."""
    offsets: list[tuple[int, ...]] = [()] * len(entries)
    end, unit = 0, granule(problem)
    for number, _ in sequence(entries):
        offsets[number] += (end,)
        end += round_up(entries[number].size, unit)
    pairs = zip(entries, offsets, strict=True)
    return {member.name: slots for entry, slots in pairs for member in entry.members}
