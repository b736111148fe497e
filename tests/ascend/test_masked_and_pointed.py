# SPDX-License-Identifier: Apache-2.0
"""Accesses that are no plain loads and stores: under a mask, and through pointers in a value."""

from __future__ import annotations

import pytest
from pipe_outlines import statements, steps_of, uses
from test_first_writes import check
from tvm import tirx
from tvm.script import tirx as T


@T.prim_func(s_tir=True)
def masked(x: T.Buffer((64,), "float32"), y: T.Buffer((64,), "float32")):
    for t in range(2):
        a = T.alloc_buffer((32,), "float32", scope="local.UB")
        b = T.alloc_buffer((32,), "float32", scope="local.UB")
        for i in range(8):
            a[T.Ramp(i * 4, 1, 4)] = T.masked_load(
                "float32x4", x, T.Ramp(t * 32 + i * 4, 1, 4), T.Broadcast(T.bool(True), 4)
            )
        for i in range(32):
            b[i] = a[i] + T.float32(1)
        for i in range(8):
            T.evaluate(
                T.masked_store(
                    y,
                    b[T.Ramp(i * 4, 1, 4)],
                    T.Ramp(t * 32 + i * 4, 1, 4),
                    T.Broadcast(T.bool(True), 4),
                )
            )


@T.prim_func(s_tir=True)
def pointed(x: T.Buffer((64,), "float32"), y: T.Buffer((64,), "float32")):
    for t in range(2):
        a = T.alloc_buffer((32,), "float32", scope="local.UB")
        for i in range(32):
            a[i] = T.call_pure_extern(
                "float32", "f", T.tvm_access_ptr(T.type_annotation("float32"), x.data, 0, 32, 1)
            )
        for i in range(32):
            y[t * 32 + i] = a[i]


@pytest.mark.parametrize(
    ("func", "made"),
    [
        (masked, [("MTE2", 128), ("V", 32), ("MTE3", 128)]),
        (pointed, [("MTE2", 128), ("MTE3", 128)]),
    ],
)
def test_they_are_transfers_where_plain_ones_would_be(func: tirx.PrimFunc, made: list):
    found = list(statements(steps_of(func)))
    assert [(statement.pipe, statement.work) for statement in found] == made
    assert uses(func)["a"].dma


@T.prim_func(s_tir=True)
def said_by_a_variable(x: T.Buffer((32,), "float32"), y: T.Buffer((32,), "float32"), n: T.int32):
    a = T.alloc_buffer((32,), "float32", scope="local.UB")
    T.evaluate(
        T.call_extern(
            "int32", "fill", T.tvm_access_ptr(T.type_annotation("float32"), a.data, 0, 32, n)
        )
    )
    for i in range(32):
        y[i] = a[i] + x[i]


def test_a_pointer_for_what_a_variable_says_may_be_for_both():
    check(said_by_a_variable)
    first = next(statements(steps_of(said_by_a_variable)))
    assert first.reads == first.writes == ("a",)


@T.prim_func(s_tir=True)
def loaded_before_it_is_written(x: T.Buffer((32,), "float32"), y: T.Buffer((32,), "float32")):
    a = T.alloc_buffer((32,), "float32", scope="local.UB")
    for i in range(8):
        y[T.Ramp(i * 4, 1, 4)] = T.masked_load(
            "float32x4", a, T.Ramp(i * 4, 1, 4), T.Broadcast(T.bool(True), 4)
        )
    for i in range(32):
        a[i] = x[i]


def test_a_masked_load_reads():
    with pytest.raises(ValueError, match="error: read before first write"):
        check(loaded_before_it_is_written)
