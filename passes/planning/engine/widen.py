# SPDX-License-Identifier: Apache-2.0
"""More offsets than slots: which buffers a plan could give them to, and to what end.

A buffer that the iterations of a loop write anew can go through several offsets in turn. It needs
more bytes then, so there are two reasons only: to go in place with a buffer of more slots, and to
share with one in step, where that costs less.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product

from passes.planning.problem import Problem


def widened(problem: Problem, counts: Mapping[str, int]) -> Problem:
    """Return `problem` with as many slots for each buffer as `counts` says, by name.

    A plan of it is a plan of `problem`. Buffers that are not named keep what they have.
    """
    if all(problem.buffers[problem.index[name]].slots == counts[name] for name in counts):
        return problem
    buffers = tuple(replace(b, slots=counts.get(b.name, b.slots)) for b in problem.buffers)
    return replace(problem, buffers=buffers)


def choices(problem: Problem) -> dict[str, list[int]]:
    """Return the numbers of offsets worth trying for each buffer that may have more than slots.

    More slots than the most of its connected component never help.
    """
    tied = _tied(problem)
    found = {}
    for buffer in problem.buffers:
        if buffer.may_widen and buffer.name in tied:
            more = {problem.buffers[problem.index[name]].slots for name in tied[buffer.name]}
            counts = [buffer.slots, *sorted(count for count in more if count > buffer.slots)]
            if len(counts) > 1:
                found[buffer.name] = counts
    return found


def widenings(problem: Problem, limit: int) -> Iterator[Problem] | None:
    """Yield `problem`, then each other way to choose among `choices`.

    None if there are more than `limit`.
    """
    counts = choices(problem)
    if math.prod(len(each) for each in counts.values()) > limit:
        return None
    return (
        widened(problem, dict(zip(counts, chosen, strict=True)))
        for chosen in product(*counts.values())
    )


def _tied(problem: Problem) -> dict[str, list[str]]:
    """Return for each buffer that could gain from more offsets those that it is tied to."""
    pairs = [pair.names for pair in problem.sharing.pairs]
    pairs += [(p.first, p.second) for p in problem.penalties if p.cost_if_slots_match < p.cost]
    group = {name: [name] for pair in pairs for name in pair}
    for first, second in pairs:
        if group[first] is not group[second]:
            group[first] += group[second]
            for name in group[second]:
                group[name] = group[first]
    return group
