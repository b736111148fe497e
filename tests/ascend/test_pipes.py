# SPDX-License-Identifier: Apache-2.0
"""Which pipe runs what, and how buffers meet the pipelines."""

from __future__ import annotations

import pytest
import tvm
from ascend_modules import MEMORY, module, outline, pipelines, steps_of, uses
from made_kernels import lowered
from program_text import program, programs

import tvm_ext
from passes.ascend.analysis.instructions import route
from passes.ascend.analysis.pipes import Pipelines
from passes.ascend.kernel import AscendOptions, machine_of
from passes.planning import Penalty, PipelineUse, Plan, Status
from passes.prim_func.problems import ProblemOptions, find_problems
from passes.simulation import Cause, Loop, Statement, simulate, statements_of
from tvm_ext import lowering, workloads

UB, L1, L0A, L0B, L0C = (f"local.{name}" for name in ("UB", "L1", "L0A", "L0B", "L0C"))


@pytest.mark.parametrize(
    ("reads", "writes", "pipe"),
    [
        (["global"], [UB], "MTE2"),
        (["global"], [L1], "MTE2"),
        (["global.workspace"], [L0B], "MTE2"),
        ([L1], [L0A], "MTE1"),
        ([L1], ["local.BT"], "MTE1"),
        ([L0A, L0B], [L0C], "M"),
        ([L0A, L0B, "local.BT"], [L0C], "M"),
        ([], [L0C], "M"),
        ([L1, L1], [L0C], "M"),
        ([UB, "local"], [UB], "V"),
        (["global", "local"], [UB], "MTE2"),
        ([UB], ["local"], "S"),
        ([UB], [], "S"),
        ([L0C], ["global"], "FIX"),
        ([L0C], [UB], "FIX"),
        ([L0C], [L0C], None),
        ([L0C, "local.FP"], ["global.workspace"], "FIX"),
        ([UB], ["global"], "MTE3"),
        ([UB], [L1], "MTE3"),
        ([UB, UB], [UB], "V"),
        ([], [UB], "V"),
        ([UB, "global"], [UB], None),
        (["global"], ["global"], None),
        ([], ["global"], None),
        ([L1], [UB], None),
        ([UB], [UB, "global"], None),
    ],
)
def test_scopes_tell_the_pipe(reads: list[str], writes: list[str], pipe: str | None):
    assert route(reads, writes) == pipe


KERNELS = programs("""
def cube(x: 256 float16, w: 256 float16, y: 256):
    for _ in range(2):
        a1, b1: local.L1 256 float16
        a0: local.L0A 256 float16
        b0: local.L0B 256 float16
        c0: local.L0C 256
        a1[i] = x[i] for i in range(256)
        b1[i] = w[i] for i in range(256)
        a0[i] = a1[i] for i in range(256)
        for i in range(16):
            b0[i * 16 + j] = b1[j * 16 + i] for j in range(16)
        for i in range(16):
            for j in range(16):
                c0[i * 16 + j] = T.float32(0)
                for k in range(16):
                    c0[i * 16 + j] = c0[i * 16 + j] + T.Cast("float32", a0[i * 16 + k]) * T.Cast(
                        "float32", b0[k * 16 + j]
                    )
        y[i] = T.max(c0[i], T.float32(0)) for i in range(256)

def vector(x: 512, y: 512):
    for tile in range(8):
        a: local.UB 64 float32 {"multi_buffer": 2}
        b: local.UB 64
        most: local.UB 8
        one: local.UB 1
        wide: local.UB 64 int64 {"mem_unique": True}
        a[i] = x[tile * 64 + i] for i in range(64)
        for i in range(8):
            for j in range(8):
                if j == 0:
                    most[i] = T.float32(-1000)
                most[i] = T.max(most[i], a[i * 8 + j])
        one[0] = most[0] * most[1]
        wide[i] = T.Cast("int64", a[i]) for i in range(64)
        b[i] = a[i] * one[0] + T.Cast("float32", wide[i]) for i in range(64)
        y[tile * 64 + i] = b[i] for i in range(64)

def conditional(x: 64 float16, m: 64 int32, y: 64 float16):
    a: local.UB 64 float16
    k: local.UB 64 int32
    a[i] = x[i] for i in range(64)
    k[i] = m[i] for i in range(64)
    for i in range(64):
        if k[i] == 0:
            a[i] = a[i] + T.float16(1)
    y[i] = a[i] for i in range(64)

def named(x: 64, y: 64):
    a, b: local.UB 64
    with T.attr({"pipe": "V"}):
        a[i] = x[i] for i in range(64)
        b[i] = a[i] * T.float32(2) for i in range(64)
    y[i] = b[i] for i in T.serial(64, annotations={"pipe": "S"})

def short_matmul(x: 16384 float16, w: 16384 float16, y: 16384):
    a, b: local.L1 16384 float16
    c: local.L0C 16384
    a[i] = x[i] for i in range(16384)
    b[i] = w[i] for i in range(16384)
    for i, j, k in T.grid(128, 128, 128):
        if k == 0:
            c[i * 128 + j] = T.float32(0)
        c[i * 128 + j] = c[i * 128 + j] + T.Cast("float32", a[i * 128 + k]) * T.Cast(
            "float32", b[k * 128 + j]
        )
    y[i] = c[i] for i in range(16384)

def offset_by_a_register(x: 512, y: 512):
    n: local 1 int32
    n[0] = 0
    while n[0] < 8:
        a: local.UB 64
        b: local.L1 64
        a[i] = x[i + n[0] * 64] for i in range(64)
        b[i] = a[i] for i in range(64)
        y[i + n[0] * 64] = a[i] + T.float32(1) for i in range(64)
        n[0] = n[0] + 1

def undecided(x: 64, y: 64):
    a, b: local.UB 64
    a[i] = x[i] for i in range(64)
    b[i] = a[i] + x[i] for i in range(64)
    y[i] = b[i] for i in range(64)
""")


