# SPDX-License-Identifier: Apache-2.0
"""The three-level planner: optimal on small problems, right on all, and its levels told truly."""

import gzip
import json
import os
import random
from dataclasses import replace
from itertools import combinations, product
from pathlib import Path

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st
from instances import kernel_problems
from planning_oracles import best_by_brute_force, problems
from sweeps import sample, swept

from passes.ascend.planning import levels
from passes.ascend.planning.levels import pipes_conflict, reuse_of, with_level_penalties
from passes.ascend.planning.mirror_entries import plan_order
from passes.ascend.planning.planner import entries_of, plan_levels
from passes.planning import (
    Budget,
    Buffer,
    Penalty,
    PipelineUse,
    Problem,
    Status,
    charge,
    check,
    lower_bound,
    solve,
    verify,
)
from target_hw.memory import MemoryScope

BUDGET = Budget(nodes=20_000)
ROOT = Path(__file__).parents[3]
DATA = Path(os.environ.get("TVM_EXT_DATA", ROOT.parent / "shared" / "data"))


@st.composite
def pipelined(draw, most_buffers=4):
    """Problems of a unified buffer with uses of pipelines, small enough for brute force."""
    buffers = []
    for index in range(draw(st.integers(1, most_buffers))):
        loop = draw(st.sampled_from([None, 0, 0, 0, 1]))
        use = PipelineUse(
            dma=draw(st.booleans()),
            scalar=draw(st.integers(0, 5)) == 0,
            loop=loop,
            runs=1 if loop is None else draw(st.sampled_from([2, 3])),
        )
        slots = 1 if loop is None else draw(st.sampled_from([1, 1, 2]))
        begin = draw(st.integers(0, 6))
        live = ((begin, draw(st.integers(begin + 1, 7))),)
        buffers.append(Buffer(f"b{index}", draw(st.integers(1, 3)), live, slots=slots, use=use))
    alone = {buffer.name for buffer in buffers if draw(st.integers(0, 9)) == 0}
    pairs = list(combinations((buffer.name for buffer in buffers), 2))
    chosen = draw(st.lists(st.booleans(), min_size=len(pairs), max_size=len(pairs)))
    chosen = [
        is_in_place and not alone & set(p) for p, is_in_place in zip(pairs, chosen, strict=True)
    ]
    memory = MemoryScope("local.UB", draw(st.integers(3, 10)))
    problem = Problem(
        tuple(buffers),
        memory,
        in_place=[pair for pair, is_in_place in zip(pairs, chosen, strict=True) if is_in_place],
        separations=[pair for pair in pairs if alone & set(pair)],
    )
    return with_level_penalties(problem)


def shares_only_in_place(problem, plan):
    """Whether buffers that share a byte have equal offsets and are tied by in-place pairs."""
    tied = {buffer.name: {buffer.name} for buffer in problem.buffers}
    for first, second in problem.in_place:
        joined = tied[first] | tied[second]
        tied.update(dict.fromkeys(joined, joined))
    taken = {
        b.name: {byte for at in plan.offsets[b.name] for byte in range(at, at + b.size)}
        for b in problem.buffers
    }
    return all(
        plan.offsets[one] == plan.offsets[two] and two in tied[one]
        for one, two in combinations(taken, 2)
        if taken[one] & taken[two]
    )


@swept(20, 3000, pipelined())
def test_the_search_is_optimal_with_upgrades(problem):
    plan = solve(problem, "three_level", BUDGET)
    best = best_by_brute_force(problem)
    note(f"{plan!r}, brute force {best}")
    if best is None:
        assert not plan.fits
        return
    check(problem, plan)
    assert plan.fits
    assert plan.penalty == best[0]
    assert plan.peak == best[1] or (plan.penalty == 0 and shares_only_in_place(problem, plan))


@given(problem=st.one_of(pipelined(7), problems(most_buffers=7, most_slots=10)), data=st.data())
@settings(max_examples=20)
def test_plans_are_right_with_every_option(problem, data):
    plan = plan_levels(
        problem,
        BUDGET,
        search=data.draw(st.sampled_from(["search", "mirror"])),
        strategy=data.draw(st.sampled_from(["default", "largest-first"])),
    )
    note(repr(plan))
    assert [v for v in verify(problem, plan) if v.kind != "capacity"] == []
    assert plan.fits == (problem.capacity is None or plan.peak <= problem.capacity)
    assert set(plan.reuse) == {buffer.name for buffer in problem.buffers}


