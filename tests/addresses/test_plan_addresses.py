# SPDX-License-Identifier: Apache-2.0
"""`PlanAddresses` by hand: what it plans, how it writes it, what it refuses, that it runs."""

import numpy as np
import pytest
import tvm
import tvm_ffi
from address_runs import assert_same_results, build, identity, num_arenas, poisoned
from tvm import tirx
from tvm.script import tirx as T

import tvm_ext.pipeline
from passes.addresses.transform import plan_addresses
from passes.planning import Buffer, Problem, planner_names
from passes.planning.overflow import live_at_the_peak
from passes.prim_func.problems import ProblemOptions, find_problems
from target_hw.memory import MemoryHierarchy, MemoryScope
from tvm_ext import workloads
from tvm_ext.transform import PlanAddresses

PLANNERS = list(planner_names())
UB = MemoryHierarchy((MemoryScope("local.UB", capacity=1024, alignment=32),))


def module(func: tirx.PrimFunc) -> tvm.IRModule:
    """Lower a function to where storage is planned."""
    (mod,) = workloads.capture(tvm.IRModule({"main": func}), "llvm")
    return mod


def addresses(mod: tvm.IRModule) -> dict[str, tuple[int, ...]]:
    """Return the addresses of all allocations, by name."""
    found = {}

    def note(op: tirx.AllocBuffer) -> None:
        found[op.buffer.name] = tuple(int(a) for a in op.buffer.ty.allocated_addr)

    for func in mod.functions.values():
        tvm_ffi.structural_walk(func, (tirx.AllocBuffer, note))
    return found


def only_problem(func: tirx.PrimFunc, **options):
    (attached,) = find_problems(func, ProblemOptions(**options)).problems
    return attached.problem


def live(func: tirx.PrimFunc, **options) -> dict[str, tuple[int, int]]:
    return {b.name: b.live[0] for b in only_problem(func, **options).buffers}


@T.prim_func(s_tir=True)
def chain(x: T.Buffer((64,), "float32"), y: T.Buffer((64,), "float32")):
    a = T.alloc_buffer((64,), "float32", scope="local.UB")
    b = T.alloc_buffer((64,), "float32", scope="local.UB")
    c = T.alloc_buffer((64,), "float32", scope="local.UB")
    for i in range(64):
        a[i] = x[i] + T.float32(1)
    for i in range(64):
        b[i] = a[63 - i] * T.float32(2)
    for i in range(64):
        c[i] = b[63 - i] - T.float32(3)
    for i in range(64):
        y[i] = c[63 - i]


@T.prim_func(s_tir=True)
def types(x: T.Buffer((64,), "float32"), y: T.Buffer((64,), "float32")):
    a = T.alloc_buffer((64,), "float32", scope="local.UB")
    b = T.alloc_buffer((64,), "float16", scope="local.UB")
    c = T.alloc_buffer((64,), "int8", scope="local.UB")
    d = T.alloc_buffer((64,), "bool", scope="local.UB")
    for i in range(16):
        for j in T.vectorized(4):
            a[i * 4 + j] = x[i * 4 + j] + T.float32(1)
    for i in range(8):
        for j in T.vectorized(8):
            b[i * 8 + j] = T.Cast("float16", a[63 - (i * 8 + j)])
    for i in range(64):
        c[i] = T.Cast("int8", b[i])
    for i in range(64):
        d[i] = c[i] < T.Cast("int8", b[63 - i])
    for i in range(64):
        y[i] = T.Select(d[i], T.Cast("float32", c[63 - i]), T.float32(-1))


@T.prim_func(s_tir=True)
def opaque(x: T.Buffer((64,), "float32"), y: T.Buffer((64,), "float32")):
    first = T.alloc_buffer((64,), "float32", scope="local.UB")
    second = T.alloc_buffer((64,), "float32", scope="local.UB")
    third = T.alloc_buffer((64,), "float32", scope="local.UB")
    fourth = T.alloc_buffer((64,), "float32", scope="local.UB")
    for i in range(64):
        first[i] = x[i] + T.float32(1)
    T.evaluate(T.call_extern("int32", "memcpy", second.data, first.data, T.int64(256)))
    for i in range(64):
        third[i] = second[63 - i]
    T.evaluate(
        T.call_extern(
            "int32",
            "memcpy",
            T.tvm_access_ptr(T.type_annotation("float32"), fourth.data, 8, 56, 2),
            T.address_of(third[4]),
            T.int64(224),
        )
    )
    for i in range(8):
        fourth[i] = T.float32(i)
    T.call_packed("tvm_ext.test.negate", fourth)
    for i in range(64):
        y[i] = fourth[i]


@tvm.register_global_func("tvm_ext.test.negate", override=True)
def negate(array: tvm.runtime.Tensor) -> None:
    array.copyfrom(-array.numpy())


@T.prim_func(s_tir=True)
def aliased(x: T.Buffer((64,), "int32"), y: T.Buffer((64,), "int32")):
    a = T.alloc_buffer((64,), "int32", scope="local.UB")
    bytes_of_a = T.decl_buffer((256,), "int8", data=a.data, scope="local.UB")
    words_of_a = T.decl_buffer((128,), "int16", data=bytes_of_a.data, scope="local.UB")
    b = T.alloc_buffer((64,), "int32", scope="local.UB")
    c = T.alloc_buffer((64,), "int32", scope="local.UB")
    for i in range(64):
        b[i] = x[i] * 3
    for i in range(64):
        a[i] = b[63 - i]
    for i in range(64):
        bytes_of_a[i * 4 + 1] = T.int8(i)
    for i in range(64):
        c[i] = T.Cast("int32", words_of_a[127 - i])
    for i in range(64):
        y[i] = c[i] + b[i]


