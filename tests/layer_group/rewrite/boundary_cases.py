# SPDX-License-Identifier: Apache-2.0
"""Functions with what may cross the boundary of a group: tuples, other names, casts, views."""

from __future__ import annotations

import numpy as np
import tvm
from operator_modules import lowered
from test_layer_group_pass import TINY
from tvm import relax

from tvm_ext import transform

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
def one_result_cast(b, x):
    with b.dataflow():
        first, both = halves(b, x)
        half = relax.TensorType((1, 4, 4, 6), "float32")
        b.match_cast(relax.TupleGetItem(both, 0), half)
        last = b.emit_output(OP.exp(b.emit(OP.exp(first))))
    return last


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
        b.emit(OP.call_pure_packed("test.boundaries.twice", x, ty_args=FLOATS))
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
