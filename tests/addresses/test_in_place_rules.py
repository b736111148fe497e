# SPDX-License-Identifier: Apache-2.0
"""Which results `PlanAddresses` puts in place, and which it keeps apart."""

from textwrap import indent

import pytest
from address_cases import PROGRAMS, module, only_problem
from address_runs import assert_same_results
from program_text import cases, program
from tvm.ir import Var
from tvm.tirx import Bind, For

from passes.addresses.transform import plan_addresses
from passes.ir import nodes_in, structural_map, with_body

# In place


def test_an_elementwise_result_takes_its_operands_place():
    problem = only_problem(module(PROGRAMS["elementwise"])["main"])
    assert problem.in_place == (("a", "b"),)
    assert plan_addresses(module(PROGRAMS["elementwise"])["main"]).scopes[0].plan.peak == 256
    assert (
        only_problem(module(PROGRAMS["elementwise"])["main"], detect_inplace=False).in_place == ()
    )


def in_place_of(statement: str, made: str = "float32", read: str = "float32") -> tuple:
    """Return the in-place pairs of a program with a statement between `a`'s and `b`'s other use.

    The elements of `a`, which the statement reads, and of `b`, which it makes, have these types.
    """
    func = program(f"""
def main(x: 64 {read}, y: 64 {made}, other: 64 {read}):
    a: local.UB 64 {read}
    b: local.UB 64 {made}
    a[i] = x[i] for i in range(64)
{indent(statement, "    ")}
    y[i] = b[i] for i in range(64)
""")
    return only_problem(func).in_place


ALLOWED = cases("""
# elementwise
b[i] = a[i] for i in range(64)
# from an offset
b[i + 8] = a[i + 8] for i in range(32)
# every other
b[i * 2] = a[i * 2] for i in range(32)
# backward
b[63 - i] = a[63 - i] for i in range(64)
# two loops
for i in range(8):
    b[i * 8 + j] = a[i * 8 + j] for j in range(8)
# two loops, the other way
for i in range(8):
    b[i + j * 8] = a[i + j * 8] for j in range(8)
# in a loop of one iteration
for k in range(1):
    b[i] = a[i] for i in range(64)
# vectors
b[T.Ramp(i * 4, 1, 4)] = a[T.Ramp(i * 4, 1, 4)] for i in range(16)
# under a condition
for i in range(64):
    if i < 7:
        b[i] = a[i]
# parallel
b[i] = a[i] for i in T.parallel(64)
# the operand is made in the same iteration
for i in range(64):
    a[i] = T.float32(0)
    b[i] = a[i]
# the operand is summed up in the same iteration
for i in range(64):
    a[i] = T.float32(0)
    a[i] = a[i] + T.float32(1) for k in range(8)
    b[i] = a[i]
# a condition reads the operand
for i in range(64):
    if a[i] < T.float32(7):
        b[i] = a[i]
    else:
        b[i] = T.float32(0)
# the result is read back
for i in range(64):
    b[i] = a[i]
    b[i] = b[i] + T.float32(1)
# an element that was made before is loaded
for i in range(64):
    b[i] = a[i]
    other[i] = b[0]
# the extent of a loop in front is the operand
for i in range(64):
    other[j] = T.float32(0) for j in range(T.Cast("int32", a[i]))
    b[i] = a[i]
# a triangle
for i in range(8):
    b[i * 8 + j] = a[i * 8 + j] for j in range(i + 1)
# operand is made for the next iteration
for i in range(63):
    a[i + 1] = T.float32(0)
    b[i] = a[i]
# the operand is read in another branch
for i in range(64):
    if i < 7:
        b[i] = a[i]
    else:
        b[i] = a[i] + T.float32(1)
# rows are written by another index
for i in range(8):
    other[i * 8 + j] = a[i * 8 + j] for j in range(8)
    b[i * 8 + j] = T.float32(1) for j in range(8)
# in one branch or the other
for i in range(64):
    if i < 50:
        b[i] = a[i]
    else:
        b[i] = a[i] * T.float32(3)
# in one branch or the other, as memory says
for i in range(64):
    if other[0] < T.float32(1):
        b[i] = a[i]
    else:
        b[i] = a[i] * T.float32(3)
# unrolled by hand
for i in range(32):
    b[i * 2] = a[i * 2]
    b[i * 2 + 1] = a[i * 2 + 1]
# two halves at once
for i in range(32):
    b[i] = a[i]
    b[i + 32] = a[i + 32]
# two halves at once, of rows
for k in range(4):
    for i in range(8):
        b[k * 16 + i] = a[k * 16 + i]
        b[k * 16 + 8 + i] = a[k * 16 + 8 + i]
# vectors and what is left of a row
for k in range(4):
    for i in range(3):
        b[T.Ramp(k * 14 + i * 4, 1, 4)] = a[T.Ramp(k * 14 + i * 4, 1, 4)]
    b[k * 14 + 12 + i] = a[k * 14 + 12 + i] for i in range(2)
# even ones, then odd ones of a row
for k in range(4):
    b[k * 16 + i * 2] = a[k * 16 + i * 2] for i in range(8)
    b[k * 16 + i * 2 + 1] = a[k * 16 + i * 2 + 1] for i in range(8)
# vectors of even and of odd ones
for i in range(8):
    b[T.Ramp(i * 8, 2, 4)] = a[T.Ramp(i * 8, 2, 4)]
    b[T.Ramp(i * 8 + 1, 2, 4)] = a[T.Ramp(i * 8 + 1, 2, 4)]
# borders
for i in range(64):
    if i == 0:
        b[0] = a[0] * T.float32(2)
    if i == 63:
        b[63] = a[63] * T.float32(2)
    if i > 0 and i < 63:
        b[i] = a[i]
# rows and columns in the other order
b[i % 16 * 4 + i // 16] = a[i % 16 * 4 + i // 16] for i in range(64)
# by steps of five, around
b[i * 5 % 64] = a[i * 5 % 64] for i in range(64)
# neighbours in the other order
b[T.bitwise_xor(i, 1)] = a[T.bitwise_xor(i, 1)] for i in range(64)
# in the other order, in parallel
b[i * 5 % 64] = a[i * 5 % 64] for i in T.parallel(64)
# as many as a condition lets through
for i in range(64):
    if i < 32:
        b[i * 2] = a[i * 2]
        b[i * 2 + 1] = a[i * 2 + 1]
# forward, from behind
b[i] = a[i + 1] for i in range(63)
# what memory says is bound to a variable that no index has
for i in range(64):
    v: T.let = T.Cast("int32", other[i])
    b[i] = a[i] + T.Cast("float32", v)
# an index by another name
for i in range(32):
    v: T.let = i * 2
    b[v] = a[v]
    b[v + 1] = a[v + 1]
# vectors from the last to the first
b[T.Ramp(63 - i * 4, -1, 4)] = a[T.Ramp(63 - i * 4, -1, 4)] for i in range(16)
# a copy, repeated
for k in range(2):
    b[i] = a[i] for i in range(64)
# a copy, by an index of which nothing is known
b[i * i // 64] = a[i * i // 64] for i in range(64)
# a copy of vectors that overlap
b[T.Ramp(i * 2, 1, 4)] = a[T.Ramp(i * 2, 1, 4)] for i in range(16)
""")

