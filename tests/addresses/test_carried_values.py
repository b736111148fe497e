# SPDX-License-Identifier: Apache-2.0
"""Which buffers carry a value from one round of a loop to the next, and which are one round's."""

from __future__ import annotations

from collections.abc import Mapping
from textwrap import indent

import pytest
from address_cases import live
from program_text import cases, program
from tvm.ir import Var
from tvm.tirx import Bind, Evaluate, For, IntImm, PrimFunc, Return

from passes.ir import find_accesses, find_linear_access, nodes_in, structural_map, with_body

FILLED = "s[i] = x[i] for i in range(64)"
READ = "y[i] = s[63 - i] for i in range(64)"


OWN = cases("""
# filled
s[i] = x[i] for i in range(64)
y[i] = s[63 - i] for i in range(64)
# never read
s[i] = x[i] for i in range(32)
# in two halves
s[i] = x[i] for i in range(32)
s[32 + i] = x[i] for i in range(32)
y[i] = s[63 - i] for i in range(64)
# read as far as written
s[i] = x[i] for i in range(32)
y[i] = s[31 - i] for i in range(32)
# element by element
for i in range(64):
    s[i] = x[i]
    y[63 - i] = s[i]
# initialised in the first round
for i, r, q in T.grid(64, 8, 4):
    if r == 0 and q == 0:
        s[i] = x[i]
    s[i] = s[i] + x[r * 4 + q]
y[i] = s[63 - i] for i in range(64)
# initialised for all
for r, i in T.grid(8, 64):
    if r == 0:
        s[i] = x[i]
    s[i] = s[i] + x[r]
y[i] = s[63 - i] for i in range(64)
# in both branches
for i in range(64):
    if x[0] > T.float32(0):
        s[i] = x[i]
    else:
        s[i] = x[63 - i]
y[i] = s[63 - i] for i in range(64)
# under the same condition
if x[0] < T.float32(0):
    y[0] = T.float32(0)
if k % 2 == 0:
    s[i] = x[i] for i in range(64)
if k % 2 == 0:
    y[i] = s[63 - i] for i in range(64)
# where a tile ends
for i, j in T.grid(16, 4):
    if i * 4 + j < 63:
        s[i * 4 + j] = x[i]
y[i] = s[62 - i] for i in range(63)
# in rows with a gap
for i in range(32):
    s[i // 4 * 8 + i % 4] = x[i]
for i, j in T.grid(8, 4):
    y[i] = s[i * 8 + j]
# rotated
s[(i * 3 + 9) % 64] = x[i] for i in range(64)
y[i] = s[63 - i] for i in range(64)
# in another order
for i, j in T.grid(8, 8):
    s[j * 8 + i] = x[i]
y[i] = s[63 - i] for i in range(64)
# from the end
s[63 - i] = x[i] for i in range(64)
y[i] = s[63 - i] for i in range(64)
# in steps
for i in T.serial(0, 64, step=2):
    s[i] = x[i]
    s[i + 1] = x[i]
y[i] = s[63 - i] for i in range(64)
# as vectors
for i in range(16):
    s[T.Ramp(i * 4, 1, 4)] = x[T.Ramp(i * 4, 1, 4)]
y[i] = s[63 - i] for i in range(64)
# as far as rounds go
s[i] = x[i] for i in T.serial(k)
y[i] = s[i] for i in T.serial(k)
# at any index
s[i] = x[i] for i in range(64)
y[i] = s[T.Cast('int32', x[i])] for i in range(64)
# before a while
s[i] = x[i] for i in range(64)
while s[0] < T.float32(9):
    s[0] = s[0] + T.float32(1)
# in a parallel loop
s[i] = x[i] for i in T.parallel(64)
y[i] = s[63 - i] for i in range(64)
# by another name
v = T.decl_buffer((64,), data=s.data, scope='local.UB')
v[i] = x[i] for i in range(64)
y[i] = s[63 - i] for i in range(64)
# by a name of narrower elements
v = T.decl_buffer((128,), 'int16', data=s.data, scope='local.UB')
v[i] = T.Cast('int16', x[i // 2]) for i in range(128)
y[i] = s[63 - i] for i in range(64)
# by a call
T.evaluate(T.call_extern('int32', 'f', s.access_ptr('w')))
y[i] = s[63 - i] for i in range(64)
# on the way of a choice
for i in range(64):
    y[i] = T.if_then_else(k < 0, s[i], x[i])
""")
"""Statements of a round, after which nothing of `s` is needed."""

