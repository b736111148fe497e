# SPDX-License-Identifier: Apache-2.0
"""The Ascend kernels under `AscendPlanMemory`: in every size, at every level, equal to numpy."""

from __future__ import annotations

import re
from functools import cache, partial
from itertools import product

import pytest
from address_runs import poisoned
from ascend_programs import ascend_plan
from level_limit import plan_at_level
from made_kernels import TWIN, lowered, runs
from sweeps import sample
from tvm import tirx
from tvm.ir.transform import Pass, Sequential
from tvm.target import Target

from passes.ascend.analysis.kernel_problems import read_kernel
from passes.ascend.kernel import AscendOptions
from passes.driver import AddressPlan, per_function, place_function, write_address_plan
from passes.prim_func.module_calls import Callers
from target_hw.memory import MemoryHierarchy
from tvm_ext import workloads
from tvm_ext.transform import AscendPlanMemory
from tvm_ext.workloads.ascend import SIZES

MEMORY = MemoryHierarchy.from_target(Target(TWIN))
NAMES = sample(workloads.ascend_kernels(), "reduction", "matmul")
SEARCHES = ("search", "mirror")
PLANNED_SIZES = tuple(size for size in SIZES if size != "overflow")
MODES = ("global-work-space-plan", "local-mem-plan")


@cache
def planned(name: str, size: workloads.ascend.Size, search: str) -> AddressPlan:
    return ascend_plan(lowered(name, size)[name], AscendOptions(search=search))


def both_modes(**options) -> Pass:
    return Sequential([AscendPlanMemory(mode, **options) for mode in MODES])


# Plans


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("name", NAMES)
def test_sizes_share_as_they_promise(name: str, search: str):
    def pipes_wait(size: workloads.ascend.Size) -> bool:
        scopes = planned(name, size, search).scopes
        found = [reuse for scope in scopes for reuse in scope.plan.reuse.values()]
        # Sharing across pipelines with what another loop uses is at level 2, too.
        return any(reuse.level < 2 or "another loop" in reuse.reason for reuse in found)

    assert [pipes_wait(size) for size in PLANNED_SIZES] == [False, False, True]


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("name", NAMES)
def test_what_cannot_fit_says_so(name: str, search: str):
    func = lowered(name, "overflow")[name]
    with pytest.raises(ValueError, match=r"^(ub|cbuf|cc|ca|cb) overflow, requires") as caught:
        ascend_plan(func, AscendOptions(search=search))
    first, *_ = str(caught.value).splitlines()
    need, available = (int(word) for word in first.split() if word.isdigit())
    assert need > available
    bound = re.search(r"no plan needs less than (\d+) bytes", str(caught.value))
    assert int(bound[1]) * 8 <= need


@pytest.mark.parametrize("name", NAMES)
def test_the_search_costs_no_more_than_the_original(name: str):
    for size in PLANNED_SIZES:
        costs = {
            search: [
                (scope.problem.memory.name, scope.plan.penalty)
                for scope in planned(name, size, search).scopes
            ]
            for search in SEARCHES
        }
        for (scope, found), (_, mirrored) in zip(costs["search"], costs["mirror"], strict=True):
            assert found <= mirrored, (size, scope)


# Runs


@pytest.mark.parametrize(
    ("name", "search", "size"),
    [
        ("reduction", "mirror", "lowest"),
        ("matmul", "mirror", "reuse"),
        ("matmul_add_relu", "search", "lowest"),
    ],
)
def test_equal_to_numpy_in_arenas(name: str, search: str, size: workloads.ascend.Size):
    runs(name, size, poisoned(both_modes(form="arena", search=search)))


@pytest.mark.slow
@pytest.mark.parametrize("reuse", [False, True])
@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("size", PLANNED_SIZES)
@pytest.mark.parametrize("name", NAMES)
def test_equal_to_numpy_every_way(name: str, size: workloads.ascend.Size, search: str, reuse: bool):
    options = {"search": search, "enable_global_workspace_reuse": reuse}
    runs(name, size, poisoned(both_modes(form="arena", **options)), seed=1)
    runs(name, size, both_modes(form="address", **options), seed=1)
    if size == "fits":  # The others count on results in the place of an operand.
        options["restrict_inplace_as_isa"] = True
        runs(name, size, poisoned(both_modes(form="arena", **options)))


def at_level(
    _name: str, func: tirx.PrimFunc, _callers: Callers, level: int
) -> tuple[tirx.PrimFunc, AddressPlan]:
    """Write arenas into a function in which no buffer falls below a level."""
    found = read_kernel(func, MEMORY, addressed=False).found
    plan = place_function(found, partial(plan_at_level, lowest=level))
    return write_address_plan(func, plan, "arena"), plan


CASES = product(workloads.ascend_kernels(), PLANNED_SIZES, (2, 1, 0))
ALWAYS = product(("vector_add", "reduction"), (("fits", 2), ("fits", 1), ("lowest", 0)))


@pytest.mark.parametrize("case", sample(CASES, *((name, *given) for name, given in ALWAYS)))
def test_equal_to_numpy_at_every_level(case: tuple[str, workloads.ascend.Size, int]):
    name, size, level = case
    plan = per_function("at_level", partial(at_level, level=level), "arena")
    try:
        runs(name, size, poisoned(plan), seed=2)
    except ValueError:  # No plan fits at this level.
        if level == 0 or size == "fits":
            raise
