# SPDX-License-Identifier: Apache-2.0
"""What the three levels cost on the guide's own example.

A loop of four statements: `op1` loads A, `op2` and `op3` compute with B and with C, `op4` stores D;
A and D have two slots. The guide gives no data flow, so this is the least that there can be: A is
used up by `op2`, B and C are each needed during one statement only, and D is what is stored.
Source: AscendNPU-IR, developer guide, "Plan Memory", section "Three-level reuse".
"""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st
from simulation_oracles import MACHINE
from sweeps import swept

from passes.planning import Buffer, PipelineUse, Plan, Problem, Status
from passes.simulation import Cause, Loop, Statement, simulate
from target_hw import MemoryScope
from target_hw.ascend import MACHINES

SIZE = 32 * 1024
"""Bytes of one slot of each buffer: five fit into UB where six would be needed."""


def problem(loop=0):
    def use(dma):
        return PipelineUse(dma=dma, loop=loop)

    return Problem(
        (
            Buffer("A", SIZE, ((0, 2),), slots=2, use=use(True)),
            Buffer("B", SIZE, ((1, 2),), use=use(False)),
            Buffer("C", SIZE, ((2, 3),), use=use(False)),
            Buffer("D", SIZE, ((1, 4),), slots=2, use=use(True)),
        ),
        MemoryScope("local.UB", 5 * SIZE, alignment=32),
        name="document",
    )


def program(extent, load, compute, store, loop=0):
    """Return the loop; durations are the work, in the units of the machine."""
    body = (
        Statement("op1", "MTE2", (), ("A",), load),
        Statement("op2", "V", ("A",), ("B", "D"), compute),
        Statement("op3", "V", ("D",), ("C", "D"), compute),
        Statement("op4", "MTE3", ("D",), (), store),
    )
    return (Loop(loop, extent, body),)


def blocks(outer, extent, load, compute, store):
    """Return the loop inside another one, so that it begins anew with the first slot."""
    return (Loop(1, outer, program(extent, load, compute, store)),)


def _plan(c, d=(2, 3), b=4):
    offsets = {"A": (0, 1), "B": (b,), "C": c, "D": d}
    scaled = {name: tuple(SIZE * o for o in places) for name, places in offsets.items()}
    peak = SIZE + max(o for places in scaled.values() for o in places)
    return Plan(scaled, peak, 0, "by hand", Status.FEASIBLE)


PLANS = {
    "no reuse": _plan(c=(5,)),
    "level 2": _plan(c=(4,)),
    "level 1": _plan(c=(0, 1)),
    "level 0": _plan(c=(0,)),
}
"""C has bytes of its own; is over B; over both slots of A, with one each; over the first of A."""


def spans(steps):
    """Return the makespan under each plan, by its name."""
    return {
        name: simulate(steps, [(problem(), plan)], MACHINE).makespan for name, plan in PLANS.items()
    }


def test_as_in_the_figures_only_one_slot_of_a_double_buffer_stalls_the_loads():
    found = spans(program(9, load=4, compute=2, store=2))
    assert found == {"no reuse": 42, "level 2": 42, "level 1": 42, "level 0": 58}
    below = simulate(program(9, 4, 2, 2), [(problem(), PLANS["level 0"])], MACHINE)
    (stall,) = [s for s in below.stalls if s.cause is Cause.REUSE]
    assert (stall.pipe, stall.statement, stall.buffer) == ("MTE2", "op1", "A")
    assert (stall.other_statement, stall.other_buffer) == ("op3", "C")


def test_level_2_beats_level_1_beats_level_0_where_the_loop_is_entered_again():
    # With an odd number of tiles, the first slot of A is wanted again right after its last use:
    # by then op2 is done with it, but op3 is not.
    found = spans(blocks(4, 5, load=4, compute=2, store=2))
    assert found["no reuse"] == found["level 2"] < found["level 1"] < found["level 0"]
    assert found == {"no reuse": 92, "level 2": 92, "level 1": 98, "level 0": 130}


durations = st.tuples(*[st.integers(1, 9)] * 3)


def test_level_1_costs_in_one_loop_where_a_store_holds_what_the_load_waits_for():
    # x is loaded, wide is computed from it, y from that, and stored.
    kib = 1024
    use = {dma: PipelineUse(dma=dma, loop=0, runs=8) for dma in (True, False)}
    asked = Problem(
        (
            Buffer("x", 8 * kib, ((0, 2),), slots=2, use=use[True]),
            Buffer("wide", 16 * kib, ((1, 3),), use=use[False]),
            Buffer("y", 8 * kib, ((2, 4),), slots=2, use=use[True]),
        ),
        MemoryScope("local.UB", 48 * kib, alignment=32),
    )
    body = (
        Statement("load", "MTE2", (), ("x",), 8 * kib),
        Statement("widen", "V", ("x",), ("wide",), 4 * kib, 32),
        Statement("narrow", "V", ("wide",), ("y",), 4 * kib, 32),
        Statement("store", "MTE3", ("y",), (), 8 * kib),
    )
    found = []
    for places in ((0, 8, 16, 32, 40), (0, 8, 16, 0, 8), (0, 8, 16, 8, 0)):
        a, b, c, d, e = (kib * place for place in places)
        plan = replace(PLANS["level 2"], offsets={"x": (a, b), "wide": (c,), "y": (d, e)})
        simulation = simulate((Loop(0, 8, body),), [(asked, plan)], MACHINES["ascend/910b"])
        found.append(simulation.makespan)
    assert found == [2419, 2899, 5296]


@swept(30, 600, st.integers(1, 4), st.integers(1, 9), durations)
def test_a_better_level_never_takes_longer(outer, extent, times):
    found = spans(blocks(outer, extent, *times))
    assert found["no reuse"] == found["level 2"] <= found["level 1"] <= found["level 0"]


@swept(30, 600, st.integers(1, 20), durations)
def test_in_one_loop_level_1_loses_nothing_whatever_the_durations(extent, times):
    # Every cycle of waits has as many steps as it spans iterations, so its mean is no more than
    # the busiest pipe's.
    found = spans(program(extent, *times))
    assert found["level 1"] == found["level 2"]


def test_slots_taken_out_of_step_stall_in_every_iteration():
    out_of_step = replace(PLANS["level 1"], offsets={**PLANS["level 1"].offsets, "C": (SIZE, 0)})
    found = simulate(program(9, 4, 2, 2), [(problem(), out_of_step)], MACHINE)
    assert found.makespan == 74
    assert found.waited(Cause.REUSE) == 8 * 4
