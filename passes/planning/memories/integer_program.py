# SPDX-License-Identifier: Apache-2.0
"""A 0/1 program with several objectives, solved by HiGHS.

HiGHS (https://highs.dev) is branch and cut on linear programs. It computes in floating point: its
bounds are lowered by what an error of a millionth could add, and what it calls the best choice is
taken for the best. One thread and a fixed seed make it deterministic, and without a time limit it
ends after a number of nodes, so that what it finds does not depend on the machine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import highspy
import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

MOST_ENTRIES = 60_000
"""Coefficients of loads up to which the integer optimum is asked for. Beyond, buffers are so many,
and so small beside the memory, that the linear optimum is near, and comes in a second."""
FEW_ENTRIES, NODES = 10_000, 2_000
"""Up to so many coefficients, branch and bound may have so many nodes without a limit of time;
beyond, only cuts at the root, which take some seconds."""
TOLERANCE = 1e-6  # The relative error of HiGHS that a bound allows for

Terms = Sequence[tuple[int, int]]  # (variable, coefficient)


@dataclass(frozen=True)
class Constraint:
    """A constraint: the sum of the terms is at least `least` and at most `most`."""

    terms: Terms
    least: int | None
    most: int


@dataclass(frozen=True)
class Load:
    """The units of a memory of `most` units that each variable takes between two positions."""

    pieces: Sequence[tuple[int, int, int, int]]  # (begin, end, variable, units)
    most: int


@dataclass(frozen=True)
class IntegerProgram:
    """Variables that are 0 or 1, constraints, and costs from 0, level by level.

    The least cost on the first level is best, the second level decides among equals, and so on.
    """

    levels: tuple[tuple[int, ...], ...]  # For each level, the cost of each variable
    rows: Sequence[Constraint]
    loads: Sequence[Load] = ()


@dataclass(frozen=True)
class Choice:
    """The answer of HiGHS to a program.

    `values` has each variable's 0 or 1, or a share between where the linear program alone was
    solved; None where nothing was found. No choice is below `bound`, level by level, and where
    `is_infeasible` there is none.
    """

    values: Floats | None
    bound: tuple[int, ...]
    is_infeasible: bool = False


def solve_program(
    program: IntegerProgram, seconds: float | None = None, part: float = 1.0
) -> Choice:
    """Solve a program within so many seconds a level, if given.

    `part` says how much of each memory may be taken, between 0 and 1: of less than all, the choice
    is a start for what searches on, so that it need not be the best of a large program.
    """
    none, count = (0,) * len(program.levels), len(program.levels[0])
    if any(not row.terms and row.least for row in program.rows):  # Nothing is left to choose from
        return Choice(None, none, True)
    if not count:
        return Choice(np.zeros(0), none)
    loads = [(_sections(load), int(load.most * part)) for load in program.loads if load.pieces]
    entries = sum(len(found) for found, _ in loads)
    is_integer = entries <= (MOST_ENTRIES if part == 1.0 else FEW_ENTRIES)
    nodes = NODES if entries <= FEW_ENTRIES else 1
    linear = _Matrix(count)
    linear.add_rows(program.rows)
    for found, most in loads:
        linear.add_flow(found, most)
    matrix = linear
    if is_integer:
        matrix = _Matrix(count)
        matrix.add_rows(program.rows)
        for found, most in loads:
            matrix.add_load(found, most)
    bound: list[int] = []
    values: Floats | None = None
    # Where nothing costs anything, it has to fit all the same.
    for at in [at for at, level in enumerate(program.levels) if any(level)] or [0]:
        level = program.levels[at]
        bound += [0] * (at - len(bound))
        limit = seconds if is_integer else None  # The linear program takes a second at most
        found_values, least, ended = _least(matrix, level, is_integer, nodes, limit)
        if is_integer and not ended and not least:  # Time was over before there was a bound
            least = _least(linear, level, False, nodes, None)[1]
        if values is None and found_values is None and ended:
            return Choice(None, none, True)
        values = values if found_values is None else found_values
        bound.append(least)
        if not ended or not is_integer:
            break
        terms = tuple((variable, cost) for variable, cost in enumerate(level) if cost)
        matrix.add_rows([Constraint(terms, None, least)])
    return Choice(values, (*bound, *none[len(bound) :]))


def _least(
    matrix: _Matrix, costs: Sequence[int], is_integer: bool, nodes: int, seconds: float | None
) -> tuple[Floats | None, int, bool]:
    """Return the values that cost least, a bound on that, and whether both are final."""
    # The class around it greets on standard output.
    solver = highspy._Highs()  # type: ignore[attr-defined]
    for option, value in (
        ("output_flag", False),
        ("threads", 1),
        ("random_seed", 0),
        ("mip_rel_gap", 0.0),
        ("mip_abs_gap", 0.5),
        ("mip_max_nodes", nodes if seconds is None else highspy.kHighsIInf),
        ("time_limit", highspy.kHighsInf if seconds is None else seconds),
    ):
        solver.setOptionValue(option, value)
    unit = math.gcd(*costs) or 1
    solver.passModel(matrix.model([cost // unit for cost in costs], is_integer))
    solver.run()
    status, info = solver.getModelStatus(), solver.getInfo()
    if status == highspy.HighsModelStatus.kInfeasible:
        return None, 0, True
    ended = status == highspy.HighsModelStatus.kOptimal
    best = info.mip_dual_bound if is_integer else info.objective_function_value
    least = 0
    if math.isfinite(best) and (is_integer or ended):
        least = unit * max(0, math.ceil(best - TOLERANCE * max(1.0, abs(best))))
    if info.primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
        return None, least, False
    values = np.array(solver.getSolution().col_value)[: len(costs)]
    if is_integer:
        values = np.rint(values)
        if ended:
            least = sum(cost for cost, value in zip(costs, values, strict=True) if value)
    return values, least, ended


@dataclass(frozen=True)
class _Sections:
    """The pieces of a load, with times as sections: a section ends where a begin meets an end.

    Buffers live at any position are live together in one of the sections.
    """

    first: Ints
    last: Ints
    variables: Ints
    units: Ints
    count: int

    def __len__(self) -> int:
        return int((self.last - self.first).sum())


def _sections(load: Load) -> _Sections:
    begins, ends, variables, units = np.array(load.pieces, dtype=np.int64).T
    count = len(begins)
    # At one position, ends come first.
    order = np.lexsort((np.repeat([0, 1], count), np.concatenate((ends, begins))))
    is_begin = order >= count
    closes = is_begin & ~np.append(is_begin[1:], False)
    closed = np.cumsum(closes)
    first, last = np.empty_like(begins), np.empty_like(ends)
    first[order[is_begin] - count] = (closed - closes)[is_begin]
    last[order[~is_begin]] = closed[~is_begin]
    return _Sections(first, last, variables, units, int(closes.sum()))


class _Matrix:
    """The constraints of a program, as HiGHS takes them."""

    def __init__(self, variables: int) -> None:
        self._variables = variables
        self._upper: list[float] = []  # Of the columns after the variables
        self._least: list[float] = []
        self._most: list[float] = []
        self._entries: list[tuple[Ints, Ints, Ints]] = []  # Rows, columns, coefficients

    def add_rows(self, rows: Sequence[Constraint]) -> None:
        """Add constraints."""
        terms = [term for row in rows for term in row.terms]
        variables, coefficients = np.array(terms, dtype=np.int64).reshape(-1, 2).T
        numbers = np.arange(len(rows)) + len(self._most)
        counts = [len(row.terms) for row in rows]
        self._entries.append((np.repeat(numbers, counts), variables, coefficients))
        self._least += [-highspy.kHighsInf if row.least is None else row.least for row in rows]
        self._most += [row.most for row in rows]

    def add_load(self, load: _Sections, most: int) -> None:
        """Add that what is live together fits: a row for each section that could be too full."""
        counts = load.last - load.first
        pieces = np.repeat(np.arange(len(counts)), counts)
        sections = np.arange(len(pieces)) - np.repeat(
            np.cumsum(counts) - counts - load.first, counts
        )
        units = load.units[pieces]
        is_full = np.bincount(sections, units, load.count) > most
        row_of = len(self._most) + np.cumsum(is_full) - 1
        kept = is_full[sections]
        self._entries.append((row_of[sections[kept]], load.variables[pieces[kept]], units[kept]))
        self._least += [-highspy.kHighsInf] * int(is_full.sum())
        self._most += [most] * int(is_full.sum())

    def add_flow(self, load: _Sections, most: int) -> None:
        """Add the same in few coefficients: a column for what is live in each section.

        Buffers that begin there are added to those live in the section before, and those that ended
        are taken off.
        """
        row, column = len(self._most), self._variables + len(self._upper)
        at = np.arange(load.count)
        goes_on = load.last < load.count
        one = np.ones(load.count, dtype=np.int64)
        self._entries += [
            (row + load.first, load.variables, -load.units),
            (row + load.last[goes_on], load.variables[goes_on], load.units[goes_on]),
            (row + at, column + at, one),
            (row + at[1:], column + at[:-1], -one[1:]),
        ]
        self._upper += [most] * load.count
        self._least += [0.0] * load.count
        self._most += [0.0] * load.count

    def model(self, costs: Sequence[int], is_integer: bool) -> highspy.HighsLp:
        """Return the program that minimises some costs."""
        columns, rows = self._variables + len(self._upper), len(self._most)
        at_row, at_column, values = (
            np.concatenate([entry[k] for entry in self._entries] or [np.zeros(0, dtype=np.int64)])
            for k in range(3)
        )
        # A variable may have several pieces in a section.
        places, inverse = np.unique(at_column * max(1, rows) + at_row, return_inverse=True)
        model = highspy.HighsLp()
        model.num_col_, model.num_row_ = columns, rows
        model.col_cost_ = np.array([*costs, *[0] * len(self._upper)], dtype=np.float64)
        model.col_lower_ = np.zeros(columns)
        model.col_upper_ = np.array([*[1.0] * self._variables, *self._upper])
        model.row_lower_ = np.array(self._least, dtype=np.float64)
        model.row_upper_ = np.array(self._most, dtype=np.float64)
        model.a_matrix_.format_ = highspy.MatrixFormat.kColwise
        starts = np.searchsorted(places, np.arange(columns + 1) * max(1, rows))
        model.a_matrix_.start_ = starts.astype(np.int32)
        model.a_matrix_.index_ = (places % max(1, rows)).astype(np.int32)
        coefficients = np.bincount(inverse, values, len(places))
        model.a_matrix_.value_ = coefficients.astype(np.float64)
        if is_integer:
            model.integrality_ = [highspy.HighsVarType.kInteger] * columns
        return model
