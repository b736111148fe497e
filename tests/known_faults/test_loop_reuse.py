# SPDX-License-Identifier: Apache-2.0
"""A buffer that is written once and read in every iteration: tilelang-ascend 1156."""

from __future__ import annotations

import numpy as np
import pytest
from fault_runs import Call, assert_right, is_exposed, least_bytes
from program_text import program

best_of_segments = program("""
def best_of_segments(score: 2048, limit: 8 int32, out: 256):
    index: local.UB 256 int32
    best: local.UB 256
    index[i] = i for i in range(256)
    best[i] = T.float32(-1000) for i in range(256)
    for s in range(8):
        part: local.UB 256
        mask: local.UB 256 int8
        kept, merged: local.UB 256
        part[i] = score[s * 256 + i] for i in range(256)
        for i in range(256):
            mask[i] = T.Cast("int8", index[i] < limit[s])  # In the text, the last use of `index`.
        for i in range(256):
            kept[i] = T.if_then_else(mask[i] == T.int8(1), part[i], T.float32(-1000))
        merged[i] = T.max(best[i], kept[255 - i]) for i in range(256)
        best[i] = merged[i] for i in range(256)
    out[i] = best[i] for i in range(256)
""")

allocated_in_front = program("""
def allocated_in_front(score: 2048, limit: 8 int32, out: 256):
    index: local.UB 256 int32
    best, part: local.UB 256
    mask: local.UB 256 int8
    kept, merged: local.UB 256
    index[i] = i for i in range(256)
    best[i] = T.float32(-1000) for i in range(256)
    for s in range(8):
        part[i] = score[s * 256 + i] for i in range(256)
        mask[i] = T.Cast("int8", index[i] < limit[s]) for i in range(256)
        for i in range(256):
            kept[i] = T.if_then_else(mask[i] == T.int8(1), part[i], T.float32(-1000))
        merged[i] = T.max(best[i], kept[255 - i]) for i in range(256)
        best[i] = merged[i] for i in range(256)
    out[i] = best[i] for i in range(256)
""")

in_nested_loops = program("""
def in_nested_loops(x: 1536, out: 1536):
    weight: local.UB 64
    weight[i] = T.Cast("float32", i % 7) for i in range(64)
    for row in range(4):
        for col in range(3):
            scaled, turned: local.UB 128
            if col != 1:  # `weight` is read in some of the iterations only.
                scaled[i] = x[row * 384 + col * 128 + i] * weight[i // 2] for i in range(128)
            else:
                scaled[i] = x[row * 384 + col * 128 + i] for i in range(128)
            turned[i] = scaled[127 - i] for i in range(128)
            out[row * 384 + col * 128 + i] = turned[i] for i in range(128)
""")


@pytest.fixture(scope="module")
def calls() -> list[Call]:
    random = np.random.default_rng(0)
    score = random.integers(-50, 50, 2048).astype("float32")
    limit = random.integers(20, 256, 8).astype("int32")
    return [([score, limit, np.zeros(256, "float32")], expected_of_segments(score, limit))]


def expected_of_segments(score: np.ndarray, limit: np.ndarray) -> np.ndarray:
    best = np.full(256, -1000, "float32")
    for part, most in zip(score.reshape(8, 256), limit, strict=True):
        best = np.maximum(best, np.where(np.arange(256) < most, part, np.float32(-1000))[::-1])
    return best


def expected_of_nested_loops(x: np.ndarray) -> np.ndarray:
    weight = np.repeat(np.arange(64) % 7, 2).astype("float32")
    rows = x.reshape(4, 3, 128).copy()
    rows[:, 0] *= weight
    rows[:, 2] *= weight
    return rows[:, :, ::-1].reshape(-1)


def test_what_the_next_iteration_reads_is_not_overwritten(calls: list[Call]):
    # `index` and `best` all the time, and in an iteration at most `kept` with `merged`.
    assert least_bytes(best_of_segments) == {"arena": 4096, "address": 4096}
    # An Ascend core does not select in place: 256 bytes of `mask` and `kept` next to `part`.
    assert_right(best_of_segments, calls, capacity=4352)


def test_the_same_with_all_allocations_in_front(calls: list[Call]):
    # All of them live through the loop.
    assert least_bytes(allocated_in_front) == {"arena": 5376, "address": 5376}
    assert_right(allocated_in_front, calls, capacity=5376)


@pytest.mark.parametrize("func", [best_of_segments, allocated_in_front])
@pytest.mark.parametrize("upper", ["merged", "kept"])
def test_the_program_shows_the_fault(func, upper: str, calls: list[Call]):
    # What the planner of TileLang did: `index` has no use behind these in the text.
    assert is_exposed(func, upper, "index", calls)


def test_a_buffer_of_an_outer_scope_lives_through_all_loops_around_its_uses():
    x = np.random.default_rng(1).integers(-8, 8, 1536).astype("float32")
    calls = [([x, np.zeros_like(x)], expected_of_nested_loops(x))]
    assert least_bytes(in_nested_loops) == {"arena": 1280, "address": 1280}
    assert_right(in_nested_loops, calls, capacity=1280)
    assert is_exposed(in_nested_loops, "turned", "weight", calls)
