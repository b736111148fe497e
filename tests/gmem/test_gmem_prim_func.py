"""Global memory of one function that holds a whole graph: read, planned, written, run."""

import logging

import numpy as np
import pytest
import tvm
import tvm_ffi
from hypothesis import given, note, settings
from hypothesis import strategies as st
from prim_func_graphs import GRAPHS
from tvm import te, tirx, topi
from tvm.script import tirx as T

from passes.analysis.sophgo.op_graph import read_op_graph
from passes.analysis.tir.problems import ProblemOptions, find_problems
from passes.gmem_prim_func import ATTRIBUTE, lower_blocks, plan_gmem_prim_func, plan_prim_func
from passes.plan_addresses import DropAddresses
from passes.planning import Problem, lower_bound, planner_names
from passes.planning.sophgo.gmem_layout import GMEM, GMEMLayout
from passes.planning.sophgo.op_sequence import to_problem
from passes.planning.sophgo.rec_tbl import Decision, allocate, trace
from target_hw.memory import MemoryHierarchy, MemoryScope
from tvm_ext import workloads
from tvm_ext.transform import GMEMAllocate

PLANNERS = list(planner_names())
HOST = GMEM(MemoryScope("global", alignment=64), 64, 64, 0, None)
BM = GMEM(MemoryScope("global", alignment=4096, base=1 << 32), 4096, 4096, 1 << 32, None)
POISON = 0xFF


def flat(name):
    """Return a graph lowered by the whole of TVM's pipeline up to storage planning."""
    func, _ = GRAPHS[name]()
    (mod,) = workloads.capture(tvm.IRModule({"main": func}), "llvm")
    ((_, lowered),) = mod.functions.items()
    return lowered


def poisoned(func):
    """Fill the arena with a pattern where it is made: no number, as a float."""

    def fill(op, _mutator):
        if not op.buffer.name.startswith("arena_"):
            return op
        byte = tirx.Var("byte", "int32")
        store = tirx.BufferStore(op.buffer, tirx.IntImm("uint8", POISON), [byte])
        extent = op.buffer.ty.shape[0]
        loop = tirx.For(byte, tirx.IntImm("int32", 0), extent, tirx.ForKind.SERIAL, store)
        return tirx.SeqStmt([op, loop])

    return func.with_body(tvm_ffi.structural_mutate(func.body, (tirx.AllocBuffer, fill)))


def run(func, arrays, outputs):
    """Build a function and run it twice on inputs and new outputs; return the outputs."""
    mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    built = tirx.build(mod, target="llvm")
    for _ in range(2):
        results = [tvm.runtime.tensor(np.full_like(out, np.nan)) for out in outputs]
        built["main"](*map(tvm.runtime.tensor, arrays), *results)
    return [result.numpy() for result in results]


def inputs(func, expected, seed=0):
    """Return random whole numbers for the inputs, and what numpy makes of them."""
    rng = np.random.default_rng(seed)
    count = expected.__code__.co_argcount
    shapes = [[int(n) for n in param.ty.shape] for param in func.params[:count]]
    arrays = [rng.integers(-4, 5, shape).astype("float32") for shape in shapes]
    return arrays, expected(*arrays)


# What is read


@pytest.mark.parametrize("name", GRAPHS)
def test_ops_and_live_ranges_agree_on_who_is_alive_together(name):
    func = flat(name)
    found = find_problems(func, ProblemOptions(("global",)))
    (attached,) = found.problems
    ours = to_problem(read_op_graph(func, found).sequence)
    assert [(b.name, b.size) for b in ours.buffers] == [
        (b.name, b.size) for b in attached.problem.buffers
    ]
    assert len(ours.buffers) >= 2
    assert together(ours) == together(attached.problem)
    assert lower_bound(ours) == lower_bound(Problem(attached.problem.buffers))


def together(problem: Problem):
    """Return the pairs of names that are live at one position."""
    return {
        (one.name, two.name)
        for one in problem.buffers
        for two in problem.buffers
        if any(max(a, c) < min(b, d) for a, b in one.live for c, d in two.live)
    }


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


@given(func=graphs())
@settings(max_examples=40, deadline=None, print_blob=True)
def test_ops_and_live_ranges_agree_on_random_graphs(func):
    func = lower_blocks(func)
    note(func.script())
    found = find_problems(func, ProblemOptions(("global",)))
    ours = to_problem(read_op_graph(func, found).sequence)
    for attached in found.problems:
        assert together(ours) == together(attached.problem)
    assert bool(found.problems) == bool(ours.buffers)


