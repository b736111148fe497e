# SPDX-License-Identifier: Apache-2.0
"""Lives on several clocks: against the definition, brute force, and every planner."""

import io
import json
from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import strategies as st
from planning_oracles import best_by_brute_force, problems
from sweeps import swept

from passes.planning import (
    Buffer,
    Problem,
    Status,
    concurrent_lives,
    lower_bound,
    planner_names,
    solve,
    verify,
)
from passes.planning.bound import heaviest_clique
from passes.planning.documents import DocumentError, read_document, write_document
from passes.planning.engine.blocks import BlockList
from passes.planning.files import CsvError, read_problem, write_plan
from passes.planning.planners.first_fit import allocated
from target_hw.memory import MemoryScope
from tvm_ext.__main__ import main


@st.composite
def clocked(draw, most=6):
    """Lives on one to three clocks, and sizes."""
    clocks = draw(st.integers(1, 3))
    position = st.lists(st.integers(0, 5), min_size=clocks, max_size=clocks)
    lives = {}
    for index in range(draw(st.integers(1, most))):
        begin, length = draw(position), draw(position)
        length[draw(st.integers(0, clocks - 1))] += 1
        end = tuple(a + b for a, b in zip(begin, length, strict=True))
        lives[f"b{index}"] = tuple(begin), end
    return lives, {name: draw(st.integers(0, 5)) for name in lives}


def may_meet(one, two):
    """Whether neither of two lives surely ends before the other begins."""
    return all(
        any(end > begin for end, begin in zip(a[1], b[0], strict=True))
        for a, b in ((one, two), (two, one))
    )


def problem_of(lives, sizes):
    live, separations = concurrent_lives(lives, sizes)
    buffers = tuple(Buffer(name, sizes[name], (live[name],)) for name in lives)
    return Problem(buffers, separations=separations)


@swept(25, 500, clocked())
def test_exactly_what_can_be_live_at_once_conflicts_and_the_fullest_set_is_at_one_position(given):
    lives, sizes = given
    problem = problem_of(lives, sizes)
    for one, two in combinations(problem.buffers, 2):
        (a, b), (c, d) = one.live[0], two.live[0]
        conflict = max(a, c) < min(b, d) or problem.sharing.are_separated(one, two)
        assert conflict == may_meet(lives[one.name], lives[two.name])
    sets = (c for n in range(len(lives) + 1) for c in combinations(lives, n))
    fullest = max(
        sum(sizes[name] for name in chosen)
        for chosen in sets
        if all(may_meet(lives[a], lives[b]) for a, b in combinations(chosen, 2))
    )
    assert lower_bound(problem) == fullest
    assert lower_bound(Problem(problem.buffers)) == fullest  # The order alone says it


@swept(25, 500, clocked())
def test_every_planner_keeps_apart_what_streams_can_have_live_at_once(given):
    lives, sizes = given
    problem = problem_of(lives, sizes)
    for name in planner_names():
        plan = solve(problem, name)
        assert verify(problem, plan) == ()
        for one, two in combinations(lives, 2):
            at, to = plan.offsets[one][0], plan.offsets[two][0]
            overlap = max(at, to) < min(at + sizes[one], to + sizes[two])
            assert not (overlap and may_meet(lives[one], lives[two]))


@swept(25, 500, problems(), st.integers(0, 5))
def test_what_is_placed_as_it_begins_is_kept_apart(problem, base):
    buffers = tuple(replace(buffer, pinned=None) for buffer in problem.buffers)
    memory = replace(problem.memory, capacity=None)
    blocks = BlockList(replace(problem, buffers=buffers, memory=memory, in_place=()))
    assert verify(blocks.problem, blocks.plan(allocated(blocks, base=base), "allocated")) == ()


@swept(25, 500, clocked(most=4))
def test_best_is_the_best(given):
    problem = problem_of(*given)
    plan = solve(problem)
    assert (plan.status, plan.peak) == (Status.OPTIMAL, best_by_brute_force(problem)[1])


@swept(25, 500, st.data())
def test_the_heaviest_set_is_found(data):
    count = data.draw(st.integers(1, 7))
    weights = sorted(data.draw(st.lists(st.integers(1, 9), min_size=count, max_size=count)))[::-1]
    rows = [0] * count
    for a, b in combinations(range(count), 2):
        if data.draw(st.booleans()):
            rows[a], rows[b] = rows[a] | 1 << b, rows[b] | 1 << a
    best = max(
        sum(weights[member] for member in chosen)
        for n in range(count + 1)
        for chosen in combinations(range(count), n)
        if all(rows[a] >> b & 1 for a, b in combinations(chosen, 2))
    )
    assert heaviest_clique(rows, weights) == best


