# SPDX-License-Identifier: Apache-2.0
"""What is read off a kernel: which barriers count, what is kept, and how buffers are aligned."""

from __future__ import annotations

import logging
from textwrap import indent
from typing import Any

import pytest
import tvm
from opencl_runs import shared_bytes
from program_text import program_source
from tvm import tirx
from tvm.ir import GlobalVar
from tvm.script import tirx as T
from tvm.target import Target

from passes.planning.buffer import live_together
from passes.shared_memory.analysis.kernel_memory import find_shared_memory
from passes.shared_memory.planning.epochs import shared_memory_problem
from target_hw.memory import MemoryScope
from tvm_ext.transform import PlanSharedMemory


def kernel(body: str, parameters: str = "x: 64") -> tirx.PrimFunc:
    """Return a kernel of one block of 64 threads."""
    head = 'T.launch_thread("blockIdx.x", 1)\ntx = T.launch_thread("threadIdx.x", 64)\n'
    text = f"def main({parameters}):\n{indent(head + body, '    ')}"
    return tvm.script.from_source(program_source(text), {"T": T, "begin": GlobalVar("begin")})


def two_phases(barrier: str, prologue: str = "") -> tirx.PrimFunc:
    """Return a kernel that uses one buffer, comes by a barrier, and uses another."""
    body = f"""
first, second: shared 64
rounds: local 1 int32
{prologue}
first[tx] = x[tx]
o[tx] = first[tx]
{barrier}
second[tx] = x[tx]
o[tx] = o[tx] + second[tx]
"""
    return kernel(body, "x: 64, n: 1 int32, o: 64")


def problem_of(func: tirx.PrimFunc) -> Any:
    (memory,) = find_shared_memory(func)
    (kernel,) = memory.kernels.values()
    return shared_memory_problem(kernel, MemoryScope("shared"))


def may_share(func: tirx.PrimFunc) -> bool:
    first, second = problem_of(func).buffers
    return not live_together(first.live, second.live)


SYNC = 'T.tvm_storage_sync("shared")'
ARMS = f"if rounds[0] > 0:\n    {SYNC}\nelse:\n    {SYNC}"
SUM = "a[tx] = x[tx]\nb[tx] = x[tx]\nx[tx] = a[tx] + b[tx]"


def by_name(value: str) -> tuple[str, str]:
    """Return a barrier in both arms of a condition on a named value, and its name."""
    return ARMS.replace("rounds[0]", "named"), f"named: T.let[T.int32] = {value}"


MEETING = {
    "all": (SYNC, ""),
    "dynamic": ('T.tvm_storage_sync("shared.dyn")', ""),
    "cuda": ('T.evaluate(T.call_intrin("int32", "tirx.cuda.cta_sync"))', ""),
    "as written for PTX": ("T.ptx.bar.sync(0)", ""),
    "in a loop": (f"for i in range(4):\n    {SYNC}", ""),
    "behind nothing": (f"T.evaluate(0)\n{SYNC}", ""),
    "in both arms": (f"if n[0] > 0:\n    {SYNC}\nelse:\n    {SYNC}", ""),
    "as often as memory says": (f"{SYNC}\nfor i in range(n[0]):\n    {SYNC}", ""),
    "as often as a register says": (
        f"for i in range(1):\n    for j in range(rounds[0]):\n        {SYNC}\n    {SYNC}",
        "rounds[0] = n[0] + 1",
    ),
    "as the program promises": (
        f"if T.tvm_thread_invariant(x[tx] > T.float32(0)):\n    {SYNC}\nelse:\n    {SYNC}",
        "",
    ),
    "as memory says that all threads wrote": (
        ARMS.replace("rounds[0]", 'T.Cast("int32", o[0])'),
        "o[tx] = x[tx]",
    ),
    "as a name says": by_name("n[0] * 2"),
    "as the block says": (ARMS.replace("rounds[0]", "by"), 'by = T.launch_thread("blockIdx.y", 4)'),
    "as the only thread says": (
        ARMS.replace("rounds[0]", "ty"),
        'ty = T.launch_thread("threadIdx.y", 1)',
    ),
    "after rounds of a register": (
        ARMS,
        "rounds[0] = 0\nwhile rounds[0] < n[0]:\n    rounds[0] = rounds[0] + 1",
    ),
}
NOT_MEETING = {
    "none": ("", ""),
    "warp": ('T.tvm_storage_sync("warp")', ""),
    "some threads": (f"if tx < 32:\n    {SYNC}", ""),
    "some threads, both arms": (f"if tx < 32:\n    {SYNC}\nelse:\n    {SYNC}", ""),
    "some threads by memory": (f"if x[tx] > T.float32(0):\n    {SYNC}\nelse:\n    {SYNC}", ""),
    "maybe no threads": (f"if n[0] > 0:\n    {SYNC}", ""),
    "rounds of a thread": (f"for i in range(tx + 1):\n    {SYNC}", ""),
    "maybe no rounds": (f"for i in range(n[0]):\n    {SYNC}", ""),
    "no rounds": (f"for i in range(0):\n    {SYNC}", ""),
    "rounds of some threads": (
        f"if tx < 32:\n    for i in range(4):\n        {SYNC}\nelse:\n    {SYNC}",
        "",
    ),
    "a register of the thread": (ARMS, "rounds[0] = tx"),
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
    "for a number": ('T.evaluate(T.call_intrin("int32", "tirx.ptx.bar_sync_count", 1, 64))', ""),
    "under a predicate": ("T.ptx.bar.sync(0, pred=n[0] > 0)", ""),
    "arrival": ('T.evaluate(T.call_intrin("int32", "tirx.ptx.bar_arrive", 1, 64))', ""),
    "somebody left": (
        SYNC,
        'if tx > 40:\n    T.evaluate(T.call_intrin("void", "tirx.thread_return"))',
    ),
}
NOT_MEETING |= {
    "as a name within says": (
        f"if T.Let(v + 1, where={{v: tx}}) > 5:\n    {SYNC}\nelse:\n    {SYNC}",
        "v = T.int32()",
    ),
    "a value of the thread": by_name('T.call_pure_extern("int32", "lane_id")'),
    "a value of the lane": by_name('T.call_intrin("int32", "tirx.ptx.activemask")'),
    "a value of its turn": by_name('T.call_intrin("int32", "tirx.atomic_add", n.data, 1)'),
}
NOT_MEETING |= {
    f"a register set {how}": (ARMS, f"rounds[0] = 0\n{text}")
    for how, text in {
        "by some": "if tx > 5:\n    rounds[0] = 1",
        "in a loop of some": "if tx > 5:\n    for i in range(n[0]):\n        rounds[0] = 1",
        "in a branch of some": "if tx > 5:\n    if n[0] > 0:\n        rounds[0] = 1",
        "in rounds of some": "if tx > 5:\n    while n[0] > 9:\n        rounds[0] = 1",
        "as often as the thread says": "for i in range(tx):\n    rounds[0] = 1",
        "while the thread says so": "while rounds[0] < tx:\n    rounds[0] = 1",
    }.items()
}


