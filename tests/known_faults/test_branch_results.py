# SPDX-License-Identifier: Apache-2.0
"""A value that comes out of one branch or the other: pypto 1821."""

from __future__ import annotations

import numpy as np
from fault_runs import Call, assert_right, is_exposed, least_bytes
from program_text import program

read_after_branches = program("""
def read_after_branches(x: 64, cond: 1 int32, y: 64):
    a, result, e, f: local.UB 64
    a[i] = x[i] for i in range(64)
    if cond[0] < 2:
        b: local.UB 64
        b[i] = a[63 - i] + a[i] for i in range(64)
        result[i] = b[i] * T.float32(2) for i in range(64)
    else:
        c: local.UB 64
        c[i] = a[63 - i] * a[i] for i in range(64)
        result[i] = c[i] - T.float32(1) for i in range(64)
    e[i] = a[63 - i] + T.float32(3) for i in range(64)
    f[i] = result[63 - i] + e[i] for i in range(64)
    y[i] = a[i] + f[i] for i in range(64)
""")

running_maximum = program("""
def running_maximum(x: 512, y: 72):
    most: local.UB 8
    total: local.UB 64
    for t in range(8):
        tile: local.UB 64
        here: local.UB 8
        tile[i] = x[t * 64 + i] for i in range(64)
        here[i] = T.max(tile[i], tile[63 - i]) for i in range(8)
        if t == 0:  # The first round sets the state, the others change it.
            most[i] = here[i] for i in range(8)
            total[i] = tile[i] for i in range(64)
        else:
            larger: local.UB 8
            scaled: local.UB 64
            larger[i] = T.max(most[7 - i], here[i]) for i in range(8)
            scaled[i] = total[63 - i] - larger[i % 8] for i in range(64)
            most[i] = larger[i] for i in range(8)
            total[i] = scaled[i] + tile[i] for i in range(64)
        other: local.UB 64
        other[i] = total[63 - i] - tile[i] for i in range(64)
        total[i] = other[i] + T.float32(1) for i in range(64)
    y[i] = total[i] for i in range(64)
    y[64 + i] = most[i] for i in range(8)
""")


def expected_after_branches(x: np.ndarray, cond: int) -> np.ndarray:
    result = (x[::-1] + x) * 2 if cond < 2 else x[::-1] * x - 1
    return x + result[::-1] + x[::-1] + 3


def expected_of_running_maximum(x: np.ndarray) -> np.ndarray:
    for t, tile in enumerate(x.reshape(8, 64)):
        here = np.maximum(tile[:8], tile[:55:-1])
        if t == 0:
            most, total = here, tile
        else:
            most = np.maximum(most[::-1], here)
            total = total[::-1] - np.tile(most, 8) + tile
        total = total[::-1] - tile + 1
    return np.concatenate([total, most])


def calls_of_branches() -> list[Call]:
    x = np.random.default_rng(0).integers(-8, 8, 64).astype("float32")
    zeros = np.zeros(64, "float32")
    return [
        ([x, np.array([cond], "int32"), zeros], expected_after_branches(x, cond)) for cond in (0, 5)
    ]


def test_what_is_read_behind_the_branches_is_not_overwritten():
    calls = calls_of_branches()
    # `a`, the result and one more; what the branches make takes the place of what comes later.
    assert least_bytes(read_after_branches) == {"arena": 768, "address": 768}
    # An Ascend core does not add in place of an operand when another one is read backwards.
    assert_right(read_after_branches, calls, capacity=1024)
    assert is_exposed(read_after_branches, "e", "result", calls)
    assert is_exposed(read_after_branches, "e", "a", calls)


def test_state_that_a_branch_sets_lives_into_the_next_round():
    x = np.random.default_rng(1).integers(-8, 8, 512).astype("float32")
    calls = [([x, np.zeros(72, "float32")], expected_of_running_maximum(x))]
    # `total`, `tile` and `scaled`, `most`, and `larger` in the place of `here` behind it at the
    # next multiple of 64, which is the alignment where a target describes none.
    assert least_bytes(running_maximum) == {"arena": 864, "address": 864}
    assert_right(running_maximum, calls, capacity=896)
    for upper, lower in (("other", "total"), ("here", "most"), ("larger", "most")):
        assert is_exposed(running_maximum, upper, lower, calls)