def test_a_tiled_matmul():
    steps = steps_of(KERNELS["cube"])
    assert outline(steps) == [[2, "MTE2", "MTE2", "MTE1", "MTE1", "M", "FIX"]]
    (loop,) = steps
    *_, multiply, drain = loop.body
    # The accumulator is cleared by the instruction itself: it does not read what was there.
    assert multiply == Statement("c0 from a0, b0", "M", ("a0", "b0"), ("c0",), 16**3, 16)
    # Bytes that a transfer moves are those that it writes.
    assert drain == Statement("y from c0", "FIX", ("c0",), (), 1024, 32)
    assert loop.body[0] == Statement("a1 from x", "MTE2", (), ("a1",), 512, 16)
    assert uses(KERNELS["cube"]) == {
        "a1": PipelineUse(dma=True, loop=0, runs=2),
        "b1": PipelineUse(dma=True, loop=0, runs=2),
        "a0": PipelineUse(loop=0, runs=2),
        "b0": PipelineUse(loop=0, runs=2),
        "c0": PipelineUse(dma=True, loop=0, runs=2),
    }


def test_vector_and_scalar_unit():
    steps = steps_of(KERNELS["vector"])
    assert outline(steps) == [[8, "MTE2", "V", "S", "V", "V", "MTE3"]]
    found = list(statements_of(steps))
    # A reduction's work is what it reduces, not also what its first step clears.
    assert (found[1].work, found[1].reads) == (64, ("most", "a"))
    assert (found[2].work, found[3].element_bits) == (1, 64)
    assert uses(KERNELS["vector"]) == {
        "a": PipelineUse(dma=True, loop=0, runs=8),
        "b": PipelineUse(dma=True, loop=0, runs=8),
        "most": PipelineUse(scalar=True, loop=0, runs=8),
        "one": PipelineUse(scalar=True, loop=0, runs=8),
        "wide": PipelineUse(loop=0, runs=8),
    }


