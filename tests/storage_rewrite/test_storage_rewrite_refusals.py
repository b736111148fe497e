# SPDX-License-Identifier: Apache-2.0
"""What `StorageRewrite` refuses, as the stock pass does, and with what message."""

from __future__ import annotations

from typing import Any

import pytest
import tvm
from program_text import program
from statements import buffer, copy, fill, loop, module, rewrite, thread, use, zero
from tvm import tirx
from tvm.ir import PointerType, PrimType
from tvm.tirx import AllocBuffer, BufferLoad, BufferStore, DeclBuffer, ForKind, Ramp, SeqStmt, Var

from passes.storage_rewrite.transform import StorageRewrite


def _refusals() -> list[Any]:
    n = Var("n", PrimType("int32"))
    flat, square, view = buffer("flat"), buffer("square", [8, 8]), buffer("view")
    special = buffer("special", n, scope="local.UB")
    bytes_ = buffer("bytes", 1, "int8", "local.UB")
    wide = buffer("wide", 8, "float64", "local.UB")
    vectors, point = buffer("vectors", 2, "float32x4"), buffer("point", [])
    packed = [buffer(name, 16, "float32x4", "local.UB") for name in ("first", "second")]
    store = BufferStore(square, zero(), [0, 0])
    inner = thread(SeqStmt([AllocBuffer(flat), fill(flat)]), "virtual_thread", "vthread")
    pseudo = buffer("pseudo", scope="pseudo")
    truth, b_bool = buffer("truth", 32, "bool"), buffer("read", 32, "bool")
    again, taken = buffer("again"), buffer("taken")
    twice = fill(again)
    a, empty, scalar = buffer("a"), buffer("empty", 0, scope="local.UB"), buffer("scalar", [])
    alias, wide_alias = DeclBuffer(view, data=a.data), DeclBuffer(vectors, data=a.data)
    given = DeclBuffer(view, data=tirx.call_extern(PointerType(PrimType("float32")), "get"))
    wide_address = tirx.tvm_access_ptr("float32x4", a.data, 0, 4, 1)
    return [
        # Where something is allocated
        ("square", module(AllocBuffer(square), store)),
        ("flat", module(DeclBuffer(view, data=flat.data), fill(view))),
        ("flat", module(fill(flat))),
        ("special", module(AllocBuffer(special), fill(special), params=(n,))),
        ("wide", module(AllocBuffer(bytes_), AllocBuffer(wide), _both(bytes_, wide))),
        (
            "first",
            module(*map(AllocBuffer, packed), fill(packed[0]), fill(packed[1]), _both(*packed)),
        ),
        ("flat", module(AllocBuffer(flat), DeclBuffer(vectors, data=flat.data), fill(vectors))),
        ("flat", module(AllocBuffer(flat), DeclBuffer(point, data=flat.data), _point(point))),
        (
            "loop 'j'",
            module(AllocBuffer(flat), loop(lambda j: fill(flat, j), ForKind.VECTORIZED, name="j")),
        ),
        ("thread", module(thread(inner, "virtual_thread", "vthread"))),
        ("pseudo", module(AllocBuffer(pseudo), fill(pseudo))),
        (
            "truth",
            module(AllocBuffer(truth), _vectors(truth), _read(b_bool, truth), params=(b_bool,)),
        ),
        (
            "again",
            module(
                *map(AllocBuffer, (again, taken)),
                *(twice, copy(taken, again), twice, use(taken.data), use(again.data)),
            ),
        ),
        ("empty", module(AllocBuffer(empty), fill(empty))),
        ("scalar", module(AllocBuffer(scalar), _point(scalar))),
        ("view", module(AllocBuffer(a), alias, fill(view), alias)),
        ("view", module(AllocBuffer(a), fill(view), alias)),
        ("view", module(AllocBuffer(taken), fill(taken), given, fill(view), given, params=(n,))),
        ("a", module(AllocBuffer(a), fill(a), params=(a,))),
        # Where nothing is, which is told by another look
        ("view", module(alias, fill(view), alias, params=(a,))),
        (
            "loop 'j'",
            module(loop(lambda j: fill(a, j), ForKind.VECTORIZED, name="j"), params=(a,)),
        ),
        ("a", module(wide_alias, fill(vectors), params=(a,))),
        ("a", module(use(wide_address), params=(a,))),
    ]


