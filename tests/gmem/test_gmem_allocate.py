# SPDX-License-Identifier: Apache-2.0
"""`GMEMAllocate` case by case: what is planned, where it goes, and what is refused."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import tvm
import tvm_ffi
from relax_programs import parse
from relax_replay import Replay
from relax_runs import KEPT, build, build_together, lower, planned, run
from tvm import relax
from tvm.target import Target

import tvm_ext
from passes.gmem.options import GMEMOptions
from passes.gmem.relax_functions import plan_gmem
from passes.planning import planner_names
from target_hw.memory import MemoryHierarchy, MemoryScope
from tvm_ext.transform import GMEMAllocate


def module(
    body: str, params: str = 'x: R.Tensor((64,), "float32")', attrs: str = ""
) -> tvm.IRModule:
    """Lower a module with one function, of the given lines."""
    lines = [f"        {line}" for line in body.strip("\n").splitlines()]
    head = [f"        R.func_attr({{{attrs}}})"] if attrs else []
    source = ["@I.ir_module", "class Module:", "    @R.function(pure=False)"]
    return lower(parse("\n".join([*source, f"    def main({params}):", *head, *lines])))


def read(lowered: tvm.IRModule, name: str = "main", **options: object):
    """Return what was read of a function."""
    (found,) = (
        p for p in plan_gmem(lowered, "best", GMEMOptions(**options)) if p.memory.name == name
    )
    return found


CHAIN = """
a = R.nn.relu(x)
b = R.negative(a)
c = R.abs(b)
d = R.nn.relu(c)
return d
"""


# ------------------------------------------------------------------------------ what is planned


def test_a_chain_needs_two_tensors_at_a_time():
    found = read(module(CHAIN))
    assert [buffer.size for buffer in found.memory.storages] == [256, 256, 256]
    assert [(left.name, left.size, left.reason) for left in found.memory.left] == [
        ("alloc3", 256, "returned")
    ]
    assert found.plan.peak == 512


def test_a_view_keeps_what_it_looks_at():
    found = read(
        module(
            """
a = R.nn.relu(x)
v = R.memory.view(a, R.shape([8, 8]), R.dtype("float32"), 0)
b = R.negative(x)
c = R.concat((b, b), axis=0)
d = R.sum(v)
e = R.add(d, R.sum(c))
return e
"""
        )
    )
    by_name = {buffer.name: buffer for buffer in found.memory.storages}
    view_read = found.memory.bindings.index("d") - 1
    assert by_name["alloc"].live == ((1, view_read + 1),)


def test_what_a_packed_function_may_keep_is_left_to_the_run_time():
    found = read(
        module(
            """
a = R.nn.relu(x)
b = R.call_packed("test.gmem.keep", a, ty_args=R.Tensor((64,), "float32"))
c = R.negative(b)
d = R.call_packed("test.gmem.keep", c)
e = R.abs(x)
f = R.sum(e)
return f
"""
        )
    )
    reasons = {left.name: left.reason for left in found.memory.left}
    keeper = "passed to packed function 'test.gmem.keep' by binding"
    assert reasons == {"alloc": f"{keeper} 'b'", "alloc1": f"{keeper} 'd'", "alloc3": "returned"}
    assert list(found.memory.main.tensors.values()) == [("alloc2",)]


def test_destination_passing_keeps_nothing():
    found = read(
        module(
            """
a = R.nn.relu(x)
b = R.call_dps_packed("test.gmem.double", (a,), out_ty=R.Tensor((64,), "float32"))
c = R.sum(b)
return c
"""
        )
    )
    assert list(found.memory.main.tensors.values()) == [("alloc",), ("alloc1",)]


def test_nested_tuples_are_followed_field_by_field():
    found = read(
        module(
            """
