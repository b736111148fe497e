# SPDX-License-Identifier: Apache-2.0
"""`GMEMAllocate` by hand: what is planned, on each path."""

from __future__ import annotations

import re
from functools import cache

import numpy as np
import pytest
import tvm
from network_inputs import entry_of
from relax_programs import parse
from relax_replay import Replay
from relax_runs import assert_same, build, lower, lower_source, planned, run
from small_modules import (
    CHAIN,
    SYMBOLIC,
    SYMBOLIC_BODY,
    module,
    parsed,
    placed,
    read,
    read_body,
)
from sweeps import sample
from tvm.target import Target
from written_networks import WRITTEN

from passes.gmem.options import GMEMOptions
from passes.gmem.relax_functions import plan_gmem
from tvm_ext import workloads
from tvm_ext.transform import GMEMAllocate

# ------------------------------------------------------------------------------ what is planned


def test_a_chain_needs_two_tensors_at_a_time():
    found = read(module(CHAIN))
    assert [buffer.size for buffer in found.memory.main.problem.buffers] == [256, 256, 256]
    assert [(left.name, left.reason) for left in found.memory.left] == [("alloc3", "returned")]
    assert found.plan.peak == 512
    assert found.layout.has_addresses


def test_a_view_keeps_what_it_looks_at():
    found = read_body("""
a = R.nn.relu(x)
v = R.memory.view(a, R.shape([8, 8]), R.dtype("float32"), 0)
b = R.negative(x)
c = R.concat((b, b), axis=0)
d = R.sum(v)
e = R.add(d, R.sum(c))
return e
""")
    by_name = {buffer.name: buffer for buffer in found.memory.main.problem.buffers}
    view_read = found.memory.bindings.index("d") - 1
    assert by_name["alloc"].live == ((1, view_read + 1),)


def test_what_a_packed_function_may_keep_is_left_to_the_run_time():
    found = read_body("""
a = R.nn.relu(x)
b = R.call_packed("test.gmem.keep", a, ty_args=R.Tensor((64,), "float32"))
c = R.negative(b)
d = R.call_packed("test.gmem.keep", c)
e = R.abs(x)
f = R.sum(e)
return f
""")
    reasons = {left.name: left.reason for left in found.memory.left}
    keeper = "passed to packed function 'test.gmem.keep' by binding"
    assert reasons == {"alloc": f"{keeper} 'b'", "alloc1": f"{keeper} 'd'", "alloc3": "returned"}
    assert list(placed(found).values()) == ["alloc2"]
    main = found.memory.main
    assert [one.name for one in (*main.returned, *main.alone)] == ["alloc3", "alloc", "alloc1"]
    assert found.memory.may_be_kept == f"'alloc' is {keeper} 'b'"


def test_destination_passing_keeps_nothing():
    found = read_body("""
a = R.nn.relu(x)
b = R.call_dps_packed("test.gmem.double", (a,), out_ty=R.Tensor((64,), "float32"))
c = R.sum(b)
return c
""")
    assert list(placed(found).values()) == ["alloc", "alloc1"]


TY = 'ty_args=R.Tensor((64,), "float32")'
OWN = 'R.builtin.alloc_tensor(R.shape([64]), R.dtype("float32"), 0)'
INNER = f"""
@R.function(pure=False)
def inner(y: R.Tensor((64,), "float32")) -> R.Tensor((64,), "float32"):
    return R.call_packed("test.gmem.keep", y, {TY})
"""


@pytest.mark.parametrize(
    ("lines", "left"),
    [
        ('_ = R.call_packed("f", x, made)', {}),
        ('_ = R.call_packed("f")\n_1 = R.call_packed("g", made)', {}),
        ('_ = R.call_packed("f", x)\n_1 = R.call_packed("g", made)', {}),
        (f'_ = R.call_packed("f", x, made, {TY})', {"made": "passed to packed function"}),
        (
            'b = R.call_packed("f", x, made)\nc = R.call_packed("g", b)',
            {"made": "passed to packed"},
        ),
        (
            'b = R.match_cast(R.call_packed("f", x, made), R.Tensor((64,), "float32"))',
            {"made": "passed to packed"},
        ),
        (f"{INNER}_ = inner(made)", {"made": "passed to closure"}),
        ("", {"made": "nothing uses it"}),
    ],
)
def test_a_tensor_that_nothing_has_written_is_a_destination(lines: str, left: dict[str, str]):
    """As `CallTIRRewrite` leaves a call: it returns nothing, and its last argument is written."""
    found = read(parsed(f"made = {OWN}\n{lines}\nreturn x"))
    assert {one.name: one.reason[: len(left[one.name])] for one in found.memory.left} == left


@pytest.mark.parametrize(
    ("lines", "known"),
    [
        (f"a = {OWN}\n_ = f(x, a)", True),
        (f"a = {OWN.replace('64', '0, 64')}\n_ = f(x, a)", True),  # It takes no bytes.
        (f"a = {OWN}", True),
        (f"a = {OWN}\n_ = g(x, a)\n_1 = f(a)", True),
        ('a = R.memory.alloc_storage(R.shape([64]), 0, R.str("global"), R.dtype("uint8"))', False),
    ],
)
def test_whether_all_that_a_call_allocates_is_known(lines: str, known: bool):
    called = re.sub(r"\b([fg])\(", r'R.call_packed("\1", ', lines)
    assert read(parsed(f"{called}\nreturn x")).memory.has_all_allocations is known


