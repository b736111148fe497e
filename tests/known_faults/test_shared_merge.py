# SPDX-License-Identifier: Apache-2.0
"""Programs around a planner that put live buffers over one another: tilelang 2185 and 2281.

That planner split the life of a buffer where threads synchronize and where branches part. Each
program here has a buffer whose life goes on where it seems to end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from fault_runs import SCOPE, Call, assert_right, is_exposed, least_bytes, lowered
from program_text import program

from tvm_ext.transform import PlanAddresses

written_in_branches = program("""
def written_in_branches(x: 128, cond: 2 int32, y: 128):
    base, norm, other, tail: local.UB 64
    base[i] = x[i] for i in range(64)
    if cond[0] > 0:
        if cond[1] > 0:
            norm[i] = x[i] * T.float32(2) for i in range(64)
        else:
            norm[i] = x[64 + i] for i in range(64)
    else:
        norm[i] = T.float32(0) for i in range(64)
    other[i] = x[127 - i] for i in range(64)
    y[i] = norm[63 - i] + other[i] for i in range(64)
    tail[i] = x[32 + i] for i in range(64)
    y[64 + i] = base[63 - i] + tail[i] for i in range(64)
""")

carried_past_stages = program("""
def carried_past_stages(x: 256, cond: 2 int32, y: 320):
    carry: local.UB 64
    carry[i] = x[i] for i in range(64)
    for k in range(4):
        first, second: local.UB 64
        if cond[0] > k:
            first[i] = x[k * 64 + i] for i in range(64)
        else:
            first[i] = T.float32(1) for i in range(64)
        second[i] = first[63 - i] for i in range(64)
        y[k * 64 + i] = second[i] for i in range(64)
    y[256 + i] = carry[i] for i in range(64)
""")

used_in_two_phases = program("""
def used_in_two_phases(x: 192, y: 256):
    a, b: local.UB 64
    a[i] = x[i] for i in range(64)
    y[i] = a[63 - i] for i in range(64)
    b[i] = x[64 + i] for i in range(64)
    y[64 + i] = b[63 - i] for i in range(64)
    for i in range(32):  # The other half is still what the first phase wrote.
        a[i] = x[128 + i]
    y[128 + i] = a[63 - i] for i in range(64)
    y[192 + i] = a[i] - b[i] for i in range(64)
""")

halves = program("""
def halves(x: 64, y: 64):
    a, b: local.UB 64
    a[i] = x[i] for i in range(32)
    b[32 + i] = x[32 + i] for i in range(32)
    y[i] = a[31 - i] for i in range(32)
    y[32 + i] = b[63 - i] for i in range(32)
""")

pipelined_by_hand = program("""
def pipelined_by_hand(x: 512, y: 512):
    stage: local.UB 128
    stage[i] = x[i] for i in range(64)
    for k in range(8):
        made: local.UB 64
        if k < 7:  # What the next iteration reads is written before this one uses `made`.
            stage[(k + 1) % 2 * 64 + i] = x[(k + 1) * 64 + i] for i in range(64)
        made[i] = stage[k % 2 * 64 + 63 - i] for i in range(64)
        y[k * 64 + i] = made[i] for i in range(64)
""")

either_or = program("""
def either_or(x: 192, cond: 1 int32, y: 128):
    a, b, c: local.UB 64
    if cond[0] == 0:
        a[i] = x[i] for i in range(64)
        y[i] = a[63 - i] for i in range(64)
    else:
        b[i] = x[64 + i] for i in range(64)
        y[i] = b[63 - i] for i in range(64)
    c[i] = x[128 + i] for i in range(64)
    y[64 + i] = c[63 - i] for i in range(64)
""")

allocated_in_branches = program("""
def allocated_in_branches(x: 192, cond: 1 int32, y: 128):
    if cond[0] == 0:
        a: local.UB 64
        a[i] = x[i] for i in range(64)
        y[i] = a[63 - i] for i in range(64)
    else:
        b: local.UB 64
        b[i] = x[64 + i] for i in range(64)
        y[i] = b[63 - i] for i in range(64)
    c: local.UB 64
    c[i] = x[128 + i] for i in range(64)
    y[64 + i] = c[63 - i] for i in range(64)
""")

grows_behind_a_freed_block = program("""
def grows_behind_a_freed_block(x: 96, y: 96):
    a: local.UB 64
    b: local.UB 32
    c: local.UB 96
    a[i] = x[i] for i in range(64)
    b[i] = x[i + 64] for i in range(32)
    y[i] = b[31 - i] for i in range(32)
    c[i] = y[i % 32] + a[i % 64] for i in range(96)
    y[i] = c[95 - i] + a[63 - i % 64] for i in range(96)
