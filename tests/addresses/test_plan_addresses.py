# SPDX-License-Identifier: Apache-2.0
"""`PlanAddresses` by hand: where buffers go, and how long they live."""

import numpy as np
import pytest
import tvm
from address_cases import PROGRAMS, live, module
from address_runs import addresses, assert_same_results, num_arenas
from program_text import program, programs
from tvm import te, tirx

from passes.ir.structural import nodes_in
from passes.prim_func.problems import ProblemOptions, find_problems
from target_hw.memory import MemoryHierarchy, MemoryScope
from tvm_ext.lowering import capture
from tvm_ext.transform import GMEMAllocate, PlanAddresses

RUNNING = ["types", "opaque", "aliased", "double_buffered", "lent_slots", "rounds"]
RUNNING += ["constant_indices"]


@pytest.mark.parametrize("name", RUNNING)
def test_both_forms_run_as_the_unplanned_module_does(name: str):
    assert_same_results(module(PROGRAMS[name]))


def test_addresses_count_from_the_base_of_the_memory():
    memory = MemoryHierarchy((MemoryScope("local.UB", 4096, 32, base=65536),))
    found = addresses(PlanAddresses(memory=memory)(module(PROGRAMS["chain"])))
    assert {found["a"], found["b"]} == {(65536,), (65536 + 256,)}


def test_a_memory_that_begins_between_the_multiples_that_a_buffer_asks_for_is_refused():
    wide = program("""
    def wide(x: 64, y: 64):
        a = T.alloc_buffer((64,), "float32", scope="local.UB", align=256)
        a[i] = x[i] for i in range(64)
        y[i] = a[i] for i in range(64)
    """)

    def planned(base):
        scope = MemoryScope("local.UB", 1024, 32, base=base)
        return addresses(PlanAddresses(memory=MemoryHierarchy((scope,)))(module(wide)))

    assert planned(512) == {"a": (512,)}
    with pytest.raises(ValueError, match=r"'main'.*'a' needs .* multiple of 256, .* begins at 32"):
        planned(32)


@pytest.mark.parametrize(
    ("planned", "pipeline"), [((), "tvm_ext.arena"), ((GMEMAllocate,), "default")]
)
def test_a_private_function_takes_its_memory_from_the_stack(planned, pipeline):
    made = "".join(f"    t{n} = T.alloc_buffer((64,), 'float32')\n" for n in range(6))
    filled = "".join(f"        t{n}[i] = p[63 - i] * T.float32({n})\n" for n in range(6))
    mod = tvm.script.from_source(f"""
@I.ir_module
class M:
  @T.prim_func(s_tir=True)
  def main(x: T.Buffer((64,), "float32"), y: T.Buffer((64,), "float32")):
    M.scaled(x.data, y.data)
  @T.prim_func(private=True, s_tir=True)
  def scaled(a: T.handle, b: T.handle):
    p = T.decl_buffer((64,), "float32", data=a)
    q = T.decl_buffer((64,), "float32", data=b)
{made}
    for i in range(64):
{filled}
    for i in range(64):
        q[i] = {" + ".join(f"t{n}[63 - i]" for n in range(6))}
""")
    given, result = np.arange(64, dtype="float32"), tvm.runtime.tensor(np.zeros(64, "float32"))
    for make in planned:
        mod = make()(mod)
    tirx.build(mod, "llvm", pipeline=pipeline)["main"](tvm.runtime.tensor(given), result)
    np.testing.assert_array_equal(result.numpy(), given * 15)


def test_one_arena_a_scope_and_attach_point():
    mod = PlanAddresses(form="arena")(module(PROGRAMS["in_parallel"]))
    assert num_arenas(mod) == 2
    assert "arena_local_UB = T.alloc_buffer((256,)" in mod.script()
    assert "arena_local_UB_1 = T.alloc_buffer((512,)" in mod.script()