CARRIED = cases("""
# filled in the first round
if k == 0:
    s[i] = x[i] for i in range(64)
y[i] = s[63 - i] for i in range(64)
# filled in the first round, inside
for i in range(64):
    if k == 0:
        s[i] = x[i]
y[i] = s[63 - i] for i in range(64)
# filled as far as the range in one branch says
if k <= 2:
    s[i] = x[i] for i in range(k)
    if k > 0:
        y[0] = s[0]
else:
    s[i] = x[63 - i] for i in range(2)
y[i] = s[i] for i in range(k)
# filled by a call that C evaluates in the first round alone
if k == 0 and T.call_extern('int32', 'f', s.access_ptr('w')) == 1:
    y[0] = x[0]
y[i] = s[63 - i] for i in range(64)
# updated by a choice
for i in range(64):
    s[i] = T.if_then_else(k == 0, x[i], s[i] * T.float32(2))
y[i] = s[63 - i] for i in range(64)
# updated by a select
for i in range(64):
    s[i] = T.Select(k == 0, x[i], s[i] * T.float32(2))
y[i] = s[63 - i] for i in range(64)
# loaded ahead
if k > 0:
    y[i] = s[63 - i] for i in range(64)
s[i] = x[i] for i in range(64)
# filled in part
s[i] = x[i] for i in range(32)
y[i] = s[63 - i] for i in range(64)
# filled but for one
s[i] = x[i] for i in range(63)
y[i] = s[63 - i] for i in range(64)
# filled every other
s[i * 2] = x[i] for i in range(32)
y[i] = s[63 - i] for i in range(64)
# filled in no round
s[i] = x[i] for i in T.serial(k)
y[i] = s[63 - i] for i in range(64)
# filled in one round at least?
for i in T.serial(k):
    s[0] = x[i]
y[0] = s[0]
# read first
y[i] = s[63 - i] for i in range(64)
s[i] = x[i] for i in range(64)
# read from the other end in the loop that fills
for i in range(64):
    s[i] = x[i]
    y[i] = s[63 - i]
# summed with the other end in the loop that fills
for i in range(64):
    s[i] = x[i]
    s[63 - i] = s[63 - i] + x[i]
# filled once but for the last round, read in the round before it
for i in T.serial(3 - k):
    s[i] = x[i]
if k == 2:
    y[0] = s[0]
y[k] = s[0]
# filled under conditions of which some are simpler where others hold
if k < 3:
    if k % 3 > 0:
        s[0] = x[0]
        y[1] = s[0]
if k < 1:
    s[0] = x[0]
if k > 2:
    if k % 3 > 0:
        s[0] = x[0]
y[k] = s[0]
# filled at a quotient by a negative number
for i in range(64):
    s[i // -4 + 32] = x[i]
y[0] = s[33]
# read further
s[i] = x[i] for i in T.serial(k)
y[i] = s[i] for i in T.serial(k + 1)
# filled where a value says
for i in range(64):
    if x[i] > T.float32(0):
        s[i] = x[i]
y[i] = s[63 - i] for i in range(64)
# filled where a value of another round says
for i, q in T.grid(64, 4):
    if x[q] > T.float32(0):
        if q > 0:
            y[i] = s[i]
        s[i] = x[i]
# filled in one branch
for i in range(64):
    if x[0] > T.float32(0):
        s[i] = x[i]
    else:
        s[0] = x[i]
y[i] = s[63 - i] for i in range(64)
# filled under another condition
if k % 2 == 0:
    s[i] = x[i] for i in range(64)
if k % 3 == 0:
    y[i] = s[63 - i] for i in range(64)
# filled at an index in memory
for i in range(64):
    s[T.Cast('int32', x[i])] = x[i]
y[i] = s[63 - i] for i in range(64)
# filled every other, rotated
s[(i * 2 + 9) % 64] = x[i] for i in range(64)
y[i] = s[63 - i] for i in range(64)
# filled in a while
while y[0] < T.float32(1):
    y[0] = T.float32(1)
    s[i] = x[i] for i in range(64)
y[i] = s[63 - i] for i in range(64)
# filled up to a jump
for i in range(64):
    if x[i] > T.float32(3):
        T.evaluate(T.break_loop())
    s[i] = x[i]
y[i] = s[63 - i] for i in range(64)
# filled at other indices
s[i] = x[i] for i in range(32)
y[i] = s[32 + i] for i in range(32)
# filled where a tile ends
for i, j in T.grid(16, 4):
    if i * 4 + j < 63:
        s[i * 4 + j] = x[i]
y[i] = s[63 - i] for i in range(64)
# in rows with a gap
for i in range(32):
    s[i // 4 * 8 + i % 4] = x[i]
for i, j in T.grid(8, 5):
    y[i] = s[i * 8 + j]
# filled in a triangle
for i, j in T.grid(8, 8):
    if j <= i:
        s[i * 8 + j] = x[i]
y[i] = s[63 - i] for i in range(64)
# read by a call
T.evaluate(T.call_extern('int32', 'f', s.data))
s[i] = x[i] for i in range(64)
# perhaps written by a call
T.evaluate(T.call_extern('int32', 'f', s.data))
y[i] = s[63 - i] for i in range(64)
# written by a call in columns, of rows that a pointer reaches over
t = T.decl_buffer((8, 2), data=s.data, scope='local.UB', strides=(8, 1))
T.evaluate(T.call_extern('int32', 'f', t.access_ptr('w')))
y[i] = s[i] for i in range(64)
# filled at an index of unsigned numbers of 64 bits
for i in T.serial(T.uint64(64)):
    s[i % T.uint64(7)] = x[0]
y[0] = s[7]
# read by the call that writes it
T.evaluate(T.call_extern('int32', 'f', s.access_ptr('w'), s.access_ptr('r')))
# handed as a value to the call that writes it
T.evaluate(T.call_extern('int32', 'f', s.access_ptr('w'), s[3]))
# filled by a call in an index, in the first round alone
y[T.Cast('int32', k == 0 and T.call_extern('int32', 'f', s.access_ptr('w')) == 1)] = x[0]
y[i] = s[63 - i] for i in range(64)
# read where a lane says
s[i] = x[i] for i in range(4)
for i in range(16):
    y[T.Ramp(i * 4, 1, 4)] = T.Select(
        T.Ramp(i, 1, 4) < T.Broadcast(3, 4), s[T.Ramp(i * 4, 1, 4)], x[T.Ramp(i * 4, 1, 4)])
# filled where no number that is not less is
if k == 0 or T.Not(a < T.float32(1)):
    s[0] = x[0]
if a >= T.float32(1):
    s[0] = x[0]
if a < T.float32(1):
    y[1] = x[1]
else:
    y[0] = s[0]
# filled by a name that begins in the middle
v = T.decl_buffer((64,), data=s.data, scope='local.UB', elem_offset=1)
v[i] = x[i] for i in range(64)
y[0] = s[0]
# filled by a name with a stride
v = T.decl_buffer((64,), data=s.data, scope='local.UB', strides=(2,))
v[i] = x[i] for i in range(64)
y[0] = s[1]
# read by a name of narrower elements, which may take a byte each
v = T.decl_buffer((512,), 'int4', data=s.data, scope='local.UB')
s[0] = x[0]
y[i] = T.Cast('float32', v[i]) for i in range(8)
# written under a mask
T.evaluate(T.masked_store(s.data, T.Broadcast(x[0], 64), T.Ramp(0, 1, 64), T.Broadcast(k == 0, 64)))
y[i] = s[63 - i] for i in range(64)
""")
"""Statements of which a round may read what an earlier one left in `s`."""

