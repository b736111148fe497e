# SPDX-License-Identifier: Apache-2.0
"""How often loops run, as far as the pipelines are concerned."""

from __future__ import annotations

import pytest
from ascend_modules import module
from pipe_outlines import outline, steps_of, uses
from program_text import program, programs

from passes.ascend.kernel import AscendOptions, machine_of
from passes.planning import Penalty, PipelineUse, Plan, Status
from passes.simulation import Cause, Loop, simulate
from tvm_ext import lowering

KERNELS = programs("""
def loops(x: 64 int32, y: 64 int32, n: T.int32):
    T.func_attr({"tir_var_upper_bound": {"n": 6}})
    sized = T.alloc_buffer((n,), "int32", scope="local.UB")
    count: local.UB 1 int32
    data: local.UB 64 int32
    sized[i] = 1 for i in range(n)
    count[0] = 0
    data[i] = x[i] for i in range(64)
    while count[0] < 4:
        data[i] = data[i] + 1 for i in range(64)
        count[0] = count[0] + sized[0]
    for k in range(4):
        for i in range(k + 1):
            a: local.UB 4 int32
            a[j] = data[i * 4 + j] for j in range(4)
            y[i * 4 + j] = a[j] for j in range(4)
    if data[0] < 3:
        y[i] = data[i] for i in range(64)

def inner_loops(x: 1024, y: 1024, z: 1024):
    for t in range(4):
        a: local.UB 256
        b: local.UB 256
        for k in range(8):
            a[k * 32 + i] = x[t * 256 + k * 32 + i] for i in range(32)
            y[t * 256 + k * 32 + i] = a[k * 32 + i] for i in range(32)
        for k in range(8):
            b[k * 32 + i] = x[t * 256 + k * 32 + i] for i in range(32)
            z[t * 256 + k * 32 + i] = b[k * 32 + i] for i in range(32)
""")


def test_loops_of_all_kinds():
    steps = steps_of(KERNELS["loops"])
    assert outline(steps) == [
        "V",
        "S",
        "MTE2",
        [2, "S", "V", "S"],  # At least two trips where it is not known; the condition is scalar.
        [4, [4, "V", "MTE3"]],
        "S",
        (("MTE3",), ()),
    ]
    assert steps[0].work == 6
    found = uses(KERNELS["loops"])
    assert found["count"] == PipelineUse(scalar=True)
    assert found["a"] == PipelineUse(dma=True, loop=2, runs=16)
    assert found["data"] == PipelineUse(dma=True, scalar=True)


EXTENTS = {
    "n": 2,
    "m": 2,
    "(n + 63) // 64": 2,
    "T.shift_right(n, 6)": 2,
    "T.Cast('int32', m) // 64": 2,
    "sizes[0]": 2,
    "(sizes[0] + 63) // 64": 2,
    "half": 2,
    "T.min(n, 64)": 64,
    "T.min(64 - n * 8, 64)": 64,
    "T.min(sizes[0], 5)": 5,
    "n % 64": 63,
    "7": 7,
}
"""How often a loop is taken to run, by its extent: twice where that is not known."""


@pytest.mark.parametrize("extent", EXTENTS)
def test_a_loop_of_unknown_extent_runs_twice(extent: str):
    func = program(f"""
    def main(x: 64, y: 64, sizes: 4 int32, n: T.int32, m: T.int64):
        half: T.let = n // 2
        for k in range({extent}):
            a: local.UB 64
            a[i] = x[i] for i in range(64)
            y[i] = a[i] for i in range(64)
    """)
    (step,) = (step for step in steps_of(func) if isinstance(step, Loop))
    assert step.extent == EXTENTS[extent]
    assert uses(func)["a"].runs == EXTENTS[extent]


def test_buffers_of_one_loop_wait_once_a_round_whatever_their_inner_loops_are():
    target = lowering.known_target("ascend/910b-llvm")
    kernel = AscendOptions().read(module(KERNELS["inner_loops"], target)["main"])
    assert outline(kernel.program) == [[4, [8, "MTE2", "MTE3"], [8, "MTE2", "MTE3"]]]
    (problem,) = kernel.problems
    assert problem.penalties == (Penalty("a", "b", 4),)
    machine = machine_of(target)
    assert machine is not None
    plan = Plan({"a": (0,), "b": (0,)}, 1024, 4, "by hand", Status.FEASIBLE)
    found = simulate(kernel.program, [(problem, plan)], machine)
    # The first load of `b` in each of 4 rounds, and that of `a` in all but the first.
    waiting = [run for run in found.timeline if Cause.REUSE in dict(run.waits)]
    assert [run.iteration for run in waiting] == [
        (t, 0) for t in range(4) for _ in range(1 if t == 0 else 2)
    ]