before_and_in_parallel = program("""
def before_and_in_parallel(x: 64, y: 4x64):
    early, also, kept: local.UB 64
    early[i] = x[63 - i] for i in range(64)
    also[i] = early[63 - i] for i in range(64)
    kept[i] = also[63 - i] for i in range(64)
    for p in T.parallel(4):
        a, b: local.UB 64
        a[i] = kept[63 - i] for i in range(64)
        b[i] = a[63 - i] for i in range(64)
        y[p, i] = b[63 - i] for i in range(64)
""")


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
    found = addresses(PlanAddresses(memory=MemoryHierarchy())(module(PROGRAMS["double_buffered"])))
    assert found == {"a": (), "b": ()}
    found = addresses(PlanAddresses()(module(PROGRAMS["double_buffered"])))
    assert (len(found["a"]), len(found["b"])) == (2, 3)
    assert len({*found["a"], *found["b"]}) == 5
    assert len(addresses(PlanAddresses()(module(PROGRAMS["rounds"])))["slots"]) == 3


def test_slots_without_a_loop_are_one_slot_and_said():
    no_loop = program("""
    def no_loop(x: 64, y: 64):
        a = T.alloc_buffer((64,), "float32", scope="local.UB", annotations={"multi_buffer": 2})
        a[i] = x[i] for i in range(64)
        y[i] = a[63 - i] for i in range(64)
    """)

    found = find_problems(module(no_loop)["main"])
    assert found.problems[0].problem.buffers[0].slots == 1
    assert "no loop is around its allocation" in found.remarks[0].text


@pytest.mark.parametrize(
    ("elements", "address", "message"),
    [
        (64, [-4], "a pinned offset must be an integer from 0, got -4"),
        (64, [0, 256], r"1 slots need 1 pinned offsets, got \(0, 256\)"),
        (2**62, [], "size must be an integer of at least 0 and below"),
    ],
)
def test_what_is_no_buffer_is_refused_with_its_scope(elements, address, message):
    func = program(f"""
    def main(x: 64, y: 64):
        a = T.alloc_buffer((T.int64({elements}),), scope="local.UB", allocated_addr={address})
        a[i] = x[i] for i in range(64)
        y[i] = a[i] for i in range(64)
    """)
    with pytest.raises(ValueError, match=f"'main': local.UB: buffer 'a': {message}"):
        PlanAddresses()(tvm.IRModule({"main": func}))


def test_a_size_below_zero_that_is_used_is_noted():
    func = program("""
    def main(x: 64, y: 64):
        a = T.alloc_buffer((-4,), scope="local.UB")
        y[i] = a[i] for i in range(64)
    """)
    (note,) = find_problems(func).left_alone
    assert (note.text, note.is_used) == ("its size is -16 bytes", True)


@pytest.mark.parametrize("value", [0, -1, "two"])
def test_a_wrong_number_of_slots_is_refused(value):
    func = program(f"""
    def main(y: 64):
        for k in range(2):
            slots = T.meta_var({{"multi_buffer": {value!r}}})
            a = T.alloc_buffer((64,), "float32", scope="local.UB", annotations=slots)
            a[i] = T.float32(0) for i in range(64)
    """)
    message = rf"buffer 'a' in local\.UB: multi_buffer must be a positive integer, got {value!r}"
    with pytest.raises(ValueError, match=message):
        find_problems(func)


# Live ranges


ADDRESS_IN_USE = programs("""
def kept(x: 64, y: 64):
    a: local.UB 64
    pointer: T.let[T.handle("float32", "local.UB")] = a.data
    b: local.UB 64
    a[i] = x[i] for i in range(64)
    b[i] = x[63 - i] for i in range(64)
    y[i] = b[i] for i in range(64)
    T.evaluate(T.call_extern("int32", "memcpy", y.data, pointer, T.int64(128)))

def computed(x: 64, y: 64):
    a, b: local.UB 64
    a[i] = x[i] for i in range(64)
    half = T.decl_buffer((32,), data=T.address_of(a[32]), scope="local.UB")
    b[i] = x[63 - i] for i in range(64)
    y[i] = b[i] for i in range(64)
    y[i] = half[31 - i] for i in range(32)
""")


