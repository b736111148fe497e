# SPDX-License-Identifier: Apache-2.0
"""The planner of docs/own_planner.py: right on every problem, as its page says."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from planning_oracles import problems

from tvm_ext import Problem, lower_bound, solve, verify

PATH = Path(__file__).parents[2] / "docs" / "own_planner.py"


@pytest.fixture
def registered():
    """Run the example, which registers its planner."""
    spec = importlib.util.spec_from_file_location("own_planner_example", PATH)
    spec.loader.exec_module(importlib.util.module_from_spec(spec))


@pytest.mark.usefixtures("registered")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(problems())
def test_it_is_right_on_every_problem(problem: Problem):
    plan = solve(problem, "largest_first")
    assert [v for v in verify(problem, plan) if v.kind != "capacity"] == []
    assert plan.peak >= lower_bound(problem)
