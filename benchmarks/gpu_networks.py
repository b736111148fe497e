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

import test_libraries  # noqa: F401 - lets the next ones be found
from gpu_counts import STOCK, functions_of, graphs, nbytes
from measured_memory import IdleMachine
from paged_llama import SHAPES, bounds_of, module_of

from passes.gmem.options import GMEMOptions
from passes.gmem.planning.slot_search import plan_slots
from passes.gmem.relax_functions import plan_gmem
from passes.planning import Budget, lower_bound
from tvm_ext import workloads
from tvm_ext.lowering import capture_relax, known_target
from tvm_ext.transform import GMEMAllocate

NETWORKS = ("squeezenet", "resnet18", "mobilenet_v2", "densenet121", "bert", "llama")


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


def print_server(name: str) -> None:
    shape = SHAPES[name]
    lowered = capture_relax(module_of(shape), "llvm")
    sizes = bounds_of(shape)
    ours = {kind: GMEMAllocate(target=known_target(kind)) for kind in ("cuda", "opencl")}
    plans = [plan(lowered) for plan in (STOCK, *ours.values())]
    pool = [IdleMachine(mod).apart(functions_of(mod), sizes) for mod in plans]
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