@T.prim_func(s_tir=True)
def double_buffered(x: T.Buffer((8, 64), "float32"), y: T.Buffer((8, 64), "float32")):
    for k in range(8):
        a = T.alloc_buffer((64,), "float32", scope="local.UB", annotations={"multi_buffer": 2})
        b = T.alloc_buffer((64,), "float32", scope="local.UB", annotations={"multi_buffer": 3})
        for i in range(64):
            a[i] = x[k, i] + T.float32(1)
        for i in T.vectorized(64):
            b[i] = a[i] * T.float32(3)
        for i in range(64):
            y[k, i] = b[63 - i] * a[i]


@T.prim_func(s_tir=True)
def elementwise(x: T.Buffer((64,), "float32"), y: T.Buffer((64,), "float32")):
    a = T.alloc_buffer((64,), "float32", scope="local.UB")
    b = T.alloc_buffer((64,), "float32", scope="local.UB")
    for i in range(64):
        a[i] = x[i] + T.float32(1)
    for i in range(8):
        for j in range(8):
            b[i * 8 + j] = a[i * 8 + j] * T.float32(2)
    for i in range(64):
        y[i] = b[63 - i]


@T.prim_func(s_tir=True)
def in_parallel(x: T.Buffer((4, 64), "float32"), y: T.Buffer((4, 64), "float32")):
    outer = T.alloc_buffer((64,), "float32", scope="local.UB")
    for i in range(64):
        outer[i] = x[0, i]
    for p in T.parallel(4):
        a = T.alloc_buffer((64,), "float32", scope="local.UB")
        b = T.alloc_buffer((64,), "float32", scope="local.UB")
        for i in range(64):
            a[i] = x[p, i] + outer[63 - i]
        for i in range(64):
            b[i] = a[63 - i]
        for i in range(64):
            y[p, i] = b[i]


@T.prim_func(s_tir=True)
def symbolic(x_handle: T.handle, y_handle: T.handle):
    n = T.int32()
    x = T.match_buffer(x_handle, (n,), "float32")
    y = T.match_buffer(y_handle, (n,), "float32")
    a = T.alloc_buffer((n,), "float32")
    b = T.alloc_buffer((n,), "float32")
    c = T.alloc_buffer((n,), "float32")
    for i in range(n):
        a[i] = x[i] + T.float32(1)
    for i in range(n):
        b[i] = a[n - 1 - i]
    for i in range(n):
        c[i] = b[n - 1 - i]
    for i in range(n):
        y[i] = c[n - 1 - i]


