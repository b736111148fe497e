# SPDX-License-Identifier: Apache-2.0
"""`lmem`, the placing of LayerGroup's document: worked cases."""

import pytest

from passes.planning import Buffer, Problem, check, solve
from target_hw.memory import MemoryScope


def local_memory(capacity, banks):
    return MemoryScope("local.LMEM", capacity, alignment=16, facts=(("banks", banks),))


def case(memory, rows):
    """Return a problem, and the offsets to find, from lines of name, size, begin, end, offset."""
    table = [line.split() for line in rows.split(";")]
    buffers = [
        Buffer(name, int(size), ((int(begin), int(end)),)) for name, size, begin, end, _ in table
    ]
    return Problem(tuple(buffers), memory), {name: (int(at),) for name, *_, at in table}


# Convolution, ReLU, pooling, convolution on a chip of 8 lanes: in three and in four slices, weights
# resident; and uncut, where `w2` and `t4` would cross a bank.
SMALL, LARGE = local_memory(65536, 16), local_memory(262144, 16)
CASES = [
    case(
        SMALL,
        "w1 9216 0 4 0; b1 32 0 4 18432; w2 9216 0 4 9216; b2 32 0 4 18464; in0 23296 0 1 40000;"
        "t1 21504 0 2 18496; t2 21504 1 3 40000; t3 5376 2 4 18496; t4 4480 3 4 23872",
    ),
    case(
        SMALL,
        "w1 9216 0 4 0; b1 32 0 4 18432; w2 9216 0 4 9216; b2 32 0 4 18464; in0 17920 0 1 34624;"
        "t1 16128 0 2 18496; t2 16128 1 3 34624; t3 4096 2 4 20480; t4 3200 3 4 24576",
    ),
    case(
        LARGE,
        "in0 50176 0 1 50176; w1 9216 0 1 100352; b1 32 0 1 109568; t1 50176 0 2 0;"
        "t2 50176 1 3 50176; t3 12544 2 4 0; w2 9216 2 4 16384; b2 32 2 4 12544;"
        "t4 12544 3 4 32768",
    ),
]


@pytest.mark.parametrize(("problem", "offsets"), CASES)
def test_cases_of_the_original(problem, offsets):
    plan = solve(problem, "lmem")
    assert plan.offsets == offsets
    check(problem, plan)


def test_what_finds_no_bank_takes_the_lowest_gap():
    pinned = {"low": (0,), "high": (160,)}
    buffers = [Buffer(name, 96, ((0, 2),), pinned=at) for name, at in pinned.items()]
    problem = Problem((*buffers, Buffer("across", 64, ((1, 2),))), local_memory(256, 2))
    plan = solve(problem, "lmem")
    assert plan.offsets == {**pinned, "across": (96,)}
    check(problem, plan)