a = R.nn.relu(x)
b = R.negative(x)
t = (a, (b, x))
u = (t[1], a)
c = R.abs(u[0][0])
d = R.sum(c)
return (d, u[1])
"""
        )
    )
    # `a` is returned within the tuple; `b` is not.
    assert {left.name: left.reason for left in found.memory.left} == {
        "alloc": "returned",
        "alloc3": "returned",
    }
    assert list(found.memory.main.tensors.values()) == [("alloc1",), ("alloc2",)]


def test_captured_values_and_other_functions_are_left_to_the_run_time():
    lowered = lower(
        parse(
            """
@I.ir_module
class Module:
    @R.function(private=True)
    def helper(x: R.Tensor((64,), "float32")) -> R.Tensor((64,), "float32"):
        h = R.nn.relu(x)
        i = R.negative(h)
        return i
    @R.function
    def main(x: R.Tensor((64,), "float32")) -> R.Tensor((64,), "float32"):
        cls = Module
        a = R.nn.relu(x)
        b = cls.helper(a)
        c = R.negative(b)
        d = R.abs(c)
        return d
"""
        )
    )
    helper, main = plan_gmem(lowered, "best")
    assert [left.reason for left in main.memory.left] == [
        "passed to Relax function 'helper' by binding 'b'",
        "returned",
    ]
    assert main.memory.calls == ("helper",)
    # Both are alive at once, so the addresses of the one that is called come behind.
    assert helper.layout.activations.start == main.layout.activations.end > 0


def test_a_local_function_is_left_alone_with_what_it_captures():
    lowered = lower(
        parse(
            """
@I.ir_module
class Module:
    @R.function(pure=False)
    def main(x: R.Tensor((64,), "float32")):
        a = R.nn.relu(x)
        @R.function(pure=False)
        def inner(y: R.Tensor((64,), "float32")) -> R.Tensor((64,), "float32"):
            z = R.add(y, a)
            return z
        b = inner(x)
        return b
"""
        )
    )
    (found,) = plan_gmem(lowered, "best")
    reasons = {left.name: left.reason for left in found.memory.left}
    assert reasons["alloc"] == "captured by binding 'inner'"
    assert "allocated within the function that binding 'inner' makes" in reasons.values()
    assert not found.memory.storages
    ours = planned(lowered, GMEMAllocate("best"))
    assert "alloc_storage" not in ours["main"].script()


def test_a_function_that_calls_itself_has_no_fixed_addresses():
    lowered = lower(
        parse(
            """
@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor((64,), "float32"), c: R.Tensor((), "bool")) -> R.Tensor((64,), "float32"):
        cls = Module
        a = R.nn.relu(x)
        s = R.sum(a)
        b = R.add(x, s)
        if c:
            r = cls.main(b, R.const(False, "bool"))
        else:
            r = x
        return r
"""
        )
    )
    (found,) = plan_gmem(lowered, "best")
    assert not found.memory.storages
    assert "its function may be called again while it runs" in {
        left.reason for left in found.memory.left
    }


# --------------------------------------------------------------------------------------- branches

RESHAPES = """
@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor((4, 8), "float32"), c: R.Tensor((), "bool")):
        if c:
            flat = R.reshape(x, R.shape([32]))
            out = R.reshape(flat, R.shape([4, 8]))
        else:
            flat = R.reshape(x, R.shape([32]))
            out = R.reshape(flat, R.shape([4, 8]))
        return out
"""


@pytest.mark.parametrize("planner", list(planner_names()))
def test_reshapes_in_both_branches_run(planner: str):
    """apache/tvm 20191: under the stock plan this reads a storage that the path has not made."""
    lowered = lower(parse(RESHAPES))
    ours = planned(lowered, GMEMAllocate(planner))
    first, *rest = ours["main"].body.blocks[0].bindings
    assert "R.memory.alloc_storage" in str(first.value)
    assert str(ours["main"]).count("R.memory.alloc_storage") == 1
    assert rest
    vm = build(lowered, GMEMAllocate(planner))
    x = np.random.default_rng(0).standard_normal((4, 8), dtype="float32")
    for taken in (True, False, True):
        (out,) = run(vm, "main", [x, np.array(taken)])
        np.testing.assert_array_equal(out, x)


BRANCHES = """
a = R.nn.relu(x)
if c:
    b = R.concat((a, a), axis=0)
    d = R.concat((b, b), axis=0)
    r = R.sum(d)
