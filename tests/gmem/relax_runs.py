# SPDX-License-Identifier: Apache-2.0
"""Builds Relax modules with one memory plan or another, and runs them on the virtual machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm
from llvm_level import at_level
from measured_memory import Watch
from relax_programs import parse
from tvm import relax
from tvm.ir.transform import Pass, Sequential
from tvm.target import Target

from passes.ir.structural import structural_mutate
from tvm_ext.relax_passes import relax_stages

STOCK = relax.transform.StaticPlanBlockMemory()

KEPT: list[tuple[Any, np.ndarray]] = []
"""What ``test.gmem.keep`` was given, and a copy of what it held then."""


@tvm.register_global_func("test.gmem.keep", override=True)
def keep(tensor: Any) -> Any:
    """Keep a tensor, and return it."""
    KEPT.append((tensor, tensor.numpy().copy()))
    return tensor


@tvm.register_global_func("test.gmem.peek", override=True)
def peek(tensor: Any) -> int:
    """Read the shape of a tensor, and keep nothing of it."""
    return int(tensor.shape[0])


@tvm.register_global_func("test.gmem.double", override=True)
def double(source: Any, result: Any) -> None:
    """Write twice the first argument into the last: destination-passing style."""
    tvm.runtime.tensor(source.numpy() * 2).copyto(result)


def lower(mod: tvm.IRModule, target: str = "llvm", *, fuse: bool = True) -> tvm.IRModule:
    """Run TVM's pipeline up to where memory is planned; TVM names the allocations."""
    stages = relax_stages(target, fuse=fuse)
    *before, last = [*stages.first, *stages.lower]
    assert last.info.name == "CallTIRRewrite"
    with Target(target):
        return Sequential([*before, relax.transform.CallTIRRewrite()])(mod)


def lower_by_needed_passes(mod: tvm.IRModule) -> tvm.IRModule:
    """Lower by the passes that are needed alone: TVM's list for a CPU drops casts first."""
    needed = [
        relax.transform.LegalizeOps(),
        relax.transform.ToNonDataflow(),
        relax.transform.RemovePurityChecking(),
        relax.transform.CallTIRRewrite(),
    ]
    with Target("llvm"):
        return Sequential(needed)(mod)


def lower_source(source: str, *, fuse: bool = False) -> tvm.IRModule:
    """Parse a module and lower it, by default without fusing operators."""
    return lower(parse(source), fuse=fuse)


def planned(lowered: tvm.IRModule, plan: Pass | None, target: str = "llvm") -> tvm.IRModule:
    """Plan memory, or leave each tensor to the runtime."""
    if plan is None:
        return lowered
    with Target(target):
        return plan(lowered)


def compiled(lowered: tvm.IRModule, plan: Pass | None, target: str = "llvm") -> tvm.runtime.Module:
    """Plan a lowered module and compile it, for any number of virtual machines."""
    behind = relax_stages(target).behind
    executable = tvm.compile(
        planned(lowered, plan, target), target=at_level(target), relax_pipeline=Sequential(behind)
    )
    return executable.jit()


def build(lowered: tvm.IRModule, plan: Pass | None, target: str = "llvm") -> relax.VirtualMachine:
    """Plan a lowered module and build it."""
    return relax.VirtualMachine(compiled(lowered, plan, target), tvm.cpu())


class Machine:
    """A virtual machine of its own, for the functions of a module under one of several plans."""

    def __init__(self, library: tvm.runtime.Module, label: str) -> None:
        self._label, self._machine = label, relax.VirtualMachine(library, tvm.cpu())
        self.set_instrument = self._machine.set_instrument

    def __getitem__(self, name: str) -> Any:
        return self._machine[f"{self._label}{name}"]


def build_each(lowered: tvm.IRModule, *plans: Pass | None) -> list[Machine]:
    """Build a lowered module under each of some plans; kernels are compiled once for all."""
    found = [planned(lowered, plan) for plan in plans]
    library = compiled_together(lowered, found)
    return [Machine(library, f"plan{at}_") for at in range(len(found))]


def compiled_together(lowered: tvm.IRModule, found: Sequence[tvm.IRModule]) -> tvm.runtime.Module:
    """Compile the functions of planned modules with the kernels of the module that was planned."""
    functions: dict[tvm.ir.GlobalVar, Any] = {}
    for mod in (lowered, *found):  # A plan may have variants of kernels.
        functions |= {v: f for v, f in mod.functions.items() if not isinstance(f, relax.Function)}
    for at, mod in enumerate(found):
        functions |= _under_other_names(mod, f"plan{at}_")
    return compiled(tvm.IRModule(functions, global_infos=lowered.global_infos), None)


def _under_other_names(mod: tvm.IRModule, label: str) -> dict[tvm.ir.GlobalVar, relax.Function]:
    """Return the Relax functions of a module with a label before their names."""
    named = {v: f for v, f in mod.functions.items() if isinstance(f, relax.Function)}
    new = {str(v.name_hint): tvm.ir.GlobalVar(label + str(v.name_hint)) for v in named}
    for variable in named:
        relax.expr._update_type(new[str(variable.name_hint)], variable.ty)

    def rename(variable: tvm.ir.GlobalVar, _mutator: object) -> tvm.ir.GlobalVar:
        return new.get(str(variable.name_hint), variable)

    callbacks = [(tvm.ir.GlobalVar, rename)]
    return {
        new[str(v.name_hint)]: structural_mutate(f, callbacks).with_attr(
            "global_symbol", label + str(v.name_hint)
        )
        for v, f in named.items()
    }


def run(
    vm: relax.VirtualMachine | Machine, name: str, arrays: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """Call a function; return its results, tuples flattened, once all of them have been made."""
    result = vm[name](*[tvm.runtime.tensor(array) for array in arrays])
    return [tensor.numpy().copy() for tensor in flat(result)]


def assert_same(lowered: tvm.IRModule, plan: Pass, *calls: Sequence[Any], name: str = "main"):
    """Hold the results of calls under a plan against those with each tensor left to the runtime.

    What a packed function kept stays as it was.
    """
    plain, ours = build_each(lowered, None, plan)
    for arrays in calls:
        KEPT.clear()
        np.testing.assert_equal(run(ours, name, arrays), run(plain, name, arrays))
        for tensor, copy in KEPT:
            np.testing.assert_array_equal(tensor.numpy(), copy)


def under_each(
    lowered: tvm.IRModule, call: Callable[[Machine], Any], *plans: Pass | None, heaps: bool = True
) -> tuple[list[int], list[Any]]:
    """Return what the pool takes for calls under each plan, and what the calls return."""
    taken, results = [], []
    for machine in build_each(lowered, *plans):
        watched = Watch(heaps=heaps)(machine, lambda m=machine: results.append(call(m)))
        taken.append(watched.nbytes)
    return taken, results


def flat(value: Any) -> list[Any]:
    """Return the tensors of nested tuples."""
    if isinstance(value, tvm.runtime.Tensor):
        return [value]
    return [tensor for part in value for tensor in flat(part)]
