# SPDX-License-Identifier: Apache-2.0
"""Several buffers in the place of a larger one that is dead: pypto 1908 and 2649."""

from __future__ import annotations

import numpy as np
import pytest
from fault_runs import assert_right, is_exposed, least_bytes
from program_text import program

from passes.planning import Buffer, Problem, check, lower_bound, solve
from target_hw.memory import MemoryScope

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


panel_then_tiles = program("""
def panel_then_tiles(x: 1024, y: 512):
    held: local.UB 512
    held[i] = x[i] for i in range(512)
    y[i] = held[511 - i] for i in range(512)
    for k in range(2):
        ping, pong, last: local.UB 256
        ping[i] = x[512 + k * 256 + i] for i in range(256)
        pong[i] = ping[255 - i] + y[i] for i in range(256)
        last[i] = pong[255 - i] * T.float32(2) for i in range(256)
        y[k * 256 + i] = y[k * 256 + i] + last[i] for i in range(256)
""")


def expected_of_tiles(x: np.ndarray) -> np.ndarray:
    y = x[:512][::-1].copy()
    for k in range(2):
        pong = x[512 + k * 256 :][:256][::-1] + y[:256]
        y[k * 256 :][:256] += pong[::-1] * 2
    return y


def test_the_same_in_a_program_that_runs():
    x = np.random.default_rng(0).integers(-8, 8, 1024).astype("float32")
    calls = [([x, np.zeros(512, "float32")], expected_of_tiles(x))]
    assert least_bytes(panel_then_tiles) == {"arena": 2048, "address": 2048}
    assert_right(panel_then_tiles, calls, capacity=2048)
    assert is_exposed(panel_then_tiles, "pong", "ping", calls)