def test_the_ops_of_a_graph():
    func, _ = GRAPHS["dense"]()
    ops = plan_prim_func(func, HOST).read.graph.sequence.ops
    assert [(op.name, op.kind, op.operands, [v.name for v in op.results]) for op in ops] == [
        ("parameters", "func", (), ["x", "T_add"]),
        ("weights", "weight", (), ["w", "v"]),
        ("T_matmul_NN", "op", ("x", "w"), ["T_matmul_NN"]),
        ("compute", "op", ("T_matmul_NN",), ["compute"]),
        ("scaled2", "op", ("compute",), ["scaled2"]),
        ("T_matmul_NN.1", "op", ("scaled2", "v"), ["T_matmul_NN.1"]),
        ("T_add", "op", ("T_add", "T_matmul_NN.1", "compute"), []),
    ]
    assert [v.size for v in ops[1].results] == [1024, 1024]


def test_what_is_no_op_s_result_is_said(caplog):
    @T.prim_func(s_tir=True)
    def mixed(x: T.Buffer((64,), "float32"), y: T.Buffer((64,), "float32"), n: T.int32):
        whole = T.alloc_buffer((64,), "float32")
        sized = T.alloc_buffer((n,), "float32")
        for i in range(64):
            whole[i] = x[63 - i]
        for i in range(n):
            sized[i] = x[i]
        for k in range(4):
            inner = T.alloc_buffer((16,), "float32")
            for i in range(16):
                inner[i] = whole[k * 16 + 15 - i]
            for i in range(16):
                y[k * 16 + i] = inner[15 - i] + sized[0]

    planned = plan_prim_func(mixed, HOST)
    assert planned.read.graph.left_out == (
        "buffer 'sized' in global: its size is symbolic, and no upper bound is known",
        "buffer 'inner' in global: it is allocated inside of an op",
    )
    names = [v.name for op in planned.read.graph.sequence.ops if op.places for v in op.results]
    assert names == ["whole"]
    with caplog.at_level(logging.INFO, logger="tvm_ext.GMEMAllocate"):
        plan_gmem_prim_func(mixed, HOST)
    assert "no op's result: " + planned.read.graph.left_out[0] in caplog.messages
    bounded = plan_prim_func(mixed, HOST, upper_bounds=(("n", 64),))
    assert [b.name for b in bounded.plan.scopes[0].problem.buffers] == ["whole", "sized", "inner"]


def test_a_result_that_is_never_read_ends_with_its_op():
    @T.prim_func(s_tir=True)
    def wasteful(x: T.Buffer((64,), "float32"), y: T.Buffer((64,), "float32")):
        unread = T.alloc_buffer((64,), "float32")
        a = T.alloc_buffer((64,), "float32")
        for i in range(64):
            unread[i] = x[i]
        for i in range(64):
            a[i] = x[63 - i]
        for i in range(64):
            y[i] = a[63 - i]

    planned = plan_prim_func(wasteful, HOST)
    assert [op.kind for op in planned.read.graph.sequence.ops] == ["func", "op", "drop", "op", "op"]
    assert planned.plan.scopes[0].plan.peak == 256


def test_other_names_of_an_allocation_are_the_same_value():
    @T.prim_func(s_tir=True)
    def renamed(x: T.Buffer((64,), "float32"), y: T.Buffer((64,), "float32")):
        a = T.alloc_buffer((64,), "float32")
        b = T.alloc_buffer((64,), "float32")
        c = T.alloc_buffer((64,), "float32")
        for i in range(64):
            a[i] = x[i]
        view = T.decl_buffer((8, 8), "float32", data=a.data)
        for i in range(64):
            b[i] = x[63 - i]
        T.evaluate(T.call_extern("int32", "memcpy", c.data, b.data, T.int64(256)))
        for i, j in T.grid(8, 8):
            y[i * 8 + j] = c[63 - i * 8 - j] + view[j, i]

    func = tirx.transform.FlattenBuffer()(tvm.IRModule({"main": renamed}))["main"]
    planned = plan_prim_func(func, HOST)
    ours = to_problem(planned.read.graph.sequence)
    assert together(ours) == together(planned.plan.scopes[0].problem)
    assert ("a", "c") in together(ours)
    ops = [(op.name, op.operands) for op in planned.read.graph.sequence.ops[2:]]
    assert ops == [("b", ("x",)), ("c", ("b",)), ("y", ("y", "c", "a"))]