else:
    e = R.negative(x)
    f = R.concat((e, e), axis=0)
    r = R.sum(f)
g = R.add(x, r)
h = R.sum(g)
return h
"""


def test_each_path_is_counted_once():
    params = 'x: R.Tensor((64,), "float32"), c: R.Tensor((), "bool")'
    found = read(module(BRANCHES, params))
    # For true: b and d, 512 + 1024 bytes. For false: e and f, 256 + 512, and `a` is dead.
    assert found.plan.peak == 512 + 1024
    tensors = found.memory.main.tensors
    both = next(buffer for buffer in found.memory.storages if len(tensors[buffer.name]) == 2)
    assert both.size == 4, "the two results of the branches are one value, in one place"
    assert len(both.live) == 2, "which lives at the end of each branch, and behind them"
    ours = planned(module(BRANCHES, params), GMEMAllocate("best"))
    for taken in (True, False):
        assert Replay(ours, "main", lambda taken=taken: taken)().touches


def test_a_value_that_one_branch_needs_does_not_live_in_the_other():
    found = read(
        module(
            """
a = R.nn.relu(x)
if c:
    b = R.negative(x)
    r = R.sum(b)
else:
    r = R.sum(a)
s = R.add(r, r)
return s
""",
            'x: R.Tensor((64,), "float32"), c: R.Tensor((), "bool")',
        )
    )
    by_name = {buffer.name: buffer for buffer in found.memory.storages}
    assert len(by_name["alloc"].live) == 2
    assert found.plan.peak == 256 + 4, "a and b share; beside them stands the result"


def test_a_condition_lives_until_it_is_read():
    found = read(
        module(
            """
s = R.sum(x)
q = R.greater(s, R.const(0, "float32"))
a = R.nn.relu(x)
b = R.sum(a)
if q:
    r = R.add(b, b)
else:
    r = R.negative(b)
