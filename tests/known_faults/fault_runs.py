# SPDX-License-Identifier: Apache-2.0
"""Runs a program under every plan that we make of it, and holds the results against numpy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from address_runs import addresses as addresses
from address_runs import at_addresses, build, built_under, identity, planned_bytes, poisoned
from tvm.ir.transform import Pass
from tvm.target import Target
from tvm.tirx import AllocBuffer, DeclBuffer, PrimFunc

from target_hw.memory import MemoryHierarchy, MemoryScope
from target_hw.target import with_memory
from tvm_ext import lowering
from tvm_ext.transform import AscendPlanMemory, PlanAddresses, StorageRewrite

TARGET = "ascend/910b-llvm"
"""A chip with local memories whose programs run on the CPU."""

PLANNERS = ("bump", "first_fit", "rec_tbl", "storage_rewrite", "best")

SCOPE = "local.UB"

Call = tuple[list[np.ndarray], np.ndarray]
"""The arguments of a program, and what the last of them should hold afterwards."""


def lowered(func: PrimFunc) -> tvm.IRModule:
    """Lower a function to where storage is planned."""
    mod = lowering.capture(tvm.IRModule({"main": func}), TARGET)
    return mod


def chip(capacity: int) -> Target:
    """Return a chip with so many bytes of `SCOPE`, whose programs run on the CPU."""
    return with_memory("llvm", MemoryHierarchy((MemoryScope(SCOPE, capacity, 32),)))


def plans(capacity: int | None = None) -> Iterator[tuple[str, Pass]]:
    """Yield each way to plan a function, with a name for messages.

    With a capacity, in bytes, `AscendPlanMemory` has no more than that; else it has a whole chip,
    in which small programs share nothing. What is planned in address form runs at its addresses.
    """
    target = None if capacity is None else chip(capacity)
    yield "StorageRewrite", StorageRewrite()
    yield "StorageRewrite(sound=True)", StorageRewrite(sound=True)
    for planner in PLANNERS:
        name = f"PlanAddresses({planner!r}, 'arena')"
        yield name, poisoned(PlanAddresses(planner, "arena", scopes=[SCOPE]))
    for planner in ("first_fit", "best"):
        plan = PlanAddresses(planner, "address", scopes=[SCOPE])
        yield f"PlanAddresses({planner!r}, 'address')", at_addresses(plan)
    for search in ("search", "mirror"):
        plan = AscendPlanMemory(search=search, form="arena", target=target)
        yield f"AscendPlanMemory({search!r}, 'arena')", poisoned(plan)
    plan = AscendPlanMemory(target=target)
    yield "AscendPlanMemory('search', 'address')", at_addresses(plan)


def run(built: Callable[..., None], arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Run a program, and return all arrays afterwards."""
    tensors = [tvm.runtime.tensor(array) for array in arrays]
    built(*tensors)
    return [tensor.numpy() for tensor in tensors]


def assert_right(
    func: PrimFunc,
    calls: Sequence[Call],
    capacity: int | None = None,
    but: Sequence[str] = (),
) -> None:
    """Check that results are as expected, unplanned and under every plan.

    Parameters
    ----------
    func : tvm.tirx.PrimFunc
        As a user writes it.
    calls : sequence of (list of numpy.ndarray, numpy.ndarray)
        Its arguments, and what the last of them holds afterwards.
    capacity : int, optional
        As in `plans`.
    but : sequence of str
        Names of plans that are left out.
    """
    chosen = {name: plan for name, plan in plans(capacity) if name not in but}
    ways = built_under(lowered(func)["main"], {"no plan": identity(), **chosen}, TARGET)
    for name, way in ways.items():
        for arrays, expected in calls:
            np.testing.assert_array_equal(run(way, arrays)[-1], expected, err_msg=name)


def least_bytes(func: PrimFunc) -> dict[str, int]:
    """Return what the best plan takes in each form, in bytes."""
    mod = lowered(func)
    forms = ("arena", "address")
    return {form: planned_bytes(PlanAddresses(form=form, scopes=[SCOPE])(mod)) for form in forms}


def on_top_of(func: PrimFunc, upper: str, lower: str) -> PrimFunc:
    """Return a function in which one allocation has the bytes of another: the fault itself.

    A test that a plan is right says something only if the program's result is another where two
    buffers share bytes that must not.
    """
    found: dict[str, Any] = {}

    def note(op: AllocBuffer) -> None:
        found[op.buffer.name] = op.buffer

    tvm_ffi.structural_walk(func, (AllocBuffer, note))

    def share(op: AllocBuffer, _mutator: Any) -> Any:
        if op.buffer.name != upper:
            return op
        return DeclBuffer(op.buffer, data=found[lower].data)

    return func.with_body(tvm_ffi.structural_mutate(func.body, (AllocBuffer, share)))


def is_exposed(func: PrimFunc, upper: str, lower: str, calls: Sequence[Call]) -> bool:
    """Whether a result is wrong when two buffers share their bytes."""
    built = build(lowered(on_top_of(func, upper, lower)), identity(), TARGET)["main"]
    return any(not np.array_equal(run(built, arrays)[-1], result) for arrays, result in calls)
