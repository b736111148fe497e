# SPDX-License-Identifier: Apache-2.0
"""What to give up where double buffers do not fit: slots, weighed in cycles.

Kernel authors choose by hand which double buffers become single ones. Here each choice is planned,
and a cost model, such as a simulator, says what a plan costs: penalties guide the planners, cycles
decide between their plans.

Each memory is chosen with the others as if they had no end. Where all of these together take more
cycles than the worst of them, memories are chosen once more, one after the other beside the others
as they stand, until none changes.
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
from passes.planning.bound import lower_bound
from passes.planning.planner import Budget, BudgetTracker

RUNGS = 4  # Smaller capacities at which a memory is planned for plans of fewer bytes


def choose(
    memories: Sequence[MemoryRequest],
    planner: Planner,
    cost_model: CostModel,
    budget: Budget | None = None,
    *,
    smaller: bool = False,
) -> tuple[tuple[SlotChoice, ...], ...]:
    """Return for each memory the plan with which the kernel takes the fewest cycles, and others.

    The chosen plan comes first; the others are those to which none is better in both bytes and
    cycles. There are none where nothing that was found fits. `planner` seeks the plan of the least
    penalty, and `budget` pays for all plans. With `smaller` plans of fewer bytes than the chosen
    one has are looked for, too, with as much budget again.
    """
    budget = budget or Budget()
    meter = BudgetTracker(budget)
    searches = [SlotSearch(memory, planner, meter) for memory in memories]
    found = [search.search(lambda placed: cost_model([placed])) for search in searches]

    def beside_others(at: int) -> Callable[[Placed], Cost]:
        """Return what a plan of one memory costs with what is chosen for the others."""
        others = [(c.problem, c.plan) for f in (*found[:at], *found[at + 1 :]) for c in f[:1]]
        return lambda placed: cost_model([*others, placed])

    chosen = [choices[0] for choices in found if choices]
    together = [(choice.problem, choice.plan) for choice in chosen]
    cycles, rounds = cost_model(together).cycles if len(chosen) > 1 else 0, len(memories)
    changed = cycles > max((choice.cycles for choice in chosen), default=0)
    while changed and rounds:
        changed, rounds = False, rounds - 1
        for at, search in enumerate(searches):
            again = search.search(beside_others(at))
            if again and again[0].cycles < cycles:
                found[at], cycles, changed = again, again[0].cycles, True
    if smaller:
        meter = BudgetTracker(budget)
        for at, memory in enumerate(memories):
            if not found[at]:
                continue
            # Down to what one slot each needs.
            peak, least = found[at][0].plan.peak, lower_bound(memory.single())
            for capacity in range(least, peak, max(-(-(peak - least) // RUNGS), 1)):
                if meter.left:
                    search = SlotSearch(memory, planner, meter, capacity)
                    found[at] += search.search(beside_others(at))
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