def test_nested_tuples_are_followed_field_by_field():
    found = read_body("""
a = R.nn.relu(x)
b = R.negative(x)
t = (a, (b, x))
u = (t[1], a)
c = R.abs(u[0][0])
d = R.sum(c)
return (d, u[1])
""")
    # `a` is returned within the tuple; `b` is not.
    assert {left.name: left.reason for left in found.memory.left} == {
        "alloc": "returned",
        "alloc3": "returned",
    }
    assert list(placed(found).values()) == ["alloc1", "alloc2"]


def test_captured_values_and_other_functions_are_left_to_the_run_time():
    lowered = lower_source("""
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
""")
    helper, main = plan_gmem(lowered, "best")
    assert [left.reason for left in main.memory.left] == [
        "passed to Relax function 'helper' by binding 'b'",
        "returned",
    ]
    assert (main.memory.calls, main.memory.hands_on) == (("helper",), ())
    # Both are alive at once, so the addresses of the one that is called come behind.
    assert helper.layout.activations.start == main.layout.activations.end > 0


@pytest.mark.parametrize("handed_on", [True, False])
def test_what_may_call_a_function_that_was_handed_on_shares_as_stock_does(handed_on: bool):
    lowered = lower_source(f"""
@R.function(private=True, pure=False)
def helper(x: R.Tensor((64,), "float32")) -> R.Tensor((64,), "float32"):
    return R.negative(R.nn.relu(x))
def hands(x: R.Tensor((64,), "float32")):
    cls = Module
    _ = {'R.call_packed("keep", cls.helper)' if handed_on else "cls.helper(x)"}
    return x
def main(x: R.Tensor((64,), "float32")):
    _ = R.call_packed("unknown")
    a = R.nn.relu(x)
    b = R.concat((a, a), axis=0)
    c = R.concat((b, a), axis=0)
    return R.sum(R.concat((c, b), axis=0))
def other(x: R.Tensor((64,), "float32")):
    a = R.nn.relu(x)
    b = R.concat((a, a), axis=0)
    return R.sum(R.concat((b, a), axis=0))
""")
    main, other = (plan for plan in plan_gmem(lowered) if plan.memory.name in ("main", "other"))
    assert main.memory.calls_unknown
    for plan, as_stock in ((main, handed_on), (other, False)):
        offsets = {at for piece in plan.placement[0] for at in piece.offsets.values()}
        assert (offsets == {0}) == as_stock


def test_a_local_function_is_left_alone_with_what_it_captures():
    lowered = lower_source("""
def main(x: R.Tensor((64,), "float32")):
    a = R.nn.relu(x)
    @R.function(pure=False)
    def inner(y: R.Tensor((64,), "float32")) -> R.Tensor((64,), "float32"):
        z = R.add(y, a)
        return z
    b = inner(x)
    return b
""")
    (found,) = plan_gmem(lowered, "best")
    reasons = {left.name: left.reason for left in found.memory.left}
    assert reasons["alloc"] == "captured by binding 'inner'"
    assert "allocated within the function that binding 'inner' makes" in reasons.values()
    assert not found.memory.main.problem.buffers
    ours = planned(lowered, GMEMAllocate("best"))
    assert "alloc_storage" not in ours["main"].script()


def test_what_a_local_function_casts_is_seen_to_be_allocated():
    source = """
def main(x: R.Tensor((16,), "float32")):
    @R.function(pure=False)
    def inner(y: R.Tensor((16,), "float32")) -> R.Tensor((16,), "float32"):
        z = R.match_cast(
            R.builtin.alloc_tensor(
                R.shape([16]), R.dtype("float32"), R.prim_value(0), R.str("global")
            ),
            R.Tensor((16,), "float32"),
        )
        return z
    return inner(x)
"""
    (found,) = plan_gmem(parse(source))
    assert [left.name for left in found.memory.left] == ["z"]


def test_a_function_that_calls_itself_has_no_fixed_addresses():
    lowered = lower_source("""
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
""")
    (found,) = plan_gmem(lowered, "best")
    (planned_otherwise,) = plan_gmem(lowered, "first_fit")
    assert found.memory.main.problem.buffers
    assert not found.layout.has_addresses
    assert not planned_otherwise.layout.has_addresses
    assert not found.layout.to_plain()["activations"]["tensors"]
    (addressed,) = plan_gmem(lowered, "best", GMEMOptions(base=0))
    assert not addressed.memory.main.problem.buffers
    assert "its function may be called again while it runs" in {
        left.reason for left in addressed.memory.left
    }


# ---------------------------------------------------------------------------------- symbolic sizes


