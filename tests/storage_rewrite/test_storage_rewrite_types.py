# SPDX-License-Identifier: Apache-2.0
"""`StorageRewrite` by hand: other names, vector types, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tvm
from saved_json import saved_json
from statements import (
    N,
    allocs,
    buffer,
    copy,
    describe,
    fill,
    found,
    loop,
    memory_of,
    module,
    rewrite,
    thread,
    use,
    zero,
)
from tvm import tirx
from tvm.ir import Op, PointerType, PrimType, TensorLoad
from tvm.tirx import (
    AllocBuffer,
    Bind,
    BufferLoad,
    BufferStore,
    DeclBuffer,
    Evaluate,
    ForKind,
    Ramp,
    SeqStmt,
    Var,
)
from tvm.tirx.stmt import AttrStmt

from passes.storage_rewrite.transform import StorageRewrite

# Other names and other uses


def test_alias_of_a_parameter_is_left_alone() -> None:
    a, view = buffer("a"), buffer("view", 16)
    body = rewrite(module(DeclBuffer(view, data=a.data), fill(view), params=(a,)))
    assert allocs(body) == []
    assert memory_of(body) == {"view": "a"}


@pytest.mark.parametrize("form", ["address_of", "buffer_data", "buffer"])
def test_address_ends_a_life(form: str) -> None:
    a, b = buffer("a"), buffer("b")

    def address(of: Any) -> Any:
        if form == "address_of":
            return tirx.address_of(BufferLoad(of, [4]))
        return of.data if form == "buffer_data" else of

    stmts = [AllocBuffer(a), use(address(a)), AllocBuffer(b), use(address(b))]
    body = rewrite(module(*stmts))
    assert allocs(body) == ["a[64] float32"]
    argument = found(body, Evaluate)[-1].value.args[1]
    if form == "address_of":
        assert argument.args[0].source.name == "b"
    else:
        assert (argument.args[0] if form == "buffer_data" else argument).name == (
            "a" if form == "buffer_data" else "b"
        )


def test_bound_pointer() -> None:
    a, b = buffer("a"), buffer("b", dtype="int32")
    pointer = Var("p", b.data.ty)
    body = rewrite(
        module(
            AllocBuffer(a), fill(a), AllocBuffer(b), fill(b), Bind(pointer, b.data), use(pointer)
        )
    )
    (bind,) = found(body, Bind)
    assert bind.value.args[0].name == "a"


def test_node_of_an_attribute_is_left_behind() -> None:
    a, b = buffer("a"), buffer("b")
    note = AttrStmt(b, "note", tirx.IntImm("int32", 1), fill(b))
    body = rewrite(module(AllocBuffer(a), fill(a), AllocBuffer(b), note))
    (attr,) = found(body, AttrStmt)
    declared = [stmt.buffer for stmt in found(body, AllocBuffer) + found(body, DeclBuffer)]
    assert not any(attr.node.same_as(other) for other in declared)


# Vectors


def _vectors(target: Any, lanes: int = 4, base: int = 0, count: int = 8) -> Any:
    element = str(target.ty.dtype.dtype)

    def body(i: Any) -> Any:
        index = Ramp(i * lanes + base, tirx.IntImm("int32", 1), lanes)
        return BufferStore(target, tirx.Broadcast(zero(element), lanes), [index])

    return loop(body, extent=count)


@pytest.mark.parametrize(
    ("dtype", "vector", "stored"),
    [("float16", "float16x4", "float16x4"), ("bool", "int8x4", "boolx4")],
)
def test_vector_type(dtype: str, vector: str, stored: str) -> None:
    a = buffer("a", 32, dtype)
    body = rewrite(module(AllocBuffer(a), _vectors(a)))
    assert allocs(body) == [f"a[8] {vector}"]
    (store,) = found(body, BufferStore)
    assert store.indices[0].ty.dtype.lanes == 1
    assert store.value.ty.dtype == stored


@pytest.mark.parametrize(
    "spoiler",
    [
        lambda a: fill(a),
        lambda a: _vectors(a, lanes=8, count=4),
        lambda a: _vectors(a, base=1, count=7),
        lambda a: _four(a, Ramp(tirx.IntImm("int32", 0), tirx.IntImm("int32", 2), 4)),
        lambda a: use(tirx.tvm_access_ptr("float16", a.data, 0, 8, 1)),
        lambda a: use(tirx.address_of(BufferLoad(a, [4]))),
    ],
)
def test_no_vector_type(spoiler: Callable[[Any], Any]) -> None:
    a = buffer("a", 32, "float16")
    body = rewrite(module(AllocBuffer(a), _vectors(a), spoiler(a)))
    assert allocs(body) == ["a[32] float16"]


def test_no_vector_type_where_one_is_packed_behind_another() -> None:
    index = Ramp(tirx.IntImm("int32", 0), tirx.IntImm("int32", 1), 4)
    a, b = (buffer(name, 32, scope="local.UB") for name in "ab")
    stores = [AllocBuffer(a), AllocBuffer(b), _four(a, index), _four(b, index)]
    assert allocs(rewrite(module(*stores, use(a.data, b.data)))) == ["a[64] float32"]


def _four(target: Any, index: Any) -> Any:
    return BufferStore(target, tirx.Broadcast(zero(str(target.ty.dtype.dtype)), 4), [index])


def test_no_vector_type_where_the_size_is_no_multiple() -> None:
    a = buffer("a", 30)
    assert allocs(rewrite(module(AllocBuffer(a), _vectors(a, count=7)))) == ["a[30] float32"]


def test_no_vector_type_for_parameters() -> None:
    a = buffer("a", 32)
    body = rewrite(module(_vectors(a), params=(a,)))
    assert found(body, Ramp)


def test_vector_type_through_aliases() -> None:
    a, view = buffer("a", 32), buffer("view", 32)
    body = rewrite(
        module(AllocBuffer(a), _vectors(a), DeclBuffer(view, data=a.data), _vectors(view))
    )
    assert allocs(body) == ["a[8] float32x4"]
    (alias,) = found(body, DeclBuffer)
    assert describe(alias.buffer) == "view[8] float32x4"


def test_scalable_access_of_plain_memory() -> None:
    a, b = buffer("a"), buffer("b")
    lanes = tirx.vscale() * 4
    index = Ramp(tirx.IntImm("int32", 0), tirx.IntImm("int32", 1), lanes)
    stores = [BufferStore(x, tirx.Broadcast(zero(), lanes), [index]) for x in (a, b)]
    body = rewrite(module(AllocBuffer(a), stores[0], AllocBuffer(b), stores[1]))
    assert allocs(body) == ["a[64] float32"]


# Types that are equal but not one object, as in a module that was loaded and then changed


def test_types_of_a_loaded_module() -> None:
    loaded = tvm.ir.load_json(saved_json(PrimType("float32")))
    assert not loaded.same_as(PrimType("float32"))
    a = buffer("a")
    b = tirx.decl_buffer([N], loaded, "b", layout=None)
    body = rewrite(module(AllocBuffer(a), AllocBuffer(b), fill(a), copy(b, a), use(b.data)))
    assert allocs(body) == ["a[64] float32"]
    assert found(body, AllocBuffer)[0].buffer.same_as(a)
    assert all(load.source.same_as(a) for load in found(body, TensorLoad))


def test_alias_as_an_address_keeps_the_scalar_type() -> None:
    a, view, point = buffer("a", 32), buffer("view", 32), buffer("point", [])
    untyped = Var("untyped", PointerType(PrimType("void")))
    wide = buffer("wide", 3, "float32x4", "shared")
    stmts = [
        AllocBuffer(a),
        _vectors(a),
        AllocBuffer(wide),
        BufferStore(wide, tirx.Broadcast(zero(), 4), [tirx.IntImm("int32", 0)]),
        DeclBuffer(view, data=tirx.address_of(BufferLoad(a, [1]))),
        _point(point),
        Bind(untyped, tirx.call_extern(untyped.ty, "get")),
        use(tirx.tvm_access_ptr("int32", untyped, 0, 4, 1)),
    ]
    assert allocs(rewrite(module(*stmts, params=(point,)))) == [
        "a[32] float32",
        "wide[3] float32x4",
    ]


def test_pointer_to_memory_that_gets_a_vector_type() -> None:
    a = buffer("a", 32)
    pointer = Var("p", a.data.ty)
    body = rewrite(module(AllocBuffer(a), _vectors(a), Bind(pointer, a.data)))
    assert allocs(body) == ["a[8] float32x4"]
    (bind,) = found(body, Bind)
    assert bind.var.ty.element_type.dtype == "float32"
    assert bind.value.ty.element_type.dtype == "float32x4"


# A statement that stands in two places


def test_shared_statement_releases_at_its_first_place() -> None:
    a, b = buffer("a"), buffer("b")
    twice = use(a.data)
    body = rewrite(module(AllocBuffer(a), twice, AllocBuffer(b), fill(b), twice))
    assert memory_of(body) == {"b": "a"}


def test_entry_released_twice_keeps_its_place() -> None:
    a, b, c = buffer("a", 32), buffer("b", 64), buffer("c", 64, "int32")
    twice = use(a.data)
    parallel = loop(lambda i: use(i), ForKind.PARALLEL)
    both = loop(lambda i: SeqStmt([fill(b, i), fill(c, i)]))
    stmts = [AllocBuffer(x) for x in (a, b, c)]
    body = rewrite(module(*stmts, fill(a), twice, twice, fill(b), parallel, both))
    # When `c` comes, the memory of `a` has grown, but is listed as the smaller memory
    # that it was, and smaller memory must be of the same type.
    assert memory_of(body) == {"a": "a", "b": "a"}


@pytest.mark.parametrize(
    ("pointer", "left"), [("own", "int32"), ("handed", "float32"), ("undeclared", "float32")]
)
def test_pointers_of_other_types_and_from_elsewhere(pointer: str, left: str) -> None:
    a, handle = buffer("a"), Var("handle", PointerType(PrimType("float32")))
    used = {
        "own": use(tirx.tvm_access_ptr("int32", a.data, 0, 4, 1)),
        "handed": SeqStmt([fill(a), use(tirx.tvm_access_ptr("float32", handle, 0, 4, 1))]),
        "undeclared": SeqStmt([fill(a), use(buffer("other").data)]),
    }
    mod = module(AllocBuffer(a), used[pointer], params=(handle,))
    assert allocs(rewrite(mod)) == [f"a[64] {left}"]


def test_an_address_that_is_a_number_is_one_that_is_handed_on() -> None:
    a, b, number = buffer("a"), buffer("b"), buffer("number", 1, "uint64")
    address = tirx.call_intrin("uint64", "tirx.address_of", BufferLoad(a, [0]))
    of_a = [AllocBuffer(a), fill(a), BufferStore(number, address, [0])]
    mod = module(*of_a, AllocBuffer(b), fill(b), params=(number,))
    assert len(allocs(rewrite(mod))) == 1
    rewrite(module(AllocBuffer(a), fill(a), AllocBuffer(b), fill(b), tirx.Return(a)))  # As a whole
    tile = tirx.TilePrimitiveCall(op=Op.get("tirx.tile.zero"), workspace={"named": a})
    rewrite(module(AllocBuffer(a), fill(a), AllocBuffer(b), fill(b), tile))  # Which is no use
    assert len(allocs(StorageRewrite(sound=True)(mod)["main"].body)) == 2


# What is refused, and with what message


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
