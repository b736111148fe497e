# SPDX-License-Identifier: Apache-2.0
"""Several memories: the choice, the offsets, what is proven."""

import json
import os
import random
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memories_oracles import least_moved
from sweeps import sample

from passes.planning import Budget, BudgetTracker, Buffer, Problem, Status, solve, verify
from passes.planning.engine import BlockList, compiled
from passes.planning.files import read_memories_problem
from passes.planning.memories import MemoriesProblem, Traffic, filling_loop, integer_program
from passes.planning.memories.filling import better_filling, first_filling
from passes.planning.memories.lacking import does_not_fit_in_memories
from passes.planning.memories.planner import solve_memories
from target_hw.memory import MemoryScope
from tvm_ext.report.banked_greedy import greedy

ROOT = Path(__file__).parents[3]
DATA = Path(os.environ.get("TVM_EXT_DATA", ROOT.parent / "shared" / "data")) / "several_memories"


def scope(number, capacity=None, **fields):
    return MemoryScope(f"global.m{number}", capacity, **fields)


@st.composite
def problems(draw, most=5, moves=False):
    """Few buffers in two or three memories, of which some are small."""
    count = draw(st.integers(2, 3))
    memories = []
    for number in range(count):
        capacity = draw(st.sampled_from([4, 6, 8, 12]))
        if number == count - 1:
            capacity = draw(st.sampled_from([None, None, 16]))
        alignment = draw(st.sampled_from([1, 1, 2]))
        reserved = draw(st.sampled_from([(), (), ((0, 1),), ((2, 4),)]))
        memories.append(scope(number, capacity, alignment=alignment, reserved=reserved))
    names = [memory.name for memory in memories]
    buffers, traffic = [], {}
    for number in range(draw(st.integers(1, most))):
        begin = draw(st.integers(0, 4))
        end = begin + draw(st.integers(1, 6))
        name = f"b{number}"
        size = draw(st.integers(0, 6))
        buffers.append(Buffer(name, size, ((begin, end),), draw(st.sampled_from([1, 1, 2]))))
        where = draw(st.sampled_from([None, None, None, (names[0],), tuple(names[1:])]))
        costs = draw(st.sampled_from([{}, {}, {names[0]: 3}, {names[-1]: 1}]))
        uses, touches, stored = draw(st.integers(0, 3)), (), None
        if moves and draw(st.booleans()):
            middle = draw(st.sets(st.integers(begin, end - 1)))
            stored = draw(st.sampled_from([None, names[-1]]))
            touches = tuple(sorted(middle | ({begin, end - 1} if stored is None else {end - 1})))
            uses, costs = len(touches), {}
        traffic[name] = Traffic(uses, touches, costs, where, stored)
    return MemoriesProblem(tuple(buffers), tuple(memories), traffic)


def judge(problem, plan, least):
    if least is None:
        assert plan.status is Status.INFEASIBLE
        assert not plan.fits
        return
    assert verify(problem, plan) == ()
    assert plan.status is Status.OPTIMAL
    assert problem.objective(plan.moved) == plan.bound == least


@settings(max_examples=25, deadline=None)
@given(problem=problems())
def test_no_choice_moves_fewer_bytes(problem):
    judge(problem, solve_memories(problem), least_moved(problem))


@settings(max_examples=25, deadline=None)
@given(problem=problems(most=3, moves=True))
def test_no_way_to_move_buffers_moves_fewer_bytes(problem):
    plan = solve_memories(problem, moves=True)
    judge(problem, plan, least_moved(problem, moves=True))
    still = solve_memories(problem)
    if still.fits:
        assert problem.objective(plan.moved) <= problem.objective(still.moved)


def table(model, capacity):
    with open(DATA / f"{model}.csv", newline="") as stream:
        return read_memories_problem(stream, model, (scope(0, capacity), scope(1)), {})


def published():
    if not DATA.is_dir():
        return []
    return [json.loads(line) for line in (DATA / "results.jsonl").open()]


def a_sample():
    """Every row; by default every eighth."""
    for number, row in enumerate(published()):
        marks = [pytest.mark.slow] if number % 8 != 1 else []
        yield pytest.param(row, id=f"{row['model']}-{row['capacity']}", marks=marks)


