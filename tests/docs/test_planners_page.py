# SPDX-License-Identifier: Apache-2.0
"""The page of the planners: every planner is on it, and its tables can be written anew."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import planner_tables
import planners_page
import pytest
from hypothesis import given, settings
from instances import Case, growth_problem, random_problem
from marked_lines import lines_of, with_lines
from other_planners import OTHERS, first_fit_by_size, hill_climb
from planning_oracles import problems

from passes.planning import Budget, lower_bound, planner_names, verify

PAGE = (Path(__file__).parents[2] / "docs" / "planners.md").read_text(encoding="utf-8")
TABLES = {name: "\n".join(lines_of(PAGE, name)) for name in planner_tables.TABLES}


def rows(text: str) -> set[str]:
    """Return the first cells of the rows of all tables in a text."""
    return set(re.findall(r"^\| ([^|]+) \|", text, re.M))


@pytest.mark.parametrize("planner", [*planner_names(), *OTHERS])
def test_every_planner_is_measured_on_the_page(planner):
    name = planner_tables.shown(planner)
    assert any(name in rows(table) for table in TABLES.values())
    if planner not in OTHERS:
        prose = PAGE
        for table in TABLES:
            prose = with_lines(prose, table, [])
        assert name in rows(prose)


@pytest.mark.parametrize("name", TABLES)
def test_every_table_has_equally_many_cells_in_a_row(name):
    tables = re.split(r"\n\n", TABLES[name])
    shaped = [table.splitlines() for table in tables if table.startswith("|")]
    assert shaped
    for table in shaped:
        assert len({row.count("|") for row in table}) == 1


def made_up(name: str) -> list[Case]:
    """Return two small cases with names as those of a set."""
    small = [replace(random_problem(12, kind), name="") for kind in ("exponential", "heavy")]
    names = {
        "minimalloc": ["A.1024.csv minimise", "A.1024.csv fit"],
        "growth": ["12 buffers, 1% live at once", "12 buffers, 30% live at once"],
    }.get(name, ["one.csv", "two.csv"])
    return [
        Case(replace(problem, name=each), best_known=1, kernel=f"of_the_{each}_set")
        for problem, each in zip(small, names, strict=True)
    ]


@pytest.mark.parametrize("name", TABLES)
def test_a_table_has_a_row_for_each_planner_that_was_run(name):
    asked = ["best", "bump", "hill_climb"]
    runs = planners_page.run_set(iter(made_up(name)), lambda problem: asked, limit=5.0)
    table = list(planner_tables.TABLES[name](runs))
    assert set(map(planner_tables.shown, asked)) <= rows("\n".join(table))
    assert lines_of(with_lines(PAGE, name, table), name) == "\n".join(table).strip().splitlines()


def test_a_wrong_plan_is_not_measured(monkeypatch):
    def wrong(problem, budget):
        plan = first_fit_by_size(problem, budget)
        return replace(plan, offsets=dict.fromkeys(plan.offsets, (0,)))

    monkeypatch.setitem(OTHERS, "wrong", wrong)
    case = Case(replace(random_problem(12, "heavy"), name="twelve"))
    with pytest.raises(ValueError, match=r"twelve: plan of 'wrong' is wrong: .* overlap"):
        planners_page.measured(case, "wrong", 1.0)


@pytest.mark.parametrize("run", OTHERS.values(), ids=OTHERS)
@settings(max_examples=8, print_blob=True)
@given(problem=problems())
def test_the_planners_of_others_are_right_on_every_problem(run, problem):
    plan = run(problem, Budget(0, 5.0))
    assert [v for v in verify(problem, plan) if v.kind != "capacity"] == []
    assert plan.peak >= lower_bound(problem)


def test_the_hill_climb_ends_below_its_start():
    problem = growth_problem(80, 0.3)
    start, end = (hill_climb(problem, Budget(0, seconds)).peak for seconds in (0.0, 60.0))
    assert lower_bound(problem) <= end < start
