# SPDX-License-Identifier: Apache-2.0
"""What `PlanAddresses` is told, what it refuses, and how it stands in a build."""

import logging

import numpy as np
import pytest
import tvm
from address_cases import PROGRAMS, UB, module, only_problem
from address_runs import addresses, assert_same_results, build, num_arenas
from program_text import program
from tvm import tirx
from tvm.script import tirx as T
from tvm.target import Target

from passes.ir import with_body
from passes.planning import Buffer, Problem
from passes.planning.overflow import live_at_the_peak
from passes.prim_func.problems import ProblemOptions, find_problems
from target_hw.memory import MemoryHierarchy, MemoryScope
from tvm_ext import lowering
from tvm_ext.transform import PlanAddresses, PlanSharedMemory, StorageRewrite

# Sizes


def test_sizes_and_alignments():
    sizes = program("""
    def sizes(x: 64, y: 64):
        bits: local.UB 5 int4
        wide: local.UB 3 float32x4
        narrow: local.UB 64 float16
        bits[i] = T.Cast("int4", i) for i in range(5)
        wide[i] = T.Broadcast(x[i] + T.Cast("float32", bits[i]), 4) for i in range(3)
        for i in range(8):
            narrow[i * 8 + j] = T.Cast("float16", x[i * 8 + j]) for j in T.vectorized(8)
        y[i] = T.Cast("float32", narrow[i]) for i in range(64)
    """)

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
    mod = module(PROGRAMS["symbolic"])
    with caplog.at_level("INFO", logger="tvm_ext.PlanAddresses"):
        planned = PlanAddresses(form="arena")(mod)
    assert caplog.messages == [
        f"PlanAddresses: function 'main': left alone: buffer '{name}' in global: its size "
        "rests on n, and no upper bound of it is known"
        for name in "abc"
    ]
    tvm.ir.assert_structural_equal(planned, mod)


def test_a_private_function_is_called_by_its_name_in_the_module(caplog):
    private = module(PROGRAMS["symbolic"])["main"].without_attr("global_symbol")
    with caplog.at_level("INFO", logger="tvm_ext.PlanAddresses"):
        PlanAddresses()(tvm.IRModule({"inner": private}))
    assert "PlanAddresses: function 'inner': left alone: buffer 'a'" in caplog.text


def test_symbolic_sizes_are_planned_at_an_upper_bound():
    mod = module(PROGRAMS["symbolic"])
    for bounded in (
        PlanAddresses(form="arena", upper_bounds={"n": 128}),
        lambda mod: PlanAddresses(form="arena")(
            tvm.IRModule({"main": mod["main"].with_attr("tir_var_upper_bound", {"n": 128})})
        ),
    ):
        planned = bounded(mod)
        assert num_arenas(planned) == 1
        # TVM writes the extent of what is read backwards as a difference, which is the variable.
        assert "arena_global = T.alloc_buffer((1024,)" in planned.script()
    assert_same_results(mod, sizes={"n": 100}, upper_bounds={"n": 128})
    with pytest.raises(ValueError, match=r"^PlanAddresses: the upper bound of 'm' .* are: n$"):
        PlanAddresses(upper_bounds={"m": 128})(mod)


def test_a_variable_above_its_bound_is_an_error_at_run_time():
    run = build(module(PROGRAMS["symbolic"]), PlanAddresses(form="arena", upper_bounds={"n": 128}))
    x, y = (tvm.runtime.tensor(np.zeros(129, "float32")) for _ in range(2))
    with pytest.raises(Exception, match="n is above 128, for which the memory was planned"):
        run["main"](x, y)


# What is planned


def test_registers_stay_unless_their_scope_is_asked_for():
    registers = program("""
    def registers(x: 64, y: 64):
        total = T.alloc_buffer((1,), "float32")
        near: local 64
        total[0] = T.float32(0)
        near[i] = x[i] for i in range(64)
        total[0] = total[0] + near[i] for i in range(64)
        y[i] = total[0] + near[63 - i] for i in range(64)
    """)

    mod = module(registers)
    assert addresses(PlanAddresses()(mod)) == {"total": (), "near": ()}
    assert addresses(PlanAddresses(scopes=["global"])(mod)) == {"total": (0,), "near": ()}
    assert addresses(PlanAddresses(scopes=["local"])(mod)) == {"total": (), "near": (0,)}
    assert_same_results(mod, scopes=["global", "local"])


