# SPDX-License-Identifier: Apache-2.0
"""Accesses that are no plain loads and stores: under a mask, and through pointers in a value."""

from __future__ import annotations

import pytest
import tvm
from pipe_outlines import outline, steps_of, uses
from program_text import programs
from test_first_writes import check

from passes.simulation import statements_of

CASES = programs("""
def masked(x: 64, y: 64):
    for t in range(2):
        a, b: local.UB 32
        for i in range(8):
            a[T.Ramp(i * 4, 1, 4)] = T.masked_load(
                "float32x4", x, T.Ramp(t * 32 + i * 4, 1, 4), T.Broadcast(T.bool(True), 4)
            )
        b[i] = a[i] + T.float32(1) for i in range(32)
        for i in range(8):
            T.evaluate(
                T.masked_store(
                    y,
                    b[T.Ramp(i * 4, 1, 4)],
                    T.Ramp(t * 32 + i * 4, 1, 4),
                    T.Broadcast(T.bool(True), 4),
                )
            )

def pointed(x: 64, y: 64):
    for t in range(2):
        a: local.UB 32
        for i in range(32):
            a[i] = T.call_pure_extern("float32", "f", x.access_ptr("r", extent=32))
        y[t * 32 + i] = a[i] for i in range(32)

def shown(x: 64, y: 64, n: T.int32):
    a: local.UB 64
    a[i] = x[i] for i in range(64)
    T.evaluate(T.call_extern("int32", "show", a.access_ptr("r"), T.address_of(n)))

def filled(x: 64, y: 64):
    a: local.UB 64
    T.evaluate(T.call_extern("int32", "fill", a.access_ptr("w")))
    y[i] = a[i] for i in range(64)

def of_any_size(x: 64, y: 64, n: T.int32):
    T.func_attr({"tir_var_upper_bound": {"n": 6}})
    a: local.UB 64
    b = T.alloc_buffer((n,), "float32", scope="local.UB")
    a[i] = x[i] for i in range(64)
    T.evaluate(T.call_extern("int32", "fill", b.data))

def said_by_a_variable(x: 32, y: 32, n: T.int32):
    a: local.UB 32
    T.evaluate(
        T.call_extern(
            "int32", "fill", T.tvm_access_ptr(T.type_annotation("float32"), a.data, 0, 32, n)
        )
    )
    y[i] = a[i] + x[i] for i in range(32)

def loaded_before_it_is_written(x: 32, y: 32):
    a: local.UB 32
    for i in range(8):
        y[T.Ramp(i * 4, 1, 4)] = T.masked_load(
            "float32x4", a, T.Ramp(i * 4, 1, 4), T.Broadcast(T.bool(True), 4)
        )
    a[i] = x[i] for i in range(32)
""")


@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("masked", [("MTE2", 128), ("V", 32), ("MTE3", 128)]),
        ("pointed", [("MTE2", 128), ("MTE3", 128)]),
        ("shown", [("MTE2", 256), ("S", 64)]),
        ("filled", [("V", 64), ("MTE3", 256)]),
        ("of_any_size", [("MTE2", 256), ("S", 1)]),
    ],
)
def test_they_are_transfers_where_plain_ones_would_be(name: str, made: list):
    found = list(statements_of(steps_of(CASES[name])))
    assert [(statement.pipe, statement.work) for statement in found] == made
    assert uses(CASES[name])["a"].dma


def test_a_pointer_for_what_a_variable_says_may_be_for_both():
    check(CASES["said_by_a_variable"])
    first = next(statements_of(steps_of(CASES["said_by_a_variable"])))
    assert first.reads == first.writes == ("a",)


def test_a_parameter_may_be_on_the_chip():
    func = tvm.script.from_source("""
@T.prim_func(s_tir=True)
def main(x: T.Buffer((64,), "float32", scope="local.UB"), y: T.Buffer((64,), "float32")):
    a = T.alloc_buffer((64,), "float32", scope="local.UB")
    for i in range(64):
        a[i] = x[i]
    for i in range(64):
        y[i] = a[i]
""")
    assert outline(steps_of(func)) == ["V", "MTE3"]


def test_a_masked_load_reads():
    with pytest.raises(ValueError, match="error: read before first write"):
        check(CASES["loaded_before_it_is_written"])