@T.prim_func(s_tir=True)
def constant_indices(x: T.Buffer((8,), "int32"), y: T.Buffer((8,), "int32")):
    T.func_attr({"tirx.noalias": True})
    a = T.alloc_buffer((8,), "int32", scope="local.UB")
    b = T.alloc_buffer((32,), "int8", scope="local.UB")
    c = T.alloc_buffer((16,), "int16", scope="local.UB")
    d = T.alloc_buffer((4,), "int64", scope="local.UB")
    for i in T.unroll(8):
        a[i] = x[7 - i] + 1
    for i in T.unroll(32):
        b[i] = T.Cast("int8", a[7 - i // 4] + i)
    for i in T.unroll(16):
        c[i] = T.Cast("int16", b[31 - i * 2]) * T.int16(3)
    for i in T.unroll(4):
        d[i] = T.Cast("int64", c[15 - i * 4]) + T.Cast("int64", c[i])
    for i in T.unroll(8):
        y[i] = T.Cast("int32", d[3 - i // 2]) + i


RUNNABLE = [
    constant_indices,
    chain,
    types,
    opaque,
    aliased,
    double_buffered,
    elementwise,
    in_parallel,
]


@pytest.mark.parametrize("func", RUNNABLE, ids=lambda func: func.attrs["global_symbol"])
def test_both_forms_run_as_the_unplanned_module_does(func: tirx.PrimFunc):
    assert_same_results(module(func))


@pytest.mark.parametrize("planner", PLANNERS)
def test_every_planner_is_right_for_every_case(planner: str):
    for func in RUNNABLE:
        for addressed in (True, False):
            options = ProblemOptions(addressed=addressed)
            assert plan_addresses(module(func)["main"], planner, options).scopes


def test_addresses_are_where_the_plan_says():
    found = addresses(PlanAddresses()(module(chain)))
    assert sorted(found) == ["a", "b", "c"]
    assert {found["a"], found["b"]} == {(0,), (256,)}
    assert found["c"] == found["a"]


def test_addresses_count_from_the_base_of_the_memory():
    memory = MemoryHierarchy((MemoryScope("local.UB", 4096, 32, base=65536),))
    found = addresses(PlanAddresses(memory=memory)(module(chain)))
    assert {found["a"], found["b"]} == {(65536,), (65536 + 256,)}


def test_a_memory_that_begins_between_the_multiples_that_a_buffer_asks_for_is_refused():
    @T.prim_func(s_tir=True)
    def wide(x: T.Buffer((64,), "float32"), y: T.Buffer((64,), "float32")):
        a = T.alloc_buffer((64,), "float32", scope="local.UB", align=256)
        for i in range(64):
            a[i] = x[i]
        for i in range(64):
            y[i] = a[i]

    def planned(base):
        scope = MemoryScope("local.UB", 1024, 32, base=base)
        return addresses(PlanAddresses(memory=MemoryHierarchy((scope,)))(module(wide)))

    assert planned(512) == {"a": (512,)}
    with pytest.raises(ValueError, match=r"'main'.*'a' needs .* multiple of 256, .* begins at 32"):
        planned(32)


def test_an_address_in_the_program_stays():
    @T.prim_func(s_tir=True)
    def pinned(x: T.Buffer((64,), "float32"), y: T.Buffer((64,), "float32")):
        a = T.alloc_buffer((64,), "float32", scope="local.UB", allocated_addr=512)
        b = T.alloc_buffer((64,), "float32", scope="local.UB")
        for i in range(64):
            a[i] = x[i]
        for i in range(64):
            b[i] = a[63 - i]
        for i in range(64):
            y[i] = b[i]

    assert addresses(PlanAddresses(memory=UB)(module(pinned))) == {"a": (512,), "b": (0,)}
    assert_same_results(module(pinned))


def test_one_arena_a_scope_and_attach_point():
    mod = PlanAddresses(form="arena")(module(in_parallel))
    assert num_arenas(mod) == 2
    assert "arena_local_UB = T.alloc_buffer((256,)" in mod.script()
    assert "arena_local_UB_1 = T.alloc_buffer((512,)" in mod.script()


def test_memory_inside_a_parallel_loop_lies_above_what_is_live_around_it():
    found = addresses(PlanAddresses(memory=UB)(module(in_parallel)))
    assert found["outer"] == (0,)
    assert {found["a"], found["b"]} == {(256,), (512,)}


@T.prim_func(s_tir=True)
def before_and_in_parallel(x: T.Buffer((64,), "float32"), y: T.Buffer((4, 64), "float32")):
    early = T.alloc_buffer((64,), "float32", scope="local.UB")
    also = T.alloc_buffer((64,), "float32", scope="local.UB")
    kept = T.alloc_buffer((64,), "float32", scope="local.UB")
    for i in range(64):
        early[i] = x[63 - i]
    for i in range(64):
        also[i] = early[63 - i]
    for i in range(64):
        kept[i] = also[63 - i]
    for p in T.parallel(4):
        a = T.alloc_buffer((64,), "float32", scope="local.UB")
        b = T.alloc_buffer((64,), "float32", scope="local.UB")
        for i in range(64):
            a[i] = kept[63 - i]
        for i in range(64):
            b[i] = a[63 - i]
        for i in range(64):
            y[p, i] = b[63 - i]


def test_bytes_that_are_dead_when_a_parallel_loop_begins_are_free_in_it():
    capacity = MemoryHierarchy((MemoryScope("local.UB", capacity=768, alignment=32),))
    found = addresses(PlanAddresses(memory=capacity)(module(before_and_in_parallel)))
    assert found["early"] == found["kept"] == (0,)
    assert found["also"] == (256,)
    assert {found["a"], found["b"]} == {(256,), (512,)}
    # An arena is there all the time.
    with pytest.raises(ValueError, match="needs 1024 bytes"):
        PlanAddresses(memory=capacity, form="arena")(module(before_and_in_parallel))
    assert_same_results(module(before_and_in_parallel))


def test_slots_have_an_address_each():
    found = addresses(PlanAddresses(memory=MemoryHierarchy())(module(double_buffered)))
    assert found == {"a": (), "b": ()}
    found = addresses(PlanAddresses()(module(double_buffered)))
    assert (len(found["a"]), len(found["b"])) == (2, 3)
    assert len({*found["a"], *found["b"]}) == 5


def test_slots_without_a_loop_are_one_slot_and_said():
    @T.prim_func(s_tir=True)
    def no_loop(x: T.Buffer((64,), "float32"), y: T.Buffer((64,), "float32")):
        a = T.alloc_buffer((64,), "float32", scope="local.UB", annotations={"multi_buffer": 2})
        for i in range(64):
            a[i] = x[i]
        for i in range(64):
            y[i] = a[63 - i]

    found = find_problems(module(no_loop)["main"])
    assert found.problems[0].problem.buffers[0].slots == 1
    assert "no loop is around its allocation" in found.remarks[0].text


@pytest.mark.parametrize("value", [0, -1, "two"])
def test_a_wrong_number_of_slots_is_refused(value):
    buffer = tirx.decl_buffer([64], "float32", "a", scope="local.UB", layout=None)
    index = tirx.Var("i", "int32")
    loop = tirx.For(
        index,
        tirx.const(0),
        tirx.const(64),
        tirx.ForKind.SERIAL,
        tirx.SeqStmt(
            [
                tirx.AllocBuffer(buffer, {"multi_buffer": value}),
                tirx.BufferStore(buffer, tirx.const(0.0, "float32"), [index]),
            ]
        ),
    )
    func = tirx.PrimFunc([], loop)
    message = r"buffer 'a' in local\.UB: multi_buffer must be a positive integer"
    with pytest.raises(ValueError, match=message):
        find_problems(func)


# Live ranges


def test_a_buffer_made_outside_of_a_loop_lives_through_all_of_it():
    @T.prim_func(s_tir=True)
    def carried(x: T.Buffer((64,), "float32"), y: T.Buffer((64,), "float32")):
        total = T.alloc_buffer((64,), "float32", scope="local.UB")
        for i in range(64):
            total[i] = T.float32(0)
        for _k in range(4):
            one = T.alloc_buffer((64,), "float32", scope="local.UB")
            two = T.alloc_buffer((64,), "float32", scope="local.UB")
            for i in range(64):
                one[i] = x[i] + total[63 - i]
            for i in range(64):
                two[i] = one[63 - i]
            for i in range(64):
                total[i] = two[63 - i]
        for i in range(64):
            y[i] = total[i]

    ranges = live(module(carried)["main"])
    assert ranges["total"][0] < ranges["one"][0]
    assert ranges["two"][1] < ranges["total"][1]
    assert ranges["one"][1] > ranges["two"][0]
    assert_same_results(module(carried))


def test_branches_share():
    @T.prim_func(s_tir=True)
    def branches(x: T.Buffer((64,), "float32"), y: T.Buffer((64,), "float32")):
        if x[0] < T.float32(0):
            a = T.alloc_buffer((64,), "float32", scope="local.UB")
            for i in range(64):
                a[i] = x[i]
            for i in range(64):
                y[i] = a[63 - i]
        else:
            b = T.alloc_buffer((64,), "float32", scope="local.UB")
            for i in range(64):
                b[i] = x[i] * T.float32(2)
            for i in range(64):
                y[i] = b[63 - i]

    plan = plan_addresses(module(branches)["main"])
    assert plan.scopes[0].plan.peak == 256


def test_memory_whose_address_is_kept_lives_as_long_as_the_function():
    @T.prim_func(s_tir=True)
    def kept(x: T.Buffer((64,), "float32"), y: T.Buffer((64,), "float32")):
        a = T.alloc_buffer((64,), "float32", scope="local.UB")
        pointer: T.let[T.handle("float32", "local.UB")] = a.data
        b = T.alloc_buffer((64,), "float32", scope="local.UB")
        for i in range(64):
            a[i] = x[i]
        for i in range(64):
            b[i] = x[63 - i]
        for i in range(64):
            y[i] = b[i]
        T.evaluate(T.call_extern("int32", "memcpy", y.data, pointer, T.int64(128)))

    ranges = live(module(kept)["main"])
    assert ranges["a"][0] == 0
    assert ranges["a"][1] >= ranges["b"][1]
    assert_same_results(module(kept))


def test_a_buffer_on_a_computed_address_keeps_its_memory_alive():
    a = tirx.decl_buffer([64], "float32", "a", scope="local.UB", layout=None)
    b = tirx.decl_buffer([64], "float32", "b", scope="local.UB", layout=None)
    half = tirx.decl_buffer([32], "float32", "half", scope="local.UB", layout=None)
    x = tirx.decl_buffer([64], "float32", "x", layout=None)
    y = tirx.decl_buffer([64], "float32", "y", layout=None)

    def each(extent, make):
        index = tirx.Var("i", "int32")
        body = make(index)
        return tirx.For(index, tirx.const(0), tirx.const(extent), tirx.ForKind.SERIAL, body)

    load, store = tirx.BufferLoad, tirx.BufferStore
    body = tirx.SeqStmt(
        [
            tirx.AllocBuffer(a),
            tirx.AllocBuffer(b),
            each(64, lambda i: store(a, load(x, [i]), [i])),
            tirx.DeclBuffer(half, data=tirx.address_of(load(a, [tirx.const(32)]))),
            each(64, lambda i: store(b, load(x, [63 - i]), [i])),
            each(64, lambda i: store(y, load(b, [i]), [i])),
            each(32, lambda i: store(y, load(half, [31 - i]), [i])),
        ]
    )
    func = tirx.PrimFunc([x, y], body).with_attr("global_symbol", "main")
    ranges = live(func)
    assert ranges["a"][0] == 0
    assert ranges["a"][1] >= ranges["b"][1]
    assert_same_results(tvm.IRModule({"main": func}))


def test_volatile_memory_is_live_throughout_or_left_alone():
    @T.prim_func(s_tir=True)
    def watched(x: T.Buffer((64,), "float32"), y: T.Buffer((64,), "float32")):
        a = T.alloc_buffer((64,), "float32", scope="local.UB", annotations={"tirx.volatile": True})
        b = T.alloc_buffer((64,), "float32", scope="local.UB")
        for i in range(64):
            a[i] = x[i]
        for i in range(64):
            b[i] = a[63 - i]
        for i in range(64):
            y[i] = b[i]

    func = module(watched)["main"]
    ranges = live(func)
    assert ranges["a"][0] == 0
    assert ranges["a"][1] >= ranges["b"][1]
    found = find_problems(func, ProblemOptions(addressed=False))
    assert [*map(str, found.left_alone)] == ["buffer 'a' in local.UB: it is volatile"]


# In place


def test_an_elementwise_result_takes_its_operands_place():
    problem = only_problem(module(elementwise)["main"])
    assert problem.in_place == (("a", "b"),)
    assert plan_addresses(module(elementwise)["main"]).scopes[0].plan.peak == 256
    assert only_problem(module(elementwise)["main"], detect_inplace=False).in_place == ()


def in_place_of(statement) -> tuple:
    """Return the in-place pairs of a program whose middle statement a function makes."""
    a, b, spare = (
        tirx.decl_buffer([64], "float32", name, scope="local.UB", layout=None) for name in "abs"
    )
    x = tirx.decl_buffer([64], "float32", "x", layout=None)
    y = tirx.decl_buffer([64], "float32", "y", layout=None)
    body = tirx.SeqStmt(
        [
            tirx.AllocBuffer(a),
            tirx.AllocBuffer(b),
            loop(64, lambda i: tirx.BufferStore(a, tirx.BufferLoad(x, [i]), [i])),
            statement(a, b, spare),
            loop(64, lambda i: tirx.BufferStore(y, tirx.BufferLoad(b, [i]), [i])),
        ]
    )
    func = tirx.PrimFunc([x, y], body)
    return only_problem(func).in_place


def loop(extent, make, first=0, kind=tirx.ForKind.SERIAL):
    index = tirx.Var("i", "int32")
    return tirx.For(index, tirx.const(first), tirx.const(extent), kind, make(index))


def assign(to, source, index, by=None):
    return tirx.BufferStore(to, tirx.BufferLoad(source, [index if by is None else by]), [index])


def clear(buffer, index):
    return tirx.BufferStore(buffer, tirx.const(0.0, "float32"), [index])


def increase(buffer, index):
    return tirx.BufferStore(buffer, tirx.BufferLoad(buffer, [index]) + 1.0, [index])


ALLOWED = {
    "elementwise": lambda a, b, _: loop(64, lambda i: assign(b, a, i)),
    "from an offset": lambda a, b, _: loop(32, lambda i: assign(b, a, i + 8)),
    "every other": lambda a, b, _: loop(32, lambda i: assign(b, a, i * 2)),
    "backward": lambda a, b, _: loop(64, lambda i: assign(b, a, 63 - i)),
    "two loops": lambda a, b, _: loop(8, lambda i: loop(8, lambda j: assign(b, a, i * 8 + j))),
    "two loops, the other way": lambda a, b, _: loop(
        8, lambda i: loop(8, lambda j: assign(b, a, i + j * 8))
    ),
    "vectors": lambda a, b, _: loop(16, lambda i: assign(b, a, tirx.Ramp(i * 4, tirx.const(1), 4))),
    "under a condition": lambda a, b, _: loop(
        64, lambda i: tirx.IfThenElse(i < 7, assign(b, a, i), None)
    ),
    "parallel": lambda a, b, _: loop(64, lambda i: assign(b, a, i), kind=tirx.ForKind.PARALLEL),
    "the operand is made in the same iteration": lambda a, b, _: loop(
        64, lambda i: tirx.SeqStmt([clear(a, i), assign(b, a, i)])
    ),
    "the operand is summed up in the same iteration": lambda a, b, _: loop(
        64,
        lambda i: tirx.SeqStmt(
            [clear(a, i), loop(8, lambda _k: increase(a, i)), assign(b, a, i)],
        ),
    ),
    "both branches": lambda a, b, _: loop(
        64, lambda i: tirx.IfThenElse(i < 7, assign(b, a, i), assign(b, a, i))
    ),
    "the operand is changed in another branch": lambda a, b, _: loop(
        64, lambda i: tirx.IfThenElse(i < 7, assign(b, a, i), increase(a, i))
    ),
    "a condition reads the operand": lambda a, b, _: loop(
        64, lambda i: tirx.IfThenElse(tirx.BufferLoad(a, [i]) < 7.0, assign(b, a, i), clear(b, i))
    ),
    "rows are read before they are written": lambda a, b, spare: loop(
        8,
        lambda i: tirx.SeqStmt(
            [
                loop(8, lambda j: assign(spare, a, i * 8 + 7 - j)),
                loop(8, lambda j: assign(b, a, i * 8 + j)),
            ]
        ),
    ),
    "a triangle": lambda a, b, _: loop(
        8, lambda i: _from(0, lambda j: assign(b, a, i * 8 + j), extent=i + 1)
    ),
    "the result is read back": lambda a, b, _: loop(
        64, lambda i: tirx.SeqStmt([assign(b, a, i), increase(b, i)])
    ),
}

REFUSED = {
    "its address is lent": lambda a, b, _: loop(
        64,
        lambda i: tirx.SeqStmt(
            [tirx.Evaluate(tirx.call_extern("int32", "f", a.data)), assign(b, a, i)]
        ),
    ),
    "its address is lent for a condition": lambda a, b, _: loop(
        64,
        lambda i: tirx.IfThenElse(
            tirx.call_extern("int32", "f", tirx.address_of(tirx.BufferLoad(a, [i]))) < 1,
            assign(b, a, i),
            None,
        ),
    ),
    "another element": lambda a, b, _: loop(64, lambda i: assign(b, a, i, by=63 - i)),
    "repeated": lambda a, b, _: loop(2, lambda _k: loop(64, lambda i: assign(b, a, i))),
    "overlapping": lambda a, b, _: loop(8, lambda i: loop(8, lambda j: assign(b, a, i * 4 + j))),
    "overlapping vectors": lambda a, b, _: loop(
        16, lambda i: assign(b, a, tirx.Ramp(i * 2, tirx.const(1), 4))
    ),
    "unknown": lambda a, b, _: loop(64, lambda i: assign(b, a, tirx.floordiv(i * i, 64))),
    "two stores": lambda a, b, _: loop(
        63, lambda i: tirx.SeqStmt([assign(b, a, i), assign(b, a, i + 1)])
    ),
    "operand is overwritten": lambda a, b, _: loop(
        64, lambda i: tirx.SeqStmt([assign(b, a, i), assign(a, b, i)])
    ),
    "operand is made for the next iteration": lambda a, b, _: loop(
        63, lambda i: tirx.SeqStmt([clear(a, i + 1), assign(b, a, i)])
    ),
    "operand is cleared behind": lambda a, b, _: loop(
        64, lambda i: tirx.SeqStmt([assign(b, a, i), clear(a, i)])
    ),
    "operand is cleared behind both branches": lambda a, b, _: loop(
        64,
        lambda i: tirx.SeqStmt(
            [tirx.IfThenElse(i < 7, assign(b, a, i), assign(b, a, i)), clear(a, i)]
        ),
    ),
    "operand is read again under another condition": lambda a, b, _: loop(
        64,
        lambda i: tirx.SeqStmt(
            [
                tirx.IfThenElse(i < 7, assign(b, a, i), None),
                tirx.IfThenElse(i < 9, assign(b, a, i), None),
            ]
        ),
    ),
    "operand is summed up while the result is written": lambda a, b, _: loop(
        64,
        lambda i: loop(8, lambda _k: tirx.SeqStmt([increase(a, i), assign(b, a, i)])),
    ),
    "branches of different iterations": lambda a, b, _: loop(
        2,
        lambda k: loop(64, lambda i: tirx.IfThenElse(k < 1, assign(b, a, i), increase(a, i))),
    ),
    "rows reach into the next": lambda a, b, spare: loop(
        7,
        lambda i: tirx.SeqStmt(
            [
                loop(8, lambda j: assign(spare, a, i * 8 + 8 - j)),
                loop(8, lambda j: assign(b, a, i * 8 + j)),
            ]
        ),
    ),
    "one iteration that begins elsewhere each time": lambda a, b, _: loop(
        8, lambda i: _from(i * -1, lambda j: assign(b, a, i + j), extent=1)
    ),
    "seen by another name": lambda a, b, other: loop(
        64,
        lambda i: tirx.SeqStmt(
            [tirx.DeclBuffer(other, data=a.data), assign(b, a, i), assign(b, other, i)]
        ),
    ),
    "begins where another loop says": lambda a, b, _: loop(
        8, lambda i: _from(i * -4, lambda j: assign(b, a, i * 4 + j + 28))
    ),
}


def _from(first, make, extent=4):
    index = tirx.Var("j", "int32")
    return tirx.For(index, first, extent, tirx.ForKind.SERIAL, make(index))


@pytest.mark.parametrize("case", ALLOWED)
def test_in_place_where_each_element_is_read_before_it_is_written(case: str):
    assert in_place_of(ALLOWED[case]) == (("a", "b"),)


@T.prim_func(s_tir=True)
def one_of_two(x: T.Buffer((64,), "float32"), y: T.Buffer((64,), "float32")):
    a = T.alloc_buffer((64,), "float32", scope="local.UB")
    b = T.alloc_buffer((64,), "float32", scope="local.UB")
    for i in range(64):
        if i % 2 == 0:
            a[i] = x[63 - i]
            y[i] = a[i] * T.float32(2)
        else:
            b[i] = x[i]
            y[i] = b[i] + T.float32(1)


def test_two_that_may_be_in_place_of_one_another_are_one_pair():
    assert only_problem(module(one_of_two)["main"]).in_place == (("a", "b"),)
    assert_same_results(module(one_of_two))
    assert plan_addresses(module(one_of_two)["main"]).scopes[0].plan.peak == 256


@pytest.mark.parametrize("case", REFUSED)
def test_not_in_place_where_that_is_not_shown(case: str):
    assert in_place_of(REFUSED[case]) == ()


# Sizes


def test_sizes_and_alignments():
    @T.prim_func(s_tir=True)
    def sizes(x: T.Buffer((64,), "float32"), y: T.Buffer((64,), "float32")):
        bits = T.alloc_buffer((5,), "int4", scope="local.UB")
        wide = T.alloc_buffer((3,), "float32x4", scope="local.UB")
        narrow = T.alloc_buffer((64,), "float16", scope="local.UB")
        for i in range(5):
            bits[i] = T.Cast("int4", i)
        for i in range(3):
            wide[i] = T.Broadcast(x[i] + T.Cast("float32", bits[i]), 4)
        for i in range(8):
            for j in T.vectorized(8):
                narrow[i * 8 + j] = T.Cast("float16", x[i * 8 + j])
        for i in range(64):
            y[i] = T.Cast("float32", narrow[i])

    func = module(sizes)["main"]
    buffers = {b.name: b for b in only_problem(func).buffers}
    assert {name: (b.size, b.alignment) for name, b in buffers.items()} == {
        "bits": (3, 1),
        "wide": (48, 16),
        "narrow": (128, 16),
    }
    assert only_problem(func).memory.alignment == 64
    assert only_problem(func, memory=UB).memory.alignment == 32
    found = find_problems(func, ProblemOptions(addressed=False))
    (note,) = found.left_alone
    assert str(note) == "buffer 'bits' in local.UB: its elements are no whole bytes"


def test_symbolic_sizes_are_left_alone_and_said(caplog):
    mod = module(symbolic)
    with caplog.at_level("INFO", logger="tvm_ext.PlanAddresses"):
        planned = PlanAddresses(form="arena")(mod)
    assert caplog.messages == [
        f"PlanAddresses: function 'symbolic': left alone: buffer '{name}' in global: its size is "
        "symbolic, and no upper bound is known"
        for name in "abc"
    ]
    tvm.ir.assert_structural_equal(planned, mod)


def test_symbolic_sizes_are_planned_at_an_upper_bound():
    mod = module(symbolic)
    for bounded in (
        PlanAddresses(form="arena", upper_bounds={"n": 128}),
        lambda mod: PlanAddresses(form="arena")(
            tvm.IRModule({"main": mod["main"].with_attr("tir_var_upper_bound", {"n": 128})})
        ),
    ):
        planned = bounded(mod)
        assert num_arenas(planned) == 1
        # TVM writes the extent in a way that it bounds by twice the variable.
        assert "arena_global = T.alloc_buffer((2048,)" in planned.script()
    assert_same_results(mod, sizes={"n": 100}, upper_bounds={"n": 128})


def test_a_variable_above_its_bound_is_an_error_at_run_time():
    run = build(module(symbolic), PlanAddresses(form="arena", upper_bounds={"n": 128}))
    x, y = (tvm.runtime.tensor(np.zeros(129, "float32")) for _ in range(2))
    with pytest.raises(Exception, match="n is above 128, for which the memory was planned"):
        run["main"](x, y)


# What is planned


def test_registers_stay_unless_their_scope_is_asked_for():
    @T.prim_func(s_tir=True)
    def registers(x: T.Buffer((64,), "float32"), y: T.Buffer((64,), "float32")):
        total = T.alloc_buffer((1,), "float32")
        near = T.alloc_buffer((64,), "float32", scope="local")
        total[0] = T.float32(0)
        for i in range(64):
            near[i] = x[i]
        for i in range(64):
            total[0] = total[0] + near[i]
        for i in range(64):
            y[i] = total[0] + near[63 - i]

    mod = module(registers)
    assert addresses(PlanAddresses()(mod)) == {"total": (), "near": ()}
    assert addresses(PlanAddresses(scopes=["global"])(mod)) == {"total": (0,), "near": ()}
    assert addresses(PlanAddresses(scopes=["local"])(mod)) == {"total": (), "near": (0,)}
    assert_same_results(mod, scopes=["global", "local"])


def test_scopes_choose():
    mod = module(chain)
    assert set(addresses(PlanAddresses(scopes=["local.L1"])(mod)).values()) == {()}
    with pytest.raises(ValueError, match="unknown storage scope 'UB'"):
        PlanAddresses(scopes=["UB"])
    with pytest.raises(
        ValueError, match=r"scope 'local.L1' is not in the target's memory; it has: local.UB"
    ):
        PlanAddresses(scopes=["local.L1"], memory=UB)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"planner": "none"}, "unknown planner 'none'"),
        ({"form": "pool"}, "form must be one of address, arena, got 'pool'"),
        ({"scopes": "local.UB"}, "scopes must be a sequence of names"),
        ({"target": "llvm"}, "no memory"),
        ({"target": "llvm", "memory": UB}, "not both"),
        ({"upper_bounds": {"n": 0}}, "the upper bound of 'n' must be a positive integer, got 0"),
    ],
)
def test_wrong_options_are_refused(options, message: str):
    with pytest.raises(ValueError, match=message):
        PlanAddresses(**options)