REFUSED = cases("""
# its address is lent
for i in range(64):
    T.evaluate(T.call_extern("int32", "f", a.data))
    b[i] = a[i] * T.float32(2)
# its address is lent for a condition
for i in range(64):
    if T.call_extern("int32", "f", T.address_of(a[i])) < 1:
        b[i] = a[i] * T.float32(2)
# another element
b[i] = a[63 - i] * T.float32(2) for i in range(64)
# repeated
for k in range(2):
    b[i] = a[i] * T.float32(2) for i in range(64)
# overlapping
for i in range(8):
    b[i * 4 + j] = a[i * 4 + j] * T.float32(2) for j in range(8)
# overlapping vectors
b[T.Ramp(i * 2, 1, 4)] = a[T.Ramp(i * 2, 1, 4)] * T.Broadcast(T.float32(2), 4) for i in range(16)
# unknown
b[i * i // 64] = a[i * i // 64] * T.float32(2) for i in range(64)
# an index of few bits wraps, and comes back
for i in T.serial(T.int16(0), T.int16(128)):
    b[i * T.int16(1024)] = a[i * T.int16(1024)] * T.float32(2)
# by steps that are read
b[i] = a[i] * T.float32(2) for i in range(0, 64, T.Cast("int32", other[0]))
# an unsigned index of few bits wraps
b[i * T.uint8(64)] = a[i * T.uint8(64)] * T.float32(2) for i in range(T.uint8(8))
# an index that a call may change
for i in range(64):
    b[i + T.call_extern("int32", "next")] = a[i + T.call_extern("int32", "next")] * T.float32(2)
# an index that memory says, which may be the result's
for i in range(64):
    b[i + T.Cast("int32", other[0])] = a[i + T.Cast("int32", other[0])] * T.float32(2)
# the operand is the extent of the loop
b[i] = T.float32(1) for i in range(T.Cast("int32", a[0]))
# the operand is the extent of a parallel loop
b[i] = T.float32(1) for i in T.parallel(T.Cast("int32", a[0]))
# the operand is where the loop begins
b[i] = T.float32(1) for i in range(T.Cast("int32", a[0]), 64)
# the operand is the step of the loop
b[i] = T.float32(1) for i in range(0, 64, T.Cast("int32", a[0]))
# by steps of nothing, which TVM refuses behind us
b[i] = a[i] * T.float32(2) for i in range(0, 64, 0)
# vectors whose elements are so far apart as memory says
for i in range(16):
    s: T.let = T.Cast("int32", other[0])
    b[T.Ramp(i, s, 4)] = a[T.Ramp(i, s, 4)] * T.Broadcast(T.float32(2), 4)
# vectors whose length only the machine knows
for i in range(4):
    b[T.Ramp(i * 16, 1, 4 * T.vscale())] = a[T.Ramp(i * 16, 1, 4 * T.vscale())] * T.Broadcast(
        T.float32(2), 4 * T.vscale()
    )
# vectors backward
for i in range(16):
    b[T.Ramp(63 - i * 2, -1, 4)] = a[T.Ramp(63 - i * 2, -1, 4)] * T.Broadcast(T.float32(2), 4)
# a vector of one element
b[T.Broadcast(i, 4)] = a[T.Broadcast(i, 4)] * T.Broadcast(T.float32(2), 4) for i in range(16)
# two stores
for i in range(63):
    b[i] = a[i] * T.float32(2)
    b[i + 1] = a[i + 1] * T.float32(2)
# operand is overwritten
for i in range(64):
    b[i] = a[i] * T.float32(2)
    a[i] = b[i]
# operand is cleared behind
for i in range(64):
    b[i] = a[i] * T.float32(2)
    a[i] = T.float32(0)
# operand is read again under another condition
for i in range(64):
    if i < 7:
        b[i] = a[i] * T.float32(2)
    if i < 9:
        b[i] = a[i] * T.float32(2)
# operand is summed up while the result is written
for i in range(64):
    for k in range(8):
        a[i] = a[i] + T.float32(1)
        b[i] = a[i] * T.float32(2)
# one iteration that begins elsewhere each time
for i in range(8):
    b[i + j] = a[i + j] * T.float32(2) for j in range(i * -1, i * -1 + 1)
# seen by another name
for i in range(64):
    alias = T.decl_buffer((64,), "float32", data=a.data, scope="local.UB")
    b[i] = a[i] * T.float32(2)
    b[i] = alias[i]
# the extent of a loop is read again behind what its body writes
for i in range(64):
    for j in range(T.Cast("int32", a[i])):
        b[i] = T.float32(1)
# a loop whose rounds are not known
while a[0] < other[0]:
    b[0] = T.float32(1)
# the result is loaded beside the operand
for i in range(63):
    b[i] = a[i] * T.float32(2)
    b[i + 1] = b[i] + a[i + 1]
# a permutation, from its own place
b[63 - i] = a[i] * T.float32(2) for i in range(64)
# by steps of four, around
b[i * 4 % 64] = a[i * 4 % 64] * T.float32(2) for i in range(64)
# backward, from the front
b[i + 1] = a[i] * T.float32(2) for i in range(63)
# forward, from behind, in parallel
b[i] = a[i + 1] * T.float32(2) for i in T.parallel(63)
# unrolled by hand, with one too many
for i in range(31):
    b[i * 2] = a[i * 2] * T.float32(2)
    b[i * 2 + 1] = a[i * 2 + 1] * T.float32(2)
    b[i * 2 + 2] = a[i * 2 + 2] * T.float32(2)
# a border is written once more
for i in range(64):
    if i == 63:
        b[63] = a[63] * T.float32(2)
    b[i] = a[i] * T.float32(2)
# two halves that meet
for i in range(32):
    b[i] = a[i] * T.float32(2)
    b[i + 31] = a[i + 31] * T.float32(2)
# an index that memory says by another name
for i in range(64):
    v: T.let = T.Cast("int32", other[i])
    b[v] = a[v] * T.float32(2)
# an index that memory moves by another name
for i in range(64):
    v: T.let = T.Cast("int32", other[i])
    b[i + v] = a[i + v] * T.float32(2)
# in either branch, but in the next round again
for i in range(63):
    if i % 2 == 0:
        b[i] = a[i] * T.float32(2)
        b[i + 1] = T.float32(0)
    else:
        b[i] = a[i] * T.float32(3)
# in one branch, and in the other
for i in range(64):
    if i < 32:
        b[i] = a[i] * T.float32(2)
    else:
        b[i - 32] = a[i - 32] * T.float32(2)
# a copy of what was changed before
for k in range(2):
    for i in range(64):
        b[i] = a[i]
        a[i] = a[i] + T.float32(1)
# a copy, and what is changed in another branch
for k in range(2):
    for i in range(64):
        if k == 0:
            b[i] = a[i] * T.float32(2)
        else:
            b[i] = a[i]
# a copy of an element that memory says
for i in range(64):
    b[T.Cast("int32", other[i])] = a[T.Cast("int32", other[i])]
# an index within an expression
v = T.int32()
b[i] = T.Let(a[v] * T.float32(2), where={v: 63 - i}) for i in range(64)
""")