t = R.add(r, r)
return t
"""
        )
    )
    condition = found.memory.storages[1]
    assert condition.size == 1
    written, branch = (found.memory.bindings.index(name) for name in ("q", "r"))
    assert condition.live == ((written - 1, branch + 1),)


# ---------------------------------------------------------------------------------- symbolic sizes

SYMBOLIC = 'x: R.Tensor(("n", 4), "float32"), y: R.Tensor(("m",), "float32")'
SYMBOLIC_BODY = """
a = R.nn.relu(x)
b = R.negative(a)
e = R.abs(y)
f = R.sum(e)
d = R.add(R.sum(b), f)
return d
"""


def test_upper_bounds_give_sizes_and_checks():
    lowered = module(SYMBOLIC_BODY, SYMBOLIC, '"tir_var_upper_bound": {"n": 10}')
    found = read(lowered)
    sizes = {buffer.name: buffer.size for buffer in found.memory.storages}
    assert sizes["alloc"] == sizes["alloc1"] == 160
    assert [(str(b.variable.name), b.upper) for b in found.memory.bounds] == [("n", 10)]
    assert {left.reason for left in found.memory.left} == {"returned"}
    main, symbolic = found.memory.groups
    assert main.is_main
    assert (str(symbolic.unit), [buffer.size for buffer in symbolic.problem.buffers]) == ("m", [4])
    vm = build(lowered, GMEMAllocate("best"))
    for n in (1, 10):
        x, y = np.ones((n, 4), "float32"), np.ones(5, "float32")
        np.testing.assert_allclose(run(vm, "main", [x, y])[0], 5 - 4 * n)
    message = "function 'main': n is above 10, for which memory was planned"
    with pytest.raises(RuntimeError, match=message):
        run(vm, "main", [np.ones((11, 4), "float32"), np.ones(5, "float32")])


def test_the_functions_own_bound_comes_before_the_one_of_the_pass():
    lowered = module(SYMBOLIC_BODY, SYMBOLIC, '"tir_var_upper_bound": {"n": 10}')
    found = read(lowered, upper_bounds={"n": 99, "m": 7})
    sizes = {buffer.name: buffer.size for buffer in found.memory.storages}
    assert (sizes["alloc"], sizes["alloc2"]) == (160, 28)


# ---------------------------------------------------------------------------------------- weights


def weights_module() -> tvm.IRModule:
    builder = relax.BlockBuilder()
    x, w = (relax.Var(name, relax.TensorType((64,), "float32")) for name in "xw")
    v = relax.Var(
        "v",
        relax.TupleType([relax.TensorType((3,), "int8"), relax.TensorType((1100,), "float32")]),
    )
    constant = relax.const(np.arange(64, dtype="float32"))
    with builder.function("main", [x, w, v], attrs={"num_input": 1}):
        a = builder.emit(relax.op.add(x, w))
        b = builder.emit(relax.op.add(a, constant))
        c = builder.emit(relax.op.multiply(b, constant))
        d = builder.emit(relax.op.sum(relax.TupleGetItem(v, 1)))
        builder.emit_func_output(builder.emit(relax.op.add(c, d)))
    return lower(builder.get())


@pytest.mark.parametrize(
    ("inputs", "weights"), [(4, []), (99, []), (-1, ["x", "w", "v[0]", "v[1]"])]
)
def test_as_many_inputs_as_there_are_no_parameters(inputs, weights):
    """`BindParams` takes parameters away, and leaves the attribute that counts inputs as it is."""
    mod = weights_module()
    mod["main"] = mod["main"].with_attr("num_input", inputs)
    (found,) = plan_gmem(mod)
    assert [one.name for one in found.layout.weights.tensors] == [*weights, "constant_0"]


def test_weights_stand_one_after_the_other_and_activations_behind_them():
    with Target("sophgo/bm1684x-llvm"):
        (found,) = plan_gmem(weights_module(), "rec_tbl")
    base = 0x1_0000_0000
    weights = found.layout.weights
    assert [(w.name, w.address - base, w.size) for w in weights.tensors] == [
        ("w", 0, 256),
        ("v[0]", 0x1000, 3),
        ("v[1]", 0x2000, 4400),
        ("constant_0", 0x4000, 256),
    ]
    assert (weights.start, weights.size) == (base, 0x5000)
    assert found.layout.activations.start == base + 0x5000
    assert found.layout.alignment == 4096
    assert all(t.address % 4096 == 0 for t in found.layout.activations.tensors)


@pytest.mark.parametrize(
    ("chip", "weights", "activations", "alignment"),
    [
        ("bm1684x", 0x1_0000_0000, None, 4096),
        ("bm1684", 0x1_0510_0000, None, 4096),
        ("bm1688", (1 << 39) + (1 << 36), (1 << 39) + (2 << 36), 4096),
        ("bm1690", 1 << 40, 2 << 40, 4096),
        ("cv184x", 0x8000_0000 + (1 << 40), 0x8000_0000 + (2 << 40), 4096),
        ("cv183x", 1 << 40, 0, 16),
        ("cv180x", 1 << 40, 0, 16),
    ],
)
@pytest.mark.parametrize("twin", ["", "-llvm"])
def test_regions_and_alignment_are_the_chips(
    chip: str, weights: int, activations: int | None, alignment: int, twin: str
):
    (found,) = plan_gmem(
        weights_module(), "rec_tbl", GMEMOptions(target=Target(f"sophgo/{chip}{twin}"))
    )
    layout = found.layout
    assert (layout.weights.start, layout.alignment) == (weights, alignment)
    expected = layout.weights.end if activations is None else activations
    assert layout.activations.start == expected
    # TVM's own run time cannot pass on a tensor at less than 64 bytes; the chip's may.
    unit = max(alignment, 64) if twin else alignment
    assert found.problem.memory.alignment == unit
    assert all((t.address - expected) % unit == 0 for t in layout.activations.tensors)


def test_base_and_alignment_can_be_given():
    (found,) = plan_gmem(weights_module(), "rec_tbl", GMEMOptions(alignment=256, base=1 << 33))
    assert [w.address for w in found.layout.weights.tensors] == [
        (1 << 33) + offset for offset in (0, 256, 512, 512 + 4608)
    ]
    (plain,) = plan_gmem(weights_module(), "rec_tbl")
    assert (plain.layout.weights.start, plain.layout.alignment) == (0, 64)


def test_functions_have_their_weights_in_one_region_and_share_constants():
    constant = relax.const(np.arange(64, dtype="float32"))
    builder = relax.BlockBuilder()
    for name in ("prefill", "decode"):
        x, w = (relax.Var(n, relax.TensorType((64,), "float32")) for n in "xw")
        with builder.function(name, [x, w], attrs={"num_input": 1}):
            a = builder.emit(relax.op.add(x, w))
            builder.emit_func_output(builder.emit(relax.op.add(a, constant)))
    decode, prefill = plan_gmem(lower(builder.get()), "best")
    at = {
        (p.memory.name, w.name): w.address
        for p in (decode, prefill)
        for w in p.layout.weights.tensors
    }
    assert at == {
        ("decode", "w"): 0,
        ("decode", "constant_0"): 256,
        ("prefill", "w"): 512,
        ("prefill", "constant_0"): 256,
    }
    assert decode.layout.weights.end == prefill.layout.weights.end == 768
    # Neither calls the other, so their activations may stand in the same memory.
    assert decode.layout.activations.start == prefill.layout.activations.start == 768


def test_bytes_do_not_end_at_32_bits():
    found = read(
        module(
            """
