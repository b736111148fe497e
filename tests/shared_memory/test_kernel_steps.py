# SPDX-License-Identifier: Apache-2.0
"""What is read off a kernel: which barriers count, what is kept, and how buffers are aligned."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import tvm
from opencl_runs import shared_bytes
from tvm import tirx
from tvm.ir import GlobalVar
from tvm.script import tirx as T
from tvm.target import Target

from passes.planning.buffer import live_together
from passes.shared_memory.analysis.kernel_memory import find_shared_memory
from passes.shared_memory.planning.epochs import shared_memory_problem
from target_hw.memory import MemoryScope
from tvm_ext.transform import PlanSharedMemory


def two_phases(barrier: str, prologue: str = "") -> tirx.PrimFunc:
    """Return a kernel that uses one buffer, comes by a barrier, and uses another."""
    lines = "\n".join(f"    {line}" for line in barrier.splitlines())
    before = "\n".join(f"    {line}" for line in prologue.splitlines())
    return tvm.script.from_source(
        f"""
@T.prim_func(s_tir=True)
def main(x: T.Buffer((64,), "float32"), n: T.Buffer((1,), "int32"), o: T.Buffer((64,), "float32")):
    T.launch_thread("blockIdx.x", 1)
    tx = T.launch_thread("threadIdx.x", 64)
    first = T.alloc_buffer((64,), "float32", scope="shared")
    second = T.alloc_buffer((64,), "float32", scope="shared")
    rounds = T.alloc_buffer((1,), "int32", scope="local")
{before}
    first[tx] = x[tx]
    o[tx] = first[tx]
{lines}
    second[tx] = x[tx]
    o[tx] = o[tx] + second[tx]
