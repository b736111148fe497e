# SPDX-License-Identifier: Apache-2.0
"""What is read off a kernel: which barriers count, and what is kept across them."""

from __future__ import annotations

from textwrap import indent
from typing import Any

import pytest
import tvm
from program_text import program_source
from tvm import tirx
from tvm.ir import GlobalVar
from tvm.script import tirx as T

from passes.planning.buffer import live_together
from passes.shared_memory.analysis.kernel_memory import find_shared_memory
from passes.shared_memory.planning.epochs import shared_memory_problem
from target_hw.memory import MemoryScope


def kernel(body: str, parameters: str = "x: 64") -> tirx.PrimFunc:
    """Return a kernel of one block of 64 threads."""
    text = f"def main({parameters}) on 1 x 64:\n{indent(body, '    ')}"
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
BOTH_ARMS = f"if n[0] > 0:\n    {SYNC}\nelse:\n    {SYNC}"
ARMS = f"if rounds[0] > 0:\n    {SYNC}\nelse:\n    {SYNC}"


def by_name(value: str) -> tuple[str, str]:
    """Return a barrier in both arms of a condition on a named value, and its name."""
    return ARMS.replace("rounds[0]", "named"), f"named: T.let[T.int32] = {value}"


MEETING = {
    "all": (SYNC, ""),
    "dynamic": ('T.tvm_storage_sync("shared.dyn")', ""),
    "cuda": ('T.evaluate(T.call_intrin("int32", "tirx.cuda.cta_sync"))', ""),
    "as written for PTX": ("T.ptx.bar.sync(0)", ""),
    "in a loop": (f"for i in range(4):\n    {SYNC}", ""),
    "behind a number": (f"T.evaluate(1)\n{SYNC}", ""),
    "behind copies": (
        f'with T.attr(0, "async_commit_queue_scope", 0):\n    o[tx] = x[tx]\n{BOTH_ARMS}',
        "",
    ),
    "in both arms": (BOTH_ARMS, ""),
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
    "as one of so many threads says": (
        ARMS.replace("rounds[0]", "ty"),
        'ty = T.launch_thread("threadIdx.y", n[0])',
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
    "waited for as memory says": (
        f'{COPY}\nT.evaluate(T.call_intrin("int32", "tirx.ptx.cp_async_wait_group", n[0]))',
        False,
    ),
    "told for what memory says": (
        'T.evaluate(T.call_extern("int32", "use", T.tvm_access_ptr('
        'T.type_annotation("float32"), first.data, 0, 64, n[0])))',
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
