# SPDX-License-Identifier: Apache-2.0
"""What crosses the boundary of a group: tuples, other names, casts, views, and refusals."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import tvm
from fixed_groups import chip
from llvm_level import at_level
from operator_modules import arrays, kernels, lowered, module, run
from test_layer_group_pass import TINY
from tvm import relax
from tvm.s_tir import ScheduleError

from passes.layer_group import transform as layer_group_pass
from passes.layer_group.analysis import read_network
from passes.layer_group.analysis.read_network import read_networks
from passes.layer_group.planning.cuts import Cut
from passes.layer_group.planning.group import NetworkIndex
from passes.layer_group.planning.layer_groups import plan_layer_groups
from passes.layer_group.planning.planned_group import plan_group
from tvm_ext import transform
from tvm_ext.layer_group_report import layer_groups

OP = relax.op
SHAPE = (1, 4, 8, 6)
FLOATS = relax.TensorType(SHAPE, "float32")
X = np.random.default_rng(0).uniform(0, 1, SHAPE).astype("float32")


def halves(b, x):
    """Emit two layers; return the first one's result, and the second one's tuple of two."""
    first = b.emit(OP.negative(x))
    return first, b.emit(OP.split(first, 2, 2))


def item(b, whole, at):
    return b.emit(relax.TupleGetItem(whole, at))


CASES = []


def case(function):
    CASES.append(function)
    return function


@case
def taken_out_behind(b, x):
    with b.dataflow():
        both = b.emit_output(halves(b, x)[1])
    return b.emit(OP.concat([item(b, both, 0), item(b, both, 1)], 2))


@case
def taken_out_here_and_behind(b, x):
    with b.dataflow():
        both = halves(b, x)[1]
        here = b.emit_output(OP.negative(item(b, both, 0)))
        both = b.emit_output(both)
    return b.emit(OP.add(here, item(b, both, 1)))


@case
def returned(b, x):
    with b.dataflow():
        first, both = halves(b, x)
        both, last = b.emit_output(both), b.emit_output(OP.negative(first))
    return relax.Tuple([last, both])


@case
def taken_out_twice(b, x):
    with b.dataflow():
        _, both = halves(b, x)
        top, again = item(b, both, 0), b.emit_output(item(b, both, 0))
        last = b.emit_output(OP.add(OP.negative(top), again))
        bottom = b.emit_output(item(b, both, 1))
    return relax.Tuple([last, again, bottom, again])


@case
def other_names(b, x):
    with b.dataflow():
        first = b.emit(OP.negative(x))
        name = b.emit(b.emit(first))
        pair = b.emit(relax.Tuple([OP.negative(name), name]))
        last = b.emit_output(OP.add(item(b, pair, 0), item(b, pair, 1)))
        b.emit(relax.Tuple([last, name]))
    return last


@case
def other_names_of_effects(b, x):
    first = b.emit(OP.negative(x))
    name = b.emit(first)
    second = b.emit(OP.negative(first))
    b.emit(relax.Tuple([second, name]))
    return b.emit(OP.add(second, first))


@case
def cast_that_nobody_uses(b, x):
    with b.dataflow():
        first = b.emit(OP.negative(x))
        b.match_cast(first, FLOATS)
        last = b.emit_output(OP.negative(first))
    return last


@case
def symbol_of_a_cast(b, x):
    n = tvm.tirx.Var("n", tvm.ir.PrimType("int64"))
    with b.dataflow():
        second = b.emit(OP.negative(b.emit(OP.negative(x))))
        cast = b.match_cast(second, relax.TensorType((1, 4, n, 6), "float32"))
        shape = b.emit_output(relax.ShapeExpr([n, 6]))
        ones = b.emit(OP.full(relax.ShapeExpr([1, 4, n, 6]), relax.const(1.0), "float32"))
        last = b.emit(OP.negative(second))
        last, sums = b.emit_output(OP.add(last, last)), b.emit_output(OP.add(ones, cast))
    return relax.Tuple([last, sums, shape])


@case
def one_tensor_twice(b, x):
    with b.dataflow():
        first = b.emit(OP.negative(x))
        second, square = b.emit_output(OP.add(first, first)), b.emit_output(OP.multiply(x, x))
        wide = b.emit_output(OP.concat([second, second, x, x], 1))
    return relax.Tuple([second, second, square, x, wide])


@case
def packed_between(b, x):
    with b.dataflow():
        second = b.emit(OP.negative(b.emit(OP.negative(x))))
        twice = b.emit(OP.call_pure_packed("test.boundaries.twice", second, ty_args=FLOATS))
        last = b.emit_output(OP.add(OP.negative(twice), second))
    return last


@case
def no_elements(b, x):
    with b.dataflow():
        none = b.emit(OP.strided_slice(b.emit(OP.negative(x)), [2], [8], [8]))
        last = b.emit_output(OP.nn.softmax(b.emit(OP.add(none, none)), 3))
    return last


@tvm.register_global_func("test.boundaries.twice", override=True)
def twice(x):
    return tvm.runtime.tensor(x.numpy() * 2)


ALONE = (taken_out_behind, taken_out_here_and_behind, no_elements)


def function_of(b, case, name="main", ty=FLOATS):
    """Add a function of one parameter; a case that is no function of `CASES` has one block."""
    x = relax.Var("x", ty)
    with b.function(name, [x]):
        if case in CASES:
            made = case(b, x)
        else:
            with b.dataflow():
                made = b.emit_output(case(b, x))
        b.emit_func_output(made)
    return b


def with_groups(b):
    """Return a builder's module as kernels, without and with groups."""
    mod = lowered(b.get())
    grouped = transform.LayerGroup(f"{TINY}-llvm")(mod)
    relax.analysis.well_formed(grouped)
    return mod, grouped