""",
        {"T": T, "begin": GlobalVar("begin")},
    )


def problem_of(func: tirx.PrimFunc) -> Any:
    (memory,) = find_shared_memory(func)
    (kernel,) = memory.kernels.values()
    return shared_memory_problem(kernel, MemoryScope("shared"))


def may_share(func: tirx.PrimFunc) -> bool:
    first, second = problem_of(func).buffers
    return not live_together(first.live, second.live)


SYNC = 'T.tvm_storage_sync("shared")'
MEETING = {
    "all": (SYNC, ""),
    "dynamic": ('T.tvm_storage_sync("shared.dyn")', ""),
    "cuda": ('T.evaluate(T.call_intrin("int32", "tirx.cuda.cta_sync"))', ""),
    "named": ('T.evaluate(T.call_intrin("int32", "tirx.ptx.bar_sync_count", 1, 64))', ""),
    "as written for PTX": ("T.ptx.bar.sync(0)", ""),
    "in a loop": (f"for i in range(4):\n    {SYNC}", ""),
    "in both arms": (f"if n[0] > 0:\n    {SYNC}\nelse:\n    {SYNC}", ""),
    "as often as memory says": (f"{SYNC}\nfor i in range(n[0]):\n    {SYNC}", ""),
    "as often as a register says": (
        f"for i in range(1):\n    for j in range(rounds[0]):\n        {SYNC}\n    {SYNC}",
        "rounds[0] = n[0] + 1",
    ),
}
ARMS = f"if rounds[0] > 0:\n    {SYNC}\nelse:\n    {SYNC}"
MEETING |= {
    "as the program promises": (
        f"if T.tvm_thread_invariant(x[tx] > T.float32(0)):\n    {SYNC}\nelse:\n    {SYNC}",
        "",
    ),
    "as a name says": (
        f"if count > 0:\n    {SYNC}\nelse:\n    {SYNC}",
        "count: T.let[T.int32] = n[0] * 2",
    ),
    "after rounds of a register": (
        ARMS,
        "rounds[0] = 0\nwhile rounds[0] < n[0]:\n    rounds[0] = rounds[0] + 1",
    ),
}
NOT_MEETING = {
    "a register set in a loop of some": (
        ARMS,
        "rounds[0] = 0\nif tx > 5:\n    for i in range(n[0]):\n        rounds[0] = 1",
    ),
    "a register set in a branch of some": (
        ARMS,
        "rounds[0] = 0\nif tx > 5:\n    if n[0] > 0:\n        rounds[0] = 1",
    ),
    "a register set in rounds of some": (
        ARMS,
        "rounds[0] = 0\nif tx > 5:\n    while n[0] > 9:\n        rounds[0] = 1",
    ),
    "a register set as often as the thread says": (
        ARMS,
        "rounds[0] = 0\nfor i in range(tx):\n    rounds[0] = 1",
    ),
    "a register set while the thread says so": (
        ARMS,
        "rounds[0] = 0\nwhile rounds[0] < tx:\n    rounds[0] = 1",
    ),
    "none": ("", ""),
    "warp": ('T.tvm_storage_sync("warp")', ""),
    "some threads": (f"if tx < 32:\n    {SYNC}", ""),
    "some threads, both arms": (f"if tx < 32:\n    {SYNC}\nelse:\n    {SYNC}", ""),
    "some threads by memory": (f"if x[tx] > T.float32(0):\n    {SYNC}\nelse:\n    {SYNC}", ""),
    "maybe no threads": (f"if n[0] > 0:\n    {SYNC}", ""),
    "rounds of a thread": (f"for i in range(tx + 1):\n    {SYNC}", ""),
    "maybe no rounds": (f"for i in range(n[0]):\n    {SYNC}", ""),
    "a register of the thread": (ARMS, "rounds[0] = tx"),
    "a register set by some": (ARMS, "rounds[0] = 0\nif tx > 5:\n    rounds[0] = 1"),
    "a register that a call writes": (
        ARMS,
        'T.evaluate(T.call_extern("int32", "fill", T.address_of(rounds[0])))',
    ),
    "a register that a call writes for a condition": (
        ARMS,
        'if T.call_extern("int32", "fill", T.address_of(rounds[0])) > 0:\n    o[tx] = x[tx]',
    ),
    "a register that an instruction writes": (
        ARMS,
        "T.ptx.ld.s32(rounds[0], T.address_of(x[tx]))",
    ),
    "a register of another name": (
        ARMS,
        'other = T.decl_buffer((1,), "int32", data=T.address_of(rounds[0]), scope="local")\n'
        "other[0] = tx",
    ),
    "a value of the thread": (
        f"if lane > 0:\n    {SYNC}\nelse:\n    {SYNC}",
        'lane: T.let[T.int32] = T.call_pure_extern("int32", "lane_id")',
    ),
    "a value of the lane": (
        f"if lane > 0:\n    {SYNC}\nelse:\n    {SYNC}",
        'lane: T.let[T.int32] = T.call_intrin("int32", "tirx.ptx.activemask")',
    ),
    "a value of its turn": (
        f"if turn > 0:\n    {SYNC}\nelse:\n    {SYNC}",
        'turn: T.let[T.int32] = T.call_intrin("int32", "tirx.atomic_add", n.data, 1)',
    ),
    "named, of some": ('T.evaluate(T.call_intrin("int32", "tirx.ptx.bar_sync_count", 1, 32))', ""),
    "under a predicate": ("T.ptx.bar.sync(0, pred=n[0] > 0)", ""),
    "arrival": ('T.evaluate(T.call_intrin("int32", "tirx.ptx.bar_arrive", 1, 64))', ""),
    "somebody left": (
        SYNC,
        'if tx > 40:\n    T.evaluate(T.call_intrin("void", "tirx.thread_return"))',
    ),
}


@pytest.mark.parametrize("name", MEETING)
def test_a_barrier_that_all_meet_ends_an_epoch(name: str):
    assert may_share(two_phases(*MEETING[name]))


@pytest.mark.parametrize("name", NOT_MEETING)
def test_no_other_ends_an_epoch(name: str):
    assert not may_share(two_phases(*NOT_MEETING[name]))


def test_a_kernel_that_calls_nothing_has_one_epoch():
    assert not may_share(two_phases(""))


@pytest.mark.parametrize("loop", ["for i in range(many[0])", "while rounds[0] < many[0]"])
def test_generated_code_reads_the_end_of_a_loop_in_each_round(loop: str):
    func = two_phases(
        f"{SYNC}\n{loop}:\n    {SYNC}\n    second[tx] = x[tx]\n    {SYNC}\n{SYNC}",
        'many = T.alloc_buffer((64,), "int32", scope="shared")\nmany[tx] = n[0]\nrounds[0] = 0',
    )
    _, second, many = problem_of(func).buffers
    assert live_together(second.live, many.live)


COPY = """
T.evaluate(
    T.call_intrin("float32", "tirx.s_tir.cp_async_raw", first.data, tx, x.data, tx, 4)
)
T.evaluate(T.call_intrin("int32", "tirx.ptx.cp_async_commit_group"))
"""
HANDED_ON = {
    "lent": ('T.evaluate(T.call_extern("int32", "use", T.address_of(first[0])))', True),
    "told": (
        'T.evaluate(T.call_extern("int32", "use", T.tvm_access_ptr('
        'T.type_annotation("float32"), first.data, 0, 64, 1)))',
        True,
    ),
    "bound": (
        'p: T.let[T.handle("float32", "shared")] = T.tvm_access_ptr('
        'T.type_annotation("float32"), first.data, 0, 64, 1)',
        False,
    ),
    "named": (
        'part = T.decl_buffer((32,), "float32", data=T.address_of(first[32]), scope="shared")',
        False,
    ),
    "stored to": ("T.ptx.st.shared.s32(T.address_of(first[0]), n[0])", True),
    "stored": (
        'T.ptx.st.u32(T.address_of(o[0]), T.call_extern("uint32", "use", T.address_of(first[0])))',
        False,
    ),
    "added to": ("T.ptx.atom.shared.add.f32(o[0], T.address_of(first[0]), o[1])", True),
    "added": (
        "T.ptx.atom.add.f32(o[0], T.address_of(o[1]), "
        'T.call_extern("float32", "use", T.address_of(first[0])))',
        False,
    ),
    "answered": ('o[tx] = T.call_extern("float32", "use", T.address_of(first[0]))', False),
    "not known": (
        'T.evaluate(T.call_intrin("int32", "tirx.ptx.mbarrier_init", T.address_of(first[0]), 1))',
        False,
    ),
    "of another block": (
        'T.evaluate(T.call_extern("int32", "use", T.call_intrin("uint32", "tirx.ptx.mapa_u32", '
        "T.address_of(first[0]), 1)))",
        False,
    ),
    "copied, not waited for": (COPY, False),
    "given to a function": ("T.evaluate(begin(first.data))", False),
    "copied": (
        f'{COPY}\nT.evaluate(T.call_intrin("int32", "tirx.ptx.cp_async_wait_group", 0))',
        True,
    ),
    "waited for or not": (f"{COPY}\nT.ptx.cp.async_.wait_group(0, pred=n[0] > 0)", False),
    "copied by attributes": (
        'with T.attr(0, "async_commit_queue_scope", 0):\n'
        '    with T.attr(0, "async_scope", 1):\n'
        "        first[tx] = x[tx]\n"
        'with T.attr(0, "async_wait_queue_scope", 0):\n'
        '    with T.attr(0, "async_wait_inflight_count", 0):\n'
        "        o[tx] = first[tx]",
        True,
    ),
    "copied by attributes, one left": (
        'with T.attr(0, "async_commit_queue_scope", 0):\n'
        '    with T.attr(0, "async_scope", 1):\n'
        "        first[tx] = x[tx]\n"
        'with T.attr(0, "async_wait_queue_scope", 0):\n'
        '    with T.attr(0, "async_wait_inflight_count", 1):\n'
        "        o[tx] = first[tx]",
        False,
    ),
}


@pytest.mark.parametrize("name", HANDED_ON)
def test_an_address_may_be_used_for_longer(name: str):
    text, shares = HANDED_ON[name]
    assert may_share(two_phases(f"{text}\n{SYNC}")) is shares


@pytest.mark.parametrize(
    ("text", "alignment"),
    [
        ("o[tx] = first[tx]", 4),
        ("o[T.Ramp(tx, 1, 4)] = first[T.Ramp(tx, 1, 4)]", 16),
        ('T.evaluate(T.call_extern("int32", "use", T.address_of(first[0])))', 64),
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
    @T.prim_func(s_tir=True)
    def func(x: T.Buffer((64,), "float32")):
        T.launch_thread("blockIdx.x", 1)
        tx = T.launch_thread("threadIdx.x", 64)
        a = T.alloc_buffer((64,), "float32", scope="shared", align=256)
        b = T.alloc_buffer((64,), "float32", scope="shared")
        a[tx] = x[tx]
        b[tx] = x[tx]
        x[tx] = a[tx] + b[tx]

    assert [buffer.alignment for buffer in problem_of(func).buffers] == [256, 4]
    text = planned(func).script()
    assert "256" in text.split("arena_shared = ")[1].splitlines()[0]


def planned(func: tirx.PrimFunc, **options: Any) -> tirx.PrimFunc:
    mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    return PlanSharedMemory(**options)(mod)["main"]


# Memory that is too small


def test_what_does_not_fit_says_what_is_in_the_way():
    chip = Target({"kind": "cuda", "arch": "sm_80", "max_shared_memory_per_block": 500})
    func = two_phases("o[tx] = first[63 - tx] + second[tx]")
    with pytest.raises(ValueError, match="function 'main'") as caught:
        planned(func, target=chip)
    for part in ("'shared' needs 512 bytes", "has 500", "first: 256 bytes", "epoch 0"):
        assert part in str(caught.value)


def test_nothing_goes_in_place_of_what_another_thread_reads():
    chip = Target({"kind": "cuda", "arch": "sm_80", "max_shared_memory_per_block": 500})
    func = two_phases(f"{SYNC}\nsecond[tx] = first[63 - tx]\n{SYNC}")
    with pytest.raises(ValueError, match="no plan needs less than 512 bytes") as caught:
        planned(func, target=chip)
    assert "in place" not in str(caught.value)


def test_both_scopes_are_one_memory():
    @T.prim_func(s_tir=True)
    def func(x: T.Buffer((64,), "float32")):
        T.launch_thread("blockIdx.x", 1)
        tx = T.launch_thread("threadIdx.x", 64)
        a = T.alloc_buffer((64,), "float32", scope="shared")
        b = T.alloc_buffer((64,), "float32", scope="shared.dyn")
        a[tx] = x[tx]
        b[tx] = x[tx]
        x[tx] = a[tx] + b[tx]

    described = {"shared": {"capacity": 256}, "shared.dyn": {"capacity": 512}}
    chip = Target({"kind": "cuda", "arch": "sm_80", "feature.memory": described})
    planned(func, target=chip)
    described["shared.dyn"]["capacity"] = 511
    chip = Target({"kind": "cuda", "arch": "sm_80", "feature.memory": described})
    with pytest.raises(ValueError, match=r"shared\.dyn"):
        planned(func.with_attr("target", chip))


def test_the_limit_of_tvm_only_warns(caplog: pytest.LogCaptureFixture):
    chip = Target({"kind": "cuda", "arch": "sm_80", "max_shared_memory_per_block": 500})
    func = two_phases("o[tx] = first[63 - tx] + second[tx]").with_attr("target", chip)
    with caplog.at_level(logging.WARNING, "tvm_ext.PlanSharedMemory"):
        assert shared_bytes(planned(func)) == 512
    assert "512" in caplog.text


# What is left alone


def test_what_is_not_planned_stays_as_it_is(caplog: pytest.LogCaptureFixture):
    @T.prim_func(s_tir=True)
    def func(x: T.Buffer((64,), "float32")):
        T.launch_thread("blockIdx.x", 1)
        tx = T.launch_thread("threadIdx.x", 64)
        a = T.alloc_buffer((64,), "float32", scope="shared")
        b = T.alloc_buffer((64,), "float32", scope="shared")
        flags = T.alloc_buffer((64,), "int4", scope="shared")
        a[tx] = x[tx]
        b[tx] = x[tx]
        flags[tx] = T.Cast("int4", x[tx])
        x[tx] = a[tx] + b[tx] + T.Cast("float32", flags[tx])

    with caplog.at_level(logging.INFO, "tvm_ext.PlanSharedMemory"):
        text = planned(func).script()
    assert "flags = T.alloc_shared((64,)" in text
    assert "arena_shared = T.alloc_shared((128,)" in text
    assert "'flags' in shared: its elements are no whole bytes" in caplog.text


@pytest.mark.parametrize(
    ("allocation", "use", "reason"),
    [
        (
            'T.alloc_buffer((8,), "float32", scope="shared", allocated_addr=64)',
            "c[0]",
            "an address",
        ),
        (
            'T.alloc_buffer((8,), "float32", scope="shared", annotations={"tirx.volatile": True})',
            "c[0]",
            "volatile",
        ),
        ('T.alloc_buffer((8,), "float32", scope="shared")', 'c[T.Cast("uint8", tx)]', "wraps"),
    ],
)
def test_what_means_more_than_its_bytes_stays(
    allocation: str, use: str, reason: str, caplog: pytest.LogCaptureFixture
):
    func = two_phases(f"c = {allocation}\no[tx] = {use} + second[tx]")
    with caplog.at_level(logging.INFO, "tvm_ext.PlanSharedMemory"):
        text = planned(func).script()
    assert "c = T.alloc_" in text
    assert reason in caplog.text


def test_a_function_that_is_not_understood_is_left_to_tvm(caplog: pytest.LogCaptureFixture):
    @T.prim_func(s_tir=True)
    def func(x: T.Buffer((64,), "float32"), n: T.int32):
        T.launch_thread("blockIdx.x", 1)
        tx = T.launch_thread("threadIdx.x", 64)
        a = T.alloc_buffer((n,), "float32", scope="shared.dyn")
        b = T.alloc_buffer((64,), "float32", scope="shared.dyn")
        a[tx] = x[tx]
        b[tx] = x[tx]
        x[tx] = a[tx] + b[tx]

    with caplog.at_level(logging.WARNING, "tvm_ext.PlanSharedMemory"):
        ours = planned(func)
    mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    stock = tvm.s_tir.transform.MergeSharedMemoryAllocations()(mod)["main"]
    tvm.ir.assert_structural_equal(ours, stock, map_free_vars=True)
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

    mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    stock = tvm.s_tir.transform.MergeSharedMemoryAllocations()(mod)["main"]
    tvm.ir.assert_structural_equal(planned(func), stock, map_free_vars=True)


def test_a_kernel_keeps_its_input():
    func = two_phases(SYNC)
    text = func.script()
    assert shared_bytes(planned(func)) == 256
    assert func.script() == text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"barriers": "some"}, "PlanSharedMemory: barriers must be one of existing, insert"),
        ({"planner": "nothing"}, "unknown planner"),
    ],
)
def test_a_wrong_option_is_an_error_at_once(options: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        PlanSharedMemory(**options)


@pytest.mark.parametrize(
    ("first", "last", "shares"),
    [(2, 1, False), (3, 3, False), (0, 0, False), (2, 2, True), (1, 1, True)],
)
def test_a_pointer_says_what_is_done_there(first: int, last: int, shares: bool):
    def use(mask: int) -> str:
        pointer = f'T.tvm_access_ptr(T.type_annotation("float32"), a.data, 0, 64, {mask})'
        return f'    T.evaluate(T.call_extern("int32", "use", {pointer}))\n    {SYNC}\n'

    func = tvm.script.from_source(f"""
@T.prim_func(s_tir=True)
def main(x: T.Buffer((64,), "float32")):
    T.launch_thread("blockIdx.x", 1)
    tx = T.launch_thread("threadIdx.x", 64)
    a = T.alloc_buffer((64,), "float32", scope="shared")
    b = T.alloc_buffer((64,), "float32", scope="shared")
{use(first)}
    b[tx] = x[tx]
    x[tx] = b[tx]
    {SYNC}
{use(last)}
""")
    assert may_share(func) is shares
