# SPDX-License-Identifier: Apache-2.0
"""`StorageRewrite` by hand, beside the stock pass: who shares with whom, and in what type."""

from __future__ import annotations

import re
from textwrap import indent
from typing import Any

import pytest
import tvm
from program_text import cases, program
from saved_json import saved_json
from statements import (
    N,
    allocs,
    buffer,
    copy,
    fill,
    found,
    loop,
    memory_of,
    module,
    rewrite,
    use,
)
from tvm import tirx
from tvm.ir import Op, PrimType, TensorLoad
from tvm.tirx import (
    AllocBuffer,
    BufferLoad,
    BufferStore,
    DeclBuffer,
    For,
    ForKind,
    SeqStmt,
    Var,
)
from tvm.tirx.stmt import AttrStmt

from passes.storage_rewrite.transform import StorageRewrite

HAND = """
in place: alloc a; alloc b; fill a; copy b a; use b
    -> a[64] float32, and b in a
in place of another type: alloc a; alloc b 64 int32; fill a; copy b a; use b
    -> a[64] float32; b[64] int32
in place in another scope: alloc a; alloc b 64 float32 shared; fill a; copy b a; use b
    -> a[64] float32; b[64] float32
in place of one of two: alloc a; fill a; alloc b; alloc c; fill a b c; use b c
    -> a[64] float32; c[64] float32, and b in a
one number takes no memory: alloc large 8; fill large; alloc small 1; fill small
    -> large[8] float32; small[1] float32
one number leaves no memory: alloc small 1; fill small; alloc large 8; fill large
    -> small[1] float32; large[8] float32
16 times as large: alloc large 1024; fill large; alloc small; fill small
    -> large[1024] float32
17 times as large: alloc large 1088; fill large; alloc small; fill small
    -> large[1088] float32; small[64] float32
larger memory first: alloc s 32; fill s; alloc l 128; fill s l; alloc new 64; fill new
    -> s[32] float32; l[128] float32, and new in l
smaller memory grows: alloc small 32; fill small; alloc large 128; fill large
    -> small[128] float32, and small in small, large in small
memory of another type does not grow: alloc small 32; fill small; alloc large 128 int32; fill large
    -> small[32] float32; large[128] int32
larger memory of another type: alloc a; fill a; alloc b 50 float16; fill b
    -> a[64] float32
whole elements: alloc b 5; fill b; alloc c 7 int8; fill c; alloc a 16 int8; fill a
    -> b[5] float32
symbolic sizes by type alone: alloc a n; fill a; alloc b m; fill b; alloc c n int32; fill c
    -> a[T.max(n, m)] float32; c[n] int32
symbolic sizes in two scopes: alloc a n float32 shared; fill a; alloc b n; fill b
    -> a[n] float32; b[n] float32
a symbolic size behind scalable vectors: alloc a 16 float32xvscalex4; fill a; alloc b n; fill b
    -> a[16] float32xvscalex4; b[n] float32
symbolic and constant sizes: alloc a n; fill a; alloc b; fill b
    -> a[n] float32; b[64] float32
more bits than int32 counts: alloc a 134217728; fill a; alloc b 67108864 float64; fill b
    -> a[T.int64(134217728)] float32
scopes: alloc a 64 float32 shared; fill a; alloc b 64 float32 shared.dyn; fill b
    -> a[64] float32; b[64] float32
several dimensions: alloc a 8x8; use a; alloc b 8x8; use b
    -> a[8,8] float32; b[8,8] float32
nothing uses it: alloc a; alloc b 4x4; use
    ->
aliases: alloc a; fill a; alloc b; view v b 16; view w v 256 int8; fill w; fill v; fill b
    -> a[64] float32, and b in a, v in a, w in a
an alias keeps memory alive: alloc a; fill a; view v a; alloc b; fill b; fill v
    -> a[64] float32; b[64] float32
buffers of one call: alloc a; alloc b; use a b
    -> a[64] float32; b[64] float32
elements that are vectors: alloc a 16 float32x4; fill a; alloc b 8 float32x4; fill b
    -> a[16] float32x4
scalable vectors: alloc a 16 float32xvscalex4; alloc b 16 float32xvscalex4; fill a; copy b a; use b
    -> a[16] float32xvscalex4; b[16] float32xvscalex4
the last of two places releases nothing: alloc a; use a; alloc b; fill b; again 1
    -> a[64] float32, and b in a
a statement in two places releases twice: alloc a 4 float32 local.UB; alloc b 16 float32 local.UB; \
alloc c 8 float32 local.UB; alloc d 8 float32 local.UB; fill a; use a; again 5; fill b; fill c; \
fill d; use b c d
    -> a[24] float32
"""
"""Programs, the allocations that are left of each, and in whose memory some buffers are."""


