"""An address stands in the IR in one way only: TVM's lowering writes it a second time."""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import te
from tvm.tirx import AllocBuffer

import tvm_ext
from tvm_ext.workloads import capture


def test_the_annotation_says_what_the_type_says():
    x = te.placeholder((64,), "float32", "x")
    first = te.compute((64,), lambda i: x[i] + 1.0, "first")
    second = te.compute((64,), lambda i: first[63 - i] * 2.0, "second")
    y = te.compute((64,), lambda i: second[63 - i] - 1.0, "y")
    schedule = tvm.s_tir.Schedule(te.create_prim_func([x, y]))
    for block in ("first", "second"):
        schedule.set_scope(block, 0, "local.UB")
    before = capture(schedule.mod, "llvm")[-1]

    def addresses(mod: tvm.IRModule) -> list[tuple[list[int], list[int]]]:
        found: list[tuple[list[int], list[int]]] = []

        def note(op: AllocBuffer) -> None:
            annotated = op.annotations["buffer_allocated_addr"]
            found.append(
                ([int(a) for a in op.buffer.ty.allocated_addr], [int(a) for a in annotated])
            )

        tvm_ffi.structural_walk(mod["main"].body, (AllocBuffer, note))
        return found

    assert addresses(before) == [([], []), ([], [])]
    after = tvm_ext.transform.PlanAddresses(form="address")(before)
    assert addresses(after) == [([0], [0]), ([256], [256])]
