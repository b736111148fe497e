# SPDX-License-Identifier: Apache-2.0
"""Runs a program under every plan that we make of it, and holds the results against no plan's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from address_runs import addresses as addresses
from address_runs import at_addresses, built_under, identity, planned_bytes, poisoned
from tvm.ir.transform import Pass, module_pass
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


def lowered(func: PrimFunc) -> tvm.IRModule:
    """Lower a function to where storage is planned."""
    return lowering.capture(tvm.IRModule({"main": func}), TARGET)


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


def calls_of(func: PrimFunc, *second: Sequence[int]) -> list[list[np.ndarray]]:
    """Return the arguments of calls: numbers, one of the given second arguments, and zeros."""
    (first, *_, last) = ([int(extent) for extent in param.ty.shape] for param in func.params)
    x = np.random.default_rng(0).integers(-8, 8, first).astype("float32")
    result = np.zeros(last, "float32")
    return [[x, *([np.array(one, "int32")] if len(one) else []), result] for one in second]


def check_program(
    func: PrimFunc,
    calls: Sequence[Sequence[np.ndarray]],
    capacity: int | None = None,
    shown: Sequence[tuple[str, str]] = (),
    but: Sequence[str] = (),
) -> None:
    """Check that the last argument holds under every plan what it does under none.

    A test that a plan is right says something only if the program's result is another where two
    buffers share bytes that must not: that is so of each pair of `shown`. The capacity is that of
    `plans`, of which some are left out by their names.
    """
    chosen = {name: plan for name, plan in plans(capacity) if name not in but}
    faulty = {f"{upper} on {lower}": on_top_of(upper, lower) for upper, lower in shown}
    ways = {"no plan": identity(), **chosen, **faulty}
    results: dict[str, list[np.ndarray]] = {}
    for name, built in built_under(lowered(func)["main"], ways, TARGET).items():
        for arrays in calls:
            tensors = [tvm.runtime.tensor(array) for array in arrays]
            built(*tensors)
            results.setdefault(name, []).append(tensors[-1].numpy())
    for name in chosen:
        np.testing.assert_equal(results[name], results["no plan"], err_msg=name)
    for name in faulty:
        pairs = zip(results[name], results["no plan"], strict=True)
        assert not all(np.array_equal(*pair) for pair in pairs), name


def least_bytes(func: PrimFunc) -> dict[str, int]:
    """Return what the best plan takes in each form, in bytes."""
    mod = lowered(func)
    forms = ("arena", "address")
    return {form: planned_bytes(PlanAddresses(form=form, scopes=[SCOPE])(mod)) for form in forms}


def on_top_of(upper: str, lower: str) -> Pass:
    """Return a pass after which one allocation has the bytes of another: the fault itself."""

    def transform(mod: tvm.IRModule, _ctx: Any) -> tvm.IRModule:
        found: dict[str, Any] = {}

        def share(op: AllocBuffer, _mutator: Any) -> Any:
            found[op.buffer.name] = op.buffer
            return DeclBuffer(op.buffer, data=found[lower].data) if op.buffer.name == upper else op

        body = tvm_ffi.structural_mutate(mod["main"].body, (AllocBuffer, share))
        assert upper in found
        return tvm.IRModule({"main": mod["main"].with_body(body)})

    return module_pass(transform, opt_level=0, name="on_top_of")