@pytest.fixture(scope="module")
def built():
    """All cases in one module: grouped, built with groups, and built without."""
    b = relax.BlockBuilder()
    for case in CASES:
        function_of(b, case, case.__name__)
    mod, grouped = with_groups(b)
    machines = [
        relax.VirtualMachine(tvm.compile(m, target=at_level("llvm")), tvm.cpu())
        for m in (grouped, mod)
    ]
    return grouped, machines


def flat(value):
    if isinstance(value, tvm.runtime.Tensor):
        return [value.numpy()]
    if isinstance(value, tvm.runtime.ShapeTuple):
        return [np.array(list(value))]
    return [array for part in value for array in flat(part)]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_results_are_those_without_groups(case, built):
    mod, machines = built
    assert (case not in ALONE) == ("_group" in mod[case.__name__].script())
    ours, theirs = (flat(machine[case.__name__](tvm.runtime.tensor(X))) for machine in machines)
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(one, other)


def test_fields_of_a_parameter_are_loaded():
    def case(b, p):
        within = item(b, p, 1)
        sums = b.emit(OP.add(OP.negative(item(b, p, 0)), item(b, within, 0)))
        return OP.multiply(sums, item(b, within, 1))

    nested = relax.TupleType([FLOATS, relax.TupleType([FLOATS, FLOATS])])
    mod, grouped = with_groups(function_of(relax.BlockBuilder(), case, ty=nested))
    assert not set(kernels(mod)) & set(kernels(grouped)), "all layers are in groups"
    x = tvm.runtime.tensor(X)
    vm = relax.VirtualMachine(tvm.compile(grouped, target=at_level("llvm")), tvm.cpu())
    np.testing.assert_array_equal(flat(vm["main"]((x, (x, x))))[0], X * 0)