def test_a_value_whose_address_is_kept_is_left_out():
    @T.prim_func(s_tir=True)
    def kept(x: T.Buffer((64,), "float32"), y: T.Buffer((64,), "float32")):
        a = T.alloc_buffer((64,), "float32")
        pointer = T.bind(a.data)
        for i in range(64):
            a[i] = x[i]
        for i in range(64):
            y[i] = a[63 - i]
        T.evaluate(T.call_extern("int32", "memset", pointer, 0, T.int64(256)))

    planned = plan_prim_func(kept, HOST)
    assert planned.read.graph.left_out == (
        "buffer 'a' in global: variable 'pointer' keeps its address, so nothing says when it ends",
    )
    assert planned.plan.scopes[0].plan.peak == 256


# What is decided


@pytest.mark.parametrize("name", GRAPHS)
def test_the_planner_places_the_ops_results_as_the_strategy_does(name):
    planned = plan_prim_func(GRAPHS[name]()[0], BM)
    (scope,) = planned.plan.scopes
    offsets = {buffer: at for buffer, (at,) in scope.plan.offsets.items()}
    assert allocate(planned.read.graph.sequence, 0, 4096).offsets == offsets


def test_the_residual_graph_step_by_step():
    planned = plan_prim_func(GRAPHS["residual"]()[0], BM)
    steps = [s for s in trace(planned.read.graph.sequence, BM.weight_start) if s.result is not None]
    new, reuse = Decision.NEW, Decision.REUSE
    assert [(s.result, s.decision, s.offset - (1 << 32)) for s in steps] == [
        ("scaled2", new, 0),
        ("compute", new, 4096),
        ("scaled3", reuse, 0),
        ("scaled1", new, 8192),
        ("T_add", reuse, 0),
        ("scaled5", reuse, 4096),
    ]


def test_weights_come_first_and_the_layout_is_written():
    func, _ = GRAPHS["dense"]()
    planned = plan_gmem_prim_func(func, BM)
    layout = GMEMLayout.from_plain(planned.attrs[ATTRIBUTE])
    start = 1 << 32
    assert [(w.name, w.address, w.size) for w in layout.weights.tensors] == [
        ("w", start, 1024),
        ("v", start + 4096, 1024),
    ]
    assert (layout.weights.start, layout.weights.size) == (start, 8192)
    assert layout.activations.start == start + 8192
    addresses = {t.name: t.address for t in layout.activations.tensors}
    assert addresses == {
        "T_matmul_NN": start + 0x2000,
        "compute": start + 0x3000,
        "scaled2": start + 0x2000,
        "T_matmul_NN.1": start + 0x4000,
    }
    assert layout.planner == "rec_tbl"


def test_addresses_stand_on_the_allocations():
    func, _ = GRAPHS["dense"]()
    planned = plan_gmem_prim_func(func, BM, form="address")
    found = []

    def note_address(op):
        found.append([int(address) for address in op.buffer.ty.allocated_addr])

    tvm_ffi.structural_walk(planned.body, (tirx.AllocBuffer, note_address))
    layout = GMEMLayout.from_plain(planned.attrs[ATTRIBUTE])
    assert found == [[t.address] for t in layout.activations.tensors]


def test_a_written_parameter_or_one_that_is_handed_on_is_no_weight():
    @T.prim_func(s_tir=True)
    def lent(
        x: T.Buffer((64,), "float32"),
        w: T.Buffer((64,), "float32"),
        lent: T.Buffer((64,), "float32"),
        y: T.Buffer((64,), "float32"),
    ):
        T.func_attr({"num_input": 1})
        T.evaluate(T.call_extern("int32", "memset", lent.data, 0, T.int64(256)))
        for i in range(64):
            y[i] = x[i] + w[i]

    weights = plan_prim_func(lent, HOST).read.graph.sequence.weights
    assert [(weight.name, weight.size) for weight in weights] == [("w", 256)]


# That it runs


@pytest.mark.parametrize("planner", PLANNERS)
@pytest.mark.parametrize("name", GRAPHS)
def test_every_plan_of_every_graph_computes_what_numpy_does(name, planner):
    func, expected = GRAPHS[name]()
    arrays, results = inputs(func, expected)
    before = func.script()
    planned = plan_gmem_prim_func(func, HOST, planner)
    assert func.script() == before
    assert planned.script().count("T.alloc_buffer") == 1
    for result, right in zip(run(poisoned(planned), arrays, results), results, strict=True):
        np.testing.assert_array_equal(result, right)