NOT_SHOWN = cases("""
# one after the other
s[0] = x[0]
for i in range(1, 64):
    s[i] = s[i - 1] + x[i]
y[i] = s[63 - i] for i in range(64)
""")
"""Statements that read what the same round wrote, which counts as carried all the same."""

PROGRAM = """
def main(x: 64, y: 64, a: T.float32):
    for k in range(4):
        s: local.UB 64
"""


def carrying(text: str) -> dict[str, str]:
    """Return the buffers that carry a value, and the variable of the loop that carries it."""
    access = find_linear_access(program(text))
    names = {uses.alloc.name: uses.carrying for uses in find_accesses(access).of}
    return {name: str(loop.loop_var.name) for name, loop in names.items() if loop is not None}


def in_loop(statements: str) -> str:
    return PROGRAM + indent(statements, " " * 8)


@pytest.mark.parametrize("statements", OWN.values(), ids=OWN)
def test_what_a_round_writes_itself_is_its_own(statements: str):
    assert carrying(in_loop(statements)) == {}


@pytest.mark.parametrize("statements", (CARRIED | NOT_SHOWN).values(), ids=CARRIED | NOT_SHOWN)
def test_what_a_round_may_read_of_an_earlier_one_is_carried(statements: str):
    assert carrying(in_loop(statements)) == {"s": "k"}


LOOPS: Mapping[str, tuple[str, dict[str, str]]] = {
    "first round of the inner loop": ("q == 0", {"s": "q"}),
    "first round of the outer loop": ("k == 0", {"s": "k"}),
    "first round of both": ("k == 0 and q == 0", {"s": "k"}),
    "each round": ("q >= 0", {}),
}


@pytest.mark.parametrize(("condition", "expected"), LOOPS.values(), ids=LOOPS)
def test_the_outermost_loop_that_carries_a_value(condition: str, expected: dict[str, str]):
    text = f"""
def main(x: 64, y: 64):
    for k in range(4):
        for q in range(3):
            s: local.UB 64
            if {condition}:
                {FILLED}
            {READ}
"""
    assert carrying(text) == expected


