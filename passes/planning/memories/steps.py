# SPDX-License-Identifier: Apache-2.0
"""A dynamic program over the variables of a 0/1 program, in the order of time.

Two partial choices that agree on all variables that a later one meets in a constraint go on alike,
so that the cheaper is kept. Tensors die soon in most networks, and so few variables are met later
that this ends with the best choice. Beyond `MOST_STATES` partial choices the dearest are given up:
what is found then need not be the best, and the bound says so.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from passes.planning.memories.program import Choice, Program, Row

MOST_STATES = 30_000  # Partial choices that are kept


def solve_by_steps(program: Program, seconds: float, most_states: int = MOST_STATES) -> Choice:
    """Solve a program without a solver's help; exact unless a partial choice is given up."""
    stop = time.monotonic() + seconds
    costs, scales = _in_one_number(program.levels)
    rows_of: list[list[int]] = [[] for _ in range(program.size)]
    for at, row in enumerate(program.rows):
        for v, _ in row.terms:
            rows_of[v].append(at)
    last = [max((max(v for v, _ in program.rows[r].terms) for r in rows), default=-1)
            for rows in rows_of]  # fmt: skip
    met: list[int] = []  # Variables that are decided and met later, the columns of `states`
    states = np.zeros((1, 0), dtype=np.int8)
    spent: list[int] = [0]
    chains: list[tuple[int, object]] = [(-1, None)]  # The variables at 1, last first
    given_up: int | None = None
    for v in range(program.size):
        columns = len(met)
        met.append(v)
        count = len(spent)
        states = np.hstack((np.vstack((states, states)), np.repeat([[0], [1]], count, axis=0)))
        states = states.astype(np.int8)
        spent = [*spent, *(cost + costs[v] for cost in spent)]
        chains = [*chains, *((v, chain) for chain in chains)]
        keep = np.ones(len(spent), dtype=bool)
        for at in rows_of[v]:
            keep &= _possible(program.rows[at], met, states, v)
        alive = [at for at in range(columns + 1) if last[met[at]] > v]
        met = [met[at] for at in alive]
        order = [int(at) for at in np.flatnonzero(keep)]
        order.sort(key=spent.__getitem__)
        order = _first_of_equals(states[:, alive], order)
        most = most_states if time.monotonic() < stop else 64
        if len(order) > most:
            dropped = spent[order[most]]
            given_up = dropped if given_up is None else min(given_up, dropped)
            order = order[:most]
        states = states[order][:, alive]
        spent, chains = [spent[at] for at in order], [chains[at] for at in order]
    if not spent:
        bound = _apart(given_up or 0, scales)
        return Choice(None, bound, given_up is None)
    chosen = _variables(chains[0])
    done = given_up is None or spent[0] <= given_up
    return Choice(chosen, _apart(spent[0] if done else min(spent[0], given_up or 0), scales), done)


def _possible(row: Row, met: Sequence[int], states: np.ndarray, now: int) -> np.ndarray:
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
    found = []
    for scale in scales:
        found.append(total // scale)
        total %= scale
    return tuple(found)


def _variables(chain: tuple[int, object]) -> tuple[int, ...]:
    found = []
    while chain[1] is not None:
        found.append(chain[0])
        chain = chain[1]  # type: ignore[assignment]
    return tuple(reversed(found))