a = R.nn.relu(x)
b = R.negative(a)
c = R.sum(b)
return c
""",
            'x: R.Tensor((131072, 65536), "float32")',
        )
    )
    assert found.plan.peak == 2 << 35
    ours = planned(
        module(
            "a = R.nn.relu(x)\nb = R.sum(a)\nreturn b", 'x: R.Tensor((131072, 65536), "float32")'
        ),
        GMEMAllocate("best", base=1 << 40),
    )
    assert ours["main"].attrs["tvm_ext.gmem"]["activations"]["bytes"] == 1 << 35
    assert f"R.shape([{1 << 35}])" in ours["main"].script()


def test_the_layout_survives_text_and_json():
    ours = planned(weights_module(), GMEMAllocate("best", base=1 << 40))
    layout = ours["main"].attrs["tvm_ext.gmem"]
    assert layout["weights"]["tensors"]
    assert layout["activations"]["tensors"]
    loaded = tvm.ir.load_json(tvm.ir.save_json(ours))["main"].attrs["tvm_ext.gmem"]
    assert tvm_ffi.structural_equal(loaded, layout)
    # TVM does not read `R.builtin.alloc_tensor` as it prints it, so text is tried without.
    x = relax.Var("x", relax.TensorType((64,), "float32"))
    plain = relax.Function([x], relax.SeqExpr([], x), x.ty).with_attr({"tvm_ext.gmem": layout})
    text = plain.with_attr("global_symbol", "main").script()
    assert tvm_ffi.structural_equal(tvm.script.from_source(text).attrs["tvm_ext.gmem"], layout)


# -------------------------------------------------------------------------------------- the build


def test_planned_modules_build_and_run_in_tvms_pipeline():
    mod = parse(RESHAPES)
    for target in ("llvm", "sophgo/bm1684x-llvm", "sophgo/cv181x-llvm"):
        pipeline = tvm_ext.relax_pipeline(target)
        vm = relax.VirtualMachine(tvm.compile(mod, target, relax_pipeline=pipeline), tvm.cpu())
        x = np.arange(32, dtype="float32").reshape(4, 8)
        for taken in (True, False):
            np.testing.assert_array_equal(run(vm, "main", [x, np.array(taken)])[0], x)


NETWORK = """
a = R.nn.relu(x)
b = R.concat((a, x), axis=0)
c = R.split(b, 4, axis=0)
d = R.add(c[0], c[3])
e = R.add(R.concat((d, d), axis=0), x)
f = R.multiply(e, a)
g = R.sum(f)
return (R.add(f, g), d)
"""


def test_every_planner_computes_what_the_stock_plan_does():
    plans = {name: GMEMAllocate(name) for name in planner_names()}
    plans = {"none": None, "stock": relax.transform.StaticPlanBlockMemory(), **plans}
    vm = build_together(module(NETWORK), "main", plans)
    for seed in (1, 2):
        x = np.random.default_rng(seed).standard_normal(64, dtype="float32")
        results = [run(vm, label, [x]) for label in plans]
        for mine in results[1:]:
            for one, other in zip(results[0], mine, strict=True):
                np.testing.assert_array_equal(one, other)


def test_what_was_kept_is_intact_after_the_next_call():
    body = """