def test_what_carries_a_value_lives_through_its_loop():
    lives = live(
        program(f"""
def main(x: 64, y: 64):
    for k in range(4):
        s, now: local.UB 64
        if k == 0:
            {FILLED}
        {READ}
        now[i] = y[63 - i] for i in range(64)
        y[i] = now[63 - i] for i in range(64)
""")
    )
    assert lives["s"][0] < lives["now"][0] < lives["now"][1] < lives["s"][1]


IN_A_BRANCH = "if {}:\n    s[i] = x[0]"
IN_BOTH = "if x[0] > T.float32(0):\n{0}\nelse:\n{0}".format(indent(IN_A_BRANCH, " " * 4))


@pytest.mark.parametrize("store", [IN_A_BRANCH, IN_BOTH])
@pytest.mark.parametrize(("condition", "expected"), [("k == 0", {"s": "k"}), ("i >= 0", {})])
def test_more_elements_than_are_gone_through_in_all_rounds(
    store: str, condition: str, expected: dict[str, str]
):
    text = f"""
def main(x: 64, y: 64):
    for k in range(8):
        s: local.UB {1 << 20}
        for i in range(64):
{indent(store.format(condition, condition), " " * 12)}
        y[k] = s[63] + s[1]
"""
    assert carrying(text) == expected


def test_vectors_at_a_place_that_only_the_running_program_knows():
    text = """
def main(x: 64, y: 64, n: T.int32):
    for k in range(n):
        s: local.UB 64
        s[T.Ramp(k % 4 * 16, 1, 16)] = T.Broadcast(x[0], 16)
        y[k % 4] = s[k % 4]
"""
    assert carrying(text) == {"s": "k"}


def test_iterations_that_run_at_the_same_time_carry_nothing():
    text = in_loop(CARRIED["filled in the first round"]).replace("range(4)", "T.parallel(4)")
    assert carrying(text) == {}


def test_a_variable_that_is_bound_twice_in_a_round_names_two_elements():
    func = program("""
def main(x: 64, y: 64):
    for k in range(4):
        a: global 64
        written: T.let = k + 0
        a[written] = x[k]
        read: T.let = k - 1
        y[k] = a[read]
""")
    one, other = (bind.var for bind in nodes_in(func.body, Bind))
    body = structural_map(func.body, [(Var, lambda var: other if var.same_as(one) else var)])
    for each in (func, with_body(func, body)):
        (uses,) = find_accesses(find_linear_access(each)).of
        assert uses.carrying is not None


def bound_at_once(func: PrimFunc) -> PrimFunc:
    """Return a function in which two loops have one variable, and one object binds in both."""
    binds = nodes_in(func.body, Bind)
    names = {bind.var.name: bind.var for bind in binds}
    one, other = (
        next(loop for loop in nodes_in(func.body, For) if loop.body.seq[0].same_as(bind))
        for bind in binds
    )
    new = {other.loop_var: one.loop_var, names["c"]: names["b"]}
    body = structural_map(func.body, [(Bind, lambda op: binds[0] if op.same_as(binds[1]) else op)])

    def put(var: Var) -> Var:
        return next((n for old, n in new.items() if var.same_as(old)), var)

    return with_body(func, structural_map(body, [(Var, put)]))


def test_an_object_that_binds_a_variable_in_two_loops_binds_it_anew_in_each_round():
    func = program("""
def main(x: 64, y: 64):
    for i in range(8):
        b: T.let = i + 0
        y[b] = x[b]
    for k in range(4):
        s: local.UB 64
        for i in range(8):
            c: T.let = i + 0
            if i == 0 or k == 0:
                s[c] = x[c]
            y[c] = s[c]
""")
    for each in (func, bound_at_once(func)):
        (uses,) = find_accesses(find_linear_access(each)).of
        assert uses.carrying is not None


def test_threads_that_return_store_nothing():
    func = program("""
def main(x: 64, y: 64) on 1 x 32:
    for k in range(4):
        s: shared 32
        if k > 0:
            if tx >= 16:
                T.evaluate(T.thread_return())
        s[tx] = x[tx]
        y[tx] = s[31 - tx]
""")
    ends = [(Evaluate, lambda _op: Return(IntImm("int32", 0)))]
    for each in (func, with_body(func, structural_map(func.body, ends))):
        (uses,) = find_accesses(find_linear_access(each)).of
        assert uses.carrying is not None


@pytest.mark.parametrize("scope", ["local", "global"])
def test_threads_that_differ_in_what_they_allocate_may_be_on_another_way(scope: str):
    func = program(f"""
def main(x: 64, y: 64) on 1 x 32:
    r: {scope} 1 int32
    r[0] = tx
    for k in range(4):
        if k == 0 or r[0] < k:
            s: shared 32
            s[tx] = x[tx]
            y[tx] = s[31 - tx]
""")
    uses = find_accesses(find_linear_access(func)).of
    assert [each.carrying is not None for each in uses] == [False, True]
