# SPDX-License-Identifier: Apache-2.0
"""What Relax functions take on a GPU: bytes of a call, kernels in CUDA graphs, TVM's pool."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

import tvm
from allocated import allocated_memory
from tvm import relax
from tvm.ir.transform import Pass
from vm_model import Blocks, Run, pooled
from vm_reader import read_machine_function

GRAPHS = {"relax.backend.use_cuda_graph": True}

STOCK = relax.transform.StaticPlanBlockMemory()


def functions_of(mod: tvm.IRModule) -> dict[str, relax.Function]:
    """Return the Relax functions of a module, sorted by name."""
    named = {str(v.name_hint): mod[v] for v in mod.get_global_vars()}
    return {n: f for n, f in sorted(named.items()) if isinstance(f, relax.Function)}


def nbytes(func: relax.Function) -> int:
    """Return what a call allocates, where that is a constant."""
    allocated = allocated_memory(func)
    return allocated.nbytes + allocated.left_bytes


# ------------------------------------------------------------------------------------- CUDA graphs


def calls_of(body: relax.Expr) -> Iterator[relax.Call]:
    """Yield the calls of a function, those of its branches too."""
    for block in body.blocks if isinstance(body, relax.SeqExpr) else ():
        for binding in block.bindings:
            if isinstance(binding.value, relax.If):
                yield from calls_of(binding.value.true_branch)
                yield from calls_of(binding.value.false_branch)
            elif isinstance(binding.value, relax.Call):
                yield binding.value


def launches(mod: tvm.IRModule, func: relax.Function) -> int:
    """Return how many kernels a function launches."""
    ops = [call.op for call in calls_of(func.body)]
    packed = [str(op.global_symbol) for op in ops if isinstance(op, relax.ExternFunc)]
    kernels = [op for op in ops if isinstance(op, tvm.ir.GlobalVar)]
    own = sum(isinstance(mod[op], tvm.tirx.PrimFunc) for op in kernels)
    # Attention is launched by the cache, which no graph captures.
    return own + sum(not name.startswith("vm.builtin") for name in packed)


def graphs(lowered: tvm.IRModule, plan: Pass) -> tuple[int, int, int, int, int]:
    """Return kernels captured, all kernels, graphs, bytes kept, and most bytes of a call."""
    with tvm.transform.PassContext(config=GRAPHS):
        mod = relax.transform.RewriteCUDAGraph()(plan(lowered))
    captured = every = regions = kept = most = 0
    for name, func in functions_of(mod).items():
        if "cuda_graph_alloc" in name:
            kept = nbytes(func)
        elif "cuda_graph_capture" not in name:
            most = max(most, nbytes(func))
            every += launches(mod, func)
            for call in calls_of(func.body):
                name_of = str(getattr(call.args[0], "global_symbol", "")) if call.args else ""
                if name_of.endswith("run_or_capture"):
                    inside = launches(mod, mod[call.args[1].fields[0]])
                    captured, every, regions = captured + inside, every + inside, regions + 1
    return captured, every, regions, kept, most


def taken(mod: tvm.IRModule, sizes: Mapping[str, int]) -> int:
    """Return what the pooled allocator has taken once each function was called at these sizes."""
    program = {
        name: read_machine_function(mod, mod.get_global_var(name), func)
        for name, func in functions_of(mod).items()
    }
    blocks: Blocks = Counter()
    for name in program:
        blocks |= Run(program, (), sizes)(name).taken
    return pooled(blocks)