a = R.nn.relu(x)
b = R.call_packed("test.gmem.keep", a, ty_args=R.Tensor((64,), "float32"))
c = R.negative(b)
d = R.abs(c)
e = R.sum(d)
return (e, a)
"""
    vm = build(module(body), GMEMAllocate("rec_tbl"))
    KEPT.clear()
    results = []
    for seed in (1, 2):
        x = np.random.default_rng(seed).standard_normal(64, dtype="float32")
        result = vm["main"](tvm.runtime.tensor(x))
        results.append((result, [tensor.numpy().copy() for tensor in result]))
    for result, copies in results:
        for tensor, copy in zip(result, copies, strict=True):
            np.testing.assert_array_equal(tensor.numpy(), copy)
    for tensor, copy in KEPT:
        np.testing.assert_array_equal(tensor.numpy(), copy)


def test_tvms_lists_are_found_for_gpus_too():
    for target in ("nvidia/geforce-rtx-3090-ti", "apple/m2-gpu"):
        passes = tvm_ext.pipeline.relax_passes(target)
        before, behind = tvm_ext.pipeline.before_planning(passes)
        assert before[-1].info.name == "CallTIRRewrite"
        assert len(before) + 1 + len(behind) == len(passes)


def test_fusion_can_be_left_out():
    names = [stock.info.name for stock in tvm_ext.pipeline.relax_passes("llvm")]
    without = [stock.info.name for stock in tvm_ext.pipeline.relax_passes("llvm", fuse=False)]
    assert [name for name in names if name not in ("FuseOps", "FuseTIR")] == without
    assert len(names) == len(without) + 2


def test_a_chip_without_a_code_generator_has_no_pipeline():
    with pytest.raises(ValueError, match="no Relax pipeline for targets of kind 'ext_dev'"):
        tvm_ext.relax_pipeline("sophgo/bm1684x")


def test_a_pipeline_without_the_stock_pass_is_an_error():
    passes = [relax.transform.CallTIRRewrite()]
    with pytest.raises(ValueError, match=r"has StaticPlanBlockMemory 0 times.*CallTIRRewrite"):
        tvm_ext.pipeline.before_planning(passes)


def test_what_is_left_to_the_run_time_is_said(caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.INFO, logger="tvm_ext.GMEMAllocate"):
        planned(module(CHAIN), GMEMAllocate("best"))
    assert "function 'main': 'alloc3' is left to the run time: returned" in caplog.messages
    assert {record.levelname for record in caplog.records} == {"INFO"}


def test_one_warning_says_how_much_is_left_and_why(caplog: pytest.LogCaptureFixture):
    body = """