@pytest.mark.skipif(not DATA.is_dir(), reason=f"there is no data folder {DATA}")
@pytest.mark.parametrize("row", [*a_sample()])
def test_networks_move_the_least(row):
    problem = table(row["model"], row["capacity"])
    plan = solve_memories(problem)
    assert verify(problem, plan) == ()
    assert plan.status is Status.OPTIMAL
    assert plan.moved["global.m1"] == row["packed"]


@pytest.mark.skipif(not DATA.is_dir(), reason=f"there is no data folder {DATA}")
@pytest.mark.parametrize("row", published(), ids=lambda row: f"{row['model']}-{row['capacity']}")
def test_greedy_moves_what_executorch_moves(row):
    problem = table(row["model"], row["capacity"])
    found = greedy(problem)
    slow = (problem.buffers[problem.index[n]] for n, (m, _) in found.items() if m == "global.m1")
    assert sum(problem.cost(buffer, 1) for buffer in slow) == row["banked_greedy"]
    hurried = solve_memories(problem, Budget(seconds=0.0))
    assert verify(problem, hurried) == ()
    assert hurried.moved["global.m1"] <= row["banked_greedy"]


def test_a_load_that_fits_but_has_no_place_is_cut_off():
    # Five bytes of five are live, but two buffers at multiples of four need six.
    sizes = ((2, 4), (2, 4), (1, 1))
    buffers = tuple(Buffer(f"b{n}", s, ((0, 2),), align) for n, (s, align) in enumerate(sizes))
    problem = MemoriesProblem(buffers, (scope(0, 5), scope(1)), {"b0": Traffic(4)})
    least = least_moved(problem)
    assert least > (0, 0)
    judge(problem, solve_memories(problem), least)


def test_what_has_no_place_at_all_is_said():
    both = (Buffer("a", 6, ((0, 2),)), Buffer("b", 6, ((1, 3),)))
    problem = MemoriesProblem(both, (scope(0, 4), scope(1, 8)))
    plan = solve_memories(problem)
    assert plan.status is Status.INFEASIBLE
    assert {violation.kind for violation in verify(problem, plan)} >= {"capacity"}


def test_a_buffer_that_has_room_by_itself_nowhere_lacks_what_its_lowest_place_needs():
    # Six bytes would fit, were it not for the two that are reserved in the middle.
    problem = MemoriesProblem((Buffer("big", 6, ((0, 1),)),), (scope(0, 8, reserved=((2, 4),)),))
    text = does_not_fit_in_memories(problem, solve_memories(problem))
    assert "'big' of 6 bytes has no room by itself: 'global.m0' has 8, lacks 2" in text


@pytest.mark.parametrize(
    ("pins", "said"),
    [((0, 8), "'one' is pinned at 0, inside the reserved"), ((4, 4), "'one' and 'two' may not")],
)
def test_a_pin_that_is_none_of_its_memory_is_refused_by_the_buffers_name(pins, said):
    names = ("one", "two")
    buffers = [Buffer(n, 2, ((0, 2),), pinned=(at,)) for n, at in zip(names, pins, strict=True)]
    memories = (scope(0, 12, reserved=((0, 1),)), scope(1))
    traffic = {name: Traffic(memories=("global.m0",)) for name in names}
    with pytest.raises(ValueError, match=f"table: in 'global.m0': buffers? {said}"):
        MemoriesProblem(tuple(buffers), memories, traffic, name="table")


def test_a_buffer_leaves_and_comes_back_where_that_moves_less():
    # `long` is read at 1 and 9; in between, `big` needs the whole memory.
    buffers = (Buffer("long", 4, ((0, 10),)), Buffer("big", 8, ((3, 6),)))
    traffic = {"long": Traffic(touches=(0, 1, 2, 9)), "big": Traffic(9)}
    problem = MemoriesProblem(buffers, (scope(0, 8), scope(1)), traffic)
    assert solve(problem).moved["global.m1"] == 16
    plan = solve(problem, moves=True)
    assert verify(problem, plan) == ()
    assert (plan.moved["global.m1"], plan.status) == (8, Status.OPTIMAL)
    assert [(c.source[-1], c.target[-1], c.begin, c.end) for c in plan.copies] == [("0", "1", 1, 3)]


