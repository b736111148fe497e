# SPDX-License-Identifier: Apache-2.0
"""Global memory of one function that holds a whole graph: read, planned, written, run."""

from __future__ import annotations

import logging
from functools import cache
from typing import Any

import numpy as np
import pytest
import tvm
from address_runs import with_poison
from hypothesis import given, note, settings
from hypothesis import strategies as st
from llvm_level import at_level
from program_text import program
from tvm import te, tirx, topi

from passes.gmem.prim_funcs import find_weights
from passes.planning import planner_names
from target_hw.memory import MemoryHierarchy
from tvm_ext.transform import GMEMAllocate


def scaled(x: Any, by: int) -> Any:
    """Return a step that no neighbour can be merged with: reversed rows, times a number."""
    rows = int(x.shape[0])
    return te.compute(x.shape, lambda i, j: x[rows - 1 - i, j] * by, name=f"scaled{by}")


def halved(x: Any) -> Any:
    """Return the sums of each two rows."""
    rows, columns = map(int, x.shape)
    return te.compute((rows // 2, columns), lambda i, j: x[2 * i, j] + x[2 * i + 1, j])


@cache
def graph(name: str) -> tirx.PrimFunc:
    """Return a graph: results that are read late, long skips, or weights."""
    if name == "residual":
        x = te.placeholder((16, 32), name="x")
        b = topi.nn.relu(scaled(x, 2))
        d = scaled(scaled(b, 3), 1)
        return te.create_prim_func([x, topi.add(scaled(topi.add(d, b), 5), x)])
    if name == "long_skip":
        x = te.placeholder((32, 8), name="x")
        down = [scaled(x, 2)]
        for _ in range(3):
            down.append(halved(down[-1]))
        up = down.pop()
        for skip in reversed(down):
            up = topi.add(scaled(topi.repeat(up, 2, 0), 1), skip)
        return te.create_prim_func([x, up])
    x, w, v = (te.placeholder((16, 16), name=name) for name in ("x", "w", "v"))
    hidden = topi.nn.relu(topi.nn.matmul(x, w))
    out = topi.add(topi.nn.matmul(scaled(hidden, 2), v), hidden)
    return te.create_prim_func([x, w, v, out]).with_attr("num_input", 1)


GRAPHS = ("residual", "long_skip", "dense")
PLANNERS = list(planner_names())
BM = {"alignment": 4096, "base": 1 << 32}


def planned(func, planner="rec_tbl", **options):
    """Return a function after the pass."""
    return GMEMAllocate(planner, **options)(tvm.IRModule({"main": func}))["main"]


def layout_of(func):
    """Return what the pass has written of a function."""
    return func.attrs["tvm_ext.gmem"]


def tensors(region):
    """Return names, addresses and bytes of a region."""
    return [(str(t["name"]), int(t["address"]), int(t["bytes"])) for t in region["tensors"]]


def run(func, outputs=1):
    """Build a function, run it twice on whole numbers and new outputs; return the outputs."""
    mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    built = tirx.build(mod, target=at_level("llvm"))
    rng = np.random.default_rng(0)
    shapes = [[int(n) for n in param.ty.shape] for param in func.params]
    given = [rng.integers(-4, 5, shape).astype("float32") for shape in shapes[:-outputs]]
    for _ in range(2):
        results = [
            tvm.runtime.tensor(np.full(shape, np.nan, "float32")) for shape in shapes[-outputs:]
        ]
        built["main"](*map(tvm.runtime.tensor, given), *results)
    return [result.numpy() for result in results]


def poisoned(func):
    """Fill the arena with a pattern where it is made: no number, as a float."""
    return func.with_body(with_poison(func.body))


@st.composite
def graphs(draw):
    """Functions of random tensor expressions; some results are outputs, some are read twice."""
    x = te.placeholder((4, 6), name="x")
    tensors = [x]
    for _ in range(draw(st.integers(2, 9))):
        a, b = (draw(st.sampled_from(tensors[-4:])) for _ in range(2))
        tensors.append(
            draw(
                st.sampled_from(
                    [
                        lambda a=a, b=b: topi.add(a, b),
                        lambda a=a: topi.transpose(topi.transpose(a)),
                        lambda a=a: topi.reshape(topi.reshape(a, (3, 8)), (4, 6)),
                        lambda a=a: topi.nn.softmax(a),
                        lambda a=a, b=b: topi.strided_slice(
                            topi.concatenate([a, b], axis=0), [2, 0], [6, 6], [1, 1]
                        ),
                    ]
                )
            )()
        )
    extra = [t for t in tensors[1:-1] if draw(st.integers(0, 5)) == 0]
    return te.create_prim_func([x, *extra, tensors[-1]])


# What is a weight


def test_a_written_parameter_or_one_that_is_handed_on_is_no_weight():
    lent = program("""
    def lent(x: 64, w: 64, lent: 64, aliased: 64, element: 64, full: 64, pointed: 64, p: 64, y: 64):
        T.func_attr({"num_input": 1})
        T.evaluate(T.call_extern("int32", "memset", lent.data, 0, T.int64(256)))
        T.evaluate(T.call_extern("int32", "memset", T.address_of(element[0]), 0, T.int64(256)))
        T.evaluate(T.call_intrin("handle", "tirx.address_of", full))
        pointer: T.let = T.address_of(pointed[32])
        half = T.decl_buffer((32,), "float32", data=pointer)
        half[i] = x[i] for i in range(32)
        end = T.decl_buffer((32,), "float32", data=T.tvm_access_ptr("float32", p.data, 32, 32, 3))
        x[i] = end[i] for i in range(32)
        view = T.decl_buffer((32,), "float32", data=aliased.data)
        view[i] = x[i] for i in range(32)
        y[i] = x[i] + w[i] for i in range(64)
    """)
    assert find_weights("lent", lent) == {"w": 256}
    assert find_weights("lent", lent.without_attr("num_input")) == {}


def test_a_weight_of_a_symbolic_size_is_left_out_and_said(caplog):
    sized = program("""
    def sized(x: 64, p: T.handle, v: 8 int8, n: T.int32, unused: T.int32):
        T.func_attr({"num_input": 1})
        w = T.match_buffer(p, (n,), "float32")
        x[i] = w[0] + T.Cast("float32", v[0]) for i in range(64)
    """)

    with caplog.at_level(logging.INFO, logger="tvm_ext.GMEMAllocate"):
        layout = layout_of(planned(sized))
    assert tensors(layout["weights"]) == [("v", 0, 8)]
    said = "function 'main': weight 'w' has no address: its size is symbolic"
    assert said in caplog.messages


def test_what_keeps_memory_of_its_own_is_said(caplog):
    mixed = program("""
    def mixed(x: 64, y: 64, n: T.int32):
        whole: global 64
        sized = T.alloc_buffer((n,), "float32")
        whole[i] = x[63 - i] for i in range(64)
        sized[i] = x[i] for i in range(n)
        y[i] = whole[63 - i] + sized[0] for i in range(64)
    """)

    with caplog.at_level(logging.INFO, logger="tvm_ext.GMEMAllocate"):
        layout = layout_of(planned(mixed))
    assert tensors(layout["activations"]) == [("whole", 0, 256)]
    said = "its size rests on n, and no upper bound of it is known"
    assert f"function 'main': buffer 'sized' in global: {said}" in caplog.messages
    bounded = layout_of(planned(mixed, upper_bounds={"n": 64}))
    assert [name for name, _, _ in tensors(bounded["activations"])] == ["whole", "sized"]
    with pytest.raises(ValueError, match=r"'y' names no symbolic dimension; there are: n$"):
        planned(mixed, upper_bounds={"y": 64})


# What is decided


def test_weights_come_first_and_the_layout_is_written():
    layout = layout_of(planned(graph("dense"), **BM))
    start = 1 << 32
    assert tensors(layout["weights"]) == [("w", start, 1024), ("v", start + 4096, 1024)]
    assert (layout["weights"]["start"], layout["weights"]["bytes"]) == (start, 8192)
    assert layout["activations"]["start"] == start + 8192
    assert [(name, at) for name, at, _ in tensors(layout["activations"])] == [
        ("T_matmul_NN", start + 0x2000),
        ("compute", start + 0x3000),
        ("scaled2", start + 0x2000),
        ("T_matmul_NN.1", start + 0x4000),
    ]
    assert layout["planner"] == "rec_tbl"


def test_a_result_that_is_never_read_ends_with_its_op():
    wasteful = program("""
    def wasteful(x: 64, y: 64):
        unread, a: global 64
        unread[i] = x[i] for i in range(64)
        a[i] = x[63 - i] for i in range(64)
        y[i] = a[63 - i] for i in range(64)
    """)

    assert layout_of(planned(wasteful))["activations"]["bytes"] == 256


# That it runs


FULL = [(name, planner) for name in GRAPHS for planner in PLANNERS]
# What differs from planner to planner are offsets, which are verified wherever one plans.
SAMPLE = [pair for at, pair in enumerate(FULL) if pair[1] == "rec_tbl" or at % 5 == 0]


@pytest.mark.parametrize(
    ("name", "planner"),
    [pair if pair in SAMPLE else pytest.param(*pair, marks=pytest.mark.slow) for pair in FULL],
)
def test_every_plan_of_every_graph_computes_the_same(name, planner):
    func = graph(name)
    before = func.script()
    ours = planned(func, planner)
    assert func.script() == before
    assert ours.script().count("T.alloc_buffer") == 1
    np.testing.assert_equal(run(poisoned(ours)), run(func))


@given(func=graphs(), planner=st.sampled_from(PLANNERS))
@settings(max_examples=3, deadline=None, print_blob=True)
def test_random_graphs_compute_the_same_under_every_plan(func, planner):
    note(func.script())
    outputs = len(func.params) - 1
    plain, ours = run(func, outputs), run(poisoned(planned(func, planner)), outputs)
    for one, two in zip(plain, ours, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-6)


# In a module


def test_the_pass_plans_a_module_of_functions():
    dense, residual = graph("dense"), graph("residual")
    mod = tvm.IRModule({"b": dense, "a": dense, "c": residual})
    before = mod.script()
    ours = GMEMAllocate("rec_tbl", **BM)(mod)
    assert mod.script() == before
    layouts = {name: layout_of(ours[name]) for name in ("a", "b", "c")}
    start = 1 << 32
    weights = {name: layout["weights"] for name, layout in layouts.items()}
    assert [at - start for _, at, _ in tensors(weights["a"])] == [0, 0x1000]
    assert [at - start for _, at, _ in tensors(weights["b"])] == [0x2000, 0x3000]
    assert tensors(weights["c"]) == []
    assert {int(region["bytes"]) for region in weights.values()} == {0x4000}
    starts = {int(layout["activations"]["start"]) for layout in layouts.values()}
    assert starts == {start + 0x4000}
    np.testing.assert_equal(run(ours["a"]), run(dense))


def test_a_function_without_tensors_of_its_own_stays_as_it_is():
    x = te.placeholder((8,), name="x")
    func = te.create_prim_func([x, topi.exp(x)])
    assert planned(func).same_as(func)


def test_errors_name_the_pass_and_the_function():
    func = graph("residual")
    schedule = tvm.s_tir.Schedule(func)
    schedule.bind(schedule.get_loops(schedule.get_sblock("scaled2"))[0], "threadIdx.x")
    message = "GMEMAllocate: function 'main': it has blocks, and loop 'i' is bound to threads"
    with pytest.raises(ValueError, match=message):
        GMEMAllocate()(schedule.mod)


@pytest.mark.parametrize("chip", ["sophgo/bm1684x", "sophgo/cv184x"])
def test_the_chip_says_where_and_how(chip):
    target = tvm.target.Target(chip)
    layout = layout_of(planned(graph("dense"), target=target))
    memory = MemoryHierarchy.from_target(target)["global"]
    assert layout["alignment"] == memory.alignment
    assert layout["weights"]["start"] == dict(memory.facts).get("weight_base", memory.base)


def test_a_plan_above_the_capacity_is_an_error():
    def small(capacity):
        memory = {"global": {"capacity": capacity, "alignment": 4096}}
        return {"kind": "llvm", "feature.memory": memory}

    message = (
        r"GMEMAllocate: function 'main': scope 'global' needs 10240 bytes .* and has 8192"
        r"(.|\n)*most is live at line 18"
    )
    with pytest.raises(ValueError, match=message):
        planned(graph("residual"), target=small(8192))
    with pytest.raises(ValueError, match="weights and callers take 8192 of them"):
        planned(graph("dense"), target=small(8192))
