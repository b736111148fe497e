# SPDX-License-Identifier: Apache-2.0
"""Addresses that stand in the IR: TVM's lowering writes them twice, and programs ask for some."""

from __future__ import annotations

import address_runs
import pytest
import tvm
from program_text import program
from tvm import te
from tvm.tirx import AllocBuffer

import tvm_ext
from passes.ir.structural import nodes_in
from tvm_ext.lowering import capture


def test_the_annotation_says_what_the_type_says():
    x = te.placeholder((64,), "float32", "x")
    first = te.compute((64,), lambda i: x[i] + 1.0, "first")
    second = te.compute((64,), lambda i: first[63 - i] * 2.0, "second")
    y = te.compute((64,), lambda i: second[63 - i] - 1.0, "y")
    schedule = tvm.s_tir.Schedule(te.create_prim_func([x, y]))
    for block in ("first", "second"):
        schedule.set_scope(block, 0, "local.UB")
    planned = tvm_ext.transform.PlanAddresses(form="address")(capture(schedule.mod, "llvm"))
    assert [*address_runs.addresses(planned).values()] == [(0,), (256,)]
    found = nodes_in(planned["main"].body, AllocBuffer)
    for op in found:
        assert list(op.annotations["buffer_allocated_addr"]) == list(op.buffer.ty.allocated_addr)


def kernel(pinned: str, scope: str = "local.UB") -> tvm.IRModule:
    """Return a kernel with a buffer that has an address, which is read with another one."""
    func = program(f"""
    def main(x: 64 int32, y: 64 int32, n: T.int32):
        a = T.alloc_buffer({pinned}, "int32", scope="{scope}", allocated_addr=[0])
        b: {scope} 64 int32
        b[i] = x[i] for i in range(64)
        a[i] = x[i] for i in range(n)
        y[i] = b[i] + a[0] for i in range(64)
    """)
    return tvm.IRModule({"main": func})


@pytest.mark.parametrize(
    ("pinned", "scope", "other"),
    [
        ("(16,)", "local.UB", (64,)),
        ("(n,)", "local.UB", ()),  # Nobody knows where it ends.
        ("(1,)", "global", (64,)),  # As small as what is kept in registers.
    ],
)
def test_nothing_is_planned_into_an_address_that_the_program_asks_for(
    pinned: str, scope: str, other: tuple[int, ...]
):
    planned = address_runs.addresses(tvm_ext.transform.PlanAddresses()(kernel(pinned, scope)))
    assert planned["a"] == (0,)
    assert planned["b"] == other


def test_what_has_no_known_size_is_planned_at_its_bound():
    planned = tvm_ext.transform.PlanAddresses(upper_bounds={"n": 32})(kernel("(n,)"))
    assert address_runs.addresses(planned) == {"a": (0,), "b": (128,)}


def test_a_bank_and_an_address_of_psum_stay_as_they_are():
    func = kernel("(16,)", "trn.psum")["main"]
    pair = tvm.script.from_source(
        func.script().replace("allocated_addr=0", "allocated_addr=[0, 8]")
    )
    planned = tvm_ext.transform.PlanAddresses()(tvm.IRModule({"main": pair}))
    assert address_runs.addresses(planned) == {"a": (0, 8), "b": (0, 256)}
