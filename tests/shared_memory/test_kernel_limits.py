# SPDX-License-Identifier: Apache-2.0
"""What a plan of shared memory keeps to: alignments, capacities, and what stays as it is."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import tvm
from opencl_runs import shared_bytes
from test_kernel_steps import SYNC, kernel, problem_of, two_phases
from tvm import tirx
from tvm.script import tirx as T
from tvm.target import Target

from passes.ir import structural_mutate, with_body
from passes.ir.operators import STORAGE_SYNC
from tvm_ext.transform import PlanSharedMemory

SUM = "a[tx] = x[tx]\nb[tx] = x[tx]\nx[tx] = a[tx] + b[tx]"


@pytest.mark.parametrize(
    ("text", "alignment"),
    [
        ("o[tx] = first[tx]", 4),
        ("o[T.Ramp(tx, 1, 4)] = first[T.Ramp(tx, 1, 4)]", 16),
        ('T.evaluate(T.call_extern("int32", "use", T.address_of(first[0])))', 64),
        ('T.call_extern("int32", "f", T.call_intrin("handle", "tirx.address_of", first))', 64),
        ('T.evaluate(T.call_intrin("int32", "tirx.isnullptr", T.address_of(first[0])))', 16),
        (
            'T.evaluate(T.call_intrin("int32", "tirx.tvm_store_matrix_sync", '
            "T.address_of(first[0]), 16, 16, 16, 0, T.address_of(first[0]), 16))",
            32,
        ),
        (
            'T.evaluate(T.call_intrin("int32", "tirx.ptx.cp_async_bulk_g2s_cta", '
            "T.address_of(first[0])))",
            128,
        ),
        (
            'T.evaluate(T.call_intrin("int32", "tirx.ptx.cp_async_bulk_tensor_g2s_cta", '
            "T.address_of(first[0])))",
            1024,
        ),
    ],
)
def test_alignment_is_that_of_the_strictest_reader(text: str, alignment: int):
    first, second = problem_of(two_phases(text)).buffers
    assert (first.alignment, second.alignment) == (alignment, 4)


def test_an_allocation_asks_for_more():
    func = kernel(f'a = T.alloc_buffer((64,), scope="shared", align=256)\nb: shared 64\n{SUM}')
    assert [buffer.alignment for buffer in problem_of(func).buffers] == [256, 4]
    before = func.script()
    assert "256" in planned(func).script().split("arena_shared = ")[1].splitlines()[0]
    assert func.script() == before


def planned(func: tirx.PrimFunc, **options: Any) -> tirx.PrimFunc:
    return PlanSharedMemory(**options)(tvm.IRModule({"main": func}))["main"]


def by_tvm(func: tirx.PrimFunc) -> tirx.PrimFunc:
    merge = tvm.s_tir.transform.MergeSharedMemoryAllocations()
    return merge(tvm.IRModule({"main": func}))["main"]


# Memory that is too small

SMALL = Target({"kind": "cuda", "arch": "sm_80", "max_shared_memory_per_block": 500})


def test_what_does_not_fit_says_what_is_in_the_way():
    func = two_phases("o[tx] = first[63 - tx] + second[tx]")
    with pytest.raises(ValueError, match="function 'main'") as caught:
        planned(func, target=SMALL)
    for part in ("'shared' needs 512 bytes", "has 500", "first: 256 bytes", "epoch 0"):
        assert part in str(caught.value)


def test_nothing_goes_in_place_of_what_another_thread_reads():
    func = two_phases(f"{SYNC}\nsecond[tx] = first[63 - tx]\n{SYNC}")
    with pytest.raises(ValueError, match="no plan needs less than 512 bytes") as caught:
        planned(func, target=SMALL)
    assert "in place" not in str(caught.value)


def test_both_scopes_are_one_memory():
    func = kernel(f"a: shared 64\nb: shared.dyn 64\n{SUM}")
    described = {"shared": {"capacity": 256}, "shared.dyn": {"capacity": 512}}
    chip = Target({"kind": "cuda", "arch": "sm_80", "feature.memory": described})
    planned(func, target=chip)
    described["shared.dyn"]["capacity"] = 511
    chip = Target({"kind": "cuda", "arch": "sm_80", "feature.memory": described})
    with pytest.raises(ValueError, match=r"shared\.dyn"):
        planned(func.with_attr("target", chip))


def test_the_limit_of_tvm_only_warns(caplog: pytest.LogCaptureFixture):
    func = two_phases("o[tx] = first[63 - tx] + second[tx]").with_attr("target", SMALL)
    with caplog.at_level(logging.WARNING, "tvm_ext.PlanSharedMemory"):
        assert shared_bytes(planned(func)) == 512
    assert "512" in caplog.text


# What is left alone


def test_what_is_not_planned_stays_as_it_is(caplog: pytest.LogCaptureFixture):
    flags = 'flags[tx] = T.Cast("int4", x[tx])\nx[tx] = x[tx] + T.Cast("float32", flags[tx])'
    func = kernel(f"a, b: shared 64\nflags: shared 64 int4\n{SUM}\n{flags}")
    with caplog.at_level(logging.INFO, "tvm_ext.PlanSharedMemory"):
        text = planned(func).script()
    assert "flags = T.alloc_shared((64,)" in text
    assert "arena_shared = T.alloc_shared((128,)" in text
    assert "'flags' in shared: its elements are no whole bytes" in caplog.text


@pytest.mark.parametrize(
    ("shape", "use", "reason"),
    [
        ("(8,), allocated_addr=64", "c[0]", "an address"),
        ('(8,), annotations={"tirx.volatile": True}', "c[0]", "volatile"),
        ("(8,)", 'c[T.Cast("uint8", tx)]', "wraps"),
        (
            "(8, 8)",
            'T.call_extern("float32", "f", T.call_intrin("handle", "tirx.address_of", c))',
            "it has 2 dimensions",
        ),
    ],
)
def test_what_means_more_than_its_bytes_stays(
    shape: str, use: str, reason: str, caplog: pytest.LogCaptureFixture
):
    allocation = f'c = T.alloc_buffer({shape}, scope="shared")'
    func = two_phases(f"{allocation}\no[tx] = {use} + second[tx]")
    with caplog.at_level(logging.INFO, "tvm_ext.PlanSharedMemory"):
        text = planned(func).script()
    assert "c = T.alloc_" in text
    assert reason in caplog.text


def test_no_barrier_goes_into_statements_that_stand_elsewhere_too():
    last = "if tx < 32:\n    b[tx] = x[tx]\n    x[tx] = b[tx]"
    func = kernel(f"a, b: shared 64\na[tx] = x[tx]\nx[tx] = a[63 - tx]\n{last}")
    sync = tirx.Evaluate(tirx.call_intrin("int32", STORAGE_SYNC, "shared"))

    def twice(op: tirx.IfThenElse, _: Any) -> tirx.SeqStmt:
        return tirx.SeqStmt([tirx.IfThenElse(T.bool(True), op.then_case, None), sync, op])

    func = with_body(func, structural_mutate(func.body, [(tirx.IfThenElse, twice)]))
    assert planned(func, barriers="insert").script().count("tvm_storage_sync") == 2


def test_a_function_that_is_not_understood_is_left_to_tvm(caplog: pytest.LogCaptureFixture):
    sized = 'a = T.alloc_buffer((n,), scope="shared.dyn")'
    func = kernel(f"{sized}\nb: shared.dyn 64\n{SUM}", "x: 64, n: T.int32")
    with caplog.at_level(logging.WARNING, "tvm_ext.PlanSharedMemory"):
        ours = planned(func)
    tvm.ir.assert_structural_equal(ours, by_tvm(func), map_free_vars=True)
    assert "'a' in shared.dyn: its size is known at run time only" in caplog.text


def test_a_thread_without_a_tag_is_left_to_tvm():
    @T.prim_func(s_tir=True, check_well_formed=False)
    def func(x: T.Buffer((64,), "float32")):
        tx = T.env_thread("threadIdx.x")
        with T.attr(tx, "thread_extent", 64):
            a = T.alloc_buffer((64,), "float32", scope="shared.dyn")
            b = T.alloc_buffer((64,), "float32", scope="shared.dyn")
            a[tx] = x[tx]
            b[tx] = a[tx]
            x[tx] = b[tx]

    tvm.ir.assert_structural_equal(planned(func), by_tvm(func), map_free_vars=True)
