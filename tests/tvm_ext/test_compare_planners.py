# SPDX-License-Identifier: Apache-2.0
"""All planners side by side: the numbers against plain counts, the tables, folders and workers."""

from __future__ import annotations

import json

import pytest
import tvm
from chain import CHAIN
from numbers_of import numbers, ours
from program_text import program
from tvm import relax

import tvm_ext
from passes.planning import Buffer, Plan, Problem, Status, planner_names
from target_hw import MemoryHierarchy, MemoryScope, with_memory
from tvm_ext.commands.report_command import programs_in
from tvm_ext.reading.programs import load_program, program_of
from tvm_ext.report import MemoryView, PlannedProblem, Report

FOR_LEVELS = {"three_level", "three_level_mirror"}

TABLE = "id,lower,upper,size\na,0,2,64\nb,1,3,64\nc,2,4,64\n"


two_scopes = program("""
def two_scopes(a: 64, b: 64):
    x: global 64
    y: local.UB 64
    z: local.UB 32
    x[i] = a[63 - i] for i in range(64)
    y[i] = x[63 - i] for i in range(64)
    z[i] = y[63 - i] + y[31 - i] for i in range(32)
    b[i] = z[31 - i] for i in range(32)
""")


@pytest.fixture
def folder(tmp_path, write):
    write("chain.py", CHAIN)
    write("inner/table.csv", TABLE)
    write("notes.txt", "no program")
    return tmp_path


def by_scope(report: Report) -> dict[str, MemoryView]:
    return {view.holds or view.scope: view for view in report.memories}


def test_counts_of_a_function_in_each_scope():
    found = by_scope(tvm_ext.compare(program_of(tvm.IRModule({"f": two_scopes}), name="f")))
    assert set(found) == {"global", "local.UB"}
    one, two = found["global"], found["local.UB"]
    assert (len(one.problem.buffers), *numbers(one)) == (1, 256, 256, 256)
    # y and z are live together, so nothing saves a byte.
    assert len(two.problem.buffers) == 2
    assert numbers(two) == (256 + 128, 256 + 128, 256 + 128)
    for result in found.values():
        assert {plan.planner for plan in ours(result)} == set(planner_names()) - FOR_LEVELS - {
            "bump",
            "lmem",
            "rec_tbl",
        }
        no_reuse, _, bound = numbers(result)
        for one in ours(result):
            assert one.plan.fits
            assert bound <= one.plan.peak <= no_reuse
            assert (one.proven == "lowest peak") == (one.plan.peak == bound)


@pytest.mark.parametrize(("capacity", "fits"), [(512, True), (384, False)])
def test_memory_in_a_loop_lies_above_what_is_live_around_it(capacity, fits):
    """Each buffer fits by itself; both fit where `PlanAddresses` takes them."""

    nested = program("""
    def nested(a: 64, b: 64):
        x: local.UB 64
        x[i] = a[63 - i] for i in range(64)
        for p in T.parallel(4):
            y: local.UB 64
            y[i] = x[63 - i] for i in range(64)
            b[p * 16 + i] = y[63 - i] + x[i] for i in range(16)
    """)
    memory = MemoryHierarchy((MemoryScope("local.UB", capacity, alignment=32),))
    mod = tvm.IRModule({"f": nested.with_attr("target", with_memory("llvm", memory))})
    compared = tvm_ext.compare(mod, ["best"])
    (table,) = compared.tables()
    assert {row[1] for row in table.rows if row[0] != "stock"} == {"bytes", "512"}
    assert compared.fits == fits
    shown = tvm_ext.memory_map(mod)
    assert all(p.plan.fits for scope in shown.memories for p in scope.plans) == fits
    if fits:
        tvm_ext.transform.PlanAddresses()(mod)
    else:
        with pytest.raises(ValueError, match="needs 512 bytes"):
            tvm_ext.transform.PlanAddresses()(mod)


def test_a_kernel_for_a_chip_has_levels_penalties_and_a_makespan():
    comparison = tvm_ext.compare(load_program("ascend:gelu:reuse"))
    (result,) = comparison.memories
    assert result.scope == "local.UB"
    assert result.problem.capacity == 192 << 10
    assert numbers(result)[1] is None  # the stock pass knows no double buffers
    planners = {one.planner: one.plan for one in result.plans}
    assert set(planners) >= FOR_LEVELS
    assert "rec_tbl" not in planners
    cycles = {run.planner: run.simulation.makespan for run in comparison.runs}
    assert set(cycles) == set(planners)
    free = [name for name, plan in planners.items() if plan.penalty == 0]
    paid = [name for name, plan in planners.items() if plan.penalty]
    assert free
    assert paid
    assert max(cycles[name] for name in free) <= min(cycles[name] for name in paid)


def test_what_does_not_fit_is_shown_and_has_no_makespan():
    comparison = tvm_ext.compare(load_program("ascend:gelu:overflow"), ["best", "three_level"])
    (result,) = comparison.memories
    assert [one.plan.fits for one in result.plans] == [False, False]
    assert all(one.plan.peak > result.problem.capacity for one in result.plans)
    assert not comparison.is_right
    assert "cycles" not in str(comparison)