@pytest.mark.parametrize("case", ALLOWED)
def test_in_place_where_each_element_is_read_before_it_is_written(case: str):
    assert in_place_of(ALLOWED[case]) == (("a", "b"),)


STEP = 'T.Cast("int32", other[0])'
HALVES = ("float16", "float32")
VECTORS = 'b[{0}] = T.Cast("float16x4", a[{0}]) for i in range(16)'
ROWS = 'b[{0}] = T.Cast("float16", a[{0}]) for i, j in T.grid(4, 16)'
CAST = 'b[{}] = T.Cast("{}", a[{}]) for i in range(64)'


@pytest.mark.parametrize(
    ("statement", "made", "read", "allowed"),
    [
        (CAST.format("i", "float16", "i"), "float16", "float32", True),
        (f"for k in range(1):\n    {CAST.format('i', 'float16', 'i')}", *HALVES, True),
        (CAST.format("63 - i", "float16", "63 - i"), "float16", "float32", False),
        (CAST.format("i", "float16", "63 - i"), "float16", "float32", False),
        (CAST.format("i", "float32", "i"), "float32", "float16", False),
        (CAST.format("i", "int8", "i"), "int8", "int64", True),
        (ROWS.format("i * 16 + j"), *HALVES, True),
        (ROWS.format("j * 4 + i"), *HALVES, False),
        (CAST.format("i * 2", "float16", "i * 2"), "float16", "float32", True),
        (CAST.format("i", "float16", "i").replace("range", "T.parallel"), *HALVES, False),
        (CAST.format("i", "float16", "i").replace("64", "0, 64, 2"), *HALVES, True),
        (CAST.format("i", "float16", "i").replace("64", f"0, 64, {STEP}"), *HALVES, False),
        (
            "for i in range(7):\n"
            "    b[i * 8 + j] = T.Cast('float16', a[i * 8 + j]) for j in range(i * -1, i * -1 + 8)",
            *HALVES,
            True,
        ),
        (VECTORS.format("T.Ramp(i * 4, 1, 4)"), *HALVES, True),
        (VECTORS.format("T.Ramp(i * 10, 3, 4)"), *HALVES, True),
        (
            "if other[0] < T.float32(1):\n    other[63 - i] = a[63 - i] for i in range(64)\n"
            "    b[i] = T.float16(1) for i in range(64)",
            "float16",
            "float32",
            True,
        ),
        ("b[i] = a[i] for i in range(64)", "int4", "int4", False),
        ("b[i] = a[i] for i in range(64)", "bool", "bool", True),
        (
            "for i in range(64):\n    other[i] = a[i]\n    b[i] = T.Broadcast(T.float32(1), 4)",
            "float32x4",
            "float32x2",
            False,
        ),
    ],
)
def test_elements_of_other_types_are_written_behind_what_reads_them(statement, made, read, allowed):
    assert in_place_of(statement, made, read) == ((("a", "b"),) if allowed else ())