def test_scopes_choose():
    mod = module(PROGRAMS["chain"])
    assert set(addresses(PlanAddresses(scopes=["local.L1"])(mod)).values()) == {()}
    with pytest.raises(ValueError, match="unknown storage scope 'UB'"):
        PlanAddresses(scopes=["UB"])
    with pytest.raises(ValueError, match=r"sequence of names, got 'local\.UB'"):
        ProblemOptions(scopes="local.UB")
    with pytest.raises(
        ValueError, match=r"scope 'local.L1' is not in the target's memory; it has: local.UB"
    ):
        PlanAddresses(scopes=["local.L1"], memory=UB)


def test_the_target_says_what_memory_there_is():
    config = {"kind": "llvm", "feature.memory": UB.to_feature()}
    planned = PlanAddresses(target=config)(module(PROGRAMS["chain"]))
    assert addresses(planned)["a"] in ((0,), (256,))
    small = MemoryHierarchy((MemoryScope("local.UB", capacity=256),))
    target = tvm.target.Target({"kind": "llvm", "feature.memory": small.to_feature()})
    func = module(PROGRAMS["chain"])["main"].with_attr("target", target)
    with pytest.raises(ValueError, match="has 256"):
        PlanAddresses()(tvm.IRModule({"main": func}))


def test_over_capacity_says_what_is_missing():
    memory = MemoryHierarchy((MemoryScope("local.UB", capacity=480, alignment=32),))
    with pytest.raises(ValueError, match="PlanAddresses") as error:
        PlanAddresses(memory=memory)(module(PROGRAMS["chain"]))
    lines = str(error.value).splitlines()
    assert lines[0].startswith("PlanAddresses: function 'main': scope 'local.UB' needs 512 bytes")
    assert lines[0].endswith("and has 480")
    text = str(error.value)
    assert "a: 256 bytes, live on lines 8 to 11" in text
    assert "b: 256 bytes, live on lines 10 to 13" in text
    assert "no plan needs less than 512 bytes; it is proven that no plan fits" in text


def test_a_planner_that_finds_no_fit_does_not_claim_there_is_none():
    memory = MemoryHierarchy((MemoryScope("local.UB", capacity=512, alignment=32),))
    with pytest.raises(ValueError, match=r"another plan fits\n  it fits .* planner 'first_fit'"):
        PlanAddresses("bump", memory=memory)(module(PROGRAMS["chain"]))
    PlanAddresses("best", memory=memory)(module(PROGRAMS["chain"]))


def test_calls_that_may_take_a_whole_buffer_keep_a_function_as_it_is(caplog):
    a = tirx.decl_buffer([64], "float32", "a", scope="local.UB", layout=None)
    call = tirx.call_intrin("int32", "tirx.tvm_storage_sync", a.data)
    func = tirx.PrimFunc([], tirx.SeqStmt([tirx.AllocBuffer(a), tirx.Evaluate(call)]))
    mod = tvm.IRModule({"main": func})
    assert PlanAddresses(form="arena")(mod)["main"].same_as(mod["main"])
    assert "left alone: buffer 'a' is handed to tirx.tvm_storage_sync" in caplog.text
    assert addresses(PlanAddresses()(mod)) == {"a": (0,)}


def test_a_workspace_of_an_operator_keeps_a_function_as_it_is(caplog):
    @T.prim_func
    def tile(a: T.Buffer((10,), "float32"), b: T.Buffer((10,), "float32")):
        work = T.alloc_shared((10,))
        T.tile.add(b[0:10], a[0:10], T.float32(1.0), workspace={"work": work})

    mod = tvm.IRModule({"main": tile})
    memory = MemoryHierarchy((MemoryScope("shared"),))
    assert PlanAddresses(form="arena", memory=memory)(mod)["main"].same_as(mod["main"])
    assert "left alone: buffer 'work' is the workspace of tirx.tile.add" in caplog.text


def test_targets_that_see_one_type_get_no_arena(caplog):
    func = module(PROGRAMS["chain"])["main"].with_attr("target", tvm.target.Target("vulkan"))
    mod = tvm.IRModule({"main": func})
    assert PlanAddresses(form="arena")(mod)["main"].same_as(mod["main"])
    assert "function 'main': left alone: target 'vulkan' cannot see" in caplog.text