def test_the_stock_plan_of_small_tensors_has_their_alignment_too():
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((2, 4), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            parts = [builder.emit(op(x)) for op in (relax.op.exp, relax.op.sin, relax.op.cos)]
            joined = builder.emit(relax.op.concat(parts, axis=0))
            result = builder.emit_output(relax.op.nn.relu(joined))
        builder.emit_func_output(result)
    _, apart = tvm_ext.compare(builder.get(), "best").memories
    # Three tensors of 32 bytes and one of 96, at multiples of 64: what stands last is not padded.
    assert [one.plan.peak for one in apart.plans] == [3 * 64 + 96, 128 + 64 + 32]


def test_a_module_a_function_a_name_and_a_problem_can_be_compared(folder):
    path = folder / "chain.py"
    ((name, func),) = load_program(str(path)).functions.items()
    mod = tvm.IRModule({name: func})
    rows = [
        tvm_ext.compare(what, ["best", "first_fit"]).memories[0] for what in (mod, func, str(path))
    ]
    assert len({(row.scope, *numbers(row)) for row in rows}) == 1
    problem = Problem((Buffer("a", 64, ((0, 2),)), Buffer("b", 64, ((1, 3),))))
    (row,) = tvm_ext.compare(problem, ["best"], budget=100).memories
    assert numbers(row) == (128, None, 128)
    assert row.plans[0].plan.peak == 128


VECTORS = """
from tvm.script import tirx as T

@T.prim_func(s_tir=True)
def vectors(a: T.Buffer((64,), "float32"), b: T.Buffer((64,), "float32")):
    x = T.alloc_buffer((16,), "float32x4", scope="local.UB")
    y = T.alloc_buffer((64,), "float32", scope="local.UB")
    for i in range(16):
        x[i] = T.broadcast(a[63 - i], 4)
    for i in range(64):
        y[i] = T.Cast("float32", i)
    for i in range(16):
        b[T.Ramp(i * 4, 1, 4)] = x[15 - i] + T.broadcast(y[i], 4)
"""


def test_what_the_stock_pass_cannot_take_is_planned_and_said(write, run):
    status, said, error = run("compare", write("vectors.py", VECTORS))
    assert (status, error) == (1, "")
    assert "best           512" in said
    assert "stock   " not in said
    assert "- function 'vectors': tirx.StorageRewrite fails: Check failed: index_lanes" in said
    assert "StorageRewrite: not compared: " in said


# -------------------------------------------------------------------------------------- tables


def test_a_table_has_the_bytes_of_the_function_that_takes_most():
    memory, views = MemoryScope("local.UB", 1024), []
    for owner, size in (("f", 80), ("g", 60)):
        buffers = Buffer("a", size, ((0, 2),)), Buffer("b", size // 2, ((2, 3),))
        problem = Problem(buffers, memory)
        for planner in ("stock", "one"):
            at = {"stock": size, "one": 0}[planner]
            offsets = {"a": (0,), "b": (at,)}
            plan = Plan(offsets, size + at // 2, 0, planner, Status.FEASIBLE)
            views.append((owner, PlannedProblem(planner, problem, plan, 0.5)))
    of = lambda owner: MemoryView(owner, tuple(p for o, p in views if o == owner))  # noqa: E731
    (table,) = Report("p", (of("f"), of("g"))).tables()
    assert "4 buffers of 2 functions, bytes of the largest, capacity 1 KiB" in table.title
    assert {row[0]: row[1:5] for row in table.rows[1:]} == {
        "no reuse": ("120", "100.0%", "1.500", ""),
        "stock": ("120", "100.0%", "1.500", ""),
        "one": ("80", "66.7%", "1.000", "yes"),
        "lower bound": ("80", "66.7%", "1.000", ""),
    }


# -------------------------------------------------------------------------- many, and a command


def test_a_folder_is_searched_in_order(folder):
    assert programs_in(folder) == [str(folder / "chain.py"), str(folder / "inner" / "table.csv")]
    (nothing := folder / "nothing").mkdir()
    with pytest.raises(ValueError, match="there is no file that ends in"):
        programs_in(nothing)


def test_the_command_on_a_folder_names_what_failed_and_the_rest_goes_on(folder, write, run):
    out, command = folder / "out.json", ["compare", str(folder), "--planners", "best,bump"]
    assert run(*command)[0] == 0
    write("bad.csv", "a,b\n")
    write("bad.pt2", "")  # Where torch is not there it cannot even be tried.
    write("bad.py", "def f(:\n")
    status, said, error = run(*command, "--json", str(out))
    assert status == 2
    assert f"== {folder / 'chain.py'}" in said
    programs = json.loads(out.read_text())["programs"]
    assert [("reason" in one, one["title"]) for one in programs] == [
        (name.startswith("bad"), str(folder / name))
        for name in ("bad.csv", "bad.pt2", "bad.py", "chain.py", "inner/table.csv")
    ]
    (table,) = programs[-1]["memories"]
    assert [(p["planner"], p["peak"]) for p in table["plans"]] == [("best", 128), ("bump", 192)]
    csv, exported, python = error.splitlines()
    assert csv.startswith("tvm-ext: error: ")
    assert "bad.csv: no column id" in csv
    assert "bad.pt2: " in exported
    assert "bad.py:1: not TVMScript" in python