@given(problem=pipelined())
@settings(max_examples=20)
def test_the_search_fits_wherever_the_mirrored_one_does_and_costs_no_more(problem):
    mirrored = solve(problem, "three_level_mirror", BUDGET)
    plan = solve(problem, "three_level", BUDGET)
    if mirrored.fits:
        assert plan.fits
        assert plan.penalty <= mirrored.penalty


@given(problem=pipelined())
@settings(max_examples=20)
def test_a_plan_pays_if_and_only_if_a_buffer_fell(problem):
    plan = solve(problem, "three_level_mirror", BUDGET)
    levels = reuse_of(problem, plan.offsets)
    assert (plan.penalty > 0) == any(reuse.reason for reuse in levels.values())
    across = ("which another loop uses", "which is used outside of its loop")
    assert all(
        (r.level < 2) == (r.reason != "" and not any(text in r.reason for text in across))
        for r in levels.values()
    )


ROLES = {"plain": {}, "dma": {"dma": True}, "scalar": {"scalar": True}}


def test_pipelines_wait_where_the_original_says_so():
    waits = {
        (a, b)
        for a, b in product(ROLES, ROLES)
        if pipes_conflict(PipelineUse(**ROLES[a]), PipelineUse(**ROLES[b]))
    }
    assert waits == {
        ("dma", "dma"),
        ("dma", "plain"),
        ("plain", "dma"),
        ("dma", "scalar"),
        ("scalar", "dma"),
        ("plain", "scalar"),
        ("scalar", "plain"),
    }
    both = PipelineUse(dma=True, scalar=True)
    assert not pipes_conflict(both, PipelineUse(scalar=True))


def buffer(name, size, first, last, slots=1, **use):
    return Buffer(name, size, ((first, last + 1),), slots=slots, use=PipelineUse(**use))


LOAD = {"dma": True, "loop": 1, "runs": 16}


def test_penalties_say_how_often_a_pipeline_waits():
    problem = with_level_penalties(
        Problem(
            (
                buffer("double", 8, 1, 2, 2, **LOAD),
                buffer("single", 8, 3, 4, **LOAD),
                buffer("rare", 8, 5, 6, dma=True, loop=1, runs=4),
                buffer("outside", 8, 7, 8, dma=True, runs=16),
                buffer("plain", 8, 9, 10, loop=1, runs=16),
                buffer("vector", 8, 11, 12, loop=1, runs=16),
                Buffer("unknown", 8, ((13, 14),)),
                buffer("with double", 8, 2, 3, **LOAD),
                buffer("separated", 8, 15, 16, dma=True, loop=1),
                buffer("outside, too", 8, 17, 18, dma=True, runs=16),
            ),
            separations=(("separated", "double"),),
        )
    )
    found = {(p.first, p.second): (p.cost, p.cost_if_slots_match) for p in problem.penalties}
    assert found[("double", "single")] == (48, 16)
    assert found[("double", "rare")] == (12, 4)
    assert found[("double", "outside")] == (1, 1)
    # Each of the two lives through the loops that run its statements.
    assert found[("outside", "outside, too")] == (1, 1)
    assert found[("double", "plain")] == (48, 16)
    assert found[("single", "rare")] == (4, 4)
    assert found[("single", "plain")] == (16, 16)
    absent = [("plain", "vector"), ("double", "unknown"), ("double", "with double")]
    assert not {*absent, ("double", "separated")} & {*found}


def test_what_goes_in_place_is_free_but_for_stall_pairs():
    chain = tuple(buffer(f"b{i}", 8, i, i + 1, **LOAD) for i in range(4))
    pairs = [(f"b{i}", f"b{i + 1}") for i in range(3)]
    assert with_level_penalties(Problem(chain, in_place=pairs)).penalties == ()
    stall = (Penalty("b1", "b2", 5),)
    problem = with_level_penalties(Problem(chain, in_place=pairs, penalties=stall))
    found = {(p.first, p.second): p.cost for p in problem.penalties}
    assert found == {("b1", "b2"): 5, ("b0", "b2"): 16, ("b0", "b3"): 16, ("b1", "b3"): 16}


