# SPDX-License-Identifier: Apache-2.0
"""Accesses that are no plain loads and stores: under a mask, and through pointers in a value."""

from __future__ import annotations

import pytest
from pipe_outlines import steps_of, uses
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


def test_a_masked_load_reads():
    with pytest.raises(ValueError, match="error: read before first write"):
        check(CASES["loaded_before_it_is_written"])