@pytest.mark.parametrize("name", ADDRESS_IN_USE)
def test_memory_lives_as_long_as_its_address_is_in_use(name: str):
    func = ADDRESS_IN_USE[name]
    ranges = live(module(func)["main"])
    assert ranges["a"][0] == 0
    assert ranges["a"][1] >= ranges["b"][1]
    assert_same_results(module(func))


def test_volatile_memory_is_live_throughout_or_left_alone():
    watched = program("""
    def watched(x: 64, y: 64):
        a = T.alloc_buffer((64,), "float32", scope="local.UB", annotations={"tirx.volatile": True})
        b: local.UB 64
        a[i] = x[i] for i in range(64)
        b[i] = a[63 - i] for i in range(64)
        y[i] = b[i] for i in range(64)
    """)

    func = module(watched)["main"]
    ranges = live(func)
    assert ranges["a"][0] == 0
    assert ranges["a"][1] >= ranges["b"][1]
    found = find_problems(func, ProblemOptions(addressed=False))
    assert [*map(str, found.left_alone)] == ["buffer 'a' in local.UB: it is volatile"]


# Addresses that stand in the IR: TVM's lowering writes them twice, and programs ask for some


def test_the_annotation_says_what_the_type_says():
    x = te.placeholder((64,), "float32", "x")
    first = te.compute((64,), lambda i: x[i] + 1.0, "first")
    second = te.compute((64,), lambda i: first[63 - i] * 2.0, "second")
    y = te.compute((64,), lambda i: second[63 - i] - 1.0, "y")
    schedule = tvm.s_tir.Schedule(te.create_prim_func([x, y]))
    for block in ("first", "second"):
        schedule.set_scope(block, 0, "local.UB")
    planned = PlanAddresses(form="address")(capture(schedule.mod, "llvm"))
    assert [*addresses(planned).values()] == [(0,), (256,)]
    found = nodes_in(planned["main"].body, tirx.AllocBuffer)
    for op in found:
        assert list(op.annotations["buffer_allocated_addr"]) == list(op.buffer.ty.allocated_addr)


def kernel(pinned: str, scope: str = "local.UB") -> tvm.IRModule:
    """Return a kernel with a buffer that has an address, which is read with another one."""
    func = program(f"""
    def main(x: 64 int32, y: 64 int32, n: T.int32):
        a = T.alloc_buffer({pinned}, "int32", scope="{scope}", allocated_addr=[0])
        b: {scope} 64 int32
        b[i] = x[i] for i in range(64)
        a[i] = x[i] for i in range(n)
        y[i] = b[i] + a[0] for i in range(64)
    """)
    return tvm.IRModule({"main": func})


@pytest.mark.parametrize(
    ("pinned", "scope", "other"),
    [
        ("(16,)", "local.UB", (64,)),
        ("(n,)", "local.UB", ()),  # Nobody knows where it ends.
        ("(1,)", "global", (64,)),  # As small as what is kept in registers.
    ],
)
def test_nothing_is_planned_into_an_address_that_the_program_asks_for(
    pinned: str, scope: str, other: tuple[int, ...]
):
    planned = addresses(PlanAddresses()(kernel(pinned, scope)))
    assert planned["a"] == (0,)
    assert planned["b"] == other


def test_what_has_no_known_size_is_planned_at_its_bound():
    planned = PlanAddresses(upper_bounds={"n": 32})(kernel("(n,)"))
    assert addresses(planned) == {"a": (0,), "b": (128,)}


def test_a_bank_and_an_address_of_psum_stay_as_they_are():
    func = kernel("(16,)", "trn.psum")["main"]
    pair = tvm.script.from_source(
        func.script().replace("allocated_addr=0", "allocated_addr=[0, 8]")
    )
    planned = PlanAddresses()(tvm.IRModule({"main": pair}))
    assert addresses(planned) == {"a": (0, 8), "b": (0, 256)}