def test_upper_bounds_give_sizes_and_checks():
    lowered = module(SYMBOLIC_BODY, SYMBOLIC, '"tir_var_upper_bound": {"n": 10}')
    found = read(lowered)
    sizes = {buffer.name: buffer.size for buffer in found.memory.main.problem.buffers}
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
    sizes = {buffer.name: buffer.size for buffer in found.memory.main.problem.buffers}
    assert (sizes["alloc"], sizes["alloc2"]) == (160, 28)


@pytest.mark.parametrize(
    ("extent", "bounds", "expected"),
    [
        ("m", "", {("m", 4), ("n", 4)}),
        ("n * m", "", {("m * n", 4), ("n", 4)}),
        ("n * m", '"n": 3', {("m", 12), ("None", 12)}),
        ("n * m", '"n": 3, "m": 2', {("None", 4 * 3 * 3)}),  # Each may be -3.
        ("(n - 4) * (m - 4)", '"n": 3', {("(n - T.int64(4)) * (m - T.int64(4))", 4)}),
    ],
)
def test_a_size_is_what_it_may_be_at_most(extent: str, bounds: str, expected: set[tuple[str, int]]):
    attrs = f'"tir_var_lower_bound": {{"n": -3, "m": -3}}, "tir_var_upper_bound": {{{bounds}}}'
    body = f"""
n, m = T.int64(), T.int64()
a = R.exp(R.full(R.shape([{extent}]), R.const(1, "float32")))
b = R.exp(R.full(R.shape([n]), R.const(1, "float32")))
return R.add(R.sum(a), R.sum(b))
"""
    groups = read(module(body, 's: R.Shape(["n", "m"])', attrs)).memory.groups
    sizes = {(str(g.unit), b.size) for g in groups for b in g.problem.buffers}
    assert expected <= sizes


# -------------------------------------------------------------------------------------- networks

DYNAMIC = "llama_layer_dynamic"
MODELS = ("resnet18", DYNAMIC, "mobilenet_v2", "bert", "llama")


@cache
def network(name: str) -> tvm.IRModule:
    known = name in workloads.NETWORKS
    return lower(workloads.model(name) if known else WRITTEN[name].build())


@pytest.mark.parametrize("name", sample(MODELS, *MODELS[:2]))
def test_one_storage_at_the_entry_and_weights_by_name(name: str):
    lowered = network(name)
    before = tvm.IRModule(dict(lowered.functions))
    bounds = {"sequence": 64} if name == DYNAMIC else None
    ours, again = (planned(lowered, GMEMAllocate("rec_tbl", upper_bounds=bounds)) for _ in "12")
    tvm.ir.assert_structural_equal(lowered, before)
    tvm.ir.assert_structural_equal(ours, again)
    main = ours[entry_of(lowered)]
    bindings = [str(b.value) for block in main.body.blocks for b in block.bindings]
    storages = [at for at, text in enumerate(bindings) if "R.memory.alloc_storage" in text]
    assert len(storages) == 1
    assert storages[0] <= 2 * (name == DYNAMIC), "only checks of bounds come before"
    layout = main.attrs["tvm_ext.gmem"]
    weights = [weight["name"] for weight in layout["weights"]["tensors"]]
    params = [str(param.name) for param in main.params[1:]]
    assert weights[: len(params)] == params
    assert all(name.startswith("constant") for name in weights[len(params) :])
    if name != DYNAMIC:
        replay = Replay(ours, "main", lambda: True)()
        assert replay.touches > len(layout["activations"]["tensors"])


def test_without_a_bound_sizes_are_multiples_of_what_is_not_known():
    (found,) = plan_gmem(network(DYNAMIC))
    main, *symbolic = found.memory.groups
    # Transposed weights are of a constant size.
    assert main.problem.buffers
    assert {str(group.unit) for group in symbolic} == {"sequence", "sequence * sequence"}
    assert {left.reason for left in found.memory.left} == {"returned"}
    assert not found.memory.bounds


NARROW = """
def main(x: R.Tensor(("n", "m"), "float32")):
    a = R.exp(x)
    b = R.negative(a)
    c = R.sum(R.multiply(a, b), axis=[1])
    d = R.exp(c)
    return R.add(d, R.negative(d))
"""
"""Tensors of four bytes for each of an unknown number."""


@pytest.mark.parametrize("target", ["llvm", "sophgo/bm1684x-llvm"])
@pytest.mark.parametrize("planner", ["best", "rec_tbl", "first_fit"])
def test_padding_of_unknown_sizes_never_takes_more_than_each_tensor_by_itself(
    planner: str, target: str
):
    lowered = lower_source(NARROW)
    (found,) = plan_gmem(lowered, planner, GMEMOptions(target=Target(target)))
    symbolic = found.memory.groups[1:]
    assert [str(group.unit) for group in symbolic] == ["m * n", "n"]
    for group, pieces in zip(symbolic, found.placement[1:], strict=True):
        alone = sum(buffer.size for buffer in group.every if buffer not in group.alone)
        assert sum(piece.size for piece in pieces) <= alone
    x = np.random.default_rng(0).standard_normal((33, 5), dtype="float32")
    assert_same(lowered, GMEMAllocate(planner, target=target), [x])
