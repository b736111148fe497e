# SPDX-License-Identifier: Apache-2.0
"""`rec_tbl`: the original's worked cases, its rules one by one, and problems of every kind."""

import pytest
from hypothesis import given, note, settings
from planning_oracles import blocks_of, problems, written

from passes.planning import check, lower_bound, solve
from target_hw.memory import MemoryScope


def problem_of(text, alignment=1, **fields):
    return written(text, MemoryScope("global", alignment=alignment), **fields)


# By the positions of operators; `E` has two names, and what is returned lives on behind them.
RESIDUAL = problem_of(
    "X 16384 0 2; A 65536 1 3; B 65536 2 6; C 32768 3 5; D 65536 4 6; E 65536 5 8; F 4000 7 10",
    4096,
)
CHAIN = problem_of("a 16384 0 2; b 16384 1 3; c 32768 2 4; d 32768 3 6", 4096)
# `A` is read by another name and then by its own: the original lets go of it in between.
HAZARD = problem_of("A 8192 0 5; B 8192 2 4; C 8192 3 5; D 8192 4 7", 4096)
# The network of the tutorial, in KiB.
SMALL_NET = problem_of(
    "a 32 0 4; b 32 1 3; c 32 2 4; d 32 3 5; e 8 4 8; g 8 6 8; h 8 7 10; j 64 9 11", 4
)

CASES = [
    (RESIDUAL, "X 0 A 16384 B 81920 C 16384 D 147456 E 16384 F 0"),
    (CHAIN, "a 0 b 16384 c 32768 d 65536"),  # Neighbours are not joined.
    (HAZARD, "A 0 B 8192 C 16384 D 8192"),
    (SMALL_NET, "a 0 b 32 c 64 d 32 e 0 g 32 h 64 j 96"),
    # What begins and ends at one position is free behind it.
    (problem_of("brief 8 0 1; other 8 0 2; next 8 1 2"), "brief 0 other 8 next 0"),
    # An empty buffer does not give away the address of another.
    (
        problem_of("empty 0 0 4; a 64 0 2; b 64 1 3; c 64 2 5; d 64 3 5", 64),
        "empty 0 a 0 b 64 c 128 d 64",
    ),
    # A separated buffer takes no address of its partners.
    (
        problem_of("a 8 0 1; b 8 2 3; c 8 4 5", separations="ab ac"),
        "a 0 b 8 c 8",
    ),
]


@pytest.mark.parametrize(("problem", "offsets"), CASES)
def test_cases_of_the_original_and_of_its_rules(problem, offsets):
    words = offsets.split()
    plan = solve(problem, "rec_tbl")
    assert plan.offsets == {n: (int(at),) for n, at in zip(words[::2], words[1::2], strict=True)}
    check(problem, plan)


def test_best_takes_less_than_the_strategy():
    for problem, ours, best in ((CHAIN, 98304, 65536), (SMALL_NET, 160, 96)):
        assert solve(problem, "rec_tbl").peak == ours
        assert solve(problem, "best").peak == lower_bound(problem) == best


def test_slots_alignments_pins_and_reserved_bytes():
    slots = written("a 8 0 2 slots=2; b 8 2 3")
    assert solve(slots, "rec_tbl").offsets == {"a": (0, 8), "b": (0,)}
    aligned = problem_of("a 1 0 1; b 65 0 1; c 8 0 1; wide 4 0 1 align=96", 64)
    assert solve(aligned, "rec_tbl").offsets == {"a": (0,), "b": (64,), "c": (192,), "wide": (384,)}
    reserved = MemoryScope("global", reserved=((18, 20),))
    problem = written("pin 8 0 1 pin=8; a 8 0 2; b 8 1 3; c 8 5 6", reserved)
    plan = solve(problem, "rec_tbl")
    assert plan.offsets == {"pin": (8,), "a": (0,), "b": (20,), "c": (0,)}
    check(problem, plan)


def scanned(problem):
    """Return the offset of each block by the rules, the table scanned from the front each time."""
    blocks = [b for b in blocks_of(problem) if problem.buffers[b[0]].pinned is None]
    buffer_of = {block: problem.buffers[block[0]] for block in blocks}
    begin = {block: buffer_of[block].live[0][0] for block in blocks}
    last = {block: buffer_of[block].live[-1][1] - 1 for block in blocks}
    turn = {}  # The first result of a position is placed before its operands are released.
    for block in blocks:
        is_first = begin[block] not in [begin[other] for other in turn]
        turn[block] = begin[block], -1 if is_first else 1
    released = {block: (last[block], 2 if last[block] == begin[block] else 0) for block in blocks}
    apart = [set(pair) for pair in problem.separations]
    taken = [*problem.memory.reserved]
    taken += [(at, at + b.size) for b in problem.buffers for at in b.pinned or ()]
    table, cursor = {}, 0
    for block in sorted(blocks, key=lambda block: turn[block]):
        size, unit = buffer_of[block].size, problem.alignment_of(buffer_of[block])
        forbidden = {
            table[other]
            for other in table
            if {buffer_of[other].name, buffer_of[block].name} in apart
            or (last[other] == begin[block] and begin[other] != begin[block])
        }
        for record, at in table.items():
            here = [other for other in table if table[other] == at]
            is_free = all(released[other] < turn[block] for other in here)
            fits = buffer_of[record].size >= size and at % unit == 0
            if is_free and fits and at not in forbidden:
                table[block] = at
                break
        else:
            at = -(-cursor // unit) * unit
            while ends := [high for low, high in taken if low < at + size and at < high]:
                at = -(-max(ends) // unit) * unit
            table[block] = at
            step = problem.memory.alignment
            cursor = -(-(at + size) // step) * step
    return table


@given(problem=problems(most_buffers=8, most_slots=12))
@settings(max_examples=60, deadline=None, print_blob=True)
def test_each_offset_is_that_of_the_table_scanned_from_the_front(problem):
    expected = scanned(problem)
    note(str(expected))
    offsets = solve(problem, "rec_tbl").offsets
    names = [buffer.name for buffer in problem.buffers]
    assert {(at, slot): offsets[names[at]][slot] for at, slot in expected} == expected
