# SPDX-License-Identifier: Apache-2.0
"""Each number means one thing, whoever says it: tables, views, data and what is built."""

from __future__ import annotations

import importlib
import json
import re

import pytest
import tvm
from program_text import program_source

import tvm_ext
from passes.planning import solve
from tvm_ext.__main__ import main

KERNELS = "from tvm.script import tirx as T\n" + "".join(
    program_source(f"""
def kernel{at}(x: 64, o: 64):
    T.launch_thread("blockIdx.x", 1)
    tx = T.launch_thread("threadIdx.x", 64)
    a, b: shared {size}
    a[tx] = x[tx]
    b[tx] = a[63 - tx]
    o[tx] = b[63 - tx]
""")
    + "\n"
    for at, size in enumerate((64, 128, 96))
)


@pytest.fixture
def kernels(tmp_path):
    path = tmp_path / "kernels.py"
    path.write_text(KERNELS)
    return str(path)


def test_shared_memory_is_that_of_the_largest_kernel_in_every_view(kernels):
    whole = tvm_ext.compare(kernels, "best", target="opencl")
    view = tvm_ext.compare(kernels, "best", view="shared", target="opencl")
    taken = {
        one.owner: one.plan_of("best").plan.peak for one in whole.memories if one.scope == "shared"
    }
    assert taken == {one.owner: one.plan_of("best").plan.peak for one in view.memories}
    # No two buffers are live together but where one is copied to the other.
    assert sorted(taken.values()) == [2 * 4 * size for size in (64, 96, 128)]
    (table,) = (one for one in view.tables() if one.title.startswith("shared: "))
    assert "3 functions, bytes of the largest" in table.title
    assert dict(row[:2] for row in table.rows)["best"] == f"{2 * 4 * 128:,}"


def test_the_file_of_data_has_the_numbers_of_the_page(kernels, tmp_path):
    page, data = tmp_path / "map.html", tmp_path / "map.json"
    command = ["map", kernels, "shared", "--target", "opencl", "-o", str(page), "--json", str(data)]
    assert main(command) == 0
    for memory in json.loads(data.read_text())["memories"]:
        for plan in memory["plans"]:
            assert f'"peak":{plan["peak"]},' in page.read_text()
            assert plan.pop("seconds") >= 0


@pytest.mark.parametrize("upper_bounds", [{}, {"n": 8}, {"n": 64}])
def test_a_declared_bound_holds_for_tensors_and_for_kernels(upper_bounds):
    """What rests on the dimension is planned at its bound everywhere, and that is said.

    The declared bound counts before one that is given; one of a tensor's name is of no dimension.
    """
    mod = tvm.script.from_source("""
@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor(("n", 8), "float32")):
        n = T.int64()
        R.func_attr({"tir_var_upper_bound": {"n": 16, "a": 3}})
        with R.dataflow():
            a = R.nn.softmax(x, axis=0)
            b = R.nn.softmax(a, axis=0)
            c = R.nn.softmax(b, axis=0)
            R.output(c)
        return c
""")
    bounded = tvm_ext.compare(mod, "best", upper_bounds=upper_bounds)
    fixed = tvm_ext.compare(tvm_ext.InputSizes(bind={"n": 16}).apply(mod), "best")
    said = "planned at the upper bounds of symbolic dimensions: n (axis 0 of x) = 16"
    assert said in bounded.notes
    assert "upper bounds" not in str(fixed)
    assert "rests on n" not in str(bounded)

    def taken(report):
        kernels = [one for one in report.memories if one.scope == "global" and not one.holds]
        tensors = [one for one in report.memories if one.holds]
        return [[m.plan_of("best").plan.peak for m in of] for of in (tensors, kernels)]

    assert "stock is left out" not in str(bounded)  # TVM's allocations have the bound's size, too.
    (tensors, kernels), (of_fixed, kernels_of_fixed) = map(taken, (bounded, fixed))
    assert tensors == of_fixed
    assert max(kernels) == max(kernels_of_fixed)


@pytest.mark.parametrize("declared", [{}, {"n": 64}])
def test_a_bound_that_is_given_holds_for_kernels_as_for_the_pass(declared):
    func = tvm.script.from_source("""
@T.prim_func(s_tir=True)
def rows(a: T.handle, o: T.Buffer((64,), "float32"), n: T.int32):
    A = T.match_buffer(a, (n,), "float32")
    x = T.alloc_buffer((n,), "float32")
    y = T.alloc_buffer((64,), "float32")
    for i in range(n):
        x[i] = A[i]
    for i in range(64):
        y[i] = x[i]
    for i in range(64):
        o[i] = y[63 - i] + x[i]
""").with_attr("tir_var_upper_bound", declared)
    report = tvm_ext.compare(func, "best", upper_bounds={"n": 128})
    plan = tvm_ext.transform.PlanAddresses(form="arena", upper_bounds={"n": 128})
    text = plan(tvm.IRModule({"rows": func})).script()
    built = [int(size) for size in re.findall(r"T.alloc_buffer\(\((\d+),\), \"uint8\"", text)]
    (memory,) = report.memories
    assert [memory.plan_of("best").plan.peak] == built == [4 * (128 + 64)]
    assert "planned at the upper bounds of symbolic dimensions: n = 128" in report.notes
    for bounds, said in (
        ({"q": 3}, "of 'q' names no symbolic"),
        ({"n": 0}, "of 'n' must be a pos"),
    ):
        with pytest.raises(ValueError, match=f"the upper bound {said}"):
            tvm_ext.memory_map(func, upper_bounds=bounds)
    with pytest.raises(ValueError, match="StorageRewrite has no upper bounds"):
        tvm_ext.compare(func, view="rewrite", upper_bounds={"n": 3})
    with pytest.raises(ValueError, match="have no symbolic dimensions"):
        tvm_ext.memory_map(memory.problem, upper_bounds={"n": 3})


def test_equal_kernels_are_planned_once(monkeypatch):
    """An unrolled network calls the same kernel at each step, under another name."""

    def kernel(name: str, rows: int) -> str:
        return f"""
    @T.prim_func(s_tir=True)
    def {name}(a: T.Buffer(({rows},), "float32"), o: T.Buffer(({rows},), "float32")):
        x = T.alloc_buffer(({rows},), "float32")
        for i in range({rows}):
            x[i] = a[i]
        for i in range({rows}):
            o[i] = x[{rows - 1} - i]
"""

    kernels = kernel("one", 64) + kernel("two", 64) + kernel("other", 96)
    mod = tvm.script.from_source(f"@I.ir_module\nclass Module:\n{kernels}")
    asked: list[int] = []
    module = importlib.import_module("tvm_ext.report.readers.statement_memories")

    def counting(problem, planner, budget=None):
        asked.append(sum(buffer.size for buffer in problem.buffers))
        return solve(problem, planner, budget)

    monkeypatch.setattr(module, "solve", counting)
    report = tvm_ext.compare(mod, "best")
    assert sorted(asked) == [256, 384]
    assert {one.owner: one.plan_of("best").plan.peak for one in report.memories} == {
        "one": 256,
        "two": 256,
        "other": 384,
    }
