# SPDX-License-Identifier: Apache-2.0
"""One small function for each thing that StorageRewrite does, and what becomes of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import PrimType, StringImm, TensorLoad
from tvm.target import Target
from tvm.tirx import (
    AllocBuffer,
    Bind,
    BufferLoad,
    BufferStore,
    DeclBuffer,
    Evaluate,
    For,
    ForKind,
    IterVar,
    Ramp,
    SeqStmt,
    Var,
)
from tvm.tirx.stmt import AttrStmt

from passes.storage_rewrite.transform import StorageRewrite

N = 64


def buffer(
    name: str, extent: Any = N, dtype: str = "float32", scope: str = "global", **options: Any
) -> Any:
    shape = extent if isinstance(extent, list) else [extent]
    return tirx.decl_buffer(shape, dtype, name, scope=scope, layout=None, **options)


def zero(dtype: str = "float32") -> Any:
    return tirx.const(0, dtype)


def loop(
    body: Callable[[Any], Any], kind: ForKind = ForKind.SERIAL, extent: Any = 8, name: str = "i"
) -> Any:
    var = Var(name, PrimType("int32"))
    return For(var, tirx.IntImm("int32", 0), extent, kind, body(var))


def fill(target: Any, index: Any = None) -> Any:
    """Write a buffer, in a loop or at one index."""
    value = tirx.const(1, str(target.ty.dtype.dtype.with_lanes(1)))
    lanes = target.ty.dtype.dtype.lanes
    if lanes < 0:
        value = tirx.Broadcast(value, tirx.vscale() * -lanes)
    elif lanes > 1:
        value = tirx.Broadcast(value, lanes)
    if index is not None:
        return BufferStore(target, value, [index])
    return loop(lambda i: BufferStore(target, value, [i]))


def copy(target: Any, source: Any, shift: int = 0) -> Any:
    """``target[i] = f(source[i + shift])``, in a loop."""

    def body(i: Any) -> Any:
        value = BufferLoad(source, [i + shift if shift else i])
        if source.ty.dtype.dtype != target.ty.dtype.dtype:
            value = tirx.Cast(target.ty.dtype, value)
        return BufferStore(target, value, [i])

    return loop(body)


def use(*args: Any) -> Any:
    return Evaluate(tirx.call_extern("int32", "use", *args))


def thread(body: Any, key: str = "thread_extent", tag: str = "threadIdx.x") -> Any:
    axis = IterVar(None, Var("t", PrimType("int32")), IterVar.ThreadIndex, tag)
    return AttrStmt(axis, key, tirx.IntImm("int32", 4), body)


def module(*stmts: Any, params: tuple[Any, ...] = (), target: str | None = None) -> tvm.IRModule:
    body = stmts[0] if len(stmts) == 1 else SeqStmt(list(stmts))
    func = tirx.PrimFunc(list(params), body).with_attr("global_symbol", "main")
    return tvm.IRModule(
        {"main": func if target is None else func.with_attr("target", Target(target))}
    )


def rewrite(mod: tvm.IRModule, **config: Any) -> Any:
    """Run both passes, compare, and return the body of the result."""
    with tvm.transform.PassContext(config={f"tirx.{key}": value for key, value in config.items()}):
        expected = tirx.transform.StorageRewrite()(mod)
        actual = StorageRewrite()(mod)
    if not tvm_ffi.structural_equal(actual, expected, map_free_vars=True):
        tvm.ir.assert_structural_equal(actual, expected, map_free_vars=True)
        raise AssertionError("not equal, at a place that TVM does not name")
    return actual["main"].body


def found(body: Any, kind: Any) -> list[Any]:
    nodes: list[Any] = []
    tvm_ffi.structural_walk(body, (kind, nodes.append))
    return nodes


def allocs(body: Any) -> list[str]:
    """Describe the allocations: name, elements and type."""
    return [describe(stmt.buffer) for stmt in found(body, AllocBuffer)]


def describe(target: Any) -> str:
    extents = ",".join(str(extent) for extent in target.ty.shape)
    return f"{target.name}[{extents}] {target.ty.dtype.dtype}"


def memory_of(body: Any) -> dict[str, str]:
    """Return the name of the allocation behind each alias, by the name in the input."""
    return {stmt.buffer.name: stmt.data.args[0].name for stmt in found(body, DeclBuffer)}


# In place


def test_in_place() -> None:
    a, b = buffer("a"), buffer("b")
    body = rewrite(module(AllocBuffer(a), AllocBuffer(b), fill(a), copy(b, a), use(b.data)))
    assert allocs(body) == ["a[64] float32"]
    assert memory_of(body) == {"b": "a"}


def test_in_place_of_one_store() -> None:
    a, b = buffer("a"), buffer("b")
    index = Ramp(tirx.IntImm("int32", 1), tirx.IntImm("int32", 1), 4)
    store = BufferStore(b, BufferLoad(a, [index]), [index])
    body = rewrite(module(AllocBuffer(a), AllocBuffer(b), fill(a), store, use(b.data)))
    assert memory_of(body) == {"b": "a"}


def _shifted(a: Any, b: Any) -> Any:
    return copy(b, a, shift=1)


def _reduced(a: Any, b: Any) -> Any:
    return loop(lambda i: BufferStore(b, BufferLoad(b, [i]) + BufferLoad(a, [i]), [i]))


def _indirect(a: Any, b: Any) -> Any:
    def body(i: Any) -> Any:
        at = tirx.Cast(PrimType("int32"), BufferLoad(a, [i]))
        return BufferStore(b, zero(), [at])

    return loop(body)


def _extern(a: Any, b: Any) -> Any:
    return AttrStmt(StringImm("x"), "extern_scope", tirx.IntImm("int32", 1), copy(b, a))


def _in_condition(a: Any, b: Any) -> Any:
    return tirx.IfThenElse(BufferLoad(a, [0]) < zero(), copy(b, a), None)


def _handed_on(a: Any, b: Any) -> Any:
    return loop(lambda i: SeqStmt([BufferStore(b, BufferLoad(a, [i]), [i]), use(a.data)]))


@pytest.mark.parametrize(
    "stage", [_shifted, _reduced, _indirect, _extern, _in_condition, _handed_on]
)
def test_almost_in_place(stage: Callable[[Any, Any], Any]) -> None:
    a, b = buffer("a"), buffer("b")
    body = rewrite(module(AllocBuffer(a), AllocBuffer(b), fill(a), stage(a, b), use(b.data)))
    assert allocs(body) == ["a[64] float32", "b[64] float32"]


def test_not_in_place_of_another_type() -> None:
    a, b = buffer("a"), buffer("b", dtype="int32")
    body = rewrite(module(AllocBuffer(a), AllocBuffer(b), fill(a), copy(b, a), use(b.data)))
    assert len(allocs(body)) == 2


def test_not_in_place_of_three_at_once() -> None:
    a, b, c, d = (buffer(name) for name in "abcd")

    def body(i: Any) -> Any:
        return SeqStmt([BufferStore(x, BufferLoad(a, [i]), [i]) for x in (b, c, d)])

    made = [AllocBuffer(x) for x in (a, b, c, d)]
    result = rewrite(module(*made, fill(a), loop(body), use(b.data, c.data, d.data)))
    assert len(allocs(result)) == 4


# Reuse


@pytest.mark.parametrize(("extent", "is_shared"), [(N * 16, True), (N * 17, False)])
def test_sizes_within_a_factor_of_16_share(extent: int, is_shared: bool) -> None:
    large, small = buffer("large", extent), buffer("small")
    stmts = [AllocBuffer(large), fill(large), AllocBuffer(small), fill(small)]
    assert (len(allocs(rewrite(module(*stmts)))) == 1) == is_shared


def test_larger_memory_first() -> None:
    small, large, new = buffer("small", 32), buffer("large", 128), buffer("new", 64)
    stmts = [AllocBuffer(small), fill(small), fill(small, 1)]
    both = loop(lambda i: SeqStmt([fill(small, i), fill(large, i)]))
    body = rewrite(module(*stmts, AllocBuffer(large), both, AllocBuffer(new), fill(new)))
    assert allocs(body) == ["small[32] float32", "large[128] float32"]
    assert memory_of(body)["new"] == "large"


def test_smaller_memory_grows() -> None:
    small, large = buffer("small", 32), buffer("large", 128)
    body = rewrite(module(AllocBuffer(small), fill(small), AllocBuffer(large), fill(large)))
    assert allocs(body) == ["small[128] float32"]
    assert memory_of(body) == {"small": "small", "large": "small"}


def test_memory_of_another_type_does_not_grow() -> None:
    small, large = buffer("small", 32), buffer("large", 128, "int32")
    body = rewrite(module(AllocBuffer(small), fill(small), AllocBuffer(large), fill(large)))
    assert len(allocs(body)) == 2


def test_larger_memory_of_another_type_is_shared() -> None:
    a, b = buffer("a", 64, "float32"), buffer("b", 50, "float16")
    body = rewrite(module(AllocBuffer(a), fill(a), AllocBuffer(b), fill(b)))
    assert allocs(body) == ["a[64] float32"]


def test_rounded_up_to_whole_elements() -> None:
    # 16 and 20 bytes; what is added when the division leaves something is one element more.
    a, b = buffer("a", 16, "int8"), buffer("b", 5, "float32")
    c = buffer("c", 7, "int8")
    body = rewrite(
        module(AllocBuffer(b), fill(b), AllocBuffer(c), fill(c), AllocBuffer(a), fill(a))
    )
    assert allocs(body) == ["b[5] float32"]


def test_symbolic_sizes_share_by_type_alone() -> None:
    n, m = Var("n", PrimType("int32")), Var("m", PrimType("int32"))
    a, b, c = buffer("a", n), buffer("b", m), buffer("c", n, "int32")
    stmts = [stmt for x in (a, b, c) for stmt in (AllocBuffer(x), fill(x))]
    body = rewrite(module(*stmts, params=(n, m)))
    assert allocs(body) == ["a[T.max(n, m)] float32", "c[n] int32"]


def test_symbolic_and_constant_sizes_stay_apart() -> None:
    n = Var("n", PrimType("int32"))
    a, b = buffer("a", n), buffer("b")
    body = rewrite(module(AllocBuffer(a), fill(a), AllocBuffer(b), fill(b), params=(n,)))
    assert len(allocs(body)) == 2


def test_int64_sizes() -> None:
    # 2**27 elements of 32 bits: the size in bits is beyond int32.
    a = buffer("a", 2**27)
    b = buffer("b", 2**26, "float64")
    body = rewrite(module(AllocBuffer(a), fill(a), AllocBuffer(b), fill(b)))
    (alloc,) = found(body, AllocBuffer)
    assert describe(alloc.buffer) == "a[T.int64(134217728)] float32"
    assert alloc.buffer.ty.shape[0].ty.dtype == "int64"


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


def test_scopes_stay_apart() -> None:
    a, b = buffer("a", scope="shared"), buffer("b", scope="shared.dyn")
    assert len(allocs(rewrite(module(AllocBuffer(a), fill(a), AllocBuffer(b), fill(b))))) == 2


def test_merge_static_smem_turns_reuse_off_but_not_in_place() -> None:
    a, b, c = (buffer(name, scope="shared") for name in "abc")
    stmts = [AllocBuffer(x) for x in (a, b, c)]
    mod = module(*stmts, fill(a), copy(b, a), use(b.data), fill(c))
    assert allocs(rewrite(mod)) == ["a[64] float32"]
    assert allocs(rewrite(mod, merge_static_smem=True)) == ["a[64] float32", "c[64] float32"]


@pytest.mark.parametrize(
    ("target", "is_shared"), [("vulkan", False), ("webgpu", False), ("cuda", True), ("llvm", True)]
)
def test_exact_types_on_some_targets(target: str, is_shared: bool) -> None:
    a, b = buffer("a", 64, "float32"), buffer("b", 64, "float16")
    mod = module(AllocBuffer(a), fill(a), AllocBuffer(b), fill(b), target=target)
    assert (len(allocs(rewrite(mod))) == 1) == is_shared


def test_multi_dimensional_memory_is_not_shared() -> None:
    a, b = buffer("a", [8, 8]), buffer("b", [8, 8])
    body = rewrite(module(AllocBuffer(a), use(a.data), AllocBuffer(b), use(b.data)))
    assert allocs(body) == ["a[8,8] float32", "b[8,8] float32"]


def test_unused_allocation_goes() -> None:
    a, b = buffer("a"), buffer("b", [4, 4])
    body = rewrite(module(AllocBuffer(a), AllocBuffer(b), use(zero())))
    assert allocs(body) == []


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


# Other names and other uses


def test_alias_chain() -> None:
    a, b = buffer("a"), buffer("b")
    view, bytes_ = buffer("view", 16), buffer("bytes", 256, "int8")
    stmts = [
        *(AllocBuffer(a), fill(a), AllocBuffer(b)),
        *(DeclBuffer(view, data=b.data), DeclBuffer(bytes_, data=view.data)),
        *(fill(bytes_), fill(view), fill(b)),
    ]
    body = rewrite(module(*stmts))
    assert allocs(body) == ["a[64] float32"]
    assert memory_of(body) == {"b": "a", "view": "a", "bytes": "a"}


def test_alias_keeps_memory_alive() -> None:
    a, b, view = buffer("a"), buffer("b"), buffer("view")
    stmts = [AllocBuffer(a), fill(a), DeclBuffer(view, data=a.data), AllocBuffer(b), fill(b)]
    assert len(allocs(rewrite(module(*stmts, fill(view))))) == 2


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


def test_buffers_of_one_call_stay_apart() -> None:
    a, b = buffer("a"), buffer("b")
    assert len(allocs(rewrite(module(AllocBuffer(a), AllocBuffer(b), use(a.data, b.data))))) == 2


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


def test_vector_type() -> None:
    a = buffer("a", 32, "float16")
    body = rewrite(module(AllocBuffer(a), _vectors(a)))
    assert allocs(body) == ["a[8] float16x4"]
    (store,) = found(body, BufferStore)
    assert store.indices[0].ty.dtype.lanes == 1


@pytest.mark.parametrize(
    "spoiler",
    [
        lambda a: fill(a),
        lambda a: _vectors(a, lanes=8, count=4),
        lambda a: _vectors(a, base=1, count=7),
        lambda a: use(tirx.tvm_access_ptr("float16", a.data, 0, 8, 1)),
        lambda a: use(tirx.address_of(BufferLoad(a, [4]))),
    ],
)
def test_no_vector_type(spoiler: Callable[[Any], Any]) -> None:
    a = buffer("a", 32, "float16")
    body = rewrite(module(AllocBuffer(a), _vectors(a), spoiler(a)))
    assert allocs(body) == ["a[32] float16"]


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


def test_vector_elements_share() -> None:
    a, b = buffer("a", 16, "float32x4"), buffer("b", 8, "float32x4")
    body = rewrite(module(AllocBuffer(a), fill(a), AllocBuffer(b), fill(b)))
    assert allocs(body) == ["a[16] float32x4"]


def test_scalable_vectors_are_not_shared() -> None:
    dtype = "float32xvscalex4"
    a, b = buffer("a", 16, dtype), buffer("b", 16, dtype)
    body = rewrite(module(AllocBuffer(a), fill(a), AllocBuffer(b), copy(b, a), use(b.data)))
    assert allocs(body) == [f"a[16] {dtype}", f"b[16] {dtype}"]


def test_scalable_access_of_plain_memory() -> None:
    a, b = buffer("a"), buffer("b")
    lanes = tirx.vscale() * 4
    index = Ramp(tirx.IntImm("int32", 0), tirx.IntImm("int32", 1), lanes)
    stores = [BufferStore(x, tirx.Broadcast(zero(), lanes), [index]) for x in (a, b)]
    body = rewrite(module(AllocBuffer(a), stores[0], AllocBuffer(b), stores[1]))
    assert allocs(body) == ["a[64] float32"]


# Types that are equal but not one object, as in a module that was loaded and then changed


def test_types_of_a_loaded_module() -> None:
    loaded = tvm.ir.load_json(tvm.ir.save_json(PrimType("float32")))
    assert not loaded.same_as(PrimType("float32"))
    a = buffer("a")
    b = tirx.decl_buffer([N], loaded, "b", layout=None)
    body = rewrite(module(AllocBuffer(a), AllocBuffer(b), fill(a), copy(b, a), use(b.data)))
    assert allocs(body) == ["a[64] float32"]
    assert found(body, AllocBuffer)[0].buffer.same_as(a)
    assert all(load.source.same_as(a) for load in found(body, TensorLoad))


def test_truth_values_as_vectors() -> None:
    a = buffer("a", 32, "bool")
    body = rewrite(module(AllocBuffer(a), _vectors(a)))
    assert allocs(body) == ["a[8] int8x4"]
    (store,) = found(body, BufferStore)
    assert store.value.ty.dtype == "boolx4"


def test_alias_as_an_address_keeps_the_scalar_type() -> None:
    a, view = buffer("a", 32), buffer("view", 32)
    stmts = [
        AllocBuffer(a),
        _vectors(a),
        DeclBuffer(view, data=tirx.address_of(BufferLoad(a, [1]))),
    ]
    assert allocs(rewrite(module(*stmts))) == ["a[32] float32"]


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
    return [
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
    with pytest.raises(ValueError, match=rf"function 'main': .*{name}"):
        StorageRewrite()(mod)
