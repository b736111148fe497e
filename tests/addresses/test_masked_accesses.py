# SPDX-License-Identifier: Apache-2.0
"""Loads and stores under a mask, which are calls that take a buffer and an index."""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from address_runs import assert_same_results, identity, memory_after
from program_text import programs
from tvm import tirx

from passes.ir import find_accesses, find_linear_access
from passes.prim_func.problems import find_problems
from tvm_ext.transform import StorageRewrite


def lowered(func: tirx.PrimFunc) -> tvm.IRModule:
    flatten = tirx.transform.FlattenBuffer()
    return flatten(tvm.IRModule({"main": func.with_attr("global_symbol", "main")}))


PROGRAMS = programs("""
def masked(x: 64, y: 64):
    a, b, c: local.UB 64
    a[i] = x[i] for i in range(64)
    b[i] = T.float32(-1) for i in range(64)
    for i in range(16):
        T.evaluate(
            T.masked_store(
                b,
                T.masked_load("float32x4", a, T.Ramp(i * 4, 1, 4), T.Broadcast(T.bool(True), 4)),
                T.Ramp(60 - i * 4, 1, 4),
                T.Ramp(i * 4, 1, 4) < T.Broadcast(42, 4),
            )
        )
    c[i] = b[63 - i] for i in range(64)
    y[i] = c[i] + a[63 - i] for i in range(64)

def loaded_for_a_store(x: 64, y: 64):
    a, b, c: local.UB 64
    a[i] = x[i] for i in range(64)
    for i in range(16):
        b[T.Ramp(i * 4, 1, 4)] = T.masked_load(
            "float32x4", a, T.Ramp(60 - i * 4, 1, 4), T.Broadcast(T.bool(True), 4)
        )
    c[i] = b[63 - i] for i in range(64)
    y[i] = c[63 - i] for i in range(64)

def address_in_a_number(x: 64, y: 64):
    kept, other: local.UB 64
    slot: local.UB 2 int64
    kept[i] = x[i] for i in range(64)
    T.evaluate(
        T.masked_store(
            slot,
            T.Broadcast(T.call_extern("int64", "labs", kept.data), 2),
            T.Ramp(0, 1, 2),
            T.Broadcast(T.bool(True), 2),
        )
    )
    other[i] = x[63 - i] * T.float32(3) for i in range(64)
    y[i] = other[63 - i] for i in range(64)
    T.evaluate(T.call_extern("int32", "memcpy", y.data, slot[0], T.int64(128)))
""")


def test_a_masked_load_keeps_nothing_alive():
    (attached,) = find_problems(lowered(PROGRAMS["loaded_for_a_store"])["main"]).problems
    live = {buffer.name: buffer.live[0] for buffer in attached.problem.buffers}
    assert live["a"][1] <= live["c"][0]
    assert_same_results(lowered(PROGRAMS["loaded_for_a_store"]))


def test_an_address_that_a_masked_store_writes_is_kept():
    assert_same_results(lowered(PROGRAMS["address_in_a_number"]))


word = tirx.decl_buffer((1,), "int64", "word", layout=None)


def lends(call: Any) -> bool:
    """Whether a buffer of a call may end its life with the statement."""
    buffer = tirx.decl_buffer((16,), "int64", "kept", scope="local.UB", layout=None)
    statements = [tirx.AllocBuffer(buffer), tirx.Evaluate(call(buffer)), tirx.Evaluate(0)]
    func = tirx.PrimFunc([word], tirx.SeqStmt(statements))
    (uses,) = find_accesses(find_linear_access(func)).of
    return not uses.escapes


def test_an_address_is_kept_as_a_number_or_as_what_is_stored():
    def add(where: Any, value: Any) -> Any:
        return tirx.call_intrin("int64", "tirx.atomic_add", where, value)

    def kept(buffer: Any) -> Any:
        return tirx.call_extern("int64", "labs", buffer.data)

    number = tirx.IntImm("int64", 1)
    assert lends(lambda buffer: add(buffer.data, number))
    assert not lends(lambda buffer: add(word.data, tirx.reinterpret("int64", buffer.data)))
    assert not lends(lambda b: add(word.data, kept(b)))
    fetch = "tirx.ptx.atom", tirx.BufferLoad(word, [0])  # The register of what was there
    assert lends(lambda b: tirx.call_intrin("int64", *fetch, b.data, number))
    assert not lends(lambda b: tirx.call_intrin("int64", *fetch, word.data, kept(b)))
    assert not lends(lambda buffer: tirx.reinterpret("int64", buffer.data))
    assert lends(lambda buffer: tirx.reinterpret(buffer.data.ty, buffer.data))


def test_registers_of_an_instruction_that_goes_on_stay_its_own():
    def instruction(name: str) -> Any:
        return lambda b: tirx.call_intrin("int32", f"tirx.ptx.{name}", tirx.BufferLoad(b, [0]))

    assert lends(instruction("mma"))
    assert not lends(instruction("wgmma_f16_rs"))  # Until `wgmma.wait_group`
    assert not lends(instruction("tcgen05_ld"))  # Until `tcgen05.wait`


def test_a_masked_vector_is_aligned_like_any_other():
    (attached,) = find_problems(lowered(PROGRAMS["masked"])["main"]).problems
    alignments = {buffer.name: buffer.alignment for buffer in attached.problem.buffers}
    assert alignments == {"a": 16, "b": 16, "c": 4}


def test_memory_that_is_packed_is_accessed_as_the_stock_pass_does():
    mod = lowered(PROGRAMS["masked"])
    stock = tirx.transform.StorageRewrite()(mod)
    assert tvm_ffi.structural_equal(StorageRewrite()(mod), stock, map_free_vars=True)
    expected = memory_after(mod, identity())
    for sound in (False, True):
        assert memory_after(mod, StorageRewrite(sound=sound)) == expected
