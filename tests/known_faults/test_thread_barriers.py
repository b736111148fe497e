"""Barriers between threads for memory that is reused: tilelang 2293, and TVM's own ThreadSync.

There is no device here, so the lowered kernel is not run: `races` goes through it as all threads
of a block do, and notes which bytes each of them reads and writes between two barriers.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import TensorLoad
from tvm.ir.expr import Call
from tvm.script import tirx as T
from tvm.tirx.stmt import AttrStmt

import tvm_ext

THREADS = 128
TARGET = {"kind": "cuda", "arch": "sm_80"}


@T.prim_func(s_tir=True)
def same_type(x: T.Buffer((256,), "float32"), y: T.Buffer((256,), "float32")):
    T.launch_thread("blockIdx.x", 1)
    tx = T.launch_thread("threadIdx.x", 128)
    a = T.alloc_buffer((128,), "float32", scope="shared")
    b = T.alloc_buffer((128,), "float32", scope="shared")
    a[tx] = x[tx]
    y[tx] = a[127 - tx]
    b[tx] = x[128 + tx]
    y[128 + tx] = b[127 - tx]


@T.prim_func(s_tir=True)
def own_elements(x: T.Buffer((256,), "float32"), y: T.Buffer((256,), "float32")):
    T.launch_thread("blockIdx.x", 1)
    tx = T.launch_thread("threadIdx.x", 128)
    a = T.alloc_buffer((128,), "float32", scope="shared")
    b = T.alloc_buffer((128,), "float32", scope="shared")
    a[tx] = x[tx]
    y[tx] = a[tx]
    b[tx] = x[128 + tx]
    y[128 + tx] = b[tx]


@T.prim_func(s_tir=True)
def narrower(
    x: T.Buffer((128,), "float32"),
    z: T.Buffer((256,), "int8"),
    y: T.Buffer((128,), "float32"),
    w: T.Buffer((256,), "int8"),
):
    T.launch_thread("blockIdx.x", 1)
    tx = T.launch_thread("threadIdx.x", 128)
    a = T.alloc_buffer((128,), "float32", scope="shared")
    b = T.alloc_buffer((256,), "int8", scope="shared")
    a[tx] = x[tx]
    y[tx] = a[tx]
    b[tx] = z[tx]
    w[tx] = b[tx]
    b[tx + 128] = z[tx + 128]
    w[tx + 128] = b[tx + 128]


@T.prim_func(s_tir=True)
def wider(
    x: T.Buffer((256,), "float16"), y: T.Buffer((256,), "float16"), w: T.Buffer((128,), "float32")
):
    T.launch_thread("blockIdx.x", 1)
    tx = T.launch_thread("threadIdx.x", 128)
    a = T.alloc_buffer((256,), "float16", scope="shared")
    b = T.alloc_buffer((128,), "float32", scope="shared")
    a[tx] = x[tx]
    y[tx] = a[tx]
    b[tx] = T.Cast("float32", x[tx])
    w[tx] = b[tx]
    y[tx + 128] = T.Cast("float16", b[tx])


@T.prim_func(s_tir=True)
def in_a_loop(x: T.Buffer((512,), "float32"), y: T.Buffer((512,), "float32")):
    T.launch_thread("blockIdx.x", 1)
    tx = T.launch_thread("threadIdx.x", 128)
    for k in range(4):
        a = T.alloc_buffer((128,), "float32", scope="shared")
        b = T.alloc_buffer((128,), "float32", scope="shared")
        a[tx] = x[k * 128 + tx]
        b[tx] = a[127 - tx] + T.float32(1)
        y[k * 128 + tx] = b[127 - tx]


PROGRAMS = (same_type, own_elements, narrower, wider, in_a_loop)


def kernel(func: tirx.PrimFunc, replacement: Any) -> tirx.PrimFunc:
    """Lower a function for CUDA, and return the kernel without the host's part."""
    target = tvm.target.Target(TARGET, host="llvm")
    mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    mod = tirx.transform.BindTarget(target)(mod)
    lower, _, _ = tirx.get_tir_pipeline("default")
    # The merging of shared memory is another planner, behind ours and behind the barriers.
    with replacement, target, pytest.MonkeyPatch.context() as patch:
        keep = tvm.ir.transform.Sequential([])
        patch.setattr(tvm.s_tir.transform, "MergeSharedMemoryAllocations", lambda: keep)
        return lower(mod)["main_kernel"]


