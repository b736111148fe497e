# SPDX-License-Identifier: Apache-2.0
"""The example by which the PlanMemory guide explains its levels, as data.

A loop of four statements: `op1` loads A, `op2` and `op3` compute with B and with C, `op4` stores D;
A and D have two slots. The guide gives no data flow, so this is the least that there can be: A is
used up by `op2`, B and C are each needed during one statement only, and D is what is stored.
Source: AscendNPU-IR, developer guide, "Plan Memory", section "Three-level reuse".
"""

from __future__ import annotations

from passes.planning import Buffer, Plan, Problem, Status
from passes.planning.problem import PipelineUse
from passes.simulation import Loop, Statement
from target_hw import MemoryScope

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
