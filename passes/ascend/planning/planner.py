# SPDX-License-Identifier: Apache-2.0
"""The three-level planner: no sharing where everything fits without, else levels of reuse.

After AscendNPU-IR's PlanMemory; `passes.ascend.planning.levels` says what a level is.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Literal, get_args

from passes.ascend.planning.level_fit import ORDERS, fit_levels
from passes.ascend.planning.levels import LevelCosts, pipes_conflict, priced, reuse_of
from passes.ascend.planning.mirror import bytes_apart, mirror
from passes.ascend.planning.mirror_entries import Entry, Strategy, granule, sequence
from passes.planning import (
    ADDRESS_LIMIT,
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
from passes.planning.engine import BlockList, NewMemory, better, merged_groups

Search = Literal["search", "mirror"]


SHORT = 20_000  # Placements of a search that nobody asked for
SEARCHED = 64  # Slots up to which there is one
SEVERAL = 512  # Slots up to which first fit has several orders


@register("three_level")
def three_level(problem: Problem, budget: Budget) -> Plan:
    """Share nothing that fits without, else for the least penalty, then the lowest peak.

    The penalties are those of the problem and those of the reuse levels, as
    `with_level_penalties` lists them. Buffers may get more offsets than slots where that costs
    less. A search follows where the budget is for more placements than the default, or for seconds;
    a short one also in small problems.
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

    Options are as in `AscendPlanMemory`. A node of the budget is a slot tried at one level, or a
    placement of the search.
    """
    check_choice(f"{problem.name}: search", search, get_args(Search))
    check_choice(f"{problem.name}: strategy", strategy, get_args(Strategy))
    if search == "search":
        return _with_levels(problem, budget or Budget())
    if _is_beyond_the_original(problem):
        return replace(_with_levels(problem, budget or Budget()), planner="three_level_mirror")
    entries, block_list = entries_of(problem), BlockList(problem)
    plan = block_list.plan_of(_sequential(problem, entries), "three_level_mirror")
    if plan.fits:
        return replace(plan, reuse=reuse_of(problem, plan.offsets))
    meter = BudgetTracker(budget or Budget())
    mirrored = mirror(problem, entries, meter, strategy)
    plan = block_list.plan_of(mirrored.by_buffer(), "three_level_mirror", meter.used)
    return _explained(problem, plan, bytes_apart(problem, entries, strategy))


def _with_levels(problem: Problem, budget: Budget) -> Plan:
    """Return the plan of least cost, by first fit, and by a search where there is to be one.

    The next iteration waits for a store where the stored buffer is in place of one that a compute
    unit wrote, and no level says so: such pairs are in place only where bytes are short.
    """
    block_list, costs = BlockList(problem), LevelCosts(problem)

    def plan_of(offsets: Mapping[str, tuple[int, ...]]) -> Plan:
        return block_list.plan_of(offsets, "three_level")

    def price(plan: Plan) -> tuple[bool, int, int]:
        return not plan.fits, priced(problem, plan)[1].penalty, plan.peak

    free = [p for p in problem.sharing.pairs if not pipes_conflict(p.source.use, p.destination.use)]
    apart, in_place, merged = (entries_of(problem, pairs) for pairs in ((), free, None))
    for entries in (apart, in_place):
        if sum(entry.size * entry.slots for entry in entries) > (problem.capacity or ADDRESS_LIMIT):
            continue
        plan = plan_of(_sequential(problem, entries))
        if plan.fits and plan.penalty == 0:
            return replace(plan, reuse=reuse_of(problem, plan.offsets))
    endless = replace(problem, memory=replace(problem.memory, capacity=None))
    plan = plan_of(fit_levels(endless, costs, in_place, "time", apart=True))
    needed = plan.peak
    if not (plan.fits and plan.penalty == 0):
        orders = ORDERS if len(block_list) <= SEVERAL else ORDERS[:1]
        for entries in (in_place, merged):
            plans = [plan_of(fit_levels(problem, costs, entries, order)) for order in orders]
            plan = min(plans, key=price) if len(plans) > 1 else plans[0]
            if plan.fits:
                break
    is_asked = budget.nodes > Budget().nodes or budget.seconds is not None
    if plan.status is not Status.OPTIMAL and (is_asked or len(block_list) <= SEARCHED):
        limits = budget if is_asked else Budget(min(budget.nodes, SHORT))
        plan = better(problem, (solve(problem, "best", limits), plan))
    if not plan.fits and len(block_list) > SEARCHED:
        # Whether anything fits is searched for in any case.
        blind = solve(replace(problem, penalties=()), "best", budget)
        fitting = plan_of(blind.offsets)
        plan = better(
            problem, (fitting if blind.fits else replace(fitting, status=blind.status), plan)
        )
    if plan.status is Status.OPTIMAL and price(plan)[1] > plan.penalty:
        plan = replace(plan, status=Status.FEASIBLE)  # It pays what its problem does not list.
    return _explained(problem, replace(plan, planner="three_level"), needed)


def _explained(problem: Problem, plan: Plan, needed: int) -> Plan:
    """Return a plan with the levels of its buffers, and what is needed to share at level 2 only."""
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
    value, which keeps its place. A pair that may not be merged stays as it is; the original, which
    takes pairs one by one, would merge it.
    """
    begins = sorted(problem.buffers, key=lambda buffer: buffer.live[0][0])
    pairs = problem.sharing.pairs if pairs is None else pairs
    return [
        Entry(tuple(members), max(m.size for m in members), max(m.slots for m in members))
        for members in merged_groups(problem, begins, pairs).values()
    ]


def plan_workspace(
    problem: Problem, budget: Budget | None = None, *, reuse: bool = False, search: str = "search"
) -> Plan:
    """Lay buffers out one after the other; with `reuse` those not live together may share bytes.

    Then "search" looks for the lowest peak, and "mirror" is the original: first fit. After
    AscendNPU-IR's PlanMemory, mode ``global-work-space-plan``.
    """
    if reuse and (search == "search" or _is_beyond_the_original(problem)):
        return solve(problem, "best", budget)
    entries, block_list = entries_of(problem), BlockList(problem)
    if not reuse:
        return block_list.plan_of(_sequential(problem, entries), "sequential")
    mirrored = mirror(problem, entries, BudgetTracker(budget or Budget()))
    return block_list.plan_of(mirrored.by_buffer(), "three_level_mirror")


def _sequential(problem: Problem, entries: Sequence[Entry]) -> dict[str, tuple[int, ...]]:
    """Return offsets, in bytes, with no bytes shared but by members of one entry."""
    offsets: list[tuple[int, ...]] = [entry.pinned or () for entry in entries]
    memory = NewMemory(0, 1, BlockList(problem).taken)
    for number, _ in sequence(entries):
        entry = entries[number]
        if entry.pinned is None:
            unit = math.lcm(*map(problem.alignment_of, entry.members))
            offsets[number] += (memory.open(entry.size, unit) if entry.size else 0,)
    pairs = zip(entries, offsets, strict=True)
    return {member.name: slots for entry, slots in pairs for member in entry.members}
