# SPDX-License-Identifier: Apache-2.0
"""CUDA graphs on a CPU: what `RewriteCUDAGraph` makes, counted, and run as a GPU would run it.

`vm.builtin.cuda_graph.get_cached_alloc` makes the storages of all functions once. `run_or_capture`
records the kernels of a region with the tensors that they are given; from then on those kernels run
again on those very tensors, whatever the program would hand them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from allocated import AllocatedMemory, allocated_memory
from llvm_level import at_level
from relax_runs import flat
from tvm import relax
from tvm.ir.transform import Pass, Sequential

from tvm_ext.relax_passes import relax_stages

CONFIG = {"relax.backend.use_cuda_graph": True}

PREFIX = "vm.builtin.cuda_graph."


def rewritten(lowered: tvm.IRModule, plan: Pass) -> tvm.IRModule:
    """Plan a lowered module, and put what can be captured into functions of its own."""
    with tvm.transform.PassContext(config=CONFIG), tvm.target.Target("llvm"):
        return relax.transform.RewriteCUDAGraph()(plan(lowered))


@dataclass(frozen=True)
class Captured:
    """What is captured of a module, and what it allocates."""

    kernels: int  # Launches of kernels within regions
    launches: int  # All launches of kernels
    graphs: int  # Regions that are run or captured
    kept: int  # Bytes of the storages that are kept
    run: Mapping[str, AllocatedMemory]  # What each function allocates in a call


def captured(mod: tvm.IRModule) -> Captured:
    """Count what is captured of a rewritten module, in the order of its bindings."""
    kernels = launches = graphs = kept = 0
    run = {}
    for variable in mod.get_global_vars():
        func, name = mod[variable], str(variable.name_hint)
        if not isinstance(func, relax.Function) or "cuda_graph_capture" in name:
            continue
        if "cuda_graph_alloc" in name:
            kept = allocated_memory(func).nbytes
            continue
        run[name] = allocated_memory(func)
        calls = list(_calls(func.body))
        launches += sum(_is_kernel(mod, call) for call in calls)
        for call in calls:
            if _builtin(call) == "run_or_capture":
                inside = mod[call.args[1].fields[0]]
                region = sum(_is_kernel(mod, one) for one in _calls(inside.body))
                graphs, kernels, launches = graphs + 1, kernels + region, launches + region
    return Captured(kernels, launches, graphs, kept, run)


def _calls(body: Any) -> Iterator[relax.Call]:
    for block in body.blocks if isinstance(body, relax.SeqExpr) else ():
        for binding in block.bindings:
            if isinstance(binding.value, relax.If):
                yield from _calls(binding.value.true_branch)
                yield from _calls(binding.value.false_branch)
            elif isinstance(binding.value, relax.Call):
                yield binding.value


def _builtin(call: relax.Call) -> str:
    if call.op != tvm.ir.Op.get("relax.call_builtin_with_ctx"):
        return ""
    return str(call.args[0].global_symbol).removeprefix(PREFIX)


def _is_kernel(mod: tvm.IRModule, call: relax.Call) -> bool:
    if isinstance(call.op, relax.ExternFunc):
        return not str(call.op.global_symbol).startswith("vm.builtin")
    return isinstance(call.op, tvm.ir.GlobalVar) and isinstance(mod[call.op], tvm.tirx.PrimFunc)


# ------------------------------------------------------------------------------------------ running


class GraphMachine:
    """A virtual machine whose regions are captured once, and replayed."""

    def __init__(self, lowered: tvm.IRModule, plan: Pass) -> None:
        behind = relax_stages("llvm").behind
        mod = rewritten(lowered, plan)
        executable = tvm.compile(mod, target=at_level("llvm"), relax_pipeline=Sequential(behind))
        self.machine = relax.VirtualMachine(executable.jit(), tvm.cpu())
        self.replays = 0
        self._kept: Any = None
        self._graphs: dict[tuple[int, ...], tuple[list[tuple[Any, tuple[Any, ...]]], Any]] = {}

    def run(self, name: str, arguments: Sequence[Any]) -> list[np.ndarray]:
        """Call a function, and return its results, tuples flattened."""
        GraphMachine._current = self
        given = [tvm.runtime.tensor(a) if isinstance(a, np.ndarray) else a for a in arguments]
        return [tensor.numpy().copy() for tensor in flat(self.machine[name](*given))]

    _current: GraphMachine

    def kept(self, function: Any) -> Any:
        if self._kept is None:
            self._kept = self.machine.invoke_closure(function)
        return self._kept

    def run_or_capture(self, function: Any, arguments: Any, key: tuple[int, ...]) -> Any:
        if key in self._graphs:
            launched, result = self._graphs[key]
            for kernel, given in launched:
                kernel(*given)
            self.replays += 1
            return result
        launched = []

        def note(kernel: Any, name: str, before: bool, _result: Any, *given: Any) -> None:
            if before and not name.startswith("vm.builtin"):
                launched.append((kernel, given))

        self.machine.set_instrument(note)
        result = self.machine.invoke_closure(function, *arguments)
        self.machine.set_instrument(lambda *_: None)
        self._graphs[key] = launched, result
        return result


@tvm.register_global_func(f"{PREFIX}get_cached_alloc", override=True)
def _get_cached_alloc(_context: Any, function: Any, _index: int) -> Any:
    return GraphMachine._current.kept(function)


@tvm.register_global_func(f"{PREFIX}run_or_capture", override=True)
def _run_or_capture(
    _context: Any, function: Any, arguments: Any, index: int, shape: Any = ()
) -> Any:
    key = (int(index), *map(int, shape))
    return GraphMachine._current.run_or_capture(function, arguments, key)
