# SPDX-License-Identifier: Apache-2.0
"""Where the stock pass changes what a program computes, `sound=True` does not.

Each program is built without the pass, with the stock one, and with ours: what the
first computes is right. They are the programs of docs/stock-differences.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from corpus import Entry
from llvm_level import at_level
from tvm import tirx
from tvm.script import tirx as T
from tvm.tirx import AllocBuffer, Bind, BufferStore, DeclBuffer, Evaluate, For, IntImm, SeqStmt, Var

import tvm_ext
import tvm_ext.transform

SIZE = 64
A = tirx.decl_buffer([SIZE], "float32", "A", layout=None)
B = tirx.decl_buffer([SIZE], "float32", "B", layout=None)

PROGRAMS: dict[str, Callable[[], Any]] = {}


def program(make: Callable[[], Any]) -> Callable[[], Any]:
    PROGRAMS[make.__name__] = make
    return make


def buffer(name: str, size: int = SIZE, dtype: str = "float32", scope: str = "global") -> Var:
    return tirx.decl_buffer([size], dtype, name, scope=scope, layout=None)


def loop(body: Callable[[Var], Any], extent: int = SIZE) -> For:
    i = Var("i", "int32")
    return For(i, IntImm("int32", 0), IntImm("int32", extent), tirx.ForKind.SERIAL, body(i))


def fill(target: Var, value: Any) -> For:
    return loop(lambda i: BufferStore(target, value(i) if callable(value) else value, [i]))


def number(value: float) -> Any:
    return tirx.const(value, "float32")


@program
def read_through_an_alias() -> Any:
    a, b, view = buffer("a"), buffer("b"), buffer("view")
    return [
        AllocBuffer(a),
        AllocBuffer(b),
        DeclBuffer(view, data=a.data),
        fill(a, lambda i: A[i]),
        fill(b, lambda i: view[SIZE - 1 - i]),
        fill(B, lambda i: b[i]),
    ]


@program
def written_in_each_round() -> Any:
    a, b = buffer("a"), buffer("b")
    return [
        AllocBuffer(a),
        AllocBuffer(b),
        fill(a, lambda i: A[i]),
        loop(lambda _: fill(b, lambda i: a[i] + number(1)), 3),
        fill(B, lambda i: b[i]),
    ]


@program
def source_overwritten() -> Any:
    a, b = buffer("a"), buffer("b")
    return [
        AllocBuffer(a),
        AllocBuffer(b),
        fill(a, lambda i: A[i] + number(5)),
        loop(lambda i: SeqStmt([BufferStore(b, a[i], [i]), BufferStore(a, number(0), [i])])),
        fill(B, lambda i: b[i]),
    ]


@program
def memory_behind_a_pointer() -> Any:
    a, b, view = buffer("a"), buffer("b"), buffer("view")
    pointer = Var("pointer", a.data.ty)
    return [
        AllocBuffer(a),
        AllocBuffer(b),
        fill(a, lambda i: A[i]),
        Bind(pointer, a.data),
        DeclBuffer(view, data=pointer),
        fill(b, number(-1)),
        fill(B, lambda i: b[i] * number(0) + view[i]),
    ]


@program
def memory_behind_an_address() -> Any:
    a, b, view = buffer("a"), buffer("b"), buffer("view")
    return [
        AllocBuffer(a),
        AllocBuffer(b),
        fill(a, lambda i: A[i]),
        DeclBuffer(view, data=tirx.address_of(a[0])),
        fill(b, number(-1)),
        fill(B, lambda i: b[i] * number(0) + view[i]),
    ]


@program
def address_of_packed_memory() -> Any:
    a, b = buffer("a", scope="local.UB"), buffer("b", scope="local.UB")
    copy = tirx.call_extern("int32", "memcpy", B.data, b.data, IntImm("int64", SIZE * 4))
    return [
        AllocBuffer(a),
        AllocBuffer(b),
        fill(a, number(1)),
        fill(b, number(2)),
        Evaluate(copy),
        Evaluate(a[0]),
    ]


def compute(body: list[Any], replacement: Any, **config: bool) -> np.ndarray:
    """Build a program with a context in force and run it on 0, 1, 2, ..."""
    func = tirx.PrimFunc([A, B], SeqStmt(body)).with_attr("global_symbol", "main")
    with replacement, tvm.transform.PassContext(config=config):
        lib = tvm.tirx.build(tvm.IRModule({"main": func}), target=at_level("llvm"))
    result = tvm.runtime.tensor(np.full(SIZE, -7, "float32"))
    lib["main"](tvm.runtime.tensor(np.arange(SIZE, dtype="float32")), result)
    return result.numpy()


@pytest.mark.parametrize("name", PROGRAMS)
def test_computes_what_the_program_says(name: str):
    make = PROGRAMS[name]
    no_pass = {"tirx.disable_storage_rewrite": True}
    right = compute(make(), tvm_ext.use_storage_rewrite(), **no_pass)
    stock = compute(make(), tvm.transform.PassContext())
    sound = compute(make(), tvm_ext.use_storage_rewrite(sound=True))
    np.testing.assert_array_equal(sound, right)
    assert not np.array_equal(stock, right), "the stock pass has been mended: change the docs"


def run_pass(body: list[Any], **options: bool) -> Any:
    mod = tvm.IRModule({"main": tirx.PrimFunc([A, B], SeqStmt(body))})
    return tvm_ext.transform.StorageRewrite(**options)(mod)["main"]


def allocations(func: Any) -> list[tuple[str, int, str]]:
    """Return name, elements and element type of each allocation."""
    found: list[tuple[str, int, str]] = []

    def note(op: AllocBuffer) -> None:
        ty = op.buffer.ty
        found.append((str(op.buffer.name), int(ty.shape[0]), str(ty.dtype.dtype)))

    tvm_ffi.structural_walk(func.body, (AllocBuffer, note))
    return found


def test_memory_keeps_the_size_that_it_was_declared_with():
    # Running what the stock pass makes of this writes out of bounds, so only the IR is looked at.
    a, view = buffer("a"), buffer("view", SIZE * 4, "int8")
    body = [
        AllocBuffer(a),
        DeclBuffer(view, data=a.data),
        loop(lambda i: BufferStore(view, tirx.const(7, "int8"), [i]), SIZE * 4),
    ]
    assert allocations(run_pass(body)) == [("a", SIZE, "int8")]
    assert allocations(run_pass(body, sound=True)) == [("a", SIZE, "float32")]


def test_a_statement_in_two_places_keeps_its_memory():
    a, b = buffer("a"), buffer("b")
    twice = fill(B, lambda i: a[i])
    body = [AllocBuffer(a), AllocBuffer(b), fill(a, number(1)), twice, fill(b, number(2))]
    body += [fill(A, lambda i: b[i]), twice]
    assert len(allocations(run_pass(body))) == 1
    assert len(allocations(run_pass(body, sound=True))) == 2


def test_scalars_and_vectors_do_not_share():
    a, b = buffer("a"), buffer("b", SIZE // 4, "float32x4")
    body = [
        AllocBuffer(a),
        AllocBuffer(b),
        fill(a, number(1)),
        fill(B, lambda i: a[i]),
        loop(lambda i: BufferStore(b, tirx.Broadcast(number(3), 4), [i]), SIZE // 4),
        loop(lambda i: BufferStore(B, b[i], [tirx.Ramp(i * 4, 1, 4)]), SIZE // 4),
    ]
    with pytest.raises(ValueError, match=r"'main'.*lanes"):
        run_pass(body)
    assert len(allocations(run_pass(body, sound=True))) == 2


def test_volatile_memory_is_not_shared():
    a, b = buffer("a"), buffer("b")
    body = [
        AllocBuffer(a, {"tirx.volatile": True}),
        AllocBuffer(b),
        fill(a, number(1)),
        fill(B, lambda i: a[i]),
        fill(b, number(2)),
        fill(B, lambda i: b[i]),
    ]
    assert len(allocations(run_pass(body))) == 1
    assert len(allocations(run_pass(body, sound=True))) == 2


def test_plain_programs_still_share(corpus: list[Entry]):
    sound = tvm_ext.transform.StorageRewrite(sound=True)
    plain = tvm_ext.transform.StorageRewrite(detect_inplace=False)
    chain = [entry for entry in corpus if entry.name.startswith("chain[llvm")]
    assert chain
    for entry in chain:
        (func,) = entry.mod.functions.values()
        merged = [
            len(allocations(p(entry.mod)[g])) for p in (sound, plain) for g in entry.mod.functions
        ]
        assert merged[0] == merged[1] < len(allocations(func))


@T.prim_func
def odd(x: T.Buffer((3,), "float32", layout=None), y: T.Buffer((4,), "int64", layout=None)):
    a = T.alloc_buffer((3,), "float32", scope="local.UB", layout=None)
    b = T.alloc_buffer((4,), "int64", scope="local.UB", layout=None)
    for i in range(3):
        a[i] = x[i]
    for i in range(4):
        b[i] = T.Cast("int64", i * 3)
    for i in range(4):
        y[i] = b[i] + T.Cast("int64", a[T.min(i, 2)])


def test_wide_elements_are_packed_behind_odd_ones():
    mod = tvm.IRModule({"main": odd})
    with pytest.raises(ValueError, match="no multiple of its elements' 64 bits"):
        tvm_ext.transform.StorageRewrite()(mod)
    with tvm_ext.use_storage_rewrite(sound=True):
        built = tirx.build(mod, at_level("llvm"))
    y = tvm.runtime.tensor(np.zeros(4, "int64"))
    built["main"](tvm.runtime.tensor(np.array([5, 6, 7], "float32")), y)
    assert y.numpy().tolist() == [5, 9, 13, 16]


STAYING = {
    "slots": (
        "(64,)",
        'scope="local.UB", allocated_addr=[0, 256], annotations={"multi_buffer": 2}',
    ),
    "an address": ("(64,)", 'scope="global", allocated_addr=[0]'),
    "a size of the loop": ("(i * 16 + 16,)", 'scope="global"'),
    "a size that is computed": ("(k,)", 'scope="global"'),
    "a size in special memory": ("(n,)", 'scope="local.UB"'),
}


def sized(shape: str, how: str) -> Any:
    text = f"""
