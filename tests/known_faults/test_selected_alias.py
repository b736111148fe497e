# SPDX-License-Identifier: Apache-2.0
"""A name that stands for one of two buffers, chosen at run time: FlagTree 1237, Triton 11634."""

from __future__ import annotations

import numpy as np
import pytest
from fault_runs import Call, assert_right, is_exposed, least_bytes
from program_text import program

LIKE_STOCK = ["StorageRewrite"]
"""The stock pass keeps no memory alive behind a pointer; docs/stock-differences.md shows it."""


for_if_for = program("""
def for_if_for(x: 512, which: 4 int32, y: 256):
    a, b: local.UB 64
    for r in range(4):
        a[i] = x[r * 128 + i] for i in range(64)
        b[i] = x[r * 128 + 64 + i] for i in range(64)
        if which[r] >= 0:
            made: local.UB 64
            chosen_slot: T.let = T.tvm_stack_alloca("array", 1)
            if which[r] == 0:
                T.evaluate(T.tvm_struct_set(chosen_slot, 0, 1, a.data))
            else:
                T.evaluate(T.tvm_struct_set(chosen_slot, 0, 1, b.data))
            chosen: T.let = T.tvm_struct_get(chosen_slot, 0, 1, "handle")
            view = T.decl_buffer((64,), "float32", data=chosen, scope="local.UB")
            for k in range(2):
                made[i] = view[63 - i] + T.Cast("float32", k) for i in range(64)
                y[r * 64 + i] = y[r * 64 + i] + made[i] for i in range(64)
""")

chosen_once = program("""
def chosen_once(x: 192, which: 1 int32, y: 64):
    a, b, late: local.UB 64
    a[i] = x[i] for i in range(64)
    b[i] = x[64 + i] for i in range(64)
    chosen_slot: T.let = T.tvm_stack_alloca("array", 1)
    if which[0] == 0:
        T.evaluate(T.tvm_struct_set(chosen_slot, 0, 1, a.data))
    else:
        T.evaluate(T.tvm_struct_set(chosen_slot, 0, 1, b.data))
    chosen: T.let = T.tvm_struct_get(chosen_slot, 0, 1, "handle")
    view = T.decl_buffer((64,), "float32", data=chosen, scope="local.UB")
    late[i] = x[128 + i] for i in range(64)
    y[i] = view[63 - i] + late[i] for i in range(64)
""")


def expected_of_for_if_for(x: np.ndarray, which: np.ndarray) -> np.ndarray:
    y = np.zeros((4, 64), "float32")
    for row, tiles, choice in zip(y, x.reshape(4, 2, 64), which, strict=True):
        if choice >= 0:
            row += 2 * tiles[0 if choice == 0 else 1, ::-1] + 1
    return y.reshape(-1)


def random(count: int) -> np.ndarray:
    return np.random.default_rng(count).integers(-8, 8, count).astype("float32")


@pytest.fixture(scope="module")
def calls() -> list[Call]:
    x, which = random(512), np.array([0, 1, -1, 0], "int32")
    return [([x, which, np.zeros(256, "float32")], expected_of_for_if_for(x, which))]


@pytest.fixture(scope="module")
def calls_that_choose() -> list[Call]:
    x = random(192)
    made = []
    for which in (0, 1):
        chosen = x[which * 64 :][:64]
        expected = chosen[::-1] + x[128:]
        made.append(([x, np.array([which], "int32"), np.zeros(64, "float32")], expected))
    return made


def test_both_buffers_live_as_long_as_the_name(calls: list[Call]):
    assert least_bytes(for_if_for) == {"arena": 768, "address": 768}
    assert_right(for_if_for, calls, capacity=768, but=LIKE_STOCK)
    assert is_exposed(for_if_for, "made", "a", calls)
    assert is_exposed(for_if_for, "made", "b", calls)


def test_a_later_temporary_is_not_put_over_what_was_chosen(calls_that_choose: list[Call]):
    assert least_bytes(chosen_once) == {"arena": 768, "address": 768}
    assert_right(chosen_once, calls_that_choose, capacity=768, but=LIKE_STOCK)


@pytest.mark.parametrize("lower", ["a", "b"])
def test_the_program_shows_the_fault(lower: str, calls_that_choose: list[Call]):
    assert is_exposed(chosen_once, "late", lower, calls_that_choose)
