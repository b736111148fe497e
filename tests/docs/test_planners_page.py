# SPDX-License-Identifier: Apache-2.0
"""The page of the planners: every planner is on it, and its tables can be written anew."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from instances import growth_problem
from marked_lines import lines_of, with_lines
from other_planners import OTHERS, hill_climb
from planning_oracles import problems

from passes.planning import Budget, lower_bound, planner_names, solve, verify

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "benchmarks" / "suite"))

import check  # noqa: E402
import rivals  # noqa: E402
import run as suite  # noqa: E402

PAGE = (ROOT / "docs" / "planners.md").read_text(encoding="utf-8")
TABLES = {name: "\n".join(lines_of(PAGE, name)) for name in ("peaks", "costs")}


def rows(text: str) -> set[str]:
    """Return the first cells of the rows of all tables in a text."""
    return set(re.findall(r"^\| ([^|]+) \|", text, re.M))


@pytest.mark.parametrize("planner", [*planner_names(), *rivals.PLANNERS])
def test_every_planner_is_measured_on_the_page(planner):
    assert planner in rivals.PLANNERS
    assert any(suite.shown(planner) in rows(table) for table in TABLES.values())
    if planner in planner_names():
        prose = PAGE
        for table in TABLES:
            prose = with_lines(prose, table, [])
        assert suite.shown(planner) in rows(prose)


def test_the_tables_are_those_of_what_is_kept():
    entries = check.index()
    runs = suite.kept(entries)
    costs = list(suite.costs_table(runs, entries))
    assert costs == lines_of(PAGE, "costs")
    assert list(suite.peaks_table(runs, entries)) == lines_of(PAGE, "peaks")[:-2]
    assert list(suite.sentences(runs, entries)) == lines_of(PAGE, "pairs")


SMALL = "minimalloc_input"


@pytest.mark.parametrize("name", [SMALL, "streams_clip_2"])
@pytest.mark.parametrize("planner", [n for n in rivals.PLANNERS if n not in rivals.missing()])
def test_what_a_planner_answers_is_right(planner, name):
    entry = check.index()[name]
    path = check.INSTANCES / entry["file"]
    given = check.load(path, entry)
    answer = rivals.PLANNERS[planner](given, path, 0.2)
    if answer is None:
        assert planner in ("MiniMalloc", "HiGHS")
        return
    run = suite.judged(given, planner, name, answer)
    assert run.value < 0 or run.value >= int(entry["bound"])


def test_a_wrong_plan_is_not_measured():
    entry = check.index()[SMALL]
    given = check.load(check.INSTANCES / entry["file"], entry)
    wrong = rivals.Answer(0.0, {row.name: [0] for row in given.rows})
    with pytest.raises(ValueError, match=r"plan of 'wrong' is wrong: .* share bytes"):
        suite.judged(given, "wrong", SMALL, wrong)


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


@pytest.fixture
def registered():
    """Run the example, which registers its planner."""
    spec = importlib.util.spec_from_file_location(
        "own_planner_example", ROOT / "docs" / "own_planner.py"
    )
    spec.loader.exec_module(importlib.util.module_from_spec(spec))


@pytest.mark.usefixtures("registered")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(problems())
def test_the_readers_own_planner_is_right_on_every_problem(problem):
    plan = solve(problem, "largest_first")
    assert [v for v in verify(problem, plan) if v.kind != "capacity"] == []
    assert plan.peak >= lower_bound(problem)