def test_the_target_says_what_memory_there_is():
    config = {"kind": "llvm", "feature.memory": UB.to_feature()}
    planned = PlanAddresses(target=config)(module(chain))
    assert addresses(planned)["a"] in ((0,), (256,))
    small = MemoryHierarchy((MemoryScope("local.UB", capacity=256),))
    target = tvm.target.Target({"kind": "llvm", "feature.memory": small.to_feature()})
    func = module(chain)["main"].with_attr("target", target)
    with pytest.raises(ValueError, match="has 256"):
        PlanAddresses()(tvm.IRModule({"main": func}))


def test_over_capacity_says_what_is_missing():
    memory = MemoryHierarchy((MemoryScope("local.UB", capacity=480, alignment=32),))
    with pytest.raises(ValueError, match="PlanAddresses") as error:
        PlanAddresses(memory=memory)(module(chain))
    lines = str(error.value).splitlines()
    assert lines[0].startswith("PlanAddresses: function 'main': scope 'local.UB' needs 512 bytes")
    assert lines[0].endswith("and has 480")
    text = str(error.value)
    assert "a: 256 bytes, live on lines 8 to 11" in text
    assert "b: 256 bytes, live on lines 10 to 13" in text
    assert "no plan needs less than 512 bytes; it is proven that no plan fits" in text