def test_the_level_of_a_buffer_is_that_of_its_worst_sharing():
    chain = (
        buffer("loaded", 8, 0, 1, 2, **LOAD),
        buffer("far", 8, 0, 1, dma=True, loop=2),
        buffer("near", 16, 2, 3, loop=1, runs=16),
        buffer("stored", 8, 3, 4, 2, **LOAD),
        buffer("last", 8, 4, 5, loop=1, runs=16),
        buffer("alike", 8, 6, 7, loop=1, runs=16),
    )
    stall = Penalty("near", "stored", 48)
    problem = Problem(chain, in_place=[("near", "stored")], penalties=[stall])
    offsets = {"loaded": (0, 32), "far": (8,), "near": (0,), "stored": (0, 32)}
    found = reuse_of(problem, offsets | {"last": (64,), "alike": (64,)})
    assert [found[name].level for name in ("near", "stored", "alike")] == [0, 0, 2]
    assert found["near"].reason.startswith("takes bytes of 'loaded', in the same loop")
    assert found["stored"].reason.startswith("takes bytes of 'near', in place although both")
    assert found["alike"].reason == ""


def test_reasons_speak_of_a_loop_only_where_there_is_one():
    chain = (
        buffer("before", 8, 0, 1, dma=True),
        buffer("inside", 8, 2, 3, dma=True, loop=1, runs=16),
        buffer("after", 8, 4, 5, dma=True),
    )
    together = ({"inside": (0,), "after": (8,)}, {"inside": (8,), "after": (0,)})
    first, second = (reuse_of(Problem(chain), {"before": (0,)} | offsets) for offsets in together)
    assert first["inside"].reason == "takes bytes of 'before', which is used outside of its loop"
    assert second["after"].reason == "takes bytes of 'before', on another pipeline"
    assert (first["inside"].level, second["after"].level) == (2, 0)


def test_the_mirrored_order_is_by_the_units_that_use_a_buffer():
    buffers = (
        buffer("scalar", 1, 0, 1, scalar=True),
        buffer("plain", 1, 0, 1),
        buffer("large", 9, 0, 1),
        buffer("moved", 1, 0, 1, dma=True),
        buffer("alone", 1, 0, 1),
        buffer("alone too", 9, 0, 1),
    )
    apart = [(a.name, b.name) for a, b in combinations(buffers, 2) if "alone" in a.name + b.name]
    problem = Problem(buffers, MemoryScope("local.UB"), separations=apart)
    entries = entries_of(problem)

    def order(strategy):
        found = plan_order(problem, entries, strategy)
        return [entries[item.entry].members[0].name for item in found]

    units = ["alone", "alone too", "moved"]
    assert order("default") == [*units, "plain", "large", "scalar"]
    assert order("largest-first") == [*units, "large", "plain", "scalar"]


def document_example(capacity):
    """A loop that loads A, computes B and C, and stores D; A and D are double-buffered."""
    problem = Problem(
        (
            buffer("A", 32, 1, 2, 2, **LOAD),
            buffer("B", 32, 2, 3, loop=1, runs=16),
            buffer("C", 32, 4, 5, loop=1, runs=16),
            buffer("D", 32, 5, 6, 2, **LOAD),
        ),
        MemoryScope("local.UB", capacity, 32),
    )
    return with_level_penalties(problem)


@pytest.mark.parametrize(
    ("capacity", "levels", "penalty"),
    [
        # All six slots; C on B; C on B and D on A, slot by slot; nothing is left for that.
        (192, {"C": 2, "D": 2}, 0),
        (160, {"C": 2, "D": 2}, 0),
        (96, {"C": 2, "D": 1}, 16),
        (64, None, None),
    ],
)
def test_the_documents_example_falls_level_by_level(capacity, levels, penalty):
    problem = document_example(capacity)
    plan = solve(problem, "three_level")
    if levels is None:
        assert plan.status is Status.INFEASIBLE
        return
    check(problem, plan)
    assert plan.penalty == penalty
    assert {name: plan.reuse[name].level for name in levels} == levels


