# SPDX-License-Identifier: Apache-2.0
"""Programs that other planners got wrong, right under every plan of ours, in no more bytes."""

from __future__ import annotations

import pytest
from fault_programs import CASES, PROGRAMS
from fault_runs import SCOPE, assert_right, is_exposed, least_bytes, lowered
from program_text import program

from passes.planning import Buffer, Problem, check, lower_bound, solve
from target_hw.memory import MemoryScope
from tvm_ext.transform import PlanAddresses


@pytest.mark.parametrize("name", CASES)
def test_results_are_right_under_every_plan(name: str):
    case = CASES[name]
    capacity = case.on_ascend or case.least
    assert_right(PROGRAMS[name], case.calls(), capacity=capacity, but=case.but)


@pytest.mark.parametrize("name", CASES)
def test_no_more_bytes_than_are_live(name: str):
    assert least_bytes(PROGRAMS[name]) == dict.fromkeys(("arena", "address"), CASES[name].least)


@pytest.mark.parametrize(
    ("name", "upper", "lower"), [(name, *pair) for name in CASES for pair in CASES[name].shown]
)
def test_the_program_shows_the_fault(name: str, upper: str, lower: str):
    assert is_exposed(PROGRAMS[name], upper, lower, CASES[name].calls())


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


of_unknown_size = program("""
def of_unknown_size(x_handle: T.handle, n: T.int32, y: 64):
    x = T.match_buffer(x_handle, (n,), "float32")
    a = T.alloc_buffer((n,), "float32", scope="local.UB")
    b: local.UB 64
    a[i] = x[i] for i in range(n)
    b[i] = a[i % n] for i in range(64)
    y[i] = b[63 - i] for i in range(64)
""")


def test_a_size_that_is_known_at_run_time_only_shares_with_nothing(caplog):
    with caplog.at_level("INFO", "tvm_ext.PlanAddresses"):
        text = PlanAddresses("best", "arena", scopes=[SCOPE])(lowered(of_unknown_size))[
            "main"
        ].script()
    assert "arena_local_UB = T.alloc_buffer((256,)" in text
    assert "left alone: buffer 'a' in local.UB: its size rests on n" in caplog.text