def _vectors(target: Any) -> Any:
    def body(i: Any) -> Any:
        value = tirx.Broadcast(zero(str(target.ty.dtype.dtype)), 4)
        return BufferStore(target, value, [Ramp(i * 4, tirx.IntImm("int32", 1), 4)])

    return loop(body)


def _both(a: Any, b: Any) -> Any:
    return loop(lambda i: SeqStmt([fill(a, i), fill(b, i)]))


def _read(target: Any, source: Any) -> Any:
    index = Ramp(tirx.IntImm("int32", 0), tirx.IntImm("int32", 1), 4)
    return BufferStore(target, BufferLoad(source, [index]), [index])


def _point(point: Any) -> Any:
    return BufferStore(point, zero(), [])


@pytest.mark.parametrize(
    ("name", "mod"),
    [pytest.param(*case, id=f"{k}-{case[0]}") for k, case in enumerate(_refusals())],
)
def test_refused(name: str, mod: tvm.IRModule) -> None:
    with pytest.raises((tvm.error.InternalError, TypeError, IndexError, ValueError)):
        tirx.transform.StorageRewrite()(mod)
    with pytest.raises(ValueError, match=rf"function 'main': .*{name}") as error:
        StorageRewrite()(mod)
    if "before its declaration" in str(error.value):
        with pytest.raises(ValueError, match=rf"'{name}' is accessed before its declaration"):
            StorageRewrite(sound=True)(mod)


def test_a_kernel_in_a_parallel_loop_is_refused_also_where_nothing_is_allocated():
    a = buffer("a")
    nest = loop(lambda i: thread(fill(a)), ForKind.PARALLEL)
    with pytest.raises(ValueError, match="begins inside another scope that owns memory"):
        StorageRewrite()(module(nest, params=(a,)))


PACKED = """
def main(x: 4 int8, y: 4 int8):
    a, c: global.ddr 1073741824 int8
    a[0] = x[0]
    c[1] = x[1]
    y[0] = a[0]
    y[1] = c[1]
"""


def test_more_packed_memory_than_an_extent_can_count_is_refused():
    func = program(PACKED)
    named = r"function 'main': buffers 'a', 'c' in global\.ddr"
    with pytest.raises(ValueError, match=named) as said:
        StorageRewrite()(tvm.IRModule({"main": func}))
    assert "2147483648 bytes" in str(said.value)
    with pytest.raises((ValueError, tvm.error.InternalError), match="exceeds range"):
        tirx.transform.StorageRewrite()(tvm.IRModule({"main": func}))
    fits = program(PACKED.replace("1073741824", "1073741820"))
    rewrite(tvm.IRModule({"main": fits}))


@pytest.mark.parametrize("scope", ["global", "shared", "local.UB"])
def test_no_view_has_an_address_where_tvm_takes_none(scope: str):
    func = program(f"""
    def main(x: 64, y: 64):
        a = T.alloc_buffer((64,), scope="{scope}", allocated_addr=0)
        a[i] = x[i] for i in range(64)
        y[i] = a[63 - i] for i in range(64)
        c = T.alloc_buffer((64,), scope="{scope}", allocated_addr=4096)
        c[i] = x[i] for i in range(64)
        y[i] = y[i] + c[i] for i in range(64)
    """)
    mod = tvm.IRModule({"main": func})
    if scope == "local.UB":
        rewrite(mod)
        return
    with pytest.raises(tvm.error.InternalError, match="does not accept"):
        tirx.transform.StorageRewrite()(mod)
    with pytest.raises(ValueError, match=f"function 'main': buffer 'c' in {scope} has an alloc"):
        StorageRewrite()(mod)