a = R.nn.relu(x)
b = R.call_packed("test.gmem.keep", a, ty_args=R.Tensor((64,), "float32"))
c = R.negative(b)
d = R.call_packed("test.gmem.keep", c, ty_args=R.Tensor((64,), "float32"))
e = R.sum(d)
return e
"""
    with caplog.at_level(logging.WARNING, logger="tvm_ext.GMEMAllocate"):
        planned(module(body), GMEMAllocate())
    (message,) = caplog.messages
    assert message.startswith("2 tensors are left to the run time: passed to packed function")
    assert len(message) < 200


@pytest.mark.parametrize(
    ("params", "bounds", "message"),
    [
        (SYMBOLIC, {"batch": 4}, "upper bound of 'batch' names no symbolic dimension.*: m, n$"),
        ('x: R.Tensor((64,), "float32")', {"n": 4}, "'n' .* nothing here is symbolic"),
    ],
)
def test_a_bound_that_is_misspelt(params: str, bounds: dict[str, int], message: str):
    body = SYMBOLIC_BODY if params is SYMBOLIC else CHAIN
    refused(message, module(body, params), upper_bounds=bounds)


# --------------------------------------------------------------------------------------- bad input


def refused(message: str, lowered: tvm.IRModule, **options: object) -> None:
    before = tvm.IRModule(dict(lowered.functions))
    with pytest.raises(ValueError, match=message):
        GMEMAllocate("best", **options)(lowered)
    assert tvm_ffi.structural_equal(before, lowered, map_free_vars=True)


ONE_OPERATOR = """
@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor((64,), "float32")):
        a = R.nn.relu(x)
        return a