def test_a_single_buffer_takes_all_slots_of_a_double_one_where_they_are_free():
    # C in the place of one slot of A stalls each iteration; in both it waits for an old one.
    buffers = (
        buffer("A", 32, 1, 2, 2, **LOAD),
        buffer("keep", 32, 1, 6, loop=1, runs=16),
        buffer("C", 32, 4, 6, loop=1, runs=16),
    )
    problem = with_level_penalties(Problem(buffers, MemoryScope("local.UB", 96, 32)))
    plan = solve(problem, "three_level")
    check(problem, plan)
    assert plan.offsets["C"] == plan.offsets["A"]
    assert (plan.penalty, plan.status) == (16, Status.OPTIMAL)
    assert plan.reuse["C"].level == 1
    assert "no plan within 96 bytes makes pipelines wait less" in plan.reuse["C"].reason
    # With something in the place of the other slot there is only the stall.
    other = buffer("other", 32, 4, 6, loop=1, runs=16)
    problem = with_level_penalties(Problem((*buffers, other), MemoryScope("local.UB", 96, 32)))
    plan = solve(problem, "three_level")
    check(problem, plan)
    assert plan.penalty == 96
    assert sorted(len(plan.offsets[name]) for name in ("C", "other")) == [1, 1]
    assert {plan.reuse["C"].level, plan.reuse["other"].level} == {0}


def test_a_buffer_that_takes_the_slots_of_a_smaller_one_does_not_overlap_itself():
    # The slots of A are 8 bytes apart, and C has 12. In both it would meet B slot by slot.
    buffers = (
        replace(buffer("A", 8, 0, 0, 2, **LOAD), pinned=(0, 8)),
        replace(buffer("B", 4, 1, 1, 2, **LOAD), pinned=(0, 16)),
        replace(buffer("C", 12, 2, 2, **LOAD), alignment=8),
    )
    problem = Problem(buffers, MemoryScope("local.UB", 20, 1))
    plan = solve(problem, "three_level")
    check(problem, plan)
    assert len(plan.offsets["C"]) == 1


def kernels():
    with gzip.open(DATA / "ascend_kernels" / "soft.jsonl.gz", "rt", encoding="utf-8") as stream:
        found = [json.loads(line) for line in stream]
    return [kernel for kernel in found if kernel["best_known_cost"] is not None]


def cost_of(kernel):
    cost = 0
    for problem in kernel_problems(kernel):
        plan = solve(problem, "three_level")
        check(problem, plan)
        cost += plan.penalty
    return cost


@pytest.mark.skipif(not DATA.is_dir(), reason=f"there is no data folder {DATA}")
@pytest.mark.parametrize("step", sample((6, 1), 6))
def test_captured_kernels_cost_no_more_than_the_best_known(step):
    for kernel in kernels()[::step]:
        assert cost_of(kernel) <= kernel["best_known_cost"], kernel["name"]