def made(text: str) -> tvm.IRModule:
    """Return a program of statements such as ``alloc NAME EXTENTS TYPE SCOPE``.

    ``again NUMBER`` is the same statement object once more.
    """
    names = (name for name in "nm" if re.search(rf" {name}\b", text))
    sizes = {name: Var(name, PrimType("int32")) for name in names}
    known: dict[str, Any] = {}

    def statement(word: str, *names: str) -> Any:
        if word in ("alloc", "view"):
            name, *given = names[:1] + names[1 + (word == "view") :]
            shape = [sizes[n] if n in sizes else int(n) for n in (given or ["64"])[0].split("x")]
            known[name] = buffer(name, shape, *given[1:])
            if word == "alloc":
                return AllocBuffer(known[name])
            return DeclBuffer(known[name], data=known[names[1]].data)
        if word == "again":
            return statements[int(names[0])]
        of = [known[name] for name in names]
        if word == "copy":
            return copy(*of)
        if word == "use":
            return use(*(one.data for one in of))
        return loop(lambda i: SeqStmt([fill(one, i) for one in of])) if len(of) > 1 else fill(*of)

    statements: list[Any] = []
    for part in text.split("; "):
        statements.append(statement(*part.split()))
    return module(*statements, params=tuple(sizes.values()))


def assert_left(body: Any, left: str) -> None:
    """Compare what is allocated, and in whose memory some buffers are."""
    allocated, _, memory = left.strip().partition(", and ")
    assert "; ".join(allocs(body)) == allocated
    found = {f"{alias} in {owner}" for alias, owner in memory_of(body).items()}
    assert found.issuperset(filter(None, memory.split(", ")))


@pytest.mark.parametrize(
    ("name", "text", "left"),
    re.findall(r"^(\S.*?): (.*)\n +->(.*)", HAND, re.M),
)
def test_what_shares_is_what_the_stock_pass_shares(name: str, text: str, left: str) -> None:
    assert_left(rewrite(made(text)), left)


