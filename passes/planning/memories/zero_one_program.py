# SPDX-License-Identifier: Apache-2.0
"""A 0/1 program with several objectives, solved by a dynamic program over its variables.

Variables stand in the order of time. Two partial choices that agree on all variables that a later
one meets in a constraint go on alike, so that the cheaper is kept. Tensors die soon in most
networks, and so few variables are met later that this ends with the best choice. Beyond
`MOST_STATES` partial choices the dearest are given up: what is found then need not be the best, and
the bound says so.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

MOST_STATES = 30_000  # Partial choices that are kept
LATE_STATES = 64  # The same once the time is over

Terms = tuple[tuple[int, int], ...]  # (variable, coefficient), the coefficient other than 0


@dataclass(frozen=True)
class Constraint:
    """A constraint: the sum of the terms is at least `least` and at most `most`."""

    terms: Terms
    least: int | None
    most: int


@dataclass(frozen=True)
class ZeroOneProgram:
    """Variables that are 0 or 1, constraints, and costs from 0, level by level.

    What costs least on the first level is best, the second level decides among equals, and so on.
    """

    levels: tuple[tuple[int, ...], ...]  # For each level, the cost of each variable
    rows: tuple[Constraint, ...]

    def value(self, chosen: Sequence[int]) -> tuple[int, ...]:
        """Return what a choice costs on each level."""
        return tuple(sum(level[v] for v in chosen) for level in self.levels)


@dataclass(frozen=True)
class Choice:
    """What a solver knows of a program.

    `chosen` are the variables at 1, None where none was found. No choice is below `bound`, level
    by level. `done` says that the choice is the best, or that there is none.
    """

    chosen: tuple[int, ...] | None
    bound: tuple[int, ...]
    done: bool


def solve_program(program: ZeroOneProgram, seconds: float) -> Choice:
    """Solve a program; exact unless a partial choice is given up."""
    stop = time.monotonic() + seconds
    if any(not row.terms and row.least for row in program.rows):  # Nothing is left to choose from
        return Choice(None, (0,) * len(program.levels), True)
    costs, scales = _in_one_number(program.levels)
    rows_of: list[list[Constraint]] = [[] for _ in costs]
    last = [-1] * len(costs)  # The last variable that each one meets in a constraint
    for row in program.rows:
        behind = max((v for v, _ in row.terms), default=-1)
        for v, _ in row.terms:
            rows_of[v].append(row)
            last[v] = max(last[v], behind)
    met: list[int] = []  # Variables that are decided and met later, the columns of `states`
    states = np.zeros((1, 0), dtype=np.int8)
    spent, chosen = [0], [0]  # What each partial choice costs; its variables, as bits
    given_up: int | None = None  # The least cost of what was given up
    for v, cost_of_one in enumerate(costs):
        met.append(v)
        one = np.repeat(np.array([[0], [1]], dtype=np.int8), len(spent), axis=0)
        states = np.hstack((np.vstack((states, states)), one))
        spent = [*spent, *(cost + cost_of_one for cost in spent)]
        chosen = [*chosen, *(choice | 1 << v for choice in chosen)]
        keep = np.ones(len(spent), dtype=bool)
        for row in rows_of[v]:
            keep &= _possible(row, met, states, v)
        alive = [at for at, decided in enumerate(met) if last[decided] > v]
        met = [met[at] for at in alive]
        order: list[int] = np.flatnonzero(keep).tolist()
        order.sort(key=spent.__getitem__)
        order = _first_of_equals(states[:, alive], order)
        most = MOST_STATES if time.monotonic() < stop else LATE_STATES
        if len(order) > most:
            given_up = spent[order[most]] if given_up is None else min(given_up, spent[order[most]])
            order = order[:most]
        states = states[order][:, alive]
        spent, chosen = [spent[at] for at in order], [chosen[at] for at in order]
    if not spent:
        return Choice(None, _apart(given_up or 0, scales), given_up is None)
    done = given_up is None or spent[0] <= given_up
    ones = tuple(v for v in range(len(costs)) if chosen[0] >> v & 1)
    return Choice(ones, _apart(spent[0] if done else given_up or 0, scales), done)


def _possible(row: Constraint, met: Sequence[int], states: np.ndarray, now: int) -> np.ndarray:
    """Return which states can still meet a constraint of which variables up to `now` are decided.

    A decided variable that is in no column any more is in no such constraint.
    """
    place = {v: at for at, v in enumerate(met)}
    decided = [(place[v], c) for v, c in row.terms if v <= now]
    later = [c for v, c in row.terms if v > now]
    columns = states[:, [at for at, _ in decided]].astype(np.int64)
    total = columns @ np.array([c for _, c in decided], dtype=np.int64)
    possible = total + sum(min(0, c) for c in later) <= row.most
    if row.least is not None:
        possible &= total + sum(max(0, c) for c in later) >= row.least
    return np.asarray(possible)


def _first_of_equals(states: np.ndarray, order: Sequence[int]) -> list[int]:
    """Return the places in `order` whose state is that of none before."""
    packed = np.packbits(states.astype(bool), axis=1)
    seen: dict[bytes, int] = {}
    for at in order:
        seen.setdefault(packed[at].tobytes(), at)
    return list(seen.values())


def _in_one_number(levels: Sequence[Sequence[int]]) -> tuple[list[int], list[int]]:
    """Return costs in which a unit of one level outweighs all of those behind it, and scales."""
    scales = [1]
    for level in reversed(levels[1:]):
        scales.append(scales[-1] * (sum(level) + 1))
    scales.reverse()
    costs = [
        sum(scale * cost for scale, cost in zip(scales, column, strict=True))
        for column in zip(*levels, strict=True)
    ]
    return costs, scales


def _apart(total: int, scales: Sequence[int]) -> tuple[int, ...]:
    """Return the costs of each level that add up to a cost in one number."""
    found = []
    for scale in scales:
        part, total = divmod(total, scale)
        found.append(part)
    return tuple(found)
