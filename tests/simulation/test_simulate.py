# SPDX-License-Identifier: Apache-2.0
"""The pipeline simulator: against a second one that ticks, and what must hold of any run."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import note
from hypothesis import strategies as st
from simulation_oracles import (
    MACHINE,
    apart,
    critical_path,
    kernels,
    offsets_of,
    plan_of,
    predecessors,
    ticked,
)
from sweeps import swept

from passes.planning import Buffer, PipelineUse, Problem
from passes.simulation import Alternative, Cause, Loop, Statement, simulate
from passes.simulation.simulate import TIMELINE_RUNS
from target_hw import Machine, MemoryScope, Pipe


@st.composite
def planned_kernels(draw, **options):
    program, problem = draw(kernels(**options))
    return program, problem, draw(offsets_of(problem))


def spread(program, times):
    """Return the program with the extents of its loops multiplied."""
    steps = []
    for step in program:
        if isinstance(step, Loop):
            steps.append(Loop(step.number, step.extent * times, spread(step.body, 1)))
        else:
            steps.append(step)
    return tuple(steps)


@swept(20, 400, planned_kernels())
def test_it_agrees_with_a_clock_that_ticks(kernel):
    program, problem, plan = kernel
    expected = ticked(program, problem, plan)
    found = simulate(program, [(problem, plan)], MACHINE, timeline=10**9)
    note(str(expected))
    assert found.makespan == max((end for _, end in expected), default=0)
    assert found.runs == len(expected)
    for pipe in found.pipes:
        assert pipe.busy + pipe.idle == found.makespan
    assert [(run.begin, run.end) for run in found.timeline] == expected


@swept(12, 250, planned_kernels(most_extent=3), st.integers(5, 40))
def test_skipping_a_steady_state_changes_nothing(kernel, times):
    program, problem, plan = kernel
    program = spread(program, times)
    found = simulate(program, [(problem, plan)], MACHINE, timeline=0)
    whole = run_through(program, problem, plan)
    assert found.makespan == whole.makespan
    assert found.pipes == whole.pipes
    assert found.runs == whole.runs
    assert sorted(map(repr, found.stalls)) == sorted(map(repr, whole.stalls))


def run_through(program, problem, plan):
    """Simulate without ever looking for a steady state."""
    return simulate(program, [(problem, plan)], MACHINE, timeline=10**9)


@swept(20, 400, planned_kernels())
def test_no_run_is_shorter_than_its_bounds_and_no_reuse_makes_it_faster(kernel):
    program, problem, plan = kernel
    found = simulate(program, [(problem, plan)], MACHINE)
    assert found.makespan >= max((pipe.busy for pipe in found.pipes), default=0)
    assert found.makespan >= critical_path(program, problem, plan)
    free = simulate(program, [(problem, apart(problem))], MACHINE)
    assert free.makespan <= found.makespan
    assert free.waited(Cause.REUSE) == 0
    assert sum(stall.cycles for stall in found.stalls) <= sum(pipe.idle for pipe in found.pipes)


@swept(15, 300, planned_kernels(), st.data())
def test_bytes_of_its_own_for_one_buffer_never_cost_time(kernel, data):
    program, problem, plan = kernel
    name = data.draw(st.sampled_from([buffer.name for buffer in problem.buffers]))
    moved = tuple(1000 + offset for offset in plan.offsets[name])
    freed = plan_of({**plan.offsets, name: moved}, problem)
    before = simulate(program, [(problem, plan)], MACHINE)
    after = simulate(program, [(problem, freed)], MACHINE)
    assert after.makespan <= before.makespan


@swept(15, 300, planned_kernels())
def test_where_every_wait_is_counted_a_pipe_is_idle_only_for_a_wait_or_at_its_end(kernel):
    program, problem, plan = kernel
    found = run_through(program, problem, plan)
    for pipe in found.pipes:
        waited = sum(stall.cycles for stall in found.stalls if stall.pipe == pipe.pipe)
        last = max((run.end for run in found.timeline if run.pipe == pipe.pipe), default=0)
        assert pipe.idle == waited + found.makespan - last


# ---------------------------------------------------------------------------- by hand


def buffer(name, loop, slots=1, size=1):
    return Buffer(name, size, ((0, 1),), slots=slots, use=PipelineUse(loop=loop))


def copy_through(slots, extent, load=2, compute=3):
    """Return a loop that loads a tile and computes on it."""
    problem = Problem((buffer("a", 0, slots),), MemoryScope("local.UB"))
    body = (Statement("load", "MTE2", (), ("a",), load), Statement("use", "V", ("a",), (), compute))
    return (Loop(0, extent, body),), problem


def test_one_slot_is_a_chain_and_two_overlap():
    one, two = (
        simulate(program, [(problem, apart(problem))], MACHINE)
        for program, problem in (copy_through(1, 10), copy_through(2, 10))
    )
    assert one.makespan == 10 * (2 + 3)
    assert two.makespan == 2 + 10 * 3
    assert one.waited(Cause.SLOT) == 9 * 3
    # The load of each further tile waits until the tile before the last is done with.
    assert two.waited(Cause.SLOT) == 1 + 7 * 1


def test_a_stall_says_who_waits_for_whom_and_why():
    problem = Problem((buffer("a", None), buffer("b", None)), MemoryScope("local.UB"))
    program = (
        Statement("load a", "MTE2", (), ("a",), 2),
        Statement("use a", "V", ("a",), (), 5),
        Statement("load b", "MTE2", (), ("b",), 2),
    )
    shared = simulate(program, [(problem, plan_of({"a": (0,), "b": (0,)}, problem))], MACHINE)
    by_pipe = {stall.pipe: stall for stall in shared.stalls}
    stall = by_pipe["MTE2"]
    assert (stall.cause, stall.statement, stall.buffer) == (Cause.REUSE, "load b", "b")
    assert (stall.other_statement, stall.other_buffer, stall.cycles) == ("use a", "a", 5)
    assert by_pipe["V"].cause is Cause.DATA
    assert shared.makespan == 2 + 5 + 2
    assert simulate(program, [(problem, apart(problem))], MACHINE).makespan == 2 + 5


def test_a_value_replaced_within_an_iteration_is_the_programs_own_wait():
    problem = Problem((buffer("a", 0),), MemoryScope("local.UB"))
    body = (
        Statement("load", "MTE2", (), ("a",), 1),
        Statement("use", "V", ("a",), (), 4),
        Statement("again", "MTE2", (), ("a",), 1),
        Statement("use again", "V", ("a",), (), 4),
    )
    found = simulate((Loop(0, 2, body),), [(problem, apart(problem))], MACHINE)
    causes = {(s.statement, s.cause) for s in found.stalls if s.pipe == "MTE2"}
    assert causes == {("again", Cause.DATA), ("load", Cause.SLOT)}
    # What it replaces may be what the first statement of the iteration writes.
    body = (Statement("fill", "V", (), ("a",), 4), Statement("load", "MTE2", (), ("a",), 1))
    found = simulate((Loop(0, 2, body),), [(problem, apart(problem))], MACHINE)
    causes = {(s.statement, s.cause) for s in found.stalls}
    assert causes == {("load", Cause.DATA), ("fill", Cause.SLOT)}


def test_of_a_branch_the_longer_body_runs():
    problem = Problem((), MemoryScope("local.UB"))
    short, long = (Statement(name, "V", (), (), work) for name, work in (("short", 2), ("long", 9)))
    for branch in (
        Alternative((short,), (long,)),
        Alternative((long,), (short,)),
        Alternative((long,)),
    ):
        assert simulate((branch,), [(problem, apart(problem))], MACHINE).makespan == 9


def test_a_long_loop_costs_no_more_than_a_short_one():
    program, problem = copy_through(2, 10**9)
    found = simulate(program, [(problem, apart(problem))], MACHINE)
    assert found.makespan == 2 + 3 * 10**9
    assert found.runs == 2 * 10**9
    assert len(found.timeline) == TIMELINE_RUNS


def both_ways(program, problem, plan):
    """Return the makespan with every steady state skipped, and with none."""
    found = simulate(program, [(problem, plan)], MACHINE, timeline=0)
    whole = run_through(program, problem, plan)
    assert (found.pipes, found.runs) == (whole.pipes, whole.runs)
    return found.makespan, whole.makespan


def test_a_steady_state_is_not_taken_for_one_before_the_slots_are_full():
    # The loads get one cycle further ahead with each iteration, until eight slots are full. What
    # follows on their pipe begins when the last one ends, which waited for the use of a slot.
    program, problem = copy_through(8, 1000, load=10, compute=11)
    program = (*program, Statement("last", "MTE2", (), (), 500))
    expected = 10 + 11 * (1000 - 8) + 10 + 500
    assert both_ways(program, problem, apart(problem)) == (expected,) * 2


def test_no_state_is_steady_while_what_was_before_the_loop_is_waited_for():
    # The computation waits for the weights, and then catches up with the loads, far ahead by then.
    (loop,), problem = copy_through(40, 60, load=10, compute=5)
    load, use = loop.body
    weights = Statement("weights", "S", (), ("w",), 100)
    program = (weights, replace(loop, body=(load, replace(use, reads=("a", "w")))))
    problem = replace(problem, buffers=(*problem.buffers, buffer("w", None)))
    assert both_ways(program, problem, apart(problem)) == (60 * 10 + 5,) * 2


def test_what_follows_a_skipped_loop_waits_for_its_last_uses():
    loops, problem = copy_through(1, 1024, load=2, compute=30)
    program = (*loops, Statement("late", "S", (), ("b",), 5))
    problem = replace(problem, buffers=(*problem.buffers, buffer("b", None)))
    over = plan_of({"a": (0,), "b": (0,)}, problem)
    assert both_ways(program, problem, over) == (1024 * 32 + 5,) * 2
    assert both_ways(program, problem, apart(problem)) == (1024 * 32,) * 2


def test_pipes_that_drift_apart_are_still_extrapolated():
    # Nothing ties the loads to the computation, so the loads run ever further ahead.
    problem = Problem((buffer("a", 0), buffer("b", 0)), MemoryScope("local.UB"))
    body = (Statement("load", "MTE2", (), ("a",), 2), Statement("use", "V", (), ("b",), 3))
    found = simulate((Loop(0, 10**9, body),), [(problem, apart(problem))], MACHINE)
    assert (found.makespan, found.idle("MTE2"), found.idle("V")) == (3 * 10**9, 10**9, 0)


def test_cores_have_transfers_of_their_own():
    cores = (("cube", ("local.L1",)), ("vector", ("local.UB",)))
    machine = Machine((Pipe("MTE2", "bytes", 1),), cores)
    l1 = Problem((buffer("a", None),), MemoryScope("local.L1"))
    ub = Problem((buffer("b", None),), MemoryScope("local.UB"))
    program = (
        Statement("load a", "MTE2", (), ("a",), 5),
        Statement("load b", "MTE2", (), ("b",), 5),
    )
    placed = [(l1, apart(l1)), (ub, apart(ub))]
    apart_cores = simulate(program, placed, machine)
    assert [pipe.pipe for pipe in apart_cores.pipes] == ["MTE2 cube", "MTE2 vector"]
    assert apart_cores.makespan == 5
    together = simulate(program, placed, replace(machine, cores=()))
    assert (together.makespan, [pipe.pipe for pipe in together.pipes]) == (10, ["MTE2"])
    # Where only one of them moves anything, all of a name are one pipe.
    program = (program[0], Statement("elsewhere", "MTE2", (), (), 5))
    one_core = simulate(program, placed, machine)
    assert (one_core.makespan, [pipe.pipe for pipe in one_core.pipes]) == (10, ["MTE2"])


def test_scopes_do_not_share_bytes_and_an_empty_program_takes_no_time():
    l1 = Problem((buffer("a", None),), MemoryScope("local.L1"))
    ub = Problem((buffer("b", None),), MemoryScope("local.UB"))
    program = (Statement("one", "MTE2", (), ("a",), 5), Statement("two", "V", (), ("b",), 5))
    assert simulate(program, [(l1, apart(l1)), (ub, apart(ub))], MACHINE).makespan == 5
    found = simulate((), [], MACHINE)
    assert (found.makespan, found.pipes, found.stalls, found.timeline) == (0, (), (), ())


def test_the_rate_is_that_of_the_scope_and_width():
    pipe = Pipe("M", "bytes", 10, 3, to_scope=(("local.L0B", 5),), at_bits=(("8", 20), ("16", 4)))
    assert pipe.cycles(20) == 3 + 1
    assert pipe.cycles(20, 16) == 3 + 5
    assert pipe.cycles(20, 12) == 3 + 5
    assert pipe.cycles(21, 64) == 3 + 6
    assert pipe.cycles(20, 16, ("local.L0B",)) == 3 + 4
    assert Pipe("S", "elements", 1).cycles(0) == 1


ONE = Problem((buffer("a", 0, 2),), MemoryScope("local.UB"), name="kernel/UB")
LOAD = Statement("load", "MTE2", (), ("a",), 1)


@pytest.mark.parametrize(
    ("program", "placed", "message"),
    [
        (
            (Loop(0, 1, (replace(LOAD, pipe="MTE9"),)),),
            [(ONE, apart(ONE))],
            "statement 'load': machine: no pipe 'MTE9'; it has: MTE2, V, MTE3, S",
        ),
        (
            (Loop(0, 1, (replace(LOAD, writes=("x",)),)),),
            [(ONE, apart(ONE))],
            "statement 'load': no problem has a buffer 'x'",
        ),
        ((LOAD,), [(ONE, apart(ONE))], "statement 'load' uses buffer 'a' outside of loop 0"),
        (
            (Loop(0, 1, (LOAD,)), Loop(0, 1, (LOAD,))),
            [(ONE, apart(ONE))],
            "loop 0 is in the program twice",
        ),
        ((Loop(0, -1, (LOAD,)),), [(ONE, apart(ONE))], "loop 0: its extent must not be negative"),
        (
            (Loop(0, 1, (replace(LOAD, work=-1),)),),
            [(ONE, apart(ONE))],
            "statement 'load': work must not be negative",
        ),
        (
            (Loop(0, 1, (replace(LOAD, element_bits=0),)),),
            [(ONE, apart(ONE))],
            "statement 'load': work must not be negative and elements must have bits",
        ),
        ((), [(ONE, apart(ONE))] * 2, "kernel/UB: buffer 'a' is in two problems"),
        (
            (),
            [(ONE, plan_of({"a": (0,)}, ONE))],
            "kernel/UB: buffer 'a' has 2 slots, the plan has 1 offsets for it",
        ),
        (
            (),
            [(replace(ONE, buffers=(buffer("a", None, 2),)), apart(ONE))],
            "kernel/UB: buffer 'a' has 2 offsets, but no loop that takes turns",
        ),
    ],
)
def test_what_can_not_be_simulated_is_refused_by_name(program, placed, message):
    with pytest.raises(ValueError, match="^" + message):
        simulate(program, placed, MACHINE)


def test_predecessors_of_the_oracle_are_earlier():
    program, problem = copy_through(2, 4)
    _, before = predecessors(program, problem, apart(problem))
    assert all(other < number for number, others in enumerate(before) for other in others)