def test_a_planner_that_finds_no_fit_does_not_claim_there_is_none():
    memory = MemoryHierarchy((MemoryScope("local.UB", capacity=512, alignment=32),))
    with pytest.raises(ValueError, match=r"another plan fits\n.*\n    the planner 'first_fit'"):
        PlanAddresses("bump", memory=memory)(module(chain))
    PlanAddresses("best", memory=memory)(module(chain))


def test_calls_that_may_take_a_whole_buffer_are_refused_in_an_arena():
    a = tirx.decl_buffer([64], "float32", "a", scope="local.UB", layout=None)
    call = tirx.call_intrin("int32", "tirx.tvm_storage_sync", a.data)
    func = tirx.PrimFunc([], tirx.SeqStmt([tirx.AllocBuffer(a), tirx.Evaluate(call)]))
    mod = tvm.IRModule({"main": func})
    message = "function 'main': buffer 'a' is handed to tirx.tvm_storage_sync, which may not take"
    with pytest.raises(ValueError, match=message):
        PlanAddresses(form="arena")(mod)
    assert addresses(PlanAddresses()(mod)) == {"a": (0,)}


CALLS = """
@I.ir_module(s_tir=True)
class Module:
    @T.prim_func(s_tir=True)
    def main(x: T.Buffer((64,), "float32"), y: T.Buffer((64,), "float32")):
        T.func_attr({"global_symbol": "main"})
        a = T.alloc_buffer((64,), "float32")
        b = T.alloc_buffer((64,), "float32")
        c = T.alloc_buffer((64,), "float32")
        for i in range(64):
            a[i] = x[63 - i]
        Module.step(a.data, b.data)
        Module.step(b.data, c.data)
        for i in range(64):
            y[i] = c[63 - i]

    @T.prim_func(private=True, s_tir=True)
    def step(p: T.handle("float32"), q: T.handle("float32")):
        source = T.decl_buffer((64,), "float32", data=p)
        result = T.decl_buffer((64,), "float32", data=q)
        between = T.alloc_buffer((64,), "float32")
        for i in range(64):
            between[i] = source[63 - i]
        for i in range(64):
            result[i] = between[63 - i] + T.float32(1)
"""