def test_a_time_limit_gives_a_plan_that_fits_and_says_what_is_open():
    buffers = tuple(Buffer(f"b{n}", 1000 + 37 * n % 91, ((n, n + 40),)) for n in range(200))
    problem = MemoriesProblem(buffers, (scope(0, 20_000), scope(1)))
    plan = solve_memories(problem, Budget(seconds=0.0))
    assert verify(problem, plan) == ()
    assert plan.fits
    assert plan.bound <= problem.objective(plan.moved)


def crowded(seed, count, **fields):
    """Return buffers of which a fast memory, of two alignments, holds about half."""
    rng = random.Random(seed)
    buffers, traffic = [], {}
    for number in range(count):
        begin, size = rng.randrange(2 * count), int(2 ** rng.uniform(3, 9))
        live = ((begin, begin + 1 + rng.randrange(40)),)
        buffers.append(Buffer(f"b{number}", size, live, rng.choice([1, 1, 32])))
        traffic[f"b{number}"] = Traffic(rng.randrange(1, 9))
    return MemoriesProblem(tuple(buffers), (scope(0, 1500, **fields), scope(1)), traffic)


@pytest.mark.parametrize("seed", sample((2, 3), 3))
@pytest.mark.parametrize("most_entries", [0, integer_program.MOST_ENTRIES])
def test_what_has_no_place_is_searched_from_several_choices(seed, most_entries, monkeypatch):
    # Without coefficients for integers, the linear program chooses.
    monkeypatch.setattr(integer_program, "MOST_ENTRIES", most_entries)
    monkeypatch.setattr(integer_program, "FEW_ENTRIES", most_entries)
    problem = crowded(seed, 70, reserved=((64, 100),))
    plan = solve_memories(problem, Budget(60))
    assert verify(problem, plan) == ()
    assert plan.fits
    assert plan == solve_memories(problem, Budget(60))
    assert plan.bound <= problem.objective(plan.moved)
    chosen = greedy(problem)
    slow = (problem.buffers[problem.index[n]] for n, (m, _) in chosen.items() if m == "global.m1")
    assert plan.moved["global.m1"] <= sum(problem.cost(buffer, 1) for buffer in slow)


@settings(max_examples=25, deadline=None)
@given(problem=problems())
def test_the_linear_program_alone_gives_a_right_plan(problem):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(integer_program, "MOST_ENTRIES", 0)
        patch.setattr(integer_program, "FEW_ENTRIES", 0)
        plan, least = solve_memories(problem, Budget(500)), least_moved(problem)
    if least is None:
        assert not plan.fits
    elif plan.fits:
        assert verify(problem, plan) == ()
        assert plan.bound <= least <= problem.objective(plan.moved)


def test_a_memory_is_filled_alike_by_python_and_by_what_is_compiled(monkeypatch):
    rng = random.Random(5)
    buffers = tuple(
        Buffer(f"b{n}", rng.randrange(1, 9), ((n // 2, n // 2 + rng.randrange(1, 9)),))
        for n in range(40)
    )
    blocks = BlockList(Problem(buffers, scope(0, 16, reserved=((3, 5),))))
    worth = [float(buffer.size * rng.randrange(1, 5)) for buffer in buffers]
    wanted = [True] * len(buffers)
    given = first_filling(blocks, worth, wanted, {})
    assert compiled.loop(filling_loop.advance) is not None
    found = []
    for is_ready in (lambda _: False, lambda _: True):
        monkeypatch.setattr(compiled, "is_ready", is_ready)
        found.append(better_filling(blocks, worth, given, BudgetTracker(Budget(6))))
    assert found[0] == found[1]

    def lost(offsets):
        return sum(value for at, value in zip(offsets, worth, strict=True) if at < 0)

    assert lost(found[0]) < lost(given)
    there = [number for number, at in enumerate(found[0]) if at >= 0]
    inside = replace(blocks.problem, buffers=tuple(buffers[number] for number in there))
    plan = BlockList(inside).plan([found[0][number] for number in there], "filled")
    assert verify(inside, plan) == ()