TEXTS = cases("""
# an alias of a parameter is left alone -> , and view in other
view = T.decl_buffer((16,), data=other.data)
view[i] = T.float32(1) for i in range(8)
# the address of an element ends a life -> a[64] float32, and b in a
a, b: global 64
T.call_extern("int32", "use", T.address_of(a[4]))
T.call_extern("int32", "use", T.address_of(b[4]))
# a pointer ends a life -> a[64] float32, and b in a
a, b: global 64
T.call_extern("int32", "use", a.data)
T.call_extern("int32", "use", b.data)
# a buffer that is handed on ends its life -> a[64] float32, and b in a
a, b: global 64
T.call_extern("int32", "use", a)
T.call_extern("int32", "use", b)
# a bound pointer -> a[64] float32, and b in a
a: global 64
b: global 64 int32
a[i] = T.float32(1) for i in range(8)
b[i] = 1 for i in range(8)
q: T.let = b.data
T.call_extern("int32", "use", q)
# in place of one store -> a[64] float32, and b in a
a, b: global 64
a[i] = T.float32(1) for i in range(8)
b[T.Ramp(1, 1, 4)] = a[T.Ramp(1, 1, 4)]
T.call_extern("int32", "use", b.data)
# in place beside a call of another buffer -> a[64] float32, and b in a
a, b: global 64
a[i] = T.float32(1) for i in range(8)
for i in range(8):
    b[i] = a[i]
    T.call_extern("int32", "use", other.data)
T.call_extern("int32", "use", b.data)
# three at once are in place of none -> a[64] float32; b[64] float32; c[64] float32; d[64] float32
a, b, c, d: global 64
a[i] = T.float32(1) for i in range(8)
for i in range(8):
    b[i] = a[i]
    c[i] = T.float32(1)
    d[i] = T.float32(1)
T.call_extern("int32", "use", b.data, c.data, d.data)
# alive through the loop that uses it -> a[64] float32; b[64] float32
a: global 64
for k in range(8):
    a[k] = T.float32(1)
    b: global 64
    b[k] = T.float32(1)
# shared within a loop, and in front of it -> a[64] float32, and b in a
for k in range(8):
    a, b: global 64
    a[i] = T.float32(1) for i in range(8)
    b[i] = T.float32(1) for i in range(8)
# the outermost thread extent has memory -> c[64] float32; a[64] float32
with T.launch_thread("blockIdx.x", 4):
    with T.launch_thread("threadIdx.x", 4):
        a, b: shared 64
        a[i] = T.float32(1) for i in range(8)
        b[i] = T.float32(1) for i in range(8)
c: shared 64
c[i] = T.float32(1) for i in range(8)
# memory of a symbolic size is not for threads -> a[n] float32; b[n] float32
a = T.alloc_buffer((n,))
a[i] = T.float32(1) for i in range(8)
with T.launch_thread("threadIdx.x", 4):
    b = T.alloc_buffer((n,))
    b[i] = T.float32(1) for i in range(8)
# a virtual thread has memory -> a[64] float32
for i in range(8):
    with T.launch_thread("vthread", 4):
        a: global 64
        a[i] = T.float32(1)
# the outer parallel loop has memory -> a[64] float32
for i in T.parallel(8):
    for j in T.parallel(8):
        a: global 64
        a[j] = T.float32(1)
# packed at multiples of four bytes -> a[20] int8
a: local.UB 3 int8
b: local.UB 5 int8
c: local.UB 2
for i in range(8):
    a[i] = T.int8(1)
    b[i] = T.int8(1)
    c[i] = T.float32(1)
# special memory is shared before it is packed -> a[128] float32
a, b, c: local.UB 64
a[i] = T.float32(1) for i in range(8)
b[i] = a[i + 1] for i in range(8)
c[i] = b[i + 1] for i in range(8)
# pointers to packed memory are moved -> a[128] float32
a, b: local.UB 64
T.call_extern(
    "int32",
    "use",
    T.tvm_access_ptr("float32", a.data, 2, 8, 3),
    T.tvm_access_ptr("float32", b.data, 2, 8, 3),
)
# memories and threads are packed apart -> a[64] float32; b[64] float32; c[128] float32
a: local.UB 64
b: local.L1 64
T.call_extern("int32", "use", a.data, b.data)
with T.launch_thread("threadIdx.x", 4):
    c, d: local.UB 64
    T.call_extern("int32", "use", c.data, d.data)
# vectors -> a[8] float16x4
a: global 32 float16
a[T.Ramp(i * 4, 1, 4)] = T.Broadcast(T.float16(0), 4) for i in range(8)
# vectors of truth values are kept in bytes -> a[8] int8x4
a: global 32 bool
a[T.Ramp(i * 4, 1, 4)] = T.Broadcast(T.bool(False), 4) for i in range(8)
# a size that is no multiple of a vector -> a[30] float32
a: global 30
a[T.Ramp(i * 4, 1, 4)] = T.Broadcast(T.float32(0), 4) for i in range(7)
# vectors of a parameter ->
other[T.Ramp(i * 4, 1, 4)] = T.Broadcast(T.float32(0), 4) for i in range(8)
# vectors of packed memory -> a[64] float32
a, b: local.UB 32
a[T.Ramp(0, 1, 4)] = T.Broadcast(T.float32(0), 4)
b[T.Ramp(0, 1, 4)] = T.Broadcast(T.float32(0), 4)
T.call_extern("int32", "use", a.data, b.data)
# vectors through an alias -> a[8] float32x4, and view in a
a: global 32
view = T.decl_buffer((32,), data=a.data)
a[T.Ramp(i * 4, 1, 4)] = T.Broadcast(T.float32(0), 4) for i in range(8)
view[T.Ramp(i * 4, 1, 4)] = T.Broadcast(T.float32(0), 4) for i in range(8)
# vectors of unknown length -> a[64] float32
a, b: global 64
a[T.Ramp(0, 1, T.vscale() * 4)] = T.Broadcast(T.float32(0), T.vscale() * 4)
b[T.Ramp(0, 1, T.vscale() * 4)] = T.Broadcast(T.float32(0), T.vscale() * 4)
# a pointer to memory that gets a vector type -> a[8] float32x4
a: global 32
a[T.Ramp(i * 4, 1, 4)] = T.Broadcast(T.float32(0), 4) for i in range(8)
q: T.let = a.data
# the pointer says of which type memory is -> a[64] int32
a: global 64
T.call_extern("int32", "use", T.tvm_access_ptr("int32", a.data, 0, 4, 1))
# a pointer from elsewhere says nothing -> a[64] float32
a: global 64
a[i] = T.float32(1) for i in range(8)
T.call_extern("int32", "use", T.tvm_access_ptr("float32", handle, 0, 4, 1))
# addresses of elements, of nothing and of unknown types -> a[32] float32; wide[3] float32x4
point = T.match_buffer(p, (), "float32")
a: global 32
wide: shared 3 float32x4
a[T.Ramp(i * 4, 1, 4)] = T.Broadcast(T.float32(0), 4) for i in range(8)
wide[0] = T.Broadcast(T.float32(0), 4)
view = T.decl_buffer((32,), data=T.address_of(a[1]))
point[()] = T.float32(0)
untyped: T.let = T.call_extern("handle", "get")
T.call_extern("int32", "use", T.tvm_access_ptr("int32", untyped, 0, 4, 1))
# an address that is a number is one that is handed on -> a[64] float32
a, b: global 64
a[i] = T.float32(1) for i in range(8)
number[0] = T.call_intrin("uint64", "tirx.address_of", a[0])
b[i] = T.float32(1) for i in range(8)
""")
"""Programs, and what is left of each."""