def test_functions_that_call_one_another_run_in_an_arena():
    mod = tvm.script.from_source(CALLS)
    x = np.arange(64, dtype="float32")
    for plan in (identity(), poisoned(PlanAddresses(form="arena"))):
        y = tvm.runtime.tensor(np.zeros(64, "float32"))
        build(mod, plan)["main"](tvm.runtime.tensor(x), y)
        np.testing.assert_array_equal(y.numpy(), x + 2)
    planned = PlanAddresses(form="arena")(workloads.capture(mod, "llvm")[0])
    assert num_arenas(planned) == 2
    assert "arena_global = T.alloc_buffer((512,)" in planned["main"].script()


def test_targets_that_see_one_type_get_no_arena():
    func = module(chain)["main"].with_attr("target", tvm.target.Target("vulkan"))
    with pytest.raises(ValueError, match="cannot see one piece of memory as several types"):
        PlanAddresses(form="arena")(tvm.IRModule({"main": func}))


# In builds


@pytest.mark.parametrize("form", ["address", "arena"])
def test_pipelines_by_name_and_in_a_context(form: str):
    x = np.arange(64, dtype="float32")
    expected = tvm.runtime.tensor(np.zeros(64, "float32"))
    mod = tvm.IRModule({"main": chain})
    build(mod, identity())["main"](tvm.runtime.tensor(x), expected)
    ran: list[str] = []

    @tvm.ir.instrument.pass_instrument
    class Recorder:
        def run_before_pass(self, _mod, info):
            ran.append(str(info.name))

    with tvm.transform.PassContext(instruments=[Recorder()]):
        named = tirx.build(mod, target="llvm", pipeline=f"tvm_ext.{form}")
        with tvm_ext.pipeline.use_plan_addresses(form=form):
            in_context = tirx.build(mod, target="llvm")
    assert ran.count("tvm_ext.PlanAddresses") == 2
    assert "tirx.StorageRewrite" not in ran
    for library in (named, in_context):
        result = tvm.runtime.tensor(np.zeros(64, "float32"))
        library["main"](tvm.runtime.tensor(x), result)
        np.testing.assert_array_equal(result.numpy(), expected.numpy())


