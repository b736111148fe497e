# SPDX-License-Identifier: Apache-2.0
"""Memory that is read before anything can have written it."""

from __future__ import annotations

from textwrap import indent

import pytest
from ascend_modules import module
from program_text import cases, program
from tvm import tirx

from tvm_ext.transform import AscendPlanMemory


def check(func: tirx.PrimFunc) -> None:
    AscendPlanMemory()(module(func))


def kernel(statements: str) -> tirx.PrimFunc:
    """Return a kernel of statements on `a`, which has 32 elements where they do not say."""
    made = "" if "a: local.UB" in statements else "a: local.UB 32\n"
    return program(f"def main(x: 256, y: 256, n: T.int32):\n{indent(made + statements, '    ')}")


WRITTEN = cases("""
# carried ahead
for t in range(8):
    a: local.UB 32
    if t > 0:
        y[t * 32 + i] = a[i] for i in range(32)
    a[i] = x[t * 32 + i] for i in range(32)
# guarded
for t in range(8):
    if t > 0:
        y[t * 32 + i] = a[i] for i in range(32)
    a[i] = x[t * 32 + i] for i in range(32)
# selected
for t in range(8):
    for i in range(32):
        a[i] = T.if_then_else(t > 0, a[i] + x[t * 32 + i], x[t * 32 + i])
y[i] = a[i] for i in range(32)
# sum of those before
for i in range(32):
    a[i] = x[i] + T.if_then_else(i > 0, a[i - 1], T.float32(0))
y[i] = a[i] for i in range(32)
# most of those before
for i in range(32):
    a[i] = T.if_then_else(i > 0, T.if_then_else(a[i - 1] > x[i], a[i - 1], x[i]), x[i])
y[i] = a[i] for i in range(32)
# two tiles in turn
a: local.UB 64
for t in range(8):
    if t > 0:
        y[t * 32 + i] = a[(t - 1) % 2 * 32 + i] for i in range(32)
    a[t % 2 * 32 + i] = x[t * 32 + i] for i in range(32)
# carried from tile to tile
for t in range(8):
    y[t * 32 + i] = a[i] for i in range(32)
    a[i] = x[t * 32 + i] for i in range(32)
# handed on
b, c: local.UB 32
T.evaluate(T.call_extern("int32", "fill", a.access_ptr("w")))
T.evaluate(T.call_extern("int32", "fill", b.data))
T.evaluate(T.call_extern("int32", "fill", T.address_of(c[0])))
y[i] = a[i] + b[i] + c[i] for i in range(32)
# in one branch
view = T.decl_buffer((32,), "float32", data=a.data, scope="local.UB")
if n > 0:
    view[i] = x[i] for i in range(32)
y[i] = a[i] for i in range(32)
""")

UNWRITTEN = cases("""
# never
y[i] = x[i] + a[i] for i in range(32)
# adds to nothing
a[i] = x[i] + a[i] for i in range(32)
y[i] = a[i] for i in range(32)
# raises nothing
a[i] = T.pow(x[i], a[i]) for i in range(32)
y[i] = a[i] for i in range(32)
# adds to nothing under another name
for i in range(32):
    at = T.bind(i)
    a[at] = a[at] + x[i]
y[i] = a[i] for i in range(32)
# adds to what was read under a condition
for t in range(8):
    if t > 0:
        y[t * 32 + i] = a[i] for i in range(32)
a[i] = a[i] + x[i] for i in range(32)
# read in vain and then carried
for t in range(8):
    if t > 0:
        y[t * 32 + i] = a[i] for i in range(32)
for t in range(8):
    if t > 0:
        y[t * 32 + i] = a[i] for i in range(32)
    a[i] = x[t * 32 + i] for i in range(32)
# tile of its own
a: local.UB 256
for t in range(8):
    y[t * 32 + i] = a[t * 32 + i] for i in range(32)
    a[t * 32 + i] = x[t * 32 + i] for i in range(32)
# lent to read
T.evaluate(T.call_extern("int32", "show", a.access_ptr("r")))
a[i] = x[i] for i in range(32)
# lent before each element
for i in range(32):
    T.evaluate(T.call_extern("int32", "show", a.access_ptr("r")))
    a[i] = x[i]
# in a condition
a[i] = T.if_then_else(a[i] > T.float32(0), x[i], T.float32(0)) for i in range(32)
# in an index
a: local.UB 32 int32
y[a[i]] = x[i] for i in range(32)
""")


@pytest.mark.parametrize("name", WRITTEN)
def test_what_may_have_been_written(name: str):
    check(kernel(WRITTEN[name]))


@pytest.mark.parametrize("name", UNWRITTEN)
def test_what_cannot_have_been_written(name: str):
    message = r"function 'main': buffer 'a' in local\.UB: error: read before first write$"
    with pytest.raises(ValueError, match=message):
        check(kernel(UNWRITTEN[name]))