@pytest.mark.parametrize("name", GRAPHS)
def test_addresses_change_no_result(name):
    func, expected = GRAPHS[name]()
    arrays, results = inputs(func, expected, seed=1)
    planned = plan_gmem_prim_func(func, BM, form="address")
    dropped = DropAddresses()(tvm.IRModule({"main": planned}))["main"]
    for result, right in zip(run(dropped, arrays, results), results, strict=True):
        np.testing.assert_array_equal(result, right)


@given(func=graphs(), planner=st.sampled_from(PLANNERS))
@settings(max_examples=8, deadline=None, print_blob=True)
def test_random_graphs_compute_the_same_under_every_plan(func, planner):
    note(func.script())
    x = np.random.default_rng(0).integers(-3, 4, (4, 6)).astype("float32")
    outputs = [np.zeros([int(n) for n in p.ty.shape], "float32") for p in func.params[1:]]
    plain = run(func, [x], outputs)
    planned = run(poisoned(plan_gmem_prim_func(func, HOST, planner)), [x], outputs)
    for one, two in zip(plain, planned, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-6)


# In a module


def test_the_pass_plans_a_module_of_functions():
    dense, expected = GRAPHS["dense"]()
    residual, _ = GRAPHS["residual"]()
    mod = tvm.IRModule({"b": dense, "a": dense, "c": residual})
    before = mod.script()
    planned = GMEMAllocate(base=1 << 32, alignment=4096)(mod)
    assert mod.script() == before
    layouts = {
        name: GMEMLayout.from_plain(planned[name].attrs[ATTRIBUTE]) for name in ("a", "b", "c")
    }
    start = 1 << 32
    assert [w.address - start for w in layouts["a"].weights.tensors] == [0, 0x1000]
    assert [w.address - start for w in layouts["b"].weights.tensors] == [0x2000, 0x3000]
    assert layouts["c"].weights.tensors == ()
    assert {layout.weights.size for layout in layouts.values()} == {0x4000}
    assert {layout.activations.start for layout in layouts.values()} == {start + 0x4000}
    arrays, results = inputs(dense, expected)
    np.testing.assert_array_equal(run(planned["a"], arrays, results)[0], results[0])


def test_a_function_without_tensors_of_its_own_stays_as_it_is():
    x = te.placeholder((8,), name="x")
    func = te.create_prim_func([x, topi.exp(x)])
    assert GMEMAllocate()(tvm.IRModule({"main": func}))["main"].same_as(func)


def test_errors_name_the_pass_and_the_function():
    func, _ = GRAPHS["residual"]()
    schedule = tvm.s_tir.Schedule(func)
    schedule.bind(schedule.get_loops(schedule.get_sblock("scaled2"))[0], "threadIdx.x")
    message = "GMEMAllocate: function 'main': it has blocks, and loop 'i' is bound to threads"
    with pytest.raises(ValueError, match=message):
        GMEMAllocate()(schedule.mod)
    target = {"kind": "llvm", "feature.memory": {"global": {"capacity": 4096}}}
    with pytest.raises(ValueError, match="GMEMAllocate: function 'main': scope 'global' needs"):
        GMEMAllocate(target=target)(tvm.IRModule({"main": func}))


@pytest.mark.parametrize("chip", ["sophgo/bm1684x", "sophgo/cv184x"])
def test_the_chip_says_where_and_how(chip):
    target = tvm.target.Target(chip)
    func, _ = GRAPHS["dense"]()
    planned = GMEMAllocate(target=target)(tvm.IRModule({"main": func}))["main"]
    layout = GMEMLayout.from_plain(planned.attrs[ATTRIBUTE])
    memory = MemoryHierarchy.from_target(target)["global"]
    assert layout.alignment == memory.alignment
    assert layout.weights.start == dict(memory.facts).get("weight_base", memory.base)


def test_a_plan_above_the_capacity_is_an_error():
    small = GMEM(MemoryScope("global", capacity=8192), 4096, 4096, 0, None)
    func, _ = GRAPHS["residual"]()
    with pytest.raises(ValueError, match=r"scope 'global' needs 10240 bytes .* and has 8192"):
        plan_gmem_prim_func(func, small)
    func, _ = GRAPHS["dense"]()
    with pytest.raises(ValueError, match="weights and callers take 8192 of them"):
        plan_gmem_prim_func(func, small)