def test_in_a_sequential_and_the_input_stays():
    mod = module(chain)
    before = mod.script()
    passes = tvm.transform.Sequential([PlanAddresses(form="arena"), tirx.transform.StmtSimplify()])
    assert num_arenas(passes(mod)) == 1
    assert mod.script() == before


def test_the_address_of_a_slot_is_that_of_the_iteration():
    @T.prim_func(s_tir=True)
    def lent(x: T.Buffer((6, 16), "float32"), y: T.Buffer((6, 16), "float32")):
        for k in range(6):
            a = T.alloc_buffer((16,), "float32", scope="local.UB", annotations={"multi_buffer": 2})
            b = T.alloc_buffer((16,), "float32", scope="local.UB", annotations={"multi_buffer": 3})
            for i in range(16):
                a[i] = x[k, i] + T.float32(1)
            T.evaluate(T.call_extern("int32", "memcpy", b.data, T.address_of(a[8]), T.int64(32)))
            T.evaluate(
                T.call_extern(
                    "int32",
                    "memcpy",
                    T.tvm_access_ptr(T.type_annotation("float32"), b.data, 8, 8, 2),
                    a.data,
                    T.int64(32),
                )
            )
            for i in range(16):
                y[k, i] = b[15 - i]

    assert_same_results(module(lent))


def test_memory_around_counts_against_the_capacity_inside():
    memory = MemoryHierarchy((MemoryScope("local.UB", capacity=704, alignment=32),))
    with pytest.raises(ValueError, match="needs 768 bytes") as error:
        PlanAddresses(memory=memory)(module(in_parallel))
    assert "256 bytes are reserved, 256 of them by enclosing scopes" in str(error.value)


def test_what_is_live_at_the_peak_says_what_may_be_in_place():
    buffers = (Buffer("x", 64, ((0, 2),)), Buffer("y", 32, ((1, 3),)), Buffer("z", 8, ((1, 2),)))
    assert list(live_at_the_peak(Problem(buffers, in_place=(("x", "y"),)))) == [
        "most is live at position 1, 104 bytes with nothing in place:",
        "  x: 64 bytes, live in [0, 2)",
        "  y: 32 bytes, live in [1, 3), may be in place of 'x'",
        "  z: 8 bytes, live in [1, 2)",
    ]
    assert next(iter(live_at_the_peak(Problem(buffers)))).endswith("104 bytes:")