@pytest.mark.parametrize(
    ("lives", "said"),
    [
        ({"a": ((0, 0), (1, 0)), "b": ((0,), (1,))}, "'b': .* each of 2 clocks"),
        ({"a": ((0, 1), (1, 0))}, "'a': .* on no clock before"),
        ({"a": ((1, 1), (1, 1))}, "'a': .* must end after it begins"),
        ({"a": ((0, 0.5), (1, 1))}, "'a': .* integers"),
        ({"a": (0, 1)}, "'a': .* two moments"),
    ],
)
def test_wrong_lives_are_refused(lives, said):
    with pytest.raises(ValueError, match=said):
        concurrent_lives(lives)


TABLE = "id,lower,upper,size,apart\na,0:0,2:0,4,\nb,0:1,0:3,4,\nc,2:1,3:1,1,d\nd,5:5,6:6,1,\n"


def read(text):
    return read_problem(io.StringIO(text, newline=""), "F.csv", MemoryScope("global"))


def test_a_table_has_clocks_and_pairs_and_is_written_with_them():
    problem = read(TABLE)
    plan = solve(problem)
    assert plan.peak == 8
    at = {name: offsets[0] for name, offsets in plan.offsets.items()}
    assert abs(at["a"] - at["b"]) == 4
    assert at["c"] != at["d"]
    out = io.StringIO(newline="")
    write_plan(out, problem, plan, TABLE)
    assert out.getvalue().splitlines()[1] == f"a,0:0,2:0,4,,{at['a']}"
    assert read(out.getvalue()) == problem


@pytest.mark.parametrize(
    ("row", "said"),
    [("e,1,2:2,4,", "'e'"), ("e,1:x,2:2,4,", "lower"), ("e,1:1,2:2,4,f", "'f'")],
)
def test_wrong_rows_are_refused(row, said):
    with pytest.raises(CsvError, match=said):
        read(TABLE + row + "\n")


DOCUMENT = {
    "memory": {"capacity": 256, "reserved": [[0, 16]]},
    "buffers": [
        {"id": "a b", "size": 64, "begin": [0, 0], "end": [2, 0], "alignment": 32},
        {"id": "c", "size": 32, "begin": [0, 1], "end": [0, 3], "slots": 2},
        {"id": "d", "size": 32, "begin": [2, 4], "end": [3, 5]},
    ],
    "penalties": [["c", "d", 3]],
}


def test_a_document_says_what_columns_do_not(tmp_path, capsys):
    given, placed = tmp_path / "given.json", tmp_path / "placed.json"
    given.write_text(json.dumps(DOCUMENT))
    assert main(["plan", str(given), "--output", str(placed)]) == 0
    assert "penalty 0" in capsys.readouterr().out
    problem = read_document(given.read_text(), "F")
    assert problem == read_document(placed.read_text(), "F")
    kept = read_document(placed.read_text(), "F", keep_offsets=True)
    offsets = {b.name: b.pinned for b in kept.buffers}
    plan = solve(problem)
    assert {name: len(at) for name, at in offsets.items()} == {"a b": 1, "c": 2, "d": 1}
    out = io.StringIO()
    write_document(out, given.read_text(), plan)
    assert json.loads(out.getvalue())["buffers"][1]["offsets"] == list(plan.offsets["c"])
    assert main(["plan", str(given), "--capacity", "100"]) == 1


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"capacity": 4}, "unknown keys: capacity"),
        ({"buffers": []}, "one or more"),
        ({"buffers": [{"id": "a", "size": 1}]}, "all buffers must have live"),
        ({"buffers": [{"id": "a", "size": 1, "live": [[2, 1]]}], "penalties": []}, "is empty"),
        ({"penalties": [["c", "x", 1]]}, "unknown buffer 'x'"),
        ({"penalties": 3}, "F: penalties must be a list of lists of two ids, and one or two costs"),
        ({"penalties": [["c", "d"]]}, r"one or two costs, got \['c', 'd'\]"),
        ({"in_place": ["cd"]}, "in_place must be a list of lists of two ids, got 'cd'"),
        ({"separations": [["c", "d", "c"]]}, "separations must be a list of lists of two ids"),
        ({"buffers": [{**DOCUMENT["buffers"][1], "live": [[0, 1]]}]}, "all of them begin and end"),
    ],
)
def test_wrong_documents_are_refused(change, said):
    with pytest.raises(DocumentError, match=said):
        read_document(json.dumps({**DOCUMENT, **change}), "F")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"buffers": [{"id": "a", "size": 1, "size": 2, "live": [[0, 1]]}]}', "'size' is given"),
        ("[" * 100_000, "F: maximum recursion depth"),
    ],
)
def test_a_key_that_is_given_twice_and_endless_text_are_refused(text, said):
    with pytest.raises(DocumentError, match=said):
        read_document(text, "F")


def test_text_that_is_no_json_is_refused(tmp_path, capsys):
    path = tmp_path / "F.json"
    path.write_text("{")
    assert main(["plan", str(path)]) == 2
    assert "F.json" in capsys.readouterr().err