@T.prim_func
def main(n: T.int32, x: T.Buffer((64,), "int32"), y: T.Buffer((256,), "int32")):
    T.func_attr({{"global_symbol": "main"}})
    k: T.let[T.int32] = x[63] + 1
    for i in range(4):
        a = T.alloc_buffer({shape}, "int32", {how}, layout=None)
        for j in range(i * 16 + 16):
            a[j] = x[j] + i
        for j in range(i * 16 + 16):
            y[i * 64 + j] = a[i * 16 + 15 - j]
"""
    return tvm.script.from_source(text)


@pytest.mark.parametrize("case", STAYING)
def test_what_means_something_else_in_another_place_stays(case: str):
    mod = tvm.IRModule({"main": sized(*STAYING[case])})
    after = tvm_ext.transform.StorageRewrite(sound=True)(mod)
    tvm.ir.assert_structural_equal(after, mod)


def test_sizes_that_callers_know_share():
    shared = sized("(n,)", 'scope="global"')
    after = tvm_ext.transform.StorageRewrite(sound=True)(tvm.IRModule({"main": shared}))
    assert after.script().index("alloc_buffer") < after.script().index("for i in range(4)")


@T.prim_func(s_tir=True)
def vectors(a: T.Buffer((8,), "float32"), b: T.Buffer((8,), "float32")):
    x = T.alloc_buffer((16,), "float32x4", scope="local.UB")
    y = T.alloc_buffer((16,), "float32x4", scope="local.UB")
    x[0] = a[T.ramp(0, 1, 4)]
    y[0] = a[T.ramp(4, 1, 4)]
    b[T.ramp(0, 1, 4)] = x[0] + y[0]


def test_elements_that_are_vectors_stay_within_packed_memory():
    mod = tvm.IRModule({"main": vectors})
    with pytest.raises(tvm.error.InternalError):  # The original has no answer here.
        tirx.transform.StorageRewrite()(mod)
    stores: list[BufferStore] = []
    body = tvm_ext.transform.StorageRewrite(sound=True)(mod)["main"].body
    tvm_ffi.structural_walk(body, ((BufferStore, stores.append),))
    # Each of the two takes 16 elements of the memory, which are 16 bytes wide.
    assert [int(store.indices[0]) for store in stores[:2]] == [0, 16]
