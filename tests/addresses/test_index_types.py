# SPDX-License-Identifier: Apache-2.0
"""Indices, offsets and loops of every type of integer, in arenas that are larger than it can count.

The passes stand in front of TVM's pipeline here: inside of it `NarrowDataType` has widened indices.
"""

from __future__ import annotations

import re
from dataclasses import replace
from textwrap import indent

import numpy as np
import pytest
import tvm
from address_runs import build, identity, poisoned
from llvm_level import at_level
from program_text import program
from tvm import tirx

from passes.addresses.transform import PlanAddresses
from passes.prim_func.problems import ProblemOptions, find_problems
from passes.storage_rewrite.transform import StorageRewrite

DTYPES = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
LENGTH = 64
TABLE = 128
FAR = 2**31


def module(body: str, parameters: str) -> tvm.IRModule:
    func = program(f"def main({parameters}):\n{indent(body, '    ')}")
    return tvm.IRModule({"main": func.with_attr("tirx.noalias", True)})


def tables() -> tvm.IRModule:
    """Return a kernel that looks numbers up, and copies by address, at indices of each type."""
    parts = [
        f"""
codes{at}: local.UB {LENGTH} {dtype}
table{at}: local.UB {2 * TABLE} int16
codes{at}[i] = T.Cast('{dtype}', x[i]) for i in range({LENGTH})
table{at}[i] = T.Cast('int16', i * 7 + {at}) for i in range({2 * TABLE})
y[{at * LENGTH} + i] = table{at}[codes{at}[i]] for i in range({LENGTH})
entry{at} = T.meta_var(T.tvm_access_ptr('int16', table{at}.data, codes{at}[1], 1, 1))
T.evaluate(T.call_extern('int32', 'memcpy', T.address_of(y[{at * LENGTH}]), entry{at}, 2))
"""
        for at, dtype in enumerate(DTYPES)
    ]
    return module("".join(parts), f"x: {LENGTH} uint8, y: {LENGTH * len(DTYPES)} int16")


@pytest.mark.parametrize("planner", ["bump", "rec_tbl"])
def test_no_type_of_index_is_too_narrow_for_an_arena(planner: str):
    x = (np.arange(LENGTH) * 2 + 1).astype("uint8")
    y = tvm.runtime.tensor(np.zeros(LENGTH * len(DTYPES), "int16"))
    planned = poisoned(PlanAddresses(planner, "arena"))(tables())
    build(planned, identity())["main"](tvm.runtime.tensor(x), y)
    codes = np.stack([x] * len(DTYPES)).astype(int)
    codes[:, 0] = codes[:, 1]
    expected = codes * 7 + np.arange(len(DTYPES))[:, None]
    np.testing.assert_array_equal(y.numpy().reshape(len(DTYPES), LENGTH), expected)


def test_packed_memory_is_indexed_by_what_can_count_it():
    body = """
codes: local.UB 64 int8
table: local.UB 128 int8
codes[i] = T.Cast("int8", x[i]) for i in range(64)
table[i] = T.Cast("int8", i) for i in range(128)
y[i] = T.Cast("int32", table[codes[i]]) for i in range(64)
"""
    x = np.arange(64, dtype="int32") * 2 + 1
    y = tvm.runtime.tensor(np.zeros(64, "int32"))
    packed = StorageRewrite(sound=True)(module(body, ARRAYS))
    build(packed, identity())["main"](tvm.runtime.tensor(x), y)
    np.testing.assert_array_equal(y.numpy(), x)


BOUNDS = """
n: local.UB 16 {dtype}
n[i] = T.Cast("{dtype}", x[i]) for i in range(16)
for t in range(n[0], n[1], n[2]):
    b = T.alloc_buffer(
        (64,), "int32", scope="local.UB", annotations={{"multi_buffer": {slots}}}
    )
    n[0] = T.{dtype}(97)
    n[2] = T.{dtype}(50)
    b[i] = x[i] + T.Cast("int32", t) for i in range(64)
    y[i] = y[i] * 3 + b[63 - i] for i in range(64)
"""
ARRAYS = "x: 64 int32, y: 64 int32"


@pytest.mark.parametrize(("dtype", "slots"), [("int32", 2), ("int8", 200), ("uint16", 3)])
def test_what_slots_are_counted_by_is_read_once(dtype: str, slots: int):
    mod = module(BOUNDS.format(dtype=dtype, slots=slots), ARRAYS)
    x = np.arange(64, dtype="int32") + 5
    x[1:3] = 12, 2
    expected = np.zeros(64, "int32")
    for t in range(5, 12, 2):
        expected = expected * 3 + x[::-1] + t
    y = tvm.runtime.tensor(np.zeros(64, "int32"))
    planned = poisoned(PlanAddresses("best", "arena"))(mod)
    # TVM's CanonicalizeLoop takes no step that is not constant.
    with tvm.transform.PassContext(disabled_pass=["s_tir.CanonicalizeLoop"]):
        run = build(planned, identity())["main"]
    run(tvm.runtime.tensor(x), y)
    np.testing.assert_array_equal(y.numpy(), expected)


