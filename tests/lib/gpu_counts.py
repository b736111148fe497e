# SPDX-License-Identifier: Apache-2.0
"""What Relax functions take on a GPU: bytes of a call, kernels in CUDA graphs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import tvm
from allocated import AllocatedMemory, allocated_memory
from measured_memory import functions_of as functions_of
from tvm import relax
from tvm.ir.transform import Pass

GRAPHS = {"relax.backend.use_cuda_graph": True}

PREFIX = "vm.builtin.cuda_graph."

STOCK = relax.transform.StaticPlanBlockMemory()


def nbytes(func: relax.Function) -> int:
    """Return what a call allocates, where that is a constant."""
    allocated = allocated_memory(func)
    return allocated.nbytes + allocated.left_bytes


# ------------------------------------------------------------------------------------- CUDA graphs


def rewritten(lowered: tvm.IRModule, plan: Pass) -> tvm.IRModule:
    """Plan a lowered module, and put what can be captured into functions of its own."""
    with tvm.transform.PassContext(config=GRAPHS), tvm.target.Target("llvm"):
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


def graphs(lowered: tvm.IRModule, plan: Pass) -> tuple[int, int, int, int, int]:
    """Return kernels captured, all kernels, graphs, bytes kept, and most bytes of a call."""
    found = captured(rewritten(lowered, plan))
    most = max(one.nbytes + one.left_bytes for one in found.run.values())
    return found.kernels, found.launches, found.graphs, found.kept, most