def test_loops_that_are_bound_to_threads_are_refused():
    bound = program("""
    def bound(x: 64, y: 64):
        a: shared 64
        a[tx] = x[tx] for tx in T.thread_binding(64, "threadIdx.x")
        y[tx] = a[63 - tx] for tx in T.thread_binding(64, "threadIdx.x")
    """)

    mod = tvm.IRModule({"bound": bound})
    with pytest.raises(ValueError, match="'bound': loop 'tx' is bound to a thread"):
        PlanAddresses()(mod)
    PlanAddresses()(lowering.capture(mod, "cuda"))


def test_kernels_of_targets_with_address_spaces_get_no_arena(caplog):
    gather = program("""
    def gather(x: 64, y: 64):
        with T.launch_thread("blockIdx.x", 1):
            tx = T.launch_thread("threadIdx.x", 16)
            a: local.UB 64
            b: local.UB 64 float16
            a[T.Ramp(tx * 4, 1, 4)] = x[T.Ramp(tx * 4, 1, 4)]
            b[tx] = T.Cast("float16", a[63 - tx])
            y[T.Ramp(tx * 4, 1, 4)] = a[T.Ramp(tx, 16, 4)] + T.Cast("float32", b[0])
    """)

    for kind, count in (("cuda", 1), ("opencl", 0), ("metal", 0)):
        mod = lowering.capture(tvm.IRModule({"gather": gather}), kind)
        assert num_arenas(PlanAddresses(form="arena")(mod)) == count, kind
    assert "target 'metal', TVM writes neither the alignment of an arena in a kernel" in caplog.text


def test_a_buffer_that_is_accessed_undeclared_is_named():
    func = module(PROGRAMS["chain"])["main"]
    without = tirx.SeqStmt([op for op in func.body.seq if not isinstance(op, tirx.AllocBuffer)])
    with pytest.raises(ValueError, match=r"'main': buffer 'a' in local\.UB is accessed but not"):
        PlanAddresses()(tvm.IRModule({"main": with_body(func, without)}))


# In builds


@pytest.mark.parametrize("merges", [False, True])
def test_addresses_in_kernels_and_between_them(merges: bool):
    kernels = program("""
    def kernels(x: 64, y: 64):
        with T.sblock("root"):
            between = T.sblock_alloc_buffer((64,), "float32")
            static = T.sblock_alloc_buffer((64,), "float32", scope="shared")
            dynamic = T.sblock_alloc_buffer((64,), "float32", scope="shared.dyn")
            other = T.sblock_alloc_buffer((64,), "float32", scope="shared.dyn")
            for tx in T.thread_binding(64, "threadIdx.x"):
                with T.sblock("between"):
                    i = T.axis.spatial(64, tx)
                    between[i] = x[i]
            for tx in T.thread_binding(64, "threadIdx.x"):
                with T.sblock("static"):
                    i = T.axis.spatial(64, tx)
                    static[i] = between[63 - i]
                with T.sblock("dynamic"):
                    i = T.axis.spatial(64, tx)
                    dynamic[i] = static[63 - i]
                with T.sblock("other"):
                    i = T.axis.spatial(64, tx)
                    other[i] = dynamic[63 - i]
                with T.sblock("y"):
                    i = T.axis.spatial(64, tx)
                    y[i] = other[63 - i]
    """)

    target = tvm.target.Target("opencl", host="llvm")
    mod = tirx.transform.BindTarget(target)(tvm.IRModule({"kernels": kernels}))
    lower, _, _ = tirx.get_tir_pipeline("tvm_ext.address")
    with tvm.transform.PassContext(config={"tirx.merge_static_smem": merges}):
        lowered = lower(mod)
    assert len(lowered.get_global_vars()) == 3
    planned = [line for line in lowered.script().splitlines() if "allocated_addr=" in line]
    assert [line.split()[0] for line in planned] == ([] if merges else ["static"])


def test_what_is_live_at_the_peak_says_what_may_be_in_place():
    buffers = (Buffer("x", 64, ((0, 2),)), Buffer("y", 32, ((1, 3),)), Buffer("z", 8, ((1, 2),)))
    assert list(live_at_the_peak(Problem(buffers, in_place=(("x", "y"),)))) == [
        "most is live at position 1, 104 bytes with nothing in place:",
        "  x: 64 bytes, live in [0, 2)",
        "  y: 32 bytes, live in [1, 3), may be in place of 'x'",
        "  z: 8 bytes, live in [1, 2)",
    ]
    assert next(iter(live_at_the_peak(Problem(buffers)))).endswith("104 bytes:")