@pytest.mark.parametrize("kept", ["a", "b"])
@pytest.mark.parametrize(
    "how", ["pointer: T.let = {}.data", 'T.evaluate(T.reinterpret("int64", {}.data))', "volatile"]
)
def test_what_may_be_used_at_any_time_is_not_in_place(kept: str, how: str):
    volatile = 'annotations={"tirx.volatile": True}'
    made = {name: volatile if (how, kept) == ("volatile", name) else "" for name in "ab"}
    func = program(f"""
def main(x: 64, y: 64):
    a = T.alloc_buffer((64,), "float32", scope="local.UB", {made["a"]})
    b = T.alloc_buffer((64,), "float32", scope="local.UB", {made["b"]})
    {"T.evaluate(0)" if how == "volatile" else how.format(kept)}
    a[i] = x[i] for i in range(64)
    b[i] = a[i] for i in range(64)
    y[i] = b[i] for i in range(64)
""")
    assert only_problem(func).in_place == ()


@pytest.mark.parametrize(("scope", "allowed"), [("shared", False), ("local.UB", True)])
def test_threads_do_not_write_what_another_thread_may_still_read(scope: str, allowed: bool):
    """Each thread goes through all of the elements, at its own pace."""
    func = program(f"""
def main(x: 64, y: 64):
    thread = T.launch_thread("threadIdx.x", 8)
    a, b: {scope} 64
    a[i] = x[i] for i in range(64)
    b[i] = a[i] * T.float32(2) for i in range(64)
    y[i] = b[i] for i in range(64)
""")
    problem = only_problem(func)
    assert problem.in_place == ((("a", "b"),) if allowed else ())
    assert problem.separations == (() if allowed else (("a", "b"),))


