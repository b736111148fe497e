# SPDX-License-Identifier: Apache-2.0
"""Addresses that a user decides, and shares between buffers: tilelang-ascend 1171 and 1286."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from fault_runs import (
    PLANNERS,
    SCOPE,
    Call,
    addresses,
    assert_right,
    chip,
    is_exposed,
    least_bytes,
    lowered,
    planned_bytes,
)
from program_text import program

from tvm_ext.transform import AscendPlanMemory, PlanAddresses, StorageRewrite

CAPACITY = 6144
"""Bytes: what the buffers of `ping_pong` need if two of them share an address, and no more."""


ping_pong = program("""
def ping_pong(x: 4096, y: 512):
    left = T.alloc_buffer((512,), "float32", scope="local.UB", allocated_addr=0)
    right = T.alloc_buffer((512,), "float32", scope="local.UB", allocated_addr=4096)
    total: local.UB 512
    workspace = T.alloc_buffer((512,), "float32", scope="local.UB", allocated_addr=4096)
    total[i] = T.float32(0) for i in range(512)
    for g in range(4):
        left[i] = x[g * 1024 + i] for i in range(512)
        right[i] = x[g * 1024 + 512 + i] for i in range(512)
        total[i] = total[i] + left[i] * T.float32(2) + right[511 - i] for i in range(512)
    T.evaluate(T.call_extern("int32", "memcpy", workspace.data, total.data, T.int64(2048)))
    y[i] = total[i] - workspace[511 - i] for i in range(512)
""")


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


phases = program("""
def phases(x: 1024, y: 1024):
    a: local.UB 1024
    b, c: local.UB 512
    d, e, f: local.UB 256
    a[i] = x[i] for i in range(1024)
    y[i] = a[1023 - i] for i in range(1024)
    for k in range(2):
        b[i] = y[i] + T.Cast("float32", k) for i in range(512)
        c[i] = b[511 - i] for i in range(512)
        y[i] = c[i] + b[i] for i in range(512)
    d[i] = y[i] for i in range(256)
    e[i] = d[255 - i] for i in range(256)
    f[i] = e[255 - i] + d[255 - i] for i in range(256)
    y[512 + i] = f[i] for i in range(256)
""")


@pytest.fixture(scope="module")
def calls() -> list[Call]:
    x = np.random.default_rng(0).integers(-8, 8, 4096).astype("float32")
    return [([x, np.zeros(512, "float32")], expected_of_ping_pong(x))]


def expected_of_ping_pong(x: np.ndarray) -> np.ndarray:
    tiles = x.reshape(4, 2, 512)
    total = (tiles[:, 0] * 2 + tiles[:, 1, ::-1]).sum(axis=0)
    return total - total[::-1]


def expected_of_phases(x: np.ndarray) -> np.ndarray:
    y = x[::-1].copy()
    for k in range(2):
        b = y[:512] + k
        y[:512] = b[::-1] + b
    d = y[:256].copy()
    y[512:768] = d + d[::-1]
    return y


def test_pinned_buffers_share_an_address_and_the_rest_goes_around_them(calls: list[Call]):
    assert least_bytes(ping_pong) == {"arena": CAPACITY, "address": CAPACITY}
    # What the stock pass does to `workspace.data` is among the differences from it.
    assert_right(ping_pong, calls, capacity=CAPACITY, but=["StorageRewrite"])


def test_the_program_shows_a_buffer_that_is_placed_over_a_pinned_one(calls: list[Call]):
    assert is_exposed(ping_pong, "total", "left", calls)
    assert is_exposed(ping_pong, "total", "right", calls)


@pytest.mark.parametrize(
    "plan",
    [
        *(partial(PlanAddresses, planner) for planner in PLANNERS),
        *(partial(AscendPlanMemory, search=search) for search in ("search", "mirror")),
    ],
)
def test_addresses_stay_where_the_user_put_them(plan: Any):
    planned = plan(target=chip(CAPACITY))(lowered(ping_pong))
    found = addresses(planned)
    assert found == {"left": (0,), "right": (4096,), "workspace": (4096,), "total": (2048,)}
    assert planned_bytes(planned) == CAPACITY


def test_the_sound_storage_rewrite_leaves_them_where_they_are():
    mod = lowered(ping_pong)
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


def test_memory_is_free_behind_the_last_use_without_a_statement_that_frees_it():
    x = np.random.default_rng(2).integers(-8, 8, 1024).astype("float32")
    calls = [([x, np.zeros_like(x)], expected_of_phases(x))]
    # Three phases of 4096, 4096 and, with one result in the place of an operand, 2048 bytes.
    assert least_bytes(phases) == {"arena": 4096, "address": 4096}
    assert_right(phases, calls, capacity=4096)
    assert is_exposed(phases, "c", "b", calls)
