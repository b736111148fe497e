# SPDX-License-Identifier: Apache-2.0
"""Public instances with known answers. Skipped where the data folder is not there."""

import gzip
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from instances import kernel_problems, read_table
from sweeps import sample

from passes.planning import Budget, Status, check, lower_bound, solve

ROOT = Path(__file__).parents[2]
DATA = Path(os.environ.get("TVM_EXT_DATA", ROOT.parent / "shared" / "data"))

pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason=f"there is no data folder {DATA}")


@pytest.mark.parametrize("letter", "ACEGIK")
def test_challenging_instances_fit_and_reach_the_bound(letter):
    problem = read_table(DATA / "minimalloc" / f"{letter}.1048576.csv", 1 << 20)
    plan = solve(problem, "best")
    check(problem, plan)
    assert plan.fits
    assert plan.peak == lower_bound(problem)


def test_a_plan_within_the_capacity_is_looked_for_with_all_that_is_given():
    problem = read_table(DATA / "minimalloc" / "G.1048576.csv", 1 << 20)
    assert solve(problem, budget=solve(problem).nodes + 1).fits


def test_the_small_example_needs_twelve():
    path = DATA / "minimalloc" / "input.12.csv"
    assert solve(read_table(path, 12)).fits
    below = solve(read_table(path, 11))
    assert (below.status, below.peak) == (Status.INFEASIBLE, 12)


@pytest.mark.parametrize("model", sample(("G_1", "resnet50", "pangu_2.6B"), "G_1", "resnet50"))
def test_models_reach_the_bound(model):
    problem = read_table(DATA / "models" / f"{model}.csv.gz")
    plan = solve(problem)
    check(problem, plan)
    assert (plan.peak, plan.status) == (lower_bound(problem), Status.OPTIMAL)


def with_penalties():
    with gzip.open(DATA / "reuse_penalties" / "minimalloc.jsonl.gz", "rt") as stream:
        return [json.loads(line) for line in stream]


@pytest.mark.slow
@pytest.mark.parametrize("number", range(6))
def test_large_sets_with_penalties_cost_less_than_the_best_published(number):
    kernel = with_penalties()[number]
    (problem,) = kernel_problems(kernel)
    plan = solve(problem, "best", Budget(40_000))
    check(problem, plan)
    assert plan.fits
    assert plan.penalty <= kernel["best_known_cost"]


def kernels():
    with gzip.open(DATA / "ascend_kernels" / "soft.jsonl.gz", "rt") as stream:
        return [json.loads(line) for line in stream]


# Each eighth kernel by default.
@pytest.mark.parametrize("first", sample(range(8), 0))
def test_kernels_reach_the_best_known_cost(first):
    for kernel in kernels()[first::8]:
        found = kernel_problems(kernel)
        free = [solve(replace(problem, penalties=())) for problem in found]
        assert all(plan.status in (Status.OPTIMAL, Status.INFEASIBLE) for plan in free)
        if kernel["best_known_cost"] is None:
            continue
        plans = [solve(problem) for problem in found]
        for problem, plan in zip(found, plans, strict=True):
            check(problem, plan)
        cost = sum(plan.penalty for plan in plans)
        assert cost <= kernel["best_known_cost"], kernel["name"]
        if kernel["certified"]:
            assert cost == kernel["best_known_cost"], kernel["name"]