def crowd(count, seed=7, percent=105):
    """Return a tight problem of pipelined buffers."""
    rng = random.Random(seed)
    buffers = []
    for index in range(count):
        first = rng.randrange(4 * count)
        use = {"dma": rng.random() < 0.3, "loop": rng.randrange(3), "runs": 8}
        last = first + rng.randint(count // 8, count // 2)
        buffers.append(buffer(f"b{index}", 32 * rng.randint(1, 64), first, last, **use))
    problem = Problem(tuple(buffers), MemoryScope("local.UB", alignment=32))
    capacity = lower_bound(problem) * percent // 100 // 32 * 32
    memory = MemoryScope("local.UB", capacity, 32)
    return with_level_penalties(replace(problem, memory=memory))


@pytest.mark.parametrize("nodes", [1000, 5000])
def test_a_tight_set_fits_with_few_nodes_and_costs_less_than_first_fit(nodes):
    problem = crowd(24)
    plan = solve(problem, "three_level", Budget(nodes))
    check(problem, plan)
    assert plan.fits
    assert plan.nodes <= nodes
    assert plan == solve(problem, "three_level", Budget(nodes))
    first_fit = solve(problem, "three_level_mirror", Budget(20_000))
    assert plan.penalty < first_fit.penalty


@pytest.mark.parametrize("seed", range(2))
def test_penalties_that_no_problem_lists_cost_the_same(seed, monkeypatch):
    """A plan that first fit makes pays as much, whether its problem lists all pairs or none."""
    listed = crowd(40, seed, 140)
    plan = plan_levels(listed, Budget(0))
    monkeypatch.setattr(levels, "LISTED", 0)
    bare = levels.with_level_penalties(replace(listed, penalties=()))
    assert bare.penalties == ()
    same = plan_levels(bare, Budget(0))
    due = levels.with_penalties_due(bare, plan.offsets)
    assert sum(charge(due, plan, each) for each in due.penalties) == plan.penalty > 0
    assert len(due.penalties) < len(listed.penalties)
    check(levels.with_penalties_due(bare, same.offsets), replace(same, penalty=paid(bare, same)))
    assert reuse_of(due, plan.offsets) == reuse_of(listed, plan.offsets)
    assert same.status is not Status.OPTIMAL
    assert paid(bare, same) > 0


def paid(problem, plan):
    due = levels.with_penalties_due(problem, plan.offsets)
    return sum(charge(due, plan, each) for each in due.penalties)


def test_what_first_fit_does_not_fit_is_searched_for_in_a_large_problem():
    problem = crowd(90, 0, 103)
    assert not solve(problem, "first_fit").fits
    plan = solve(problem, "three_level")
    check(problem, plan)
    assert plan.fits


def test_thousands_of_buffers_are_planned_by_levels_without_a_list_of_pairs():
    rng = random.Random(3)
    buffers = tuple(
        buffer(f"b{n}", 32 * rng.randint(1, 64), n, n + rng.randint(1, 9), **(LOAD | {"dma": d}))
        for n, d in enumerate(rng.random() < 0.3 for _ in range(600))
    )
    problem = with_level_penalties(Problem(buffers, MemoryScope("local.UB", 1 << 15, 32)))
    plan = solve(problem, "three_level")
    check(problem, plan)
    assert problem.penalties == ()
    fell = sum(reuse.level < 2 for reuse in plan.reuse.values())
    blind = solve(problem, "first_fit")
    assert 0 < paid(problem, plan) < paid(problem, blind) / 2
    assert fell < len(buffers)


def test_without_a_capacity_nothing_is_shared():
    problem = document_example(None)
    for name in ("three_level", "three_level_mirror"):
        plan = solve(replace(problem, in_place=()), name)
        check(problem, plan)
        assert (plan.peak, plan.penalty) == (192, 0)


@given(problem=pipelined(7))
@settings(max_examples=20)
def test_with_room_for_all_not_even_operands_share(problem):
    needed = sum(b.size * b.slots for b in problem.buffers)
    roomy = replace(problem, memory=replace(problem.memory, capacity=needed))
    plan = solve(roomy, "three_level", BUDGET)
    check(roomy, plan)
    taken = [
        byte
        for b in roomy.buffers
        for at in plan.offsets[b.name]
        for byte in range(at, at + b.size)
    ]
    assert sorted(taken) == list(range(needed))


def test_in_place_of_a_stored_buffer_only_where_bytes_are_short():
    # `moved` is loaded, `wide` and `sums` are computed, `out` is stored.
    buffers = (
        buffer("moved", 32, 1, 2, **LOAD),
        buffer("wide", 32, 2, 3, loop=1, runs=16),
        buffer("sums", 32, 3, 4, loop=1, runs=16),
        buffer("out", 32, 4, 5, **LOAD),
    )
    pairs = (("moved", "wide"), ("wide", "sums"), ("sums", "out"))
    in_place = {}
    for capacity in (128, 96, 32):
        memory = MemoryScope("local.UB", capacity, 32)
        problem = with_level_penalties(Problem(buffers, memory, in_place=pairs))
        plan = solve(problem, "three_level", BUDGET)
        check(problem, plan)
        in_place[capacity] = [(a, b) for a, b in pairs if plan.offsets[a] == plan.offsets[b]]
    assert in_place == {128: [], 96: [pairs[1]], 32: [*pairs]}