# Alignment


def aligned(align: int, scope: str = "local.UB"):
    """Return a function of three buffers, of which the one in the middle asks for an alignment."""
    return program(f"""
    def main(x: 5 int8, y: 5 int8):
        a: {scope} 5 int8
        b = T.alloc_buffer((5,), "int8", scope="{scope}", align={align})
        a[i] = x[i] for i in range(5)
        b[i] = x[4 - i] for i in range(5)
        T.evaluate(T.call_extern("int32", "abs", T.Cast("int32", a[0])))
        y[i] = a[4 - i] + b[i] for i in range(5)
    """)


@pytest.mark.parametrize("align", [8, 16, 32, 128, 256])
def test_a_buffer_gets_the_alignment_that_it_asks_for(align: int):
    mod = module(aligned(align))
    memory = MemoryHierarchy((MemoryScope("local.UB", alignment=1),))
    assert addresses(PlanAddresses("bump", memory=memory)(mod)) == {"a": (0,), "b": (align,)}
    text = PlanAddresses("bump", form="arena", memory=memory)(mod)["main"].script()
    (arena,) = [line for line in text.splitlines() if "arena_local_UB = T.alloc" in line]
    assert (f"align={align}" in arena) == (align > 64)


@pytest.mark.parametrize(("align", "scope"), [(128, "global"), (32, "local.UB")])
def test_memory_that_asks_for_an_alignment_keeps_it_when_nothing_else_plans_it(align, scope):
    mod = tvm.tirx.transform.StmtSimplify()(module(aligned(align, scope)))
    text = StorageRewrite(sound=True)(mod)["main"].script()
    assert 'b = T.alloc_buffer((5,), "int8", ' in text
    assert f"align={align}" in text


# Memories that the chip does not describe


def test_a_memory_that_the_chip_does_not_describe_is_warned_of(caplog):
    mod = module(aligned(64, "local.b"))
    memory = MemoryHierarchy((MemoryScope("local.B"),))
    for form, described, known in (
        ("address", memory, "local.B"),
        ("arena", memory, "local.B"),
        ("arena", MemoryHierarchy(()), "none"),
    ):
        caplog.clear()
        PlanAddresses(form=form, memory=described)(mod)
        assert [(r.levelname, r.message) for r in caplog.records] == [
            (
                "WARNING",
                f"PlanAddresses: function 'main': left alone: buffer {name!r} in local.b: "
                f"the target describes no such scope: it describes {known}",
            )
            for name in "ab"
        ]
    caplog.clear()
    PlanAddresses(memory=memory)(module(aligned(64, "global")))
    assert not caplog.records


# What is said


def test_the_pass_that_is_asked_is_the_one_that_speaks():
    func = program("""
    def main(x: 64, y: 64):
        a: local.UB 64
        a[i] = x[i] for i in T.vectorized(64)
        y[i] = a[i] for i in range(64)
    """)
    with pytest.raises(ValueError, match="PlanAddresses: function 'main': loop 'i'") as said:
        PlanAddresses()(tvm.IRModule({"main": func}))
    assert "StorageRewrite" not in str(said.value)


TOO_SMALL = Target({"kind": "cuda", "arch": "sm_80", "max_shared_memory_per_block": 500})


@pytest.mark.parametrize("make_pass", [PlanAddresses, PlanSharedMemory])
def test_a_kernel_may_be_above_what_its_own_target_says_of_a_block(make_pass, caplog):
    func = program("""
    def main(x: 64, y: 64) on 1 x 64:
        a, b: shared 64
        a[tx] = x[tx]
        b[tx] = x[63 - tx]
        T.tvm_storage_sync("shared")
        y[tx] = a[63 - tx] + b[63 - tx]
    """)
    with caplog.at_level(logging.WARNING):
        make_pass()(tvm.IRModule({"main": func.with_attr("target", TOO_SMALL)}))
    assert "it needs 512 bytes of shared, and cuda is said to have 500 a block" in caplog.text
    with pytest.raises(ValueError, match=r"function 'main'.*500"):
        make_pass(target=TOO_SMALL)(tvm.IRModule({"main": func}))