DOUBLE = """
@T.prim_func(private=True, s_tir=True)
def double(p: T.handle, result: T.Buffer((1, 4, 8, 6), "float32")):
    begin = T.int64()
    source = T.match_buffer(p, (1, 4, 8, 6), "float32", {read})
    with T.sblock("root"):
        for n, c, h, w in T.grid(1, 4, 8, 6):
            with T.sblock("double"):
                i, j, k, m = T.axis.remap("SSSS", [n, c, h, w])
                result[i, j, k, m] = source[i, j, k, m] * T.float32(2)
"""


def doubled(b, x, read):
    """Call a kernel that doubles a tensor and is told how its operand begins."""
    text = DOUBLE.format(read=read)
    double = b.add_func(tvm.script.from_source(text, check_well_formed=False), "double")
    return b.emit(relax.call_tir(double, [x], FLOATS))


@pytest.mark.parametrize("read", ["elem_offset=begin, offset_factor=1", "elem_offset=192"])
def test_a_view_is_read_where_it_begins(read):
    def case(b, x):
        view = b.emit(OP.memory.view(x, SHAPE, "float32", 768))
        return OP.negative(doubled(b, view, read))

    both = relax.TensorType((2, *SHAPE[1:]), "float32")
    mod, grouped = with_groups(function_of(relax.BlockBuilder(), case, ty=both))
    assert any("group" in kernel for kernel in kernels(grouped))
    x = [np.concatenate([X, X + 1])]
    np.testing.assert_array_equal(run(grouped, x)[0], run(mod, x)[0])


def reasons(case, ty=FLOATS):
    """Return why layers of a function are left, by layer."""
    report = layer_groups(lowered(function_of(relax.BlockBuilder(), case, ty=ty).get()), TINY)
    return {left.layer: left.reason for left in report.left}


def test_a_view_whose_begin_is_computed_is_left_alone():
    read = "elem_offset=begin * 4, offset_factor=4"
    left = reasons(lambda b, x: OP.negative(doubled(b, x, read)))
    assert left["double:lv"].endswith("'source' has strides or an offset")


ERRORS = (
    ValueError("no"),
    TypeError("dtype mismatch\nat some line"),
    RuntimeError(),
    ZeroDivisionError("by zero"),
    IndexError("out of range"),
    AttributeError("'Ramp' object has no attribute 'value'"),
    ScheduleError("cannot inline"),
)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("step", ["read_kernel", "read_results", "group_kernel"])
def test_what_cannot_be_read_or_written_is_left_alone(step, error, monkeypatch):
    def fail(*_args):
        raise error

    owner = layer_group_pass if step == "group_kernel" else read_network
    monkeypatch.setattr(owner, step, fail)
    mod = lowered(function_of(relax.BlockBuilder(), one_tensor_twice).get())
    report = layer_groups(mod, TINY)
    assert report.groups == ()
    assert report.moved_after == report.moved_before
    said = (str(error) or type(error).__name__).splitlines()[0]
    assert all(left.reason.endswith(f": {said}") for left in report.left)
    assert transform.LayerGroup(TINY)(mod).same_as(mod)


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_a_call_in_place_leaves_its_block_alone(depth):
    """Also one in a function that is called, or in one that this calls."""
    b = relax.BlockBuilder()

    def overwritten(value):
        name = "test.boundaries.twice"
        return OP.call_inplace_packed(name, value, inplace_indices=[0], ty_args=FLOATS)

    for number in range(depth):
        x = relax.Var("x", FLOATS)
        with b.function(f"inner_{number}", [x], private=True):
            b.emit_func_output(b.emit(overwritten(x)))
        inner = b.get().get_global_var(f"inner_{number}")

        def overwritten(value, inner=inner):
            return relax.Call(inner, [value])

    def case(b, x):
        first = b.emit(OP.negative(x))
        b.emit(overwritten(x))
        return OP.negative(first)

    networks = read_networks(lowered(function_of(b, case).get()))
    (left,) = (block for block in networks if block.function.name_hint == "main")
    assert {layer.reason for layer in left.network.layers} == {read_network.IN_PLACE}


