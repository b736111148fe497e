# SPDX-License-Identifier: Apache-2.0
"""Programs that other planners got wrong, right under every plan of ours, in no more bytes."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from fault_programs import CASES, PROGRAMS
from fault_runs import (
    PLANNERS,
    SCOPE,
    addresses,
    calls_of,
    check_program,
    chip,
    least_bytes,
    lowered,
    planned_bytes,
)
from program_text import program

from passes.planning import Buffer, Problem, check, lower_bound, solve
from target_hw.memory import MemoryScope
from tvm_ext.transform import AscendPlanMemory, PlanAddresses, StorageRewrite


@pytest.mark.parametrize("name", CASES)
def test_results_are_right_under_every_plan_and_no_more_bytes_are_taken(name: str):
    case, func = CASES[name], PROGRAMS[name]
    calls = calls_of(func, *case.second)
    check_program(func, calls, case.on_ascend or case.least, case.shown, case.but)
    assert least_bytes(func) == dict.fromkeys(("arena", "address"), case.least)


KIB = 1024

SUBDIVIDE = ("first_fit", "best")
"""Planners of offsets. `storage_rewrite` and `rec_tbl` mirror systems that share whole regions."""


def chained_matmul(capacity: int | None = None) -> Problem:
    """Return the left operands of (a @ b) @ c in L0A: one held panel, then tiles of half its size.

    The first product keeps all of its operand there; the second one loads tiles in turns into two
    buffers, and a last one after them.
    """
    buffers = (
        Buffer("held", 64 * KIB, ((0, 10),), alignment=512),
        Buffer("ping", 32 * KIB, ((10, 18),), alignment=512),
        Buffer("pong", 32 * KIB, ((11, 20),), alignment=512),
        Buffer("last", 32 * KIB, ((18, 24),), alignment=512),
    )
    return Problem(buffers, MemoryScope("local.L0A", capacity, 512), name="chained matmul")


@pytest.mark.parametrize("planner", SUBDIVIDE)
@pytest.mark.parametrize("capacity", [None, 64 * KIB])
def test_the_freed_panel_is_divided(planner: str, capacity: int | None):
    problem = chained_matmul(capacity)
    plan = solve(problem, planner)
    check(problem, plan)
    assert sum(buffer.size for buffer in problem.buffers) == 160 * KIB
    assert plan.peak == lower_bound(problem) == 64 * KIB
    assert sorted(plan.offsets[name][0] for name in ("ping", "pong")) == [0, 32 * KIB]


def test_a_size_that_is_known_at_run_time_only_shares_with_nothing(caplog):
    func = program("""
    def of_unknown_size(x_handle: T.handle, n: T.int32, y: 64):
        x = T.match_buffer(x_handle, (n,), "float32")
        a = T.alloc_buffer((n,), "float32", scope="local.UB")
        b: local.UB 64
        a[i] = x[i] for i in range(n)
        b[i] = a[i % n] for i in range(64)
        y[i] = b[63 - i] for i in range(64)
    """)
    with caplog.at_level("INFO", "tvm_ext.PlanAddresses"):
        text = PlanAddresses("best", "arena", scopes=[SCOPE])(lowered(func))["main"].script()
    assert "arena_local_UB = T.alloc_buffer((256,)" in text
    assert "left alone: buffer 'a' in local.UB: its size rests on n" in caplog.text


# Addresses that a user decides, and shares between buffers


def clashing(first: int, second: int):
    """Return a program with two buffers that are live together, at these addresses."""
    return program(f"""
    def func(x: 64, y: 64):
        a = T.alloc_buffer((64,), "float32", scope="local.UB", allocated_addr={first})
        b = T.alloc_buffer((64,), "float32", scope="local.UB", allocated_addr={second})
        a[i] = x[i] for i in range(64)
        b[i] = x[63 - i] for i in range(64)
        y[i] = a[i] + b[i] for i in range(64)
    """)


@pytest.mark.parametrize(
    "plan",
    [
        *(partial(PlanAddresses, planner) for planner in PLANNERS),
        *(partial(AscendPlanMemory, search=search) for search in ("search", "mirror")),
    ],
)
def test_addresses_stay_where_the_user_put_them(plan: Any):
    planned = plan(target=chip(CASES["ping_pong"].least))(lowered(PROGRAMS["ping_pong"]))
    found = addresses(planned)
    assert found == {"left": (0,), "right": (4096,), "workspace": (4096,), "total": (2048,)}
    assert planned_bytes(planned) == CASES["ping_pong"].least


def test_the_sound_storage_rewrite_leaves_them_where_they_are():
    mod = lowered(PROGRAMS["ping_pong"])
    planned = StorageRewrite(sound=True)(mod)
    assert addresses(planned) == addresses(mod)
    text = planned["main"].script()
    assert text.count("allocated_addr=") == 3  # None of them on a view.


@pytest.mark.parametrize(("first", "second"), [(0, 0), (0, 128), (128, 0)])
def test_buffers_that_are_live_together_may_not_share_one(first: int, second: int):
    pins = sorted([(second, "b"), (first, "a")])
    (begin, upper), (end, lower) = pins
    names = rf"('{upper}' and '{lower}'|'{lower}' and '{upper}')"
    message = rf"local.UB: buffers {names} may not share bytes, but are pinned at {begin} and {end}"
    for plan in (PlanAddresses(scopes=[SCOPE]), AscendPlanMemory(target=chip(4096))):
        with pytest.raises(ValueError, match=message):
            plan(lowered(clashing(first, second)))
