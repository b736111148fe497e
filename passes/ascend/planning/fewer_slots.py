# SPDX-License-Identifier: Apache-2.0
"""What to give up where double buffers do not fit: slots, weighed in cycles.

Kernel authors choose by hand which double buffers become single ones. Here each choice is planned,
and a cost model, such as a simulator, says what a plan costs: penalties guide the planners, cycles
decide between their plans.

Each memory is chosen with the others as if they had no end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from passes.ascend.planning.slot_search import (
    Cost,
    CostModel,
    MemoryRequest,
    Placed,
    Planner,
    SlotChoice,
    SlotSearch,
    front,
)
from passes.planning import Budget, BudgetTracker, lower_bound

RUNGS = 4  # Smaller capacities at which a memory is planned for plans of fewer bytes


def choose(
    memories: Sequence[MemoryRequest],
    planner: Planner,
    cost_model: CostModel,
    budget: Budget | None = None,
    *,
    smaller: bool = False,
) -> tuple[tuple[SlotChoice, ...], ...]:
    """Return for each memory the plan of the fewest cycles, and behind it the trade-offs.

    A trade-off is a plan that no other plan beats in both bytes and cycles. A memory in which no
    plan fits has neither. `planner` seeks the plan of the least penalty, and `budget` pays for all
    plans. With `smaller`, the search also looks for plans of fewer bytes than the chosen plan, with
    as much budget again.
    """
    budget = budget or Budget()
    meter = BudgetTracker(budget)
    found = [
        SlotSearch(memory, planner, meter, lambda placed: cost_model([placed])).search()
        for memory in memories
    ]

    def beside_others(at: int) -> Callable[[Placed], Cost]:
        """Return what a plan of one memory costs with what is chosen for the others."""
        others = [(c.problem, c.plan) for f in (*found[:at], *found[at + 1 :]) for c in f[:1]]
        return lambda placed: cost_model([*others, placed])

    if smaller:
        meter = BudgetTracker(budget)
        for at, memory in enumerate(memories):
            if not found[at]:
                continue
            # Down to what one slot each needs.
            peak, least = found[at][0].plan.peak, lower_bound(memory.single())
            for capacity in range(least, peak, max(-(-(peak - least) // RUNGS), 1)):
                if meter.left:
                    search = SlotSearch(memory, planner, meter, beside_others(at), capacity)
                    found[at] += search.search()
    return tuple(
        _worth_a_look(memory, found[at], beside_others(at)) for at, memory in enumerate(memories)
    )


def _worth_a_look(
    memory: MemoryRequest, choices: Sequence[SlotChoice], cost: Callable[[Placed], Cost]
) -> tuple[SlotChoice, ...]:
    """Return the first choice and those that it does not beat, at what they cost by now."""
    if not choices:
        return ()
    others = [one for one in front(choices) if one is not choices[0]]
    chosen, *others = (
        replace(
            one,
            problem=replace(one.problem, memory=memory.problem.memory),
            cost=cost((one.problem, one.plan)),
        )
        for one in (choices[0], *others)
    )
    return (chosen, *(one for one in front([chosen, *others]) if one is not chosen))