@pytest.mark.parametrize("name", [*MEETING, *NOT_MEETING])
def test_a_barrier_that_all_meet_ends_an_epoch(name: str):
    assert may_share(two_phases(*(MEETING | NOT_MEETING)[name])) == (name in MEETING)


PASSED_BY_ALL = ["for i in range(4)", "while rounds[0] < n[0]", "if n[0] > 0"]
PASSED_BY_SOME = ["for i in range(tx)", "while rounds[0] < tx", "if tx < 32"]


@pytest.mark.parametrize("around", [*PASSED_BY_ALL, *PASSED_BY_SOME])
@pytest.mark.parametrize("outer", ["if n[0] > 5", "if tx < 5"])
def test_a_barrier_is_added_only_where_all_threads_pass(around: str, outer: str):
    body = "first[0] = x[tx]\nsecond[0] = x[tx]"
    func = two_phases(f"{outer}:\n    {around}:\n{indent(body, ' ' * 8)}", "rounds[0] = 0")
    (memory,) = find_shared_memory(func)
    inside = any(len(sequence.seq) == 2 for sequence, _ in memory.places)
    assert inside == (around in PASSED_BY_ALL and "tx" not in outer)


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
        'T.evaluate(T.call_extern("int32", "use", T.call_intrin("uint32", "tirx.ptx.mapa", '
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
}
HANDED_ON |= {
    f"copied by attributes, {left} left": (
        'with T.attr(0, "async_commit_queue_scope", 0), T.attr(0, "async_scope", 1):\n'
        "    first[tx] = x[tx]\n"
        'with T.attr(0, "async_wait_queue_scope", 0):\n'
        f'    with T.attr(0, "async_wait_inflight_count", {left}):\n'
        "        o[tx] = first[tx]",
        left == 0,
    )
    for left in (0, 1)
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


@pytest.mark.parametrize(
    ("first", "last", "shares"),
    [(2, 1, False), (3, 3, False), (0, 0, False), (2, 2, True), (1, 1, True)],
)
def test_a_pointer_says_what_is_done_there(first: int, last: int, shares: bool):
    def use(mask: int) -> str:
        pointer = f'T.tvm_access_ptr(T.type_annotation("float32"), a.data, 0, 64, {mask})'
        return f'T.evaluate(T.call_extern("int32", "use", {pointer}))\n{SYNC}'

    between = f"b[tx] = x[tx]\nx[tx] = b[tx]\n{SYNC}"
    func = kernel(f"a, b: shared 64\n{use(first)}\n{between}\n{use(last)}")
    assert may_share(func) is shares
