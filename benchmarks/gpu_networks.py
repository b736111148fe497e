# SPDX-License-Identifier: Apache-2.0
"""Networks on GPUs: what they take in each form of a plan, and what CUDA graphs capture.

    python benchmarks/gpu_networks.py [--networks resnet18,bert]
    python benchmarks/gpu_networks.py --server [--networks "llama 8B"]

No GPU is needed: all is counted on what the passes write. The first form prints two tables. Bytes
are those of storages and of tensors that the runtime allocates by itself, of all functions:
under the stock plan, with tensors at offsets (CUDA) and in whole slots (OpenCL, Vulkan, Metal,
WebGPU, ROCm); the two bounds are for planned tensors alone. Copied are the bytes that a call would
copy because a tensor is at an offset: with the plan for such a device, and were CUDA's plan run
there. Then, with CUDA graphs: launches of kernels that are captured, of all; graphs; bytes that
are kept, and those of a call.

The second form is for LLaMA with a paged KV cache, at the upper bounds of its dimensions: what
TVM's pooled allocator has taken once each function was called, and with CUDA graphs what is kept
for all of them and what the calls add at most. Weights and the cache itself are not counted.
"""

from __future__ import annotations

import argparse
import logging
from collections import Counter
from collections.abc import Iterator, Mapping

import tvm
from paged_llama import SHAPES, bounds_of, module_of
from tvm import relax
from tvm.ir.transform import Pass
from tvm_ext.comparison.memory_comparison import allocated_memory
from vm_model import Blocks, Run, pooled
from vm_reader import read_machine_function

from passes.gmem.options import GMEMOptions
from passes.gmem.planning.slot_search import plan_slots
from passes.gmem.relax_functions import plan_gmem
from passes.planning import Budget, lower_bound
from tvm_ext import workloads
from tvm_ext.lowering import capture_relax, known_target
from tvm_ext.transform import GMEMAllocate

GRAPHS = {"relax.backend.use_cuda_graph": True}

STOCK = relax.transform.StaticPlanBlockMemory()

NETWORKS = (
    "squeezenet",
    "resnet18",
    "mobilenet_v2",
    "densenet121",
    "bert",
    "llama",
)


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


# ---------------------------------------------------------------------------------------- networks


def print_network(name: str) -> tuple[str, str]:
    """Return the two rows of a network."""
    lowered = capture_relax(workloads.model(name), "llvm")
    cuda, slots = (
        plan_gmem(lowered, options=GMEMOptions(target=known_target(kind)))
        for kind in ("cuda", "opencl")
    )
    moved = plan_gmem(lowered, options=GMEMOptions(target=known_target("opencl"), offsets=True))
    stock = sum(nbytes(f) for f in functions_of(STOCK(lowered)).values())
    written = [
        sum(nbytes(f) for f in functions_of(GMEMAllocate(target=known_target(k))(lowered)).values())
        for k in ("cuda", "opencl")
    ]
    bounds = [
        sum(lower_bound(p.problem) for p in cuda),
        sum(plan_slots(p.problem, Budget(100_000))[1] for p in slots),
    ]
    copied = [sum(p.copied for p in plans) for plans in (slots, moved)]
    row = f"{name:16}{stock:13,}{written[0]:13,}{bounds[0]:13,}{written[1]:13,}{bounds[1]:13,}"
    row += f"{copied[0]:8,}{copied[1]:13,}"
    cells = []
    for plan in (STOCK, GMEMAllocate(target=known_target("cuda"))):
        captured, every, regions, kept, most = graphs(lowered, plan)
        cells.append(f"{captured:6}/{every:<5}{regions:4}{kept:13,}{most:11,}")
    return row, f"{name:16}" + "  ".join(cells)


def print_networks(names: list[str]) -> None:
    rows = [print_network(name) for name in names]
    print(
        f"{'bytes':16}{'stock':>13}{'offsets':>13}{'bound':>13}{'slots':>13}{'bound':>13}", end=""
    )
    print(f"{'copied':>8}{'by offsets':>13}")
    for row, _ in rows:
        print(row)
    head = f"{'captured':>12}{'graphs':>6}{'kept':>11}{'a call':>11}"
    print(f"\n{'CUDA graphs':16}{head}  {head}   (stock, ours)")
    for _, row in rows:
        print(row)


# ------------------------------------------------------------------------------------- LLM servers


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


def print_server(name: str) -> None:
    shape = SHAPES[name]
    lowered = capture_relax(module_of(shape), "llvm")
    sizes = bounds_of(shape)
    ours = {kind: GMEMAllocate(target=known_target(kind)) for kind in ("cuda", "opencl")}
    pool = [taken(plan(lowered), sizes) for plan in (STOCK, *ours.values())]
    print(f"{name:22}" + "".join(f"{one:15,}" for one in pool), end="")
    for plan in (STOCK, ours["cuda"]):
        captured, every, _, kept, most = graphs(lowered, plan)
        print(f"{captured:6}/{every:<6}{kept:13,}{most:13,}", end="")
    print(flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--networks", help=f"default: {','.join(NETWORKS)}; of a server: all")
    parser.add_argument("--server", action="store_true", help="LLaMA with a paged KV cache")
    arguments = parser.parse_args()
    logging.getLogger("tvm_ext").setLevel(logging.ERROR)
    names = arguments.networks.split(",") if arguments.networks else None
    if not arguments.server:
        print_networks(names or list(NETWORKS))
        return
    print(f"{'bytes':22}{'stock':>15}{'offsets':>15}{'slots':>15}", end="")
    print(f"{'captured':>13}{'kept':>13}{'a call':>13}" * 2)
    for name in names or SHAPES:
        print_server(name)


if __name__ == "__main__":
    main()
