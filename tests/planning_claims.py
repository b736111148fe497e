# SPDX-License-Identifier: Apache-2.0
"""Small problems of every kind, and what a planner says of them held against brute force."""

from dataclasses import replace

from planning_oracles import best_by_brute_force

from passes.planning import (
    Budget,
    Buffer,
    Penalty,
    PipelineUse,
    Problem,
    Status,
    lower_bound,
    planner_names,
    solve,
    verify,
)
from target_hw.memory import MemoryScope

BUDGET = Budget(nodes=3000)
COSTS = (1, 1, 2, 3, 5, 1 << 40, 1 << 61, (1 << 62) - 1)


def random_problem(rng):
    """Return a problem of up to six blocks; its capacity is where the best plan is at stake."""
    while True:
        try:
            problem = _drawn(rng)
            capacity = _capacity(rng, problem)
            return replace(problem, memory=replace(problem.memory, capacity=capacity))
        except ValueError:  # pins or a capacity that contradict each other or a reserved range
            continue


def _drawn(rng):
    unit = rng.choice((1, 1, 2, 4))
    alignments = rng.choice(((1,), (1, 2, 4), (4, 8, 16), (1, 2, 3), (3, 5, 7), (2, 4, 6)))
    pins = rng.choice((0, 0, 1, 3))
    buffers = []
    blocks = rng.randint(1, 6)
    while blocks > 0:
        use = _use(rng) if rng.random() < 0.3 else None
        slots = min(blocks, rng.choice((1, 1, 1, 1, 2)))
        blocks -= slots
        alignment = rng.choice(alignments)
        pinned = None
        if rng.randrange(10) < pins:
            places = range(0, 25, alignment)
            pinned = tuple(0 if rng.random() < 0.5 else rng.choice(places) for _ in range(slots))
        size = unit * rng.randint(0 if rng.random() < 0.2 else 1, 5)
        live = _live(rng)
        buffers.append(Buffer(f"b{len(buffers)}", size, live, alignment, slots, pinned, use))
    pairs = [(a.name, b.name) for i, a in enumerate(buffers) for b in buffers[i + 1 :]]
    weights = rng.choice(("-", "---i", "-iii", "---s", "--pp", "-ispqq", "-iiqpp", "iiq"))
    roles = {pair: rng.choice(weights) for pair in pairs}
    in_place = [pair[:: rng.choice((1, -1))] for pair in pairs if roles[pair] in "iq"]
    rng.shuffle(in_place)
    reserved = rng.choice(((), (), (), ((0, unit),), ((2, 4),), ((1, 2), (unit + 4, unit + 8))))
    return Problem(
        tuple(buffers),
        MemoryScope("local.UB", None, rng.choice((1, 1, 1, 2, 4)), reserved=reserved),
        in_place,
        [pair for pair in pairs if roles[pair] == "s"],
        [_penalty(rng, pair) for pair in pairs if roles[pair] in "pq"],
    )


def _live(rng):
    points = sorted(rng.sample(range(-2, 5), 4 if rng.random() < 0.25 else 2))
    return tuple(zip(points[::2], points[1::2], strict=True))


def _use(rng):
    loop = rng.choice((None, 0, 0, 1))
    return PipelineUse(rng.random() < 0.5, rng.random() < 0.3, loop, rng.choice((1, 4)))


def _penalty(rng, pair):
    cost = rng.choice(COSTS)
    return Penalty(*pair, cost, rng.choice((None, 1, cost, rng.randint(1, cost))))


def _capacity(rng, problem):
    """Return a capacity at or just beside a peak that matters."""
    free = replace(problem, penalties=())
    kind = rng.randrange(8)
    if kind == 0:
        return None
    best = best_by_brute_force(problem if kind < 4 else free)
    return max(1, best[1] + rng.choice((-1, 0, 0, 1, 3)))


def false_claims(problem, names=None):
    """Return what planners and bounds say of a problem that is not so, as texts."""
    best = best_by_brute_force(problem)
    endless = replace(problem, memory=replace(problem.memory, capacity=None), penalties=())
    bound, lowest = lower_bound(problem), best_by_brute_force(endless)
    found = []
    if bound > lowest[1]:
        found.append(f"bound {bound} above {lowest}")
    for name in names or planner_names():
        try:
            plan = solve(problem, name, BUDGET)
        except Exception as error:
            found.append(f"{name} raises {type(error).__name__}: {error}")
            continue
        said = f"{name}: {plan!r}, best {best}"
        if [v for v in verify(problem, plan) if v.kind != "capacity"]:
            found.append(f"wrong: {said}")
        if plan.fits != (problem.capacity is None or plan.peak <= problem.capacity):
            found.append(f"status: {said}")
        if plan.fits and (best is None or (plan.penalty, plan.peak) < best):
            found.append(f"better than best: {said}")
        if plan.status is Status.OPTIMAL and (plan.penalty, plan.peak) != best:
            found.append(f"not optimal: {said}")
        if plan.status is Status.INFEASIBLE and best is not None:
            found.append(f"feasible: {said}")
        if plan.status is Status.FEASIBLE and plan.penalty == 0 and plan.peak == bound:
            found.append(f"at the bound: {said}")
        if plan.status is Status.NOT_FOUND and bound > problem.capacity:
            found.append(f"below the bound: {said}")
    return found
