# SPDX-License-Identifier: Apache-2.0
"""Which results `PlanAddresses` puts in place, and which it keeps apart."""

import pytest
from address_cases import elementwise, module, only_problem
from address_runs import assert_same_results
from tvm import tirx
from tvm.script import tirx as T

from passes.addresses.transform import plan_addresses
from passes.ir.linear_access import find_linear_access
from passes.prim_func.in_place_pairs import InPlacePairs
from passes.prim_func.memory_uses import find_memory_uses

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


def test_what_a_statement_does_not_touch_is_not_in_place_there():
    func = module(elementwise)["main"]
    access = find_linear_access(func)
    pairs = InPlacePairs(access, find_memory_uses(access))
    names = [alloc.name for alloc in access.allocs]
    a, b = names.index("a"), names.index("b")
    touching = [
        position
        for position, entry in enumerate(access.sequence)
        if entry.scope_pair_offset > 0
        and {a, b} <= {*access.sequence[position + entry.scope_pair_offset].touched}
    ]
    (both,) = touching
    allowed = [at for at, e in enumerate(access.sequence) if e.scope_pair_offset >= 0]
    assert [at for at in allowed if pairs.allows(at, b, a)] == [both]