def test_a_group_that_moves_more_than_its_layers_is_left_alone(monkeypatch):
    def one_row_at_a_time(network, target, **_options):
        found = plan_layer_groups(network, target)
        group = NetworkIndex(network).group(0, 1)
        planned = plan_group(group, Cut(h=12), chip())
        return replace(found, groups=(planned,), left={})

    monkeypatch.setattr(layer_group_pass, "plan_layer_groups", one_row_at_a_time)
    mod = module(
        [(1, 4, 28, 6), (4, 4, 9, 1)],
        lambda emit, x, w: emit(OP.nn.conv2d(emit(OP.nn.conv2d(x, w)), w)),
    )
    report = layer_groups(mod, TINY, fuse=False)
    assert report.groups == ()
    assert {reason.split(" would move ")[0] for _, reason, _ in report.left} == {"its group"}
    assert report.moved_after == report.moved_before


def test_a_fused_kernel_that_reads_its_other_result_is_left_alone():
    b = function_of(relax.BlockBuilder(), cast_that_nobody_uses)
    (left,) = layer_groups(lowered(b.get(), fuse=True), TINY).left
    assert left.reason == "its kernel reads what it writes"


TWO_DEVICES = """
@I.ir_module
class Module:
    I.module_global_infos({"vdevice": [I.vdevice("llvm", 0), I.vdevice("llvm", 1)]})

    @R.function
    def main(x: R.Tensor((9, 6), "float32", "llvm:0"), y: R.Tensor((9, 6), "float32", "llvm:1")):
        with R.dataflow():
            a = R.negative(x)
            b = R.negative(a)
            c = R.negative(y)
            d = R.negative(c)
            R.output(b, d)
        return (b, d)
"""


def test_layers_of_two_devices_are_in_no_group_together():
    mod = lowered(tvm.script.from_source(TWO_DEVICES))
    report = layer_groups(mod, TINY)
    assert [[name[-1] for name in group.layers] for group in report.groups] == [["a", "b"]]
    left = {layer[-1]: "other devices" in reason for layer, reason, _ in report.left}
    assert left == {"c": True, "d": True}


LINES = relax.TensorType((4, 8), "float32")
KERNEL = """
@T.prim_func(private=True, s_tir=True)
def kernel({}):
    with T.sblock("root"):
        for i, j in T.grid(4, 8):
            with T.sblock("o"):
                v, w = T.axis.remap("SS", [i, j])
                o[v, w] = a[v, w] + T.float32(1)
        for i, j in T.grid(4, 8):
            with T.sblock("second"):
                v, w = T.axis.remap("SS", [i, j])
                {}
"""


def kernel_of_two_stores(b, buffers, store):
    """Add a kernel that stores twice, as to buffers that it is given."""
    given = ", ".join(f"{name}: T.Buffer((4, 8), 'float32')" for name in buffers)
    return b.add_func(tvm.script.from_source(KERNEL.format(given, store)), "kernel")


def test_a_call_stays_for_the_result_that_is_in_no_group():
    def case(b, x):
        two = kernel_of_two_stores(b, "apo", "p[v, w] = o[v, w] * T.float32(2)")
        both = b.emit(relax.call_tir(two, [x], [LINES, LINES]))
        return OP.add(OP.negative(item(b, both, 0)), item(b, both, 1))

    mod, grouped = with_groups(function_of(relax.BlockBuilder(), case, ty=LINES))
    assert any("group" in name for name in kernels(grouped))
    (x,) = arrays(mod)
    np.testing.assert_array_equal(run(grouped, [x])[0], (x + 1) - (x + 1) * 2)


def test_a_kernel_that_writes_what_it_is_given_is_left_alone():
    def case(b, x):
        moved = kernel_of_two_stores(b, "ao", "a[v, w] = T.float32(0)")
        return OP.negative(b.emit(relax.call_tir(moved, [x], LINES)))

    assert reasons(case, LINES)["kernel:lv"] == "its kernel writes what it is given"