LARGE = """
a = T.alloc_buffer((T.int64({far}),), "int8", scope="local.UB")
b: local.UB 64 int8
for i in range(64):
    b[i] = T.Cast("int8", x[i])
    a[i] = b[i]
b[T.Ramp(i * 4, 1, 4)] = a[T.Ramp(i * 4, 1, 4)] for i in range(16)
pointer = T.meta_var(T.tvm_access_ptr("int8", b.data, x[0], 1, 1))
T.evaluate(T.call_extern("int32", "f", pointer, b.data, a.data))
lanes, mask = T.meta_var((T.Ramp(x[1], 1, 4), T.Broadcast(T.bool(True), 4)))
T.evaluate(T.masked_store(b, T.Broadcast(T.int8(1), 4), lanes, mask))
"""


def test_an_arena_of_more_than_2_to_the_31_elements_is_indexed_by_int64():
    planned = PlanAddresses("bump", "arena")(module(LARGE.format(far=FAR), ARRAYS))["main"]
    text = planned.script()
    shift = f"T.int64({FAR})"
    for index in (
        f'b[T.Cast("int64", i) + {shift}]',
        f'b[T.Cast("int64", i * 4) + {shift}:',
        f'b.data, T.Cast("int64", x[0]) + {shift}',
        f"b[{shift}]",
        f'T.Ramp(T.Cast("int64", x[1]) + {shift}, T.int64(1), 4)',
    ):
        assert index in text, index


def test_symbolic_sizes_rest_on_lower_bounds_that_are_asserted():
    body = """
a = T.alloc_buffer(({extent},), "int32", scope="local.UB")
a[i] = x[i] for i in range({extent})
y[i] = a[i] for i in range({extent})
"""
    asserted = {}
    for extent in ("16 - n", "n + 16"):
        mod = module(body.format(extent=extent), f"n: T.int32, {ARRAYS}")
        planned = PlanAddresses(form="arena", upper_bounds={"n": 16})(mod)
        asserted[extent] = "n is below 0" in planned.script()
        run = tirx.build(planned, target=at_level("llvm"))["main"]
        x, y = (tvm.runtime.tensor(np.arange(64, dtype="int32")) for _ in range(2))
        run(-8, x, y) if extent == "n + 16" else None
        if asserted[extent]:
            with pytest.raises(ValueError, match="n is below 0, for which the memory was planned"):
                run(-48, x, y)
    assert asserted == {"16 - n": True, "n + 16": False}


@pytest.mark.parametrize(
    "extent",
    ["n - T.uint8(10)", 'T.Cast("uint8", T.Cast("int32", n) - 1)', "x[0]", "T.min(x[0], 64)"],
)
def test_a_size_that_may_wrap_or_is_read_has_no_bound(extent: str):
    body = f"""
a = T.alloc_buffer(({extent},), "int32", scope="local.UB")
a[0] = x[0]
y[0] = a[0]
"""
    found = find_problems(
        module(body, f"n: T.uint8, {ARRAYS}")["main"],
        ProblemOptions(upper_bounds=(("n", 16),)),
    )
    assert not found.problems
    (note,) = found.left_alone
    assert note.text.endswith("and no upper bound of it is known")


def test_what_threads_share_is_in_no_arena():
    # TVM places barriers by buffer, and would take all of an arena for one.
    body = """
tx = T.launch_thread("threadIdx.x", 64)
a: {scope} 64 int32
b: {scope} 64 int32
a[tx] = x[tx]
y[tx] = a[63 - tx]
b[tx] = x[tx]
y[tx] = b[63 - tx]
"""
    for scope in ("shared", "shared.dyn", "shared.UB", "warp"):
        func = module(body.format(scope=scope), ARRAYS)["main"]
        options = ProblemOptions((scope,), addressed=False)
        found = find_problems(func, options)
        assert not found.problems
        assert [note.name for note in found.left_alone] == ["a", "b"]
        assert "threads share it" in found.left_alone[0].text
        (attached,) = find_problems(func, replace(options, addressed=True)).problems
        assert attached.problem.separations == (("a", "b"),)


def sizes_allocated(mod: tvm.IRModule) -> list[int]:
    return sorted(map(int, re.findall(r"alloc_buffer\(\((\d+),\)", mod.script())))


@pytest.mark.parametrize("kind", ["parallel", "serial"])
def test_tvm_keeps_all_bytes_of_an_arena_of_addresses(kind):
    # `CompactBufferAllocation` would cut an arena down to the bytes that it sees an access to.
    body = f"""
codes: global 64 uint8
table: global 256 int32
codes[i] = T.Cast("uint8", i * 4 + 3) for i in range(64)
table[i] = x[i] * 3 for i in range(256)
for p in T.{kind}(4):
    turns = T.alloc_buffer((64,), "int32", annotations={{"multi_buffer": 2}})
    turns[i] = table[codes[i]] + p for i in range(64)
    y[p * 64 + i] = turns[63 - i] for i in range(64)
"""
    mod = module(body, "x: 256 int32, y: 256 int32")
    given = np.arange(256, dtype="int32") * 7 % 101
    result = tvm.runtime.tensor(np.zeros(256, "int32"))
    planned = PlanAddresses("bump", "arena")(mod)
    compacted = tvm.s_tir.transform.CompactBufferAllocation()(planned)
    assert sizes_allocated(compacted) == sizes_allocated(planned)
    built = tirx.build(planned, target=at_level("llvm"))
    built["main"](tvm.runtime.tensor(given), result)
    expected = [given[(63 - i) * 4 + 3] * 3 + p for p in range(4) for i in range(64)]
    np.testing.assert_array_equal(result.numpy(), expected)