"""


def test_a_module_before_call_tir_rewrite():
    legalized = relax.transform.LegalizeOps()(parse(ONE_OPERATOR))
    refused("function 'main': binding 'a': relax.call_tir has yet to be lowered", legalized)


def test_an_operator_that_is_not_legalized():
    refused(
        "function 'main': binding 'a': operator 'relax.nn.relu' has yet to be lowered",
        parse(ONE_OPERATOR),
    )


@pytest.mark.parametrize("names", [("a", "b"), ("a", "b", "c")])
def test_bindings_that_are_names_of_each_other(names: tuple[str, ...]):
    ty = relax.TensorType((8,), "float32")
    x, out = relax.Var("x", ty), relax.Var("out", ty)
    ring = [relax.Var(name, ty) for name in names]
    bindings = [
        relax.VarBinding(one, relax.op.reshape(other, relax.ShapeExpr([8])))
        for one, other in zip(ring, [*ring[1:], ring[0]], strict=True)
    ]
    bindings.append(relax.VarBinding(out, relax.op.reshape(ring[0], relax.ShapeExpr([8]))))
    func = relax.Function([x], relax.SeqExpr([relax.BindingBlock(bindings)], out), ty)
    cycle = " = ".join([*names[1:], names[0], names[1]])
    refused(
        f"function 'f': binding 'a': these are names of each other: {cycle}",
        tvm.IRModule({"f": func}),
    )


def test_a_variable_of_another_branch():
    ty = relax.TensorType((8,), "float32")
    x, c = relax.Var("x", ty), relax.Var("c", relax.TensorType((), "bool"))
    inner, out, late = (relax.Var(name, ty) for name in ("inner", "out", "late"))
    reshape = relax.op.reshape
    then = relax.SeqExpr(
        [relax.BindingBlock([relax.VarBinding(inner, reshape(x, relax.ShapeExpr([8])))])], inner
    )
    branches = relax.If(c, then, relax.SeqExpr([], x))
    bindings = [
        relax.VarBinding(out, branches),
        relax.VarBinding(late, reshape(inner, relax.ShapeExpr([8]))),
    ]
    func = relax.Function([x, c], relax.SeqExpr([relax.BindingBlock(bindings)], late), ty)
    refused(
        "function 'f': binding 'late': uses 'inner', which is not defined on the way",
        tvm.IRModule({"f": func}),
    )


def small(capacity: int) -> Target:
    scope = MemoryScope("global", capacity, alignment=64)
    return tvm_ext.with_memory("llvm", MemoryHierarchy((scope,)))


@pytest.mark.parametrize("capacity", [192, 448])
def test_tensors_above_the_capacity(capacity: int):
    refused(
        "GMEMAllocate: function 'main': scope 'global' needs 512 bytes as planned by 'first_fit', "
        f"and has {capacity}\n  most is live at binding '_1', 512 bytes:\n    alloc: 256 bytes"
        r"(.|\n)*no plan needs less than 512 bytes; it is proven that no plan fits",
        module(CHAIN),
        target=small(capacity),
    )
    assert read(module(CHAIN), target=small(512)).plan.peak == 512


def test_weights_count_against_the_capacity():
    refused(
        "weight 'main.v.1.' needs bytes up to 4720, and .* 4096",
        weights_module(),
        target=small(4096),
    )
    refused(
        "function 'main': .* 'global' has 4992 bytes, and weights and callers take 4992",
        weights_module(),
        target=small(4992),
    )


def test_reserved_bytes_are_stepped_over():
    scope = MemoryScope(
        "global", 8192, alignment=64, base=1 << 20, reserved=((64, 128), (640, 704))
    )
    target = tvm_ext.with_memory("llvm", MemoryHierarchy((scope,)))
    lowered = module(CHAIN)
    for planner in ("rec_tbl", "first_fit"):
        found = plan_gmem(lowered, planner, GMEMOptions(target=target))[0]
        for tensor in found.layout.activations.tensors:
            begin = tensor.address - (1 << 20)
            for low, high in scope.reserved:
                assert max(begin, low) >= min(begin + tensor.size, high)
    refused(
        "the weights take .0x100000, 0x101380., and .0x100040, 0x100080. of memory scope 'global'",
        weights_module(),
        target=target,
    )


def test_a_base_that_is_not_aligned():
    refused(
        "the base of the weights, 0x64, is not a multiple of the alignment of 64",
        module(CHAIN),
        base=100,
    )
    refused(
        "the base of the weights, 0x1000, is not a multiple of the alignment of 8192",
        module(CHAIN),
        base=4096,
        alignment=8192,
    )


@pytest.mark.parametrize("alignment", [0, -64, 48, True, 64.0])
def test_an_alignment_that_is_none(alignment: object):
    with pytest.raises(ValueError, match="GMEMAllocate: alignment must be"):
        GMEMAllocate("best", alignment=alignment)


@pytest.mark.parametrize("base", [-4096, 1.5, 1 << 62])
def test_a_base_that_is_no_address(base: object):
    with pytest.raises(ValueError, match="GMEMAllocate: base must be an address"):
        GMEMAllocate("best", base=base)


def test_an_unknown_planner_and_a_bound_that_is_none():
    with pytest.raises(ValueError, match="unknown planner 'magic'; there are: best"):
        GMEMAllocate("magic")
    with pytest.raises(ValueError, match="upper bound of 'n' must be a positive integer, got 0"):
        GMEMAllocate("best", upper_bounds={"n": 0})
    with pytest.raises(ValueError, match=r"GMEMAllocate: upper_bounds must map names .* \['n'\]"):
        GMEMAllocate("best", upper_bounds=["n"])
    with pytest.raises(ValueError, match="GMEMAllocate: a budget must be a Budget or a number"):
        GMEMAllocate("best", budget="short")
    lowered = module(SYMBOLIC_BODY, SYMBOLIC, '"tir_var_upper_bound": {"n": 0}')
    refused("function 'main': the upper bound of 'n' must be .* at least 1, got 0", lowered)


def test_weights_at_the_chips_base_of_activations_are_refused():
    """A chip whose activations begin at 0, and weights that the caller puts there, too."""
    source = """
@I.ir_module
class Module:
    @R.function(pure=False)
    def main(x: R.Tensor((64, 64), "float32"), w: R.Tensor((64, 64), "float32")):
        R.func_attr({"num_input": 1})
        a = R.add(x, w)
        b = R.exp(a)
        c = R.negative(b)
        return c
"""
    lowered = lower(parse(source), fuse=False)
    with pytest.raises(ValueError, match=r"'main'.*weights take \[0x0, 0x4000\).*activations"):
        GMEMAllocate(target="sophgo/cv181x", base=0)(lowered)
    GMEMAllocate(target="sophgo/cv181x", base=1 << 30)(lowered)