ALMOST = cases("""
# shifted
b[i] = a[i + 1] for i in range(8)
# reduced
b[i] = b[i] + a[i] for i in range(8)
# at an index that the operand says
b[T.Cast("int32", a[i])] = T.float32(0) for i in range(8)
# at an index that memory says
b[T.Cast("int32", other[i])] = a[T.Cast("int32", other[i])] for i in range(8)
# the operand of another result
for i in range(8):
    b[i] = T.float32(1)
    other[i] = a[i]
# in code of others
with T.attr("x", "extern_scope", 1):
    b[i] = a[i] for i in range(8)
# in code of others, in a loop
for j in range(8):
    with T.attr("x", "extern_scope", 1):
        b[i] = a[i] for i in range(8)
# the operand is in the condition
if a[0] < T.float32(0):
    b[i] = a[i] for i in range(8)
# the operand is handed on
for i in range(8):
    b[i] = a[i]
    T.call_extern("int32", "use", a.data)
""")
FRAME = """a, b: global 64
a[i] = T.float32(1) for i in range(8)
{}
T.call_extern("int32", "use", b.data)
"""
TEXTS |= {f"{n} -> a[64] float32; b[64] float32": FRAME.format(t) for n, t in ALMOST.items()}

VECTORS = """a: global 32 float16
a[T.Ramp(i * 4, 1, 4)] = T.Broadcast(T.float16(0), 4) for i in range(8)
{}
"""
SPOILING = (
    "a[i] = T.float16(1) for i in range(8)",
    "a[T.Ramp(i * 8, 1, 8)] = T.Broadcast(T.float16(0), 8) for i in range(4)",
    "a[T.Ramp(i * 4 + 1, 1, 4)] = T.Broadcast(T.float16(0), 4) for i in range(7)",
    "a[T.Ramp(0, 2, 4)] = T.Broadcast(T.float16(0), 4)",
    'T.call_extern("int32", "use", T.tvm_access_ptr("float16", a.data, 0, 8, 1))',
    'T.call_extern("int32", "use", T.address_of(a[4]))',
)
TEXTS |= {f"no vectors beside {text} -> a[32] float16": VECTORS.format(text) for text in SPOILING}


@pytest.mark.parametrize("case", TEXTS)
def test_what_is_left_is_what_the_stock_pass_leaves(case: str) -> None:
    given = 'other: 64, number: 1 uint64, handle: T.handle("float32"), n: T.int32, p: T.handle'
    func = program(f"def main({given}):\n{indent(TEXTS[case], '    ')}")
    body = rewrite(tvm.IRModule({"main": func.with_attr("global_symbol", "main")}))
    assert_left(body, case.rpartition("->")[2])


@pytest.mark.parametrize(
    ("extent", "scope", "is_shared"),
    [
        (1, "global", False),
        (2, "global", True),
        (N, "local", False),
        (N, "warp", False),
        (N, "wmma.accumulator", False),
        (N, "shared", True),
        (N, "shared.dyn", True),
        (N, "global.workspace", True),
        (N, "local.workspace", True),
    ],
)
def test_registers_stay_apart(extent: int, scope: str, is_shared: bool) -> None:
    a, b = buffer("a", extent, scope=scope), buffer("b", extent, scope=scope)
    body = rewrite(module(AllocBuffer(a), fill(a, 0), AllocBuffer(b), fill(b, 0)))
    assert (len(allocs(body)) == 1) == is_shared