one_of_two = program("""
def one_of_two(x: 64, y: 64):
    a, b: local.UB 64
    for i in range(64):
        if i % 2 == 0:
            a[i] = x[63 - i]
            y[i] = a[i] * T.float32(2)
        else:
            b[i] = x[i]
            y[i] = b[i] + T.float32(1)
""")


def test_two_that_may_be_in_place_of_one_another_are_one_pair():
    assert only_problem(module(one_of_two)["main"]).in_place == (("a", "b"),)
    assert_same_results(module(one_of_two))
    assert plan_addresses(module(one_of_two)["main"]).scopes[0].plan.peak == 256


@pytest.mark.parametrize("case", REFUSED)
def test_not_in_place_where_that_is_not_shown(case: str):
    assert in_place_of(REFUSED[case]) == ()


def test_an_index_may_move_as_a_loop_around_says():
    func = program("""
def main(x: 64, y: 64):
    for k in range(1, 3):
        a, b: local.UB 64
        a[i] = x[i] for i in range(64)
        b[i * k] = a[i * k] * T.float32(2) for i in range(32)
        y[i] = b[i] for i in range(64)
""")
    assert only_problem(func).in_place == ()


def test_a_variable_that_counts_two_loops_has_two_values():
    func = program("""
def main(x: 64, y: 64, other: 64):
    a, b: local.UB 64
    a[i] = x[i] for i in range(64)
    for k in range(2):
        other[k * 4 + j] = a[k * 4 + j] for j in range(8)
        b[k * 4 + i] = T.float32(1) for i in range(8)
    y[i] = b[i] for i in range(64)
""")
    assert only_problem(func).in_place == ()
    one, other = (x.loop_var for x in nodes_in(func.body, For) if int(x.extent) == 8)
    body = structural_map(func.body, [(Var, lambda var: one if var.same_as(other) else var)])
    assert only_problem(with_body(func, body)).in_place == ()


def test_a_variable_that_is_bound_twice_has_two_values():
    func = program("""
def main(x: 64, y: 64):
    a, b: local.UB 64
    t: local.UB 1
    a[i] = x[i] for i in range(64)
    for i in range(64):
        source: T.let = 63 - i
        t[0] = a[source]
        target: T.let = i + 0
        b[target] = t[0]
    y[i] = b[i] for i in range(64)
""")
    assert only_problem(func).in_place == ()
    one, other = (bind.var for bind in nodes_in(func.body, Bind))
    body = structural_map(func.body, [(Var, lambda var: one if var.same_as(other) else var)])
    assert [bind.var.same_as(one) for bind in nodes_in(body, Bind)] == [True, True]
    assert only_problem(with_body(func, body)).in_place == ()


def test_a_variable_that_one_object_binds_in_two_loops_has_two_values():
    func = program("""
def main(x: 64, y: 64):
    for i in range(8):
        first: T.let = i + 8
        y[first] = x[first]
    a, b: local.UB 64
    a[i] = x[i] for i in range(64)
    for i in range(8):
        second: T.let = i + 8
        b[second] = a[second - 1]
    y[i] = b[i + 8] for i in range(8)
""")
    binds = nodes_in(func.body, Bind)
    loops = [loop for loop in nodes_in(func.body, For) if nodes_in(loop, Bind)]
    new = (loops[1].loop_var, loops[0].loop_var), (binds[1].var, binds[0].var)

    def put(var: Var) -> Var:
        return next((one for other, one in new if var.same_as(other)), var)

    body = structural_map(func.body, [(Bind, lambda _op: binds[0])])
    assert only_problem(with_body(func, structural_map(body, [(Var, put)]))).in_place == ()
