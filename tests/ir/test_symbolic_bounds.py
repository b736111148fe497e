# SPDX-License-Identifier: Apache-2.0
"""Maxima of symbolic sizes, against all values that their variables can have."""

from itertools import product

import pytest
import tvm
import tvm_ffi
from hypothesis import given
from hypothesis import strategies as st
from program_text import program
from tvm import tirx

import tvm_ext
from passes.ir.symbolic_bounds import Bound, bounds_at_entry, most_of

N, M = tirx.Var("n", "int32"), tirx.Var("n", "int32")  # Two variables of one name
BOUNDS = [Bound(N, 0, 9), Bound(M, -4, 5)]

# How TVM writes an operation, and how Python computes it; None where it has no value.
OPERATIONS = {
    "add": (lambda a, b: a + b, lambda a, b: a + b),
    "sub": (lambda a, b: a - b, lambda a, b: a - b),
    "mul": (lambda a, b: a * b, lambda a, b: a * b),
    "floordiv": (tirx.floordiv, lambda a, b: a // b if b else None),
    "floormod": (tirx.floormod, lambda a, b: a % b if b else None),
    "max": (tirx.max, max),
    "min": (tirx.min, min),
    "and": (tirx.bitwise_and, lambda a, b: a & b),
    "or": (tirx.bitwise_or, lambda a, b: a | b),
    "select": (lambda a, b: tirx.Select(a > b, a, b), max),
    "if": (lambda a, b: tirx.if_then_else(a > b, a, b), max),
}


def _expressions():
    leaf = st.sampled_from(["n", "m"]) | st.integers(-20, 20)
    return st.recursive(
        leaf,
        lambda inner: st.tuples(st.sampled_from(sorted(OPERATIONS)), inner, inner),
        max_leaves=5,
    )


def _in_tvm(tree):
    if isinstance(tree, tuple):
        return OPERATIONS[tree[0]][0](_in_tvm(tree[1]), _in_tvm(tree[2]))
    return {"n": N, "m": M}[tree] if isinstance(tree, str) else tirx.IntImm("int32", tree)


def _value(tree, n, m):
    if isinstance(tree, tuple):
        parts = _value(tree[1], n, m), _value(tree[2], n, m)
        return None if None in parts else OPERATIONS[tree[0]][1](*parts)
    return {"n": n, "m": m}.get(tree, tree)


def _division_by_zero(tree):
    """TVM folds constants as it builds an expression, and refuses a division by 0 there."""
    try:
        _in_tvm(tree)
    except Exception:
        return True
    return False


@given(_expressions())
def test_no_value_is_above_the_maximum(tree):
    if _division_by_zero(tree):
        return
    found = most_of(_in_tvm(tree), BOUNDS)
    values = [_value(tree, n, m) for n, m in product(range(10), range(-4, 6))]
    values = [value for value in values if value is not None]
    if found is not None and values:
        assert found[0] >= max(values)
        assert found[0] < 1 << 30  # The greatest product of five numbers is below the type's limit.


@pytest.mark.parametrize(
    ("size", "most"),
    [
        (N + M, 14),
        (tirx.max(N * 4, M), 36),
        (N << 2, 36),
        (N >> 1, 4),
        (N - tirx.min(0, N - tirx.truncdiv(N * -1, tirx.const(-1))), 9),
        (tirx.bitwise_and(N + 15, 48), 24),
        (tirx.Select(N > 3, N, 3), 9),
        ((N * 8).astype("int64"), 72),
        (N.astype("uint8").astype("int32"), None),
        (600 - (N.astype("int8") * tirx.const(64, "int8")).astype("int32"), None),
        (N.astype("int64"), 9),
        (tirx.bitwise_or(N, 1), None),
        (tirx.bitwise_or(N, 1) + 1, None),
        (10 - tirx.bitwise_or(N, 1), None),
        (tirx.min(tirx.bitwise_or(N, 1), 16), None),
        (tirx.if_then_else(N > 3, N, 3), None),
        (tirx.Var("other", "int32") + N, None),
    ],
    ids=str,
)
def test_a_maximum_follows_from_bounds_or_is_none(size, most):
    found = most_of(size, BOUNDS)
    assert (None if found is None else found[0]) == most


def test_a_name_bounds_each_variable_of_it():
    a, b = (tirx.decl_buffer((v,), "float32") for v in (N, M))
    func = tirx.PrimFunc([a, b], tirx.Evaluate(0))
    for bounds in bounds_at_entry(func, {"n": 7}):
        most, used = most_of(N + M, bounds)
        assert most == 14
        assert {bound.variable.__chandle__() for bound in used} == {
            N.__chandle__(),
            M.__chandle__(),
        }


def test_a_size_of_a_bit_operator_without_a_bound_is_left_alone():
    """TVM's analyzer gives the limits of ``int32`` for it, 8 GiB of floats."""
    func = program("""
    def main(pa: T.handle, po: T.handle):
        n = T.int32()
        A = T.match_buffer(pa, (n,), "float32")
        O = T.match_buffer(po, (n,), "float32")
        x = T.alloc_buffer((T.bitwise_and(n + 15, -16),), "float32")
        y = T.alloc_buffer((n,), "float32")
        x[i] = A[i] for i in range(n)
        y[i] = x[n - 1 - i] for i in range(n)
        O[i] = y[n - 1 - i] + x[i] for i in range(n)
    """)
    module = tvm.IRModule({"main": func})
    memory = tvm_ext.MemoryHierarchy((tvm_ext.MemoryScope("global", capacity=1 << 30),))
    planned = tvm_ext.transform.PlanAddresses("best", "arena", memory=memory)(module)
    assert tvm_ffi.structural_equal(planned, module)


def test_each_variable_of_a_name_is_asserted():
    func = program("""
    def main(pa: T.handle, pb: T.handle):
        n = T.int32()
        m = T.int32()
        A = T.match_buffer(pa, (n,), "float32")
        B = T.match_buffer(pb, (m,), "float32")
        x = T.alloc_buffer((m,), "float32", scope="local.UB")
        y = T.alloc_buffer((n,), "float32", scope="local.UB")
        y[i] = A[i] for i in range(n)
        x[i] = B[i] for i in range(m)
        B[i] = x[m - 1 - i] for i in range(m)
        A[i] = y[n - 1 - i] for i in range(n)
    """)
    renamed = tirx.Var("n", "int32")
    func = tvm_ffi.structural_map(func, (tirx.Var, lambda v: renamed if v.name == "m" else v))
    memory = tvm_ext.MemoryHierarchy((tvm_ext.MemoryScope("local.UB", capacity=4096),))
    plan = tvm_ext.transform.PlanAddresses("bump", "arena", memory=memory, upper_bounds={"n": 16})
    asserted = []
    planned = plan(tvm.IRModule({"main": func}))["main"]
    tvm_ffi.structural_walk(planned.body, (tirx.AssertStmt, asserted.append))
    variables = {op.condition.a.__chandle__() for op in asserted}
    assert len(asserted) == len(variables) == 2