""")


def expected_of_branches(x: np.ndarray, cond: np.ndarray) -> np.ndarray:
    taken = (x[:64] * 2 if cond[1] > 0 else x[64:]) if cond[0] > 0 else np.zeros(64, "float32")
    return np.concatenate([taken[::-1] + x[::-1][:64], x[:64][::-1] + x[32:96]])


def expected_of_stages(x: np.ndarray, cond: np.ndarray) -> np.ndarray:
    rows = [
        row if cond[0] > k else np.ones(64, "float32") for k, row in enumerate(x.reshape(4, 64))
    ]
    return np.concatenate([*(row[::-1] for row in rows), x[:64]])


def expected_of_phases(x: np.ndarray) -> np.ndarray:
    a, b = x[:64], x[64:128]
    later = np.concatenate([x[128:160], a[32:]])
    return np.concatenate([a[::-1], b[::-1], later[::-1], later - b])


def expected_of_either_or(x: np.ndarray, cond: np.ndarray) -> np.ndarray:
    return np.concatenate([x[cond[0] * 64 :][:64][::-1], x[128:][::-1]])


def expected_of_growing(x: np.ndarray) -> np.ndarray:
    a, y = x[:64], np.zeros(96, "float32")
    y[:32] = x[64:][::-1]
    i = np.arange(96)
    c = y[i % 32] + a[i % 64]
    return c[::-1] + a[63 - i % 64]


@dataclass(frozen=True)
class Case:
    """A program, its expected result, the fewest bytes that it needs, and what shows a fault.

    `on_ascend` is what it takes on an Ascend core where that is more.
    """

    func: Any
    expected: Callable[..., np.ndarray]
    least: int
    over: tuple[str, str] | None
    elements: tuple[int, int]
    conditions: tuple[tuple[int, ...], ...] = ()
    on_ascend: int | None = None


CASES = {
    "branches": Case(
        written_in_branches,
        expected_of_branches,
        768,
        ("other", "norm"),
        (128, 128),
        ((0, 0), (1, 0), (1, 1)),
    ),
    "stages": Case(
        carried_past_stages, expected_of_stages, 768, ("second", "carry"), (256, 320), ((2, 0),)
    ),
    "phases": Case(used_in_two_phases, expected_of_phases, 512, ("b", "a"), (192, 256)),
    "halves": Case(
        halves,
        lambda x: np.concatenate([x[:32][::-1], x[32:][::-1]]),
        256,  # TVM itself cuts both buffers to the half that is used.
        None,
        (64, 64),
    ),
    "pipelined": Case(
        pipelined_by_hand,
        lambda x: x.reshape(8, 64)[:, ::-1].reshape(-1),
        768,
        ("made", "stage"),
        (512, 512),
    ),
    "either or": Case(
        either_or,
        expected_of_either_or,
        256,
        None,
        (192, 128),
        ((0,), (1,)),
        on_ascend=512,
    ),
    "allocated in branches": Case(
        allocated_in_branches,
        expected_of_either_or,
        256,
        None,
        (192, 128),
        ((0,), (1,)),
    ),
    "growing": Case(grows_behind_a_freed_block, expected_of_growing, 640, ("c", "a"), (96, 96)),
}


def calls_of(case: Case) -> list[Call]:
    """Return the arguments and the expected result for each outcome of the conditions."""
    x = np.random.default_rng(0).integers(-8, 8, case.elements[0]).astype("float32")
    y = np.zeros(case.elements[1], "float32")
    made = []
    for condition in case.conditions or ((),):
        inputs = [x, np.array(condition, "int32")] if condition else [x]
        made.append(([*inputs, y], case.expected(*inputs)))
    return made


@pytest.mark.parametrize("name", CASES)
def test_results_are_right_under_every_plan(name: str):
    case = CASES[name]
    assert_right(case.func, calls_of(case), capacity=case.on_ascend or case.least)


@pytest.mark.parametrize("name", CASES)
def test_no_more_bytes_than_are_live(name: str):
    case = CASES[name]
    assert least_bytes(case.func) == {"arena": case.least, "address": case.least}


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.over])
def test_the_program_shows_the_fault(name: str):
    case = CASES[name]
    assert is_exposed(case.func, *case.over, calls_of(case))


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