def test_symbolic_sizes_of_scalars_and_of_vectors_share_only_as_the_original_does() -> None:
    mod = made("alloc a n float32x4; fill a; alloc b n; fill b")
    assert len(allocs(rewrite(mod))) == 1
    assert len(allocs(StorageRewrite(sound=True)(mod)["main"].body)) == 2


def test_merge_static_smem_turns_reuse_off_but_not_in_place() -> None:
    a, b, c = (buffer(name, scope="shared") for name in "abc")
    stmts = [AllocBuffer(x) for x in (a, b, c)]
    mod = module(*stmts, fill(a), copy(b, a), use(b.data), fill(c))
    assert allocs(rewrite(mod)) == ["a[64] float32"]
    assert allocs(rewrite(mod, merge_static_smem=True)) == ["a[64] float32", "c[64] float32"]


@pytest.mark.parametrize(
    ("target", "is_shared"), [("vulkan", False), ("webgpu", False), ("cuda", True), ("llvm", True)]
)
@pytest.mark.parametrize("types", [("float32", "float16"), ("float32x4", "float32x4")])
def test_exact_types_on_some_targets(target: str, is_shared: bool, types: tuple[str, str]) -> None:
    a, b = buffer("a", 64, types[0]), buffer("b", 64, types[1])
    mod = module(AllocBuffer(a), fill(a), AllocBuffer(b), fill(b), target=target)
    assert (len(allocs(rewrite(mod))) == 1) == is_shared


def test_volatile_stays_with_the_memory() -> None:
    a, b = buffer("a"), buffer("b")
    volatile = AllocBuffer(b, {"tirx.volatile": True})
    body = rewrite(module(AllocBuffer(a, {"note": 1}), fill(a), volatile, fill(b)))
    (alloc,) = found(body, AllocBuffer)
    assert alloc.buffer.name == "a"
    assert dict(alloc.annotations) == {"tirx.volatile": True}


def test_types_of_a_loaded_module() -> None:
    loaded = tvm.ir.load_json(saved_json(PrimType("float32")))
    assert not loaded.same_as(PrimType("float32"))
    a = buffer("a")
    b = tirx.decl_buffer([N], loaded, "b", layout=None)
    body = rewrite(module(AllocBuffer(a), AllocBuffer(b), fill(a), copy(b, a), use(b.data)))
    assert allocs(body) == ["a[64] float32"]
    assert found(body, AllocBuffer)[0].buffer.same_as(a)
    assert all(load.source.same_as(a) for load in found(body, TensorLoad))


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


def test_a_buffer_as_a_whole_is_handed_on_but_for_a_workspace() -> None:
    a, b, number = buffer("a"), buffer("b"), buffer("number", 1, "uint64")
    stmts = [AllocBuffer(a), fill(a), AllocBuffer(b), fill(b)]
    rewrite(module(*stmts, tirx.Return(a)))
    tile = tirx.TilePrimitiveCall(op=Op.get("tirx.tile.zero"), workspace={"named": a})
    rewrite(module(*stmts, tile))
    address = tirx.call_intrin("uint64", "tirx.address_of", BufferLoad(a, [0]))
    stmts.insert(2, BufferStore(number, address, [0]))
    sound = StorageRewrite(sound=True)(module(*stmts, params=(number,)))
    assert len(allocs(sound["main"].body)) == 2


def test_node_of_an_attribute_is_left_behind() -> None:
    a, b = buffer("a"), buffer("b")
    note = AttrStmt(b, "note", tirx.IntImm("int32", 1), fill(b))
    body = rewrite(module(AllocBuffer(a), fill(a), AllocBuffer(b), note))
    (attr,) = found(body, AttrStmt)
    declared = [stmt.buffer for stmt in found(body, AllocBuffer) + found(body, DeclBuffer)]
    assert not any(attr.node.same_as(other) for other in declared)


def test_a_loop_may_stand_in_two_places_where_nothing_is_allocated():
    a = buffer("a")
    twice = fill(a)
    assert len(found(rewrite(module(twice, twice, params=(a,))), For)) == 2
