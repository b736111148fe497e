# SPDX-License-Identifier: Apache-2.0
"""Passes and builds in several threads: none waits for another, each finds its own pass."""

from __future__ import annotations

import gc
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Event, Thread

import pytest
import tvm
from tvm import s_tir, tirx

import tvm_ext
from passes.pass_errors import error_context
from tvm_ext.pipeline import replaced

MOD = tvm.script.from_source("""
@I.ir_module
class M:
    @T.prim_func(s_tir=True)
    def main(a: T.Buffer((64,), "float32")):
        T.func_attr({"global_symbol": "main"})
        x = T.alloc_buffer((64,), "float32")
        for i in range(64):
            x[i] = a[i]
        for i in range(64):
            a[i] = x[63 - i]
""")
STOCK = tirx.transform.StorageRewrite, s_tir.transform.MergeSharedMemoryAllocations


def found():
    """Return the name of the pass that a pipeline of TVM's finds."""
    return str(tirx.transform.StorageRewrite().info.name)


def deep(count):
    return 0 if count == 0 else 1 + deep(count - 1)


def run(*functions):
    """Run functions in threads of their own; raise what one raises."""
    with ThreadPoolExecutor(len(functions)) as pool:
        return [future.result(60) for future in [pool.submit(each) for each in functions]]


def test_frames_are_there_until_the_last_thread_needs_none():
    before = sys.getrecursionlimit()
    first_in, second_in, first_out = Event(), Event(), Event()

    def first():
        with error_context("first"):
            first_in.set()
            assert second_in.wait(60)
        first_out.set()

    def second():
        assert first_in.wait(60)
        with error_context("second"):
            second_in.set()
            assert first_out.wait(60)
            assert not gc.isenabled()
            return deep(3000)

    for is_collecting in (True, False):
        for event in (first_in, second_in, first_out):
            event.clear()
        (gc.enable if is_collecting else gc.disable)()
        try:
            assert run(first, second) == [None, 3000]
            assert (sys.getrecursionlimit(), gc.isenabled()) == (before, is_collecting)
        finally:
            gc.enable()


def test_many_threads_leave_the_limit_as_it_was():
    before, together = sys.getrecursionlimit(), Barrier(16)

    def work():
        together.wait(60)
        for _ in range(50):
            with error_context("pass"):
                deep(1500)

    run(*[work] * 16)
    assert sys.getrecursionlimit() == before


def test_blocks_may_end_in_any_order():
    one, two = tvm_ext.use("StorageRewrite"), tvm_ext.use("PlanAddresses")
    one.__enter__()
    two.__enter__()
    assert found() == "tvm_ext.planned"
    one.__exit__(None, None, None)
    assert found() == "tvm_ext.planned"
    two.__exit__(None, None, None)
    now = tirx.transform.StorageRewrite, s_tir.transform.MergeSharedMemoryAllocations
    assert now == STOCK


def test_each_thread_finds_the_pass_of_its_own_block():
    together = Barrier(2)

    def build(block):
        with block:
            together.wait(60)
            name = found()
            together.wait(60)
        return name

    names = run(
        lambda: build(tvm_ext.use("PlanAddresses")), lambda: build(tvm_ext.use("StorageRewrite"))
    )
    assert names == ["tvm_ext.planned", "tvm_ext.StorageRewrite"]
    assert tirx.transform.StorageRewrite is STOCK[0]


def test_a_worker_in_a_block_of_its_caller_builds_with_that_pass():
    with tvm_ext.use("StorageRewrite"):
        assert run(found) == ["tvm_ext.StorageRewrite"]


def test_a_pass_for_one_thread_is_not_found_by_others():
    with replaced("StorageRewrite", tvm_ext.transform.StorageRewrite):
        assert found() == "tvm_ext.StorageRewrite"
        assert run(found) == [str(STOCK[0]().info.name)]


@pytest.mark.parametrize("pipeline", ["tvm_ext", "tvm_ext.arena"])
def test_a_block_does_not_hold_up_a_pipeline_in_another_thread(pipeline):
    built = []
    with tvm_ext.use("StorageRewrite"):
        worker = Thread(target=lambda: built.append(tirx.build(MOD, "llvm", pipeline)), daemon=True)
        worker.start()
        worker.join(60)
        assert built
