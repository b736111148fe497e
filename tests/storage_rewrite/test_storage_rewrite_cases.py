# SPDX-License-Identifier: Apache-2.0
"""`StorageRewrite` by hand: who shares with whom, beside the stock pass."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import tvm
import tvm_ffi
from program_text import program
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
    thread,
    use,
    zero,
)
from tvm import tirx
from tvm.ir import PrimType, StringImm
from tvm.tirx import (
    AllocBuffer,
    BufferLoad,
    BufferStore,
    DeclBuffer,
    Evaluate,
    For,
    ForKind,
    Ramp,
    SeqStmt,
    Var,
)
from tvm.tirx.stmt import AttrStmt

from passes.storage_rewrite.transform import StorageRewrite

# In place

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
"""
"""Programs, the allocations that are left of each, and in whose memory some buffers are."""


def made(text: str) -> tvm.IRModule:
    """Return a program of statements such as ``alloc NAME EXTENTS TYPE SCOPE``."""
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
        of = [known[name] for name in names]
        if word == "copy":
            return copy(*of)
        if word == "use":
            return use(*(one.data for one in of))
        return loop(lambda i: SeqStmt([fill(one, i) for one in of])) if len(of) > 1 else fill(*of)

    statements = [statement(*part.split()) for part in text.split("; ")]
    return module(*statements, params=tuple(sizes.values()))


@pytest.mark.parametrize(
    ("name", "text", "left"), re.findall(r"^(\S.*?): (.*)\n +->(.*)", HAND, re.M)
)
def test_what_shares_is_what_the_stock_pass_shares(name: str, text: str, left: str) -> None:
    body = rewrite(made(text))
    allocated, _, memory = left.strip().partition(", and ")
    assert "; ".join(allocs(body)) == allocated
    found = {f"{alias} in {owner}" for alias, owner in memory_of(body).items()}
    assert found.issuperset(filter(None, memory.split(", ")))


def test_in_place_of_one_store() -> None:
    a, b = buffer("a"), buffer("b")
    index = Ramp(tirx.IntImm("int32", 1), tirx.IntImm("int32", 1), 4)
    store = BufferStore(b, BufferLoad(a, [index]), [index])
    body = rewrite(module(AllocBuffer(a), AllocBuffer(b), fill(a), store, use(b.data)))
    assert memory_of(body) == {"b": "a"}


OTHER = buffer("other")


def test_in_place_beside_a_call_of_another_buffer() -> None:
    a, b = buffer("a"), buffer("b")
    beside = loop(lambda i: SeqStmt([BufferStore(b, BufferLoad(a, [i]), [i]), use(OTHER.data)]))
    stmts = [AllocBuffer(a), AllocBuffer(b), fill(a), beside, use(b.data)]
    assert memory_of(rewrite(module(*stmts, params=(OTHER,)))) == {"b": "a"}


def _shifted(a: Any, b: Any) -> Any:
    return copy(b, a, shift=1)


def _reduced(a: Any, b: Any) -> Any:
    return loop(lambda i: BufferStore(b, BufferLoad(b, [i]) + BufferLoad(a, [i]), [i]))


def _indirect(a: Any, b: Any) -> Any:
    def body(i: Any) -> Any:
        at = tirx.Cast(PrimType("int32"), BufferLoad(a, [i]))
        return BufferStore(b, zero(), [at])

    return loop(body)


def _indirect_both(a: Any, b: Any) -> Any:
    def body(i: Any) -> Any:
        at = tirx.Cast(PrimType("int32"), BufferLoad(OTHER, [i]))
        return BufferStore(b, BufferLoad(a, [at]), [at])

    return loop(body)


def _of_another(a: Any, b: Any) -> Any:
    return loop(lambda i: SeqStmt([fill(b, i), BufferStore(OTHER, BufferLoad(a, [i]), [i])]))


def _extern(a: Any, b: Any) -> Any:
    return AttrStmt(StringImm("x"), "extern_scope", tirx.IntImm("int32", 1), copy(b, a))


def _extern_within(a: Any, b: Any) -> Any:
    return loop(lambda i: _extern(a, b), name="j")


def _in_condition(a: Any, b: Any) -> Any:
    return tirx.IfThenElse(BufferLoad(a, [0]) < zero(), copy(b, a), None)