class Threads:
    """Goes through a kernel once for each thread, and notes who touches which shared bytes."""

    def __init__(self) -> None:
        self.values: dict[int, Any] = {}
        self.place: dict[int, tuple[Any, int]] = {}
        self.step = 0
        self.touched: dict[tuple[Any, int, int], list[tuple[int, bool]]] = {}
        self.thread = 0

    def run(self, op: Any) -> None:
        if isinstance(op, tirx.SeqStmt):
            for inner in op.seq:
                self.run(inner)
        elif isinstance(op, AttrStmt):
            if op.attr_key == "thread_extent":
                is_thread = str(op.node.thread_tag) == "threadIdx.x"
                self.values[op.node.var.__chandle__()] = self.thread if is_thread else 0
            self.run(op.body)
        elif isinstance(op, tirx.AllocBuffer):
            self.allocate(op.buffer)
        elif isinstance(op, tirx.DeclBuffer):
            source = op.data.args[0] if isinstance(op.data, Call) else op.data
            if source.__chandle__() in self.place:
                self.place[op.buffer.__chandle__()] = self.place[source.__chandle__()]
        elif isinstance(op, tirx.Bind):
            self.reads(op.value)
            self.values[op.var.__chandle__()] = self.value(op.value)
        elif isinstance(op, tirx.BufferStore):
            self.reads(op.value)
            self.touch(op.buffer, op.indices, writes=True)
        elif isinstance(op, tirx.For):
            for number in range(int(self.value(op.extent))):
                self.values[op.loop_var.__chandle__()] = int(self.value(op.min)) + number
                self.run(op.body)
        else:
            assert isinstance(op, tirx.Evaluate)
            assert str(op.value.op.name) == "tirx.tvm_storage_sync"
            self.step += 1

    def allocate(self, buffer: Any) -> None:
        """Give a buffer memory of its own, or the one memory in which addresses count."""
        if not str(buffer.ty.storage_scope).startswith("shared"):
            return
        addresses = buffer.ty.allocated_addr
        memory = "by address" if len(addresses) else buffer.__chandle__()
        self.place[buffer.__chandle__()] = memory, int(addresses[0]) if len(addresses) else 0

    def reads(self, value: Any) -> None:
        def load(op: TensorLoad) -> None:
            self.touch(op.source, op.indices, writes=False)

        tvm_ffi.structural_walk(value, (TensorLoad, load))

    def touch(self, buffer: Any, indices: Any, writes: bool) -> None:
        if buffer.__chandle__() not in self.place:
            return
        memory, begin = self.place[buffer.__chandle__()]
        width = buffer.ty.dtype.dtype.bits // 8
        first = begin + int(self.value(indices[0])) * width
        for byte in range(first, first + width):
            entry = self.touched.setdefault((memory, self.step, byte), [])
            entry.append((self.thread, writes))

    def value(self, op: Any) -> Any:
        if isinstance(op, tirx.Var):
            return self.values[op.__chandle__()]
        if isinstance(op, (tirx.IntImm, tirx.FloatImm)):
            return op.value
        if isinstance(op, (tirx.Add, tirx.Sub, tirx.Mul)):
            a, b = self.value(op.a), self.value(op.b)
            return (
                a + b if isinstance(op, tirx.Add) else a - b if isinstance(op, tirx.Sub) else a * b
            )
        return None  # No index depends on it.


def races(func: tirx.PrimFunc) -> bool:
    """Whether two threads touch one byte between the same barriers, and one of them writes it."""
    threads = Threads()
    for thread in range(THREADS):
        threads.thread, threads.step = thread, 0
        threads.run(func.body)
    return any(
        any(writes for _, writes in entry) and len({thread for thread, _ in entry}) > 1
        for entry in threads.touched.values()
    )


REPLACEMENTS = {
    "sound": lambda: tvm_ext.use_storage_rewrite(sound=True),
    "arena": lambda: tvm_ext.use_plan_addresses("best", "arena"),
    "first fit": lambda: tvm_ext.use_plan_addresses("first_fit", "arena"),
    "address": lambda: tvm_ext.use_plan_addresses("best", "address"),
}


@pytest.mark.parametrize("func", PROGRAMS, ids=lambda func: func.attrs["global_symbol"])
@pytest.mark.parametrize("name", REPLACEMENTS)
def test_no_thread_overwrites_what_another_has_still_to_read(func: tirx.PrimFunc, name: str):
    assert not races(kernel(func, REPLACEMENTS[name]()))


@pytest.mark.parametrize("func", PROGRAMS, ids=lambda func: func.attrs["global_symbol"])
def test_the_programs_do_not_race_by_themselves(func: tirx.PrimFunc):
    with tvm.transform.PassContext(config={"tirx.disable_storage_rewrite": True}):
        assert not races(kernel(func, nullcontext()))


@pytest.mark.parametrize("replacement", [nullcontext, tvm_ext.use_storage_rewrite])
def test_the_stock_pass_lets_threads_race_where_widths_differ(replacement: Any):
    assert races(kernel(narrower, replacement()))


def test_equal_types_share_where_barriers_are_placed():
    text = kernel(same_type, REPLACEMENTS["arena"]()).script()
    assert "arena_shared = T.alloc_shared((512,)" in text
    assert text.count("tvm_storage_sync") == 3
