# SPDX-License-Identifier: Apache-2.0
"""Memory that is read before anything can have written it."""

from __future__ import annotations

import pytest
from ascend_modules import module
from program_text import programs
from tvm import tirx

from tvm_ext.transform import AscendPlanMemory


def check(func: tirx.PrimFunc) -> None:
    AscendPlanMemory()(module(func))


WRITTEN = programs("""
def carried_ahead(x: 256, y: 256):
    for t in range(8):
        a: local.UB 32
        if t > 0:
            y[t * 32 + i] = a[i] for i in range(32)
        a[i] = x[t * 32 + i] for i in range(32)

def guarded(x: 256, y: 256):
    before: local.UB 32
    for t in range(8):
        if t > 0:
            y[t * 32 + i] = before[i] for i in range(32)
        before[i] = x[t * 32 + i] for i in range(32)

def selected(x: 256, y: 32):
    a: local.UB 32
    for t in range(8):
        for i in range(32):
            a[i] = T.if_then_else(t > 0, a[i] + x[t * 32 + i], x[t * 32 + i])
    y[i] = a[i] for i in range(32)

def sum_of_those_before(x: 32, y: 32):
    a: local.UB 32
    for i in range(32):
        a[i] = x[i] + T.if_then_else(i > 0, a[i - 1], T.float32(0))
    y[i] = a[i] for i in range(32)

def most_of_those_before(x: 32, y: 32):
    a: local.UB 32
    for i in range(32):
        a[i] = T.if_then_else(i > 0, T.if_then_else(a[i - 1] > x[i], a[i - 1], x[i]), x[i])
    y[i] = a[i] for i in range(32)

def two_tiles_in_turn(x: 256, y: 256):
    a: local.UB 64
    for t in range(8):
        if t > 0:
            y[t * 32 + i] = a[(t - 1) % 2 * 32 + i] for i in range(32)
        a[t % 2 * 32 + i] = x[t * 32 + i] for i in range(32)

def carried_from_tile_to_tile(x: 256, y: 256):
    a: local.UB 32
    for t in range(8):
        y[t * 32 + i] = a[i] for i in range(32)
        a[i] = x[t * 32 + i] for i in range(32)

def handed_on(x: 32, y: 32):
    a, b, c: local.UB 32
    T.evaluate(T.call_extern("int32", "fill", a.access_ptr("w")))
    T.evaluate(T.call_extern("int32", "fill", b.data))
    T.evaluate(T.call_extern("int32", "fill", T.address_of(c[0])))
    y[i] = a[i] + b[i] + c[i] for i in range(32)

def in_one_branch(x: 32, y: 32, n: T.int32):
    a: local.UB 32
    view = T.decl_buffer((32,), "float32", data=a.data, scope="local.UB")
    if n > 0:
        view[i] = x[i] for i in range(32)
    y[i] = a[i] for i in range(32)
""")

UNWRITTEN = programs("""
def never(x: 32, y: 32):
    a: local.UB 32
    y[i] = x[i] + a[i] for i in range(32)

def adds_to_nothing(x: 32, y: 32):
    a: local.UB 32
    a[i] = x[i] + a[i] for i in range(32)
    y[i] = a[i] for i in range(32)

def raises_nothing(x: 32, y: 32):
    a: local.UB 32
    a[i] = T.pow(x[i], a[i]) for i in range(32)
    y[i] = a[i] for i in range(32)

def adds_to_nothing_under_another_name(x: 32, y: 32):
    a: local.UB 32
    for i in range(32):
        at = T.bind(i)
        a[at] = a[at] + x[i]
    y[i] = a[i] for i in range(32)

def adds_to_what_was_read_under_a_condition(x: 256, y: 256):
    a: local.UB 32
    for t in range(8):
        if t > 0:
            y[t * 32 + i] = a[i] for i in range(32)
    a[i] = a[i] + x[i] for i in range(32)

def read_in_vain_and_then_carried(x: 256, y: 256):
    a: local.UB 32
    for t in range(8):
        if t > 0:
            y[t * 32 + i] = a[i] for i in range(32)
    for t in range(8):
        if t > 0:
            y[t * 32 + i] = a[i] for i in range(32)
        a[i] = x[t * 32 + i] for i in range(32)

def tile_of_its_own(x: 256, y: 256):
    a: local.UB 256
    for t in range(8):
        y[t * 32 + i] = a[t * 32 + i] for i in range(32)
        a[t * 32 + i] = x[t * 32 + i] for i in range(32)

def lent_to_read(x: 32, y: 32):
    a: local.UB 32
    T.evaluate(T.call_extern("int32", "show", a.access_ptr("r")))
    a[i] = x[i] for i in range(32)

def lent_before_each_element(x: 32, y: 32):
    a: local.UB 32
    for i in range(32):
        T.evaluate(T.call_extern("int32", "show", a.access_ptr("r")))
        a[i] = x[i]

def in_a_condition(x: 32, y: 32):
    a: local.UB 32
    a[i] = T.if_then_else(a[i] > T.float32(0), x[i], T.float32(0)) for i in range(32)

def in_an_index(x: 32, y: 32):
    a: local.UB 32 int32
    y[a[i]] = x[i] for i in range(32)
""")


@pytest.mark.parametrize("name", WRITTEN)
def test_what_may_have_been_written(name: str):
    check(WRITTEN[name])


@pytest.mark.parametrize("name", UNWRITTEN)
def test_what_cannot_have_been_written(name: str):
    message = r"function 'main': buffer 'a' in local\.UB: error: read before first write$"
    with pytest.raises(ValueError, match=message):
        check(UNWRITTEN[name])
