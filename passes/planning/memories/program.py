# SPDX-License-Identifier: Apache-2.0
"""A 0/1 program with several objectives, and HiGHS as its solver.

Variables stand in the order of time, which the dynamic program without HiGHS relies on.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec

Terms = tuple[tuple[int, int], ...]  # (variable, coefficient), the coefficient other than 0


@dataclass(frozen=True)
class Row:
    """A constraint: the sum of the terms is at least `least` and at most `most`."""

    terms: Terms
    least: int | None
    most: int


@dataclass(frozen=True)
class Program:
    """Variables that are 0 or 1, constraints, and costs from 0, level by level.

    What costs least on the first level is best, the second level decides among equals, and so on.
    """

    levels: tuple[tuple[int, ...], ...]  # For each level, the cost of each variable
    rows: tuple[Row, ...]

    @property
    def size(self) -> int:
        """The number of variables."""
        return len(self.levels[0])

    def with_rows(self, rows: Iterable[Row]) -> Program:
        """Return the program with more constraints."""
        return replace(self, rows=(*self.rows, *rows))

    def value(self, chosen: Sequence[int]) -> tuple[int, ...]:
        """Return what a choice costs on each level."""
        return tuple(sum(level[v] for v in chosen) for level in self.levels)

    def broken(self, chosen: Sequence[int]) -> bool:
        """Whether a choice breaks a constraint."""
        ones = set(chosen)
        for row in self.rows:
            total = sum(coefficient for v, coefficient in row.terms if v in ones)
            if total > row.most or (row.least is not None and total < row.least):
                return True
        return False


@dataclass(frozen=True)
class Choice:
    """What a solver knows of a program.

    `chosen` are the variables at 1, None where none was found. No choice is below `bound`, level
    by level. `done` says that the choice is the best, or that there is none.
    """

    chosen: tuple[int, ...] | None
    bound: tuple[int, ...]
    done: bool


def has_highs() -> bool:
    """Whether HiGHS can be imported."""
    return find_spec("highspy") is not None


def solve_by_highs(program: Program, seconds: float) -> Choice:
    """Solve a program with HiGHS, one level after the other, in at most so much time."""
    bound = [0] * len(program.levels)
    best: tuple[int, ...] | None = None
    share = seconds / max(1, sum(any(level) for level in program.levels))
    for at, level in enumerate(program.levels):
        if best is not None and not any(level):
            continue
        found, least, done = _one_level(program, level, share)
        if done and found is None:
            return Choice(best, tuple(bound), best is None)
        bound[at] = least
        best = best if found is None else found
        if not done or best is None:
            return Choice(best, tuple(bound), False)
        terms = tuple((v, cost) for v, cost in enumerate(level) if cost)
        program = program.with_rows([Row(terms, None, least)] if terms else [])
    return Choice(best, tuple(bound), True)


def _one_level(
    program: Program, level: Sequence[int], seconds: float
) -> tuple[tuple[int, ...] | None, int, bool]:
    """Return the best choice of one level, its lower bound, and whether that is all of it."""
    import highspy

    class Quiet(highspy.Highs):  # type: ignore[misc]
        def enableCallbacks(self) -> None:  # noqa: N802
            self.silent()  # HiGHS greets otherwise, here, before an option can be set
            super().enableCallbacks()

    solver = Quiet()
    unit = math.gcd(*level) or 1
    for option, value in (
        ("threads", 1),
        ("time_limit", max(0.01, seconds)),
        ("mip_rel_gap", 0.0),
        ("mip_abs_gap", 0.5),  # Costs are integers
        ("mip_feasibility_tolerance", 1e-9),
    ):
        solver.setOptionValue(option, value)
    inf = highspy.kHighsInf
    for cost in level:
        solver.addVar(0, 1)
        if cost:
            solver.changeColCost(solver.getNumCol() - 1, cost // unit)
    for row in program.rows:
        # Small coefficients keep floating point exact enough.
        scale = math.gcd(*(c for _, c in row.terms)) or 1
        most = row.most // scale
        least = -inf if row.least is None else -(-row.least // scale)
        places = [v for v, _ in row.terms]
        solver.addRow(least, most, len(places), places, [c / scale for _, c in row.terms])
    everything = list(range(program.size))
    solver.changeColsIntegrality(
        len(everything), everything, [highspy.HighsVarType.kInteger] * len(everything)
    )
    solver.run()
    status, info = solver.getModelStatus(), solver.getInfo()
    if status == highspy.HighsModelStatus.kInfeasible:
        return None, 0, True
    done = status == highspy.HighsModelStatus.kOptimal
    dual = info.mip_dual_bound
    least = max(0, math.ceil(dual - 1e-6 * max(1.0, abs(dual)))) * unit if dual > -inf else 0
    if info.primal_solution_status != 2:
        return None, least, False
    chosen = tuple(v for v, x in enumerate(solver.getSolution().col_value) if x > 0.5)
    if program.broken(chosen):
        return None, least, False
    value = sum(level[v] for v in chosen)
    return chosen, value if done else min(least, value), done
