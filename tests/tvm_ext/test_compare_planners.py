# SPDX-License-Identifier: Apache-2.0
"""All planners side by side: the numbers against plain counts, the tables, folders and workers."""

from __future__ import annotations

import json

import pytest
import tvm
from chain import CHAIN, NETWORK
from program_text import program
from tvm import relax

import tvm_ext
from passes.planning import Buffer, Problem, planner_names
from target_hw import MemoryHierarchy, MemoryScope, with_memory
from tvm_ext.comparison.compare_command import programs_in
from tvm_ext.comparison.memory_comparison import ScopeResult
from tvm_ext.comparison.planners import PlannerComparison, compare_planners
from tvm_ext.planned.placements import PlannedMemory
from tvm_ext.reading.programs import load_program, program_of

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


def by_scope(comparison: PlannerComparison) -> dict[str, ScopeResult]:
    return {result.scope: result for result in comparison.scopes}


def test_counts_of_a_function_in_each_scope():
    found = by_scope(compare_planners(program_of(tvm.IRModule({"f": two_scopes}), name="f")))
    assert set(found) == {"global", "local.UB"}
    one, two = found["global"], found["local.UB"]
    assert (one.buffers, one.no_reuse, one.stock, one.lower_bound) == (1, 256, 256, 256)
    # y and z are live together, so nothing saves a byte.
    assert (two.buffers, two.no_reuse, two.lower_bound) == (2, 256 + 128, 256 + 128)
    assert two.stock >= 256 + 128
    for result in found.values():
        assert {plan.planner for plan in result.plans} == set(planner_names()) - FOR_LEVELS - {
            "bump",
            "rec_tbl",
        }
        for plan in result.plans:
            assert plan.fits
            assert result.lower_bound <= plan.nbytes <= result.no_reuse
            assert (plan.proven == "lowest peak") == (plan.nbytes == result.lower_bound)


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
    compared = compare_planners(mod, ["best"])
    (result,) = compared.scopes
    assert (result.plans[0].nbytes, result.lower_bound, result.no_reuse) == (512, 512, 512)
    assert compared.fits == fits
    shown = tvm_ext.map_of_module(mod)
    assert all(p.plan.fits for scope in shown.scopes for p in scope.placements) == fits
    if fits:
        tvm_ext.transform.PlanAddresses()(mod)
    else:
        with pytest.raises(ValueError, match="needs 512 bytes"):
            tvm_ext.transform.PlanAddresses()(mod)


def test_a_kernel_for_a_chip_has_levels_penalties_and_a_makespan():
    comparison = compare_planners(load_program("ascend:gelu:reuse"))
    (result,) = comparison.scopes
    assert result.scope == "local.UB"
    assert result.capacity == 192 << 10
    assert result.stock is None  # the stock pass knows no double buffers
    planners = {plan.planner: plan for plan in result.plans}
    assert set(planners) >= FOR_LEVELS
    assert "rec_tbl" not in planners
    cycles = {m.planner: m.cycles for m in comparison.makespans}
    assert set(cycles) == set(planners)
    free = [name for name, plan in planners.items() if plan.penalty == 0]
    paid = [name for name, plan in planners.items() if plan.penalty]
    assert free
    assert paid
    assert max(cycles[name] for name in free) <= min(cycles[name] for name in paid)


def test_what_does_not_fit_is_shown_and_has_no_makespan():
    comparison = compare_planners(load_program("ascend:gelu:overflow"), ["best", "three_level"])
    (result,) = comparison.scopes
    assert [plan.fits for plan in result.plans] == [False, False]
    assert all(plan.nbytes > result.capacity for plan in result.plans)
    assert comparison.makespans == ()


def test_small_tensors_take_more_with_their_alignment_than_the_stock_plan_counts():
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((2, 4), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            parts = [builder.emit(op(x)) for op in (relax.op.exp, relax.op.sin, relax.op.cos)]
            joined = builder.emit(relax.op.concat(parts, axis=0))
            result = builder.emit_output(relax.op.nn.relu(joined))
        builder.emit_func_output(result)
    compared = tvm_ext.compare_planners(builder.get(), "best")
    (note,) = (n for n in compared.notes if "192 bytes" in n)
    assert "alignment" in note
    assert "live together" not in note


def test_a_network_has_its_tensors_fused_and_not():
    found = by_scope(compare_planners(tvm.script.from_source(NETWORK), ["best", "rec_tbl"]))
    fused, plain = found["tensors, fused"], found["tensors, not fused"]
    assert plain.no_reuse > fused.no_reuse
    for result in (fused, plain):
        best, rec_tbl = result.plans
        assert (best.planner, rec_tbl.planner) == ("best", "rec_tbl")
        assert result.lower_bound <= best.nbytes <= min(rec_tbl.nbytes, result.stock)


def test_a_module_a_function_a_name_and_a_problem_can_be_compared(folder):
    path = folder / "chain.py"
    ((name, func),) = load_program(str(path)).functions.items()
    mod = tvm.IRModule({name: func})
    rows = [
        tvm_ext.compare_planners(what, ["best", "first_fit"]).scopes[0]
        for what in (mod, func, str(path))
    ]
    assert len({(row.scope, row.no_reuse, row.stock, row.lower_bound) for row in rows}) == 1
    problem = Problem((Buffer("a", 64, ((0, 2),)), Buffer("b", 64, ((1, 3),))))
    (row,) = tvm_ext.compare_planners(problem, ["best"], budget=100).scopes
    assert (row.no_reuse, row.lower_bound, row.plans[0].nbytes) == (128, 128, 128)


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
    assert "- vectors: TVM's StorageRewrite fails: Check failed: index_lanes" in said
    assert "StorageRewrite: not compared: " in said


# -------------------------------------------------------------------------------------- tables


def test_a_table_sums_up_functions():
    one = PlannedMemory("one", 80, True, "lowest peak", 0, 0.5)
    two = PlannedMemory("two", 120, True, "", 0, 0.001)
    found = [ScopeResult(f, "local.UB", 3, None, 200, 100, (one, two), 80) for f in "fg"]
    (table,) = PlannerComparison("p", tuple(found)).tables()
    assert {row[0]: row[1:4] for row in table.rows[1:]} == {
        "no reuse": ("400", "200.0%", "2.500"),
        "stock": ("200", "100.0%", "1.250"),
        "one": ("160", "80.0%", "1.000"),
        "two": ("240", "120.0%", "1.500"),
        "lower bound": ("160", "80.0%", "1.000"),
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
    assert [("reason" in one, one["program"]) for one in programs] == [
        (name.startswith("bad"), str(folder / name))
        for name in ("bad.csv", "bad.pt2", "bad.py", "chain.py", "inner/table.csv")
    ]
    (table,) = programs[-1]["scopes"]
    assert [(p["planner"], p["nbytes"]) for p in table["plans"]] == [("best", 128), ("bump", 192)]
    csv, exported, python = error.splitlines()
    assert csv.startswith("tvm-ext: error: ")
    assert "bad.csv: no column id" in csv
    assert "bad.pt2: " in exported
    assert "bad.py:1: not TVMScript" in python