@pytest.mark.parametrize(
    ("dtype", "value", "pipe"),
    [
        ("int32", "a[i] + 1", "V"),
        ("int64", "a[i] + T.int64(1)", "S"),
        ("int64", "T.bitwise_and(a[i], T.int64(1))", "V"),
        ("int16", "a[i] % T.int16(3)", "V"),
        ("int32", "a[i] % 3", "S"),
        ("int32", "T.Select(a[i] == 3, 1, 2)", "V"),
        ("int32", "T.Select(a[i] < 3, 1, 2)", "S"),
        ("int16", "T.Select(a[i] == T.int16(3), T.int16(1), T.int16(2))", "S"),
        ("float32", "T.Select(a[i] < T.float32(3), T.float32(1), T.float32(2))", "V"),
        ("float64", "T.exp(a[i])", "V"),
        ("float64", "T.fabs(a[i])", "S"),
    ],
)
def test_what_has_no_vector_instruction_is_the_scalar_units(dtype: str, value: str, pipe: str):
    func = program(f"""
        def computed(x: 64 {dtype}):
            a, b: local.UB 64 {dtype}
            b[i] = {value} for i in range(64)
            x[i] = b[i] for i in range(64)
    """)
    assert outline(steps_of(func)) == [pipe, "MTE3"]


def test_a_condition_makes_no_element_wider():
    _, _, adds, _ = statements_of(steps_of(KERNELS["conditional"]))
    assert adds == Statement("a from k, a", "V", ("k", "a"), ("a",), 64, 16)


def test_a_named_pipe_is_one_statement():
    first, second = steps_of(KERNELS["named"])
    # What it writes before it reads is not read from before.
    assert first == Statement("a, b from x", "V", (), ("a", "b"), 128, 32)
    assert second == Statement("y from b", "S", ("b",), (), 64, 32)
    assert uses(KERNELS["named"])["b"].scalar
    assert not uses(KERNELS["named"])["a"].dma


@pytest.mark.parametrize(
    ("outer", "inner", "message"),
    [
        (
            "VECTOR",
            "VECTOR",
            r"unknown pipe 'VECTOR' of a statement on 'a' in local\.UB; there are",
        ),
        ("V", "S", "pipe 'S' is named inside of pipe 'V'"),
    ],
)
def test_wrong_names_of_pipes_are_refused(outer: str, inner: str, message: str):
    wrong = program(f"""
        def wrong(x: 64, y: 64):
            a: local.UB 64
            with T.attr({{"pipe": "{outer}"}}):
                a[i] = x[i] for i in T.serial(64, annotations={{"pipe": "{inner}"}})
            y[i] = a[i] for i in range(64)
    """)
    with pytest.raises(ValueError, match=message):
        steps_of(wrong)


@pytest.mark.parametrize("name", workloads.ascend_kernels())
def test_statements_of_the_kernels_agree_with_a_plain_reading(name: str):
    from kernel_facts import instructions

    func = lowered(name, "fits")[name]
    found = find_problems(func, ProblemOptions(memory=MEMORY))
    made = Pipelines(found)
    assert [s.pipe for s in statements_of(made.program)] == [i.pipe for i in instructions(func)]


def pipes(func) -> list[str]:
    return [statement.pipe for statement in statements_of(steps_of(func))]


def test_a_product_that_reads_l1_is_the_cube_units():
    assert pipes(KERNELS["short_matmul"]) == ["MTE2", "MTE2", "M", "FIX"]
    assert not pipelines(KERNELS["short_matmul"])[1].guesses


def test_a_register_in_an_index_decides_nothing():
    assert [pipe for pipe in pipes(KERNELS["offset_by_a_register"]) if pipe != "S"] == [
        "MTE2",
        "MTE3",
        "MTE3",
    ]
    assert not pipelines(KERNELS["offset_by_a_register"])[1].guesses


def test_a_pipe_that_nothing_decides_is_a_guess():
    assert pipes(KERNELS["undecided"]) == ["MTE2", "S", "MTE3"]
    assert pipelines(KERNELS["undecided"])[1].guesses == ("b from a, x",)


def test_a_guess_is_told_once_and_where_it_matters(caplog: pytest.LogCaptureFixture):
    mod = tvm.IRModule({"undecided": KERNELS["undecided"]})
    with tvm_ext.use("AscendPlanMemory"):  # In two modes, of which one has nothing to plan.
        tvm.tirx.build(mod, target="ascend/910b-llvm")
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "b from a, x" in caplog.text


# How often loops run


TRIPS = programs("""
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
    steps = steps_of(TRIPS["loops"])
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
    found = uses(TRIPS["loops"])
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
    kernel = AscendOptions().read(module(TRIPS["inner_loops"], target)["main"])
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