def _handed_on(a: Any, b: Any) -> Any:
    return loop(lambda i: SeqStmt([BufferStore(b, BufferLoad(a, [i]), [i]), use(a.data)]))


@pytest.mark.parametrize(
    "stage",
    [
        *(_shifted, _reduced, _indirect, _indirect_both, _of_another),
        *(_extern, _extern_within, _in_condition, _handed_on),
    ],
)
def test_almost_in_place(stage: Callable[[Any, Any], Any]) -> None:
    a, b = buffer("a"), buffer("b")
    stmts = [AllocBuffer(a), AllocBuffer(b), fill(a), stage(a, b), use(b.data)]
    body = rewrite(module(*stmts, params=(OTHER,)))
    assert allocs(body) == ["a[64] float32", "b[64] float32"]


def test_not_in_place_of_three_at_once() -> None:
    a, b, c, d = (buffer(name) for name in "abcd")

    def body(i: Any) -> Any:
        return SeqStmt([BufferStore(b, BufferLoad(a, [i]), [i]), fill(c, i), fill(d, i)])

    made = [AllocBuffer(x) for x in (a, b, c, d)]
    result = rewrite(module(*made, fill(a), loop(body), use(b.data, c.data, d.data)))
    assert len(allocs(result)) == 4


# Reuse


def test_alive_through_the_loop_that_uses_it() -> None:
    a, b = buffer("a"), buffer("b")
    inside = loop(lambda k: SeqStmt([fill(a, k), AllocBuffer(b), fill(b, k)]), name="k")
    assert len(allocs(rewrite(module(AllocBuffer(a), inside)))) == 2


def test_shared_within_a_loop_and_hoisted() -> None:
    a, b = buffer("a"), buffer("b")
    inside = loop(lambda k: SeqStmt([AllocBuffer(a), fill(a), AllocBuffer(b), fill(b)]), name="k")
    body = rewrite(module(inside))
    assert allocs(body) == ["a[64] float32"]
    assert isinstance(body, SeqStmt)
    assert isinstance(body.seq[0], AllocBuffer)


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


# Scopes that own memory


def test_attached_to_a_thread_scope() -> None:
    a, b, c = (buffer(name, scope="shared") for name in "abc")
    inner = thread(SeqStmt([AllocBuffer(a), fill(a), AllocBuffer(b), fill(b)]))
    outer = thread(inner, tag="blockIdx.x")
    body = rewrite(module(outer, AllocBuffer(c), fill(c)))
    assert allocs(body) == ["c[64] float32", "a[64] float32"]
    # The outermost thread extent owns; its memory is not passed on to what comes after.
    assert isinstance(body.seq[1].body.seq[0], AllocBuffer)


def test_symbolic_memory_is_not_passed_on_into_a_thread_scope() -> None:
    n = Var("n", PrimType("int32"))
    a, b = buffer("a", n), buffer("b", n)
    inner = thread(SeqStmt([AllocBuffer(b), fill(b)]))
    assert len(allocs(rewrite(module(AllocBuffer(a), fill(a), inner, params=(n,))))) == 2


def test_attached_to_a_virtual_thread() -> None:
    a = buffer("a")
    inner = thread(SeqStmt([AllocBuffer(a), fill(a)]), "virtual_thread", "vthread")
    body = rewrite(module(loop(lambda i: inner)))
    assert isinstance(body, For)
    assert isinstance(body.body.body.seq[0], AllocBuffer)


def test_attached_to_the_outer_parallel_loop() -> None:
    a = buffer("a")
    nest = loop(
        lambda i: loop(lambda j: SeqStmt([AllocBuffer(a), fill(a)]), ForKind.PARALLEL, name="j"),
        ForKind.PARALLEL,
    )
    body = rewrite(module(nest))
    assert isinstance(body, For)
    assert isinstance(body.body.seq[0], AllocBuffer)


# Packing


def test_special_memory_is_packed() -> None:
    a, b = buffer("a", 3, "int8", "local.UB"), buffer("b", 5, "int8", "local.UB")
    c = buffer("c", 2, "float32", "local.UB")
    stmts = [AllocBuffer(x) for x in (a, b, c)]
    together = loop(lambda i: SeqStmt([fill(x, i) for x in (a, b, c)]))
    body = rewrite(module(*stmts, together))
    # Each starts at a multiple of 4 bytes: 0, 4 and 12; all is 20 bytes long.
    assert allocs(body) == ["a[20] int8"]
    indices = [str(store.indices[0]) for store in found(body, BufferStore)]
    assert [index.splitlines()[-1] for index in indices] == ["i", "4 + i", "3 + i"]


