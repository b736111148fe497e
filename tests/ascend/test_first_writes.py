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
def guarded(x: 256, y: 256):
    before: local.UB 32
    for t in range(8):
        if t > 0:
            y[t * 32 + i] = before[i] for i in range(32)
        before[i] = x[t * 32 + i] for i in range(32)

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
def made_anew(x: 256, y: 256):
    for t in range(8):
        a: local.UB 32
        if t > 0:
            y[t * 32 + i] = a[i] for i in range(32)
        a[i] = x[t * 32 + i] for i in range(32)

def never(x: 32, y: 32):
    a: local.UB 32
    y[i] = x[i] + a[i] for i in range(32)

def lent_to_read(x: 32, y: 32):
    a: local.UB 32
    T.evaluate(T.call_extern("int32", "show", a.access_ptr("r")))
    a[i] = x[i] for i in range(32)

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
