# SPDX-License-Identifier: Apache-2.0
"""What cannot be in a group is left as it was, and the report says why."""

from __future__ import annotations

from dataclasses import replace
from itertools import cycle

import pytest
import tvm
from boundary_cases import (
    FLOATS,
    KERNEL,
    LINES,
    OP,
    cast_that_nobody_uses,
    doubled,
    function_of,
    kernel_of_two_stores,
    one_result_cast,
    one_tensor_twice,
    taken_out_behind,
)
from fixed_groups import chip
from operator_modules import lowered, module
from test_layer_group_pass import TINY
from tvm import relax
from tvm.s_tir import ScheduleError

from passes.layer_group import transform as layer_group_pass
from passes.layer_group.analysis import read_network
from passes.layer_group.analysis.read_network import read_networks
from passes.layer_group.planning.cut import Cut
from passes.layer_group.planning.layer_groups import plan_layer_groups
from passes.layer_group.planning.network import NetworkIndex
from passes.layer_group.planning.planned_group import plan_group
from tvm_ext import transform
from tvm_ext.report.readers.groups import layer_groups


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


STEPS = ("read_kernel", "read_results", "group_kernel")


@pytest.mark.parametrize(("error", "step"), list(zip(ERRORS, cycle(STEPS), strict=False)))
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
    # An error without a message is named with the place that raised it.
    ends = f": {said}" if str(error) else "'raise error'"
    reasons = [left.reason for left in report.left]
    assert all(f": {said}" in reason and reason.endswith(ends) for reason in reasons), reasons
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
    assert {reason.split(" would move ")[0] for _, reason, *_ in report.left} == {"its group"}
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
    left = {layer[-1]: "other devices" in reason for layer, reason, *_ in report.left}
    assert left == {"c": True, "d": True}


@pytest.mark.parametrize("case", [taken_out_behind, one_result_cast])
def test_results_that_are_not_taken_out_one_by_one_are_one_tuple(case):
    left = {reason for layer, reason in reasons(case).items() if layer.startswith("split")}
    assert left == {"its results are used as one tuple"}


def test_what_is_known_when_it_runs_alone_is_left_alone():
    ty = relax.TensorType(ndim=4, dtype="float32")
    left = reasons(lambda b, x: OP.negative(doubled(b, x, "elem_offset=0")), ty)
    assert left["double:lv"] == "its shapes are not known"
    ty = relax.TensorType((tvm.tirx.Var("n", tvm.ir.PrimType("int64")), 8), "float32")
    (reason,) = reasons(lambda _b, x: OP.negative(x), ty).values()
    assert reason.endswith("is not known, or empty")

    def numbered(b, x):
        text = KERNEL.replace("float32(1)", "Cast('float32', n)").format(
            "a: T.Buffer((4, 8), 'float32'), n: T.int64, o: T.Buffer((4, 8), 'float32')", "pass"
        )
        kernel = b.add_func(tvm.script.from_source(text), "kernel")
        return b.emit(relax.call_tir(kernel, [x, tvm.tirx.IntImm("int64", 3)], LINES))

    assert reasons(numbered, LINES)["kernel:lv"].endswith("it has parameters that are not buffers")


def test_a_kernel_that_writes_what_it_is_given_is_left_alone():
    def case(b, x):
        moved = kernel_of_two_stores(b, "ao", "a[v, w] = T.float32(0)")
        return OP.negative(b.emit(relax.call_tir(moved, [x], LINES)))

    assert reasons(case, LINES)["kernel:lv"] == "its kernel writes what it is given"


def test_a_kernel_that_is_called_in_place_leaves_its_block_alone():
    def case(b, x):
        moved = kernel_of_two_stores(b, "ao", "a[v, w] = T.float32(0)")
        made = b.emit(OP.call_tir_inplace(moved, [x], [0, -1], [LINES, LINES]))
        return OP.negative(b.emit(relax.TupleGetItem(made, 1)))

    assert {*reasons(case, LINES).values()} == {read_network.IN_PLACE}