def test_special_memory_is_shared_before_it_is_packed() -> None:
    a, b, c = (buffer(name, scope="local.UB") for name in "abc")
    stmts = [AllocBuffer(x) for x in (a, b, c)]
    body = rewrite(module(*stmts, fill(a), copy(b, a, shift=1), copy(c, b, shift=1)))
    assert allocs(body) == ["a[128] float32"]
    stores = found(body, BufferStore)
    assert [str(s.indices[0]).splitlines()[-1] for s in stores] == ["i", "64 + i", "i"]


def test_tvm_access_ptr_of_packed_memory_is_moved() -> None:
    a, b = buffer("a", scope="local.UB"), buffer("b", scope="local.UB")
    pointers = [tirx.tvm_access_ptr("float32", x.data, 2, 8, 3) for x in (a, b)]
    body = rewrite(module(AllocBuffer(a), AllocBuffer(b), use(*pointers)))
    call = found(body, Evaluate)[-1].value
    # Not simplified: 64 + 2.
    assert [str(call.args[k].args[2]) for k in (1, 2)] == ["2", "66"]
    assert [call.args[k].args[1].name for k in (1, 2)] == ["a", "a"]


def test_special_memories_and_thread_scopes_are_packed_apart() -> None:
    a, b = buffer("a", scope="local.UB"), buffer("b", scope="local.L1")
    c, d = buffer("c", scope="local.UB"), buffer("d", scope="local.UB")
    inner = thread(SeqStmt([AllocBuffer(c), AllocBuffer(d), use(c.data, d.data)]))
    body = rewrite(module(AllocBuffer(a), AllocBuffer(b), use(a.data, b.data), inner))
    assert allocs(body) == ["a[64] float32", "b[64] float32", "c[128] float32"]


def test_memory_that_is_released_twice_keeps_its_size() -> None:
    """One statement in two places releases `a` twice, so `b` and then `c` take its memory."""
    sizes = {"a": 4, "b": 16, "c": 8, "d": 8}
    a, b, c, d = (buffer(name, size, scope="local.UB") for name, size in sizes.items())
    twice = use(a.data)
    stmts = [AllocBuffer(x) for x in (a, b, c, d)]
    last = use(b.data, c.data, d.data)
    body = rewrite(module(*stmts, fill(a), twice, twice, fill(b), fill(c), fill(d), last))
    assert allocs(body) == ["a[24] float32"]  # 16 of `b`, in which `c` lies, and 8 of `d`


def test_a_loop_may_stand_in_two_places_where_nothing_is_allocated():
    a = buffer("a")
    twice = fill(a)
    assert len(found(rewrite(module(twice, twice, params=(a,))), For)) == 2


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


@pytest.mark.parametrize("sound", [False, True])
def test_more_packed_memory_than_an_extent_can_count_is_refused(sound: bool):
    func = program(PACKED)
    named = r"function 'main': buffers 'a', 'c' in global\.ddr"
    with pytest.raises(ValueError, match=named) as said:
        StorageRewrite(sound=sound)(tvm.IRModule({"main": func}))
    assert "2147483648 bytes" in str(said.value)
    with pytest.raises((ValueError, tvm.error.InternalError), match="exceeds range"):
        tirx.transform.StorageRewrite()(tvm.IRModule({"main": func}))
    fits = program(PACKED.replace("1073741824", "1073741820"))
    assert_same_as_stock(tvm.IRModule({"main": fits}))


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
        assert_same_as_stock(mod)
        return
    with pytest.raises(tvm.error.InternalError, match="does not accept"):
        tirx.transform.StorageRewrite()(mod)
    with pytest.raises(ValueError, match=f"function 'main': buffer 'c' in {scope} has an alloc"):
        StorageRewrite()(mod)


def assert_same_as_stock(mod: tvm.IRModule) -> None:
    ours, stock = (p(mod)["main"] for p in (StorageRewrite(), tirx.transform.StorageRewrite()))
    assert tvm_ffi.structural_equal(ours, stock, map_free_vars=True)
