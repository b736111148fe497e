# SPDX-License-Identifier: Apache-2.0
"""Activation memory of whole networks: planned by all planners, and taken by the VM's allocator.

    python benchmarks/gmem.py [--networks resnet18,bert] [--planners a,b] [--target T] [--nodes N]
    python benchmarks/gmem.py --run [--networks vit,vit_batch]

The first form plans large networks of static shapes. A line a network, way of lowering and
planner: the peak in bytes, its ratio to what the stock StaticPlanBlockMemory allocates and to the
lower bound, the seconds that the planner took, and whether the plan is proven optimal. A line for
no reuse, the stock pass and the weights' region stands before them. A summary follows, with the
geometric means of the ratios and the bytes that each planner saves against the stock pass, over
all networks.

The second form builds and runs small networks of static shapes, any batch, any sequence and any
image size, on the CPU, under the stock plan and under ours, without and with upper bounds. Bytes
planned are those of all storages and of the tensors that are left to the runtime, at the sizes
that are run; bytes taken are what TVM's pooled allocator asks the device for while each function
is called once. Bounds are the sizes that are run. Results are held against the stock plan's.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator
from statistics import geometric_mean

import numpy as np
import tvm
from measured_memory import allocated_at, vm_bytes
from runtime_shapes import RUNTIME_SHAPES, RuntimeShapes
from tvm import relax
from tvm.ir.transform import Pass, Sequential
from tvm_ext.comparison.memory_comparison import SEARCH_NODES, ActivationMemory, activation_memory

from passes.planning import Budget, planner_names
from tvm_ext import lowering, workloads
from tvm_ext.relax_passes import relax_stages
from tvm_ext.transform import GMEMAllocate


def measured(arguments: argparse.Namespace) -> Iterator[tuple[str, ActivationMemory]]:
    """Yield what each network takes, fused first."""
    for network in arguments.networks.split(","):
        mod = workloads.model(network)
        for fuse in (True, False):
            for memory in activation_memory(
                mod,
                lowering.known_target(arguments.target),
                fuse=fuse,
                names=arguments.planners.split(","),
                budget=Budget(arguments.nodes),
            ):
                yield f"{network} {'fused' if fuse else 'not fused'}", memory


def print_one(name: str, memory: ActivationMemory) -> None:
    print(
        f"{name}: {memory.tensors} tensors, no reuse {memory.no_reuse:,}, "
        f"stock {memory.stock.nbytes:,}, lower bound {memory.lower_bound:,}; "
        f"{memory.weights} weights in {memory.weight_bytes:,} bytes"
    )
    for plan in memory.plans:
        print(
            f"   {plan.planner:16}{plan.nbytes:14,}{plan.nbytes / memory.stock.nbytes:9.4f} stock"
            f"{plan.nbytes / memory.lower_bound:9.4f} bound{plan.seconds:9.4f} s"
            f"{f'  {plan.proven}' if plan.proven else ''}",
            flush=True,
        )


def print_summary(memories: list[ActivationMemory]) -> None:
    ratios: dict[str, list[tuple[float, float]]] = defaultdict(list)
    saved: dict[str, int] = defaultdict(int)
    for memory in memories:
        rows = [("stock pass", memory.stock.nbytes)]
        rows += ((plan.planner, plan.nbytes) for plan in memory.plans)
        for name, nbytes in rows:
            ratios[name].append((nbytes / memory.stock.nbytes, nbytes / memory.lower_bound))
            saved[name] += memory.stock.nbytes - nbytes
    print(f"-- {len(memories)} cases: share of stock's, of the bound's (geometric means), saved")
    for name, pairs in ratios.items():
        of_stock, of_bound = map(geometric_mean, zip(*pairs, strict=True))
        print(f"   {name:16}{of_stock:9.4f}{of_bound:9.4f}{saved[name]:16,} bytes")


def run_all(names: list[str]) -> None:
    """Print bytes planned and bytes taken by each network under each plan."""
    print(f"{'':22}{'planned: stock':>16}{'ours':>12}{'bounded':>12}", end="")
    print(f"{'taken: stock':>16}{'ours':>12}{'bounded':>12}")
    for name in names:
        network = RUNTIME_SHAPES[name]
        mod = network.build()
        first, lower, _, behind = relax_stages("llvm")
        with tvm.target.Target("llvm"):
            lowered = Sequential([*first, *lower])(mod)
        plans = [relax.transform.StaticPlanBlockMemory(), GMEMAllocate()]
        plans += [GMEMAllocate(upper_bounds=network.sizes)] if network.sizes else []
        counts = [run_one(network, mod, lowered, plan, Sequential(behind)) for plan in plans]
        for _, _, results in counts[1:]:
            for one, other in zip(results, counts[0][2], strict=True):
                np.testing.assert_array_equal(one, other)
        cells = [f"{planned:,}" for planned, _, _ in counts] + [""] * (3 - len(counts))
        taken = [f"{nbytes:,}" for _, nbytes, _ in counts]
        print(f"{name:22}{cells[0]:>16}" + "".join(f"{cell:>12}" for cell in cells[1:]), end="")
        print(f"{taken[0]:>16}" + "".join(f"{cell:>12}" for cell in taken[1:]), flush=True)


def run_one(
    network: RuntimeShapes, mod: tvm.IRModule, lowered: tvm.IRModule, plan: Pass, behind: Pass
) -> tuple[int, int, list[np.ndarray]]:
    """Return bytes planned, bytes taken, and what the functions return."""
    with tvm.target.Target("llvm"):
        planned = plan(lowered)
    nbytes = sum(allocated_at(planned[name], network.sizes) for name in network.calls)
    machine = relax.VirtualMachine(tvm.compile(planned, "llvm", relax_pipeline=behind), tvm.cpu())
    results: list[np.ndarray] = []

    def call() -> None:
        for name in network.calls:
            made = machine[name](*network.arguments(mod[name], 0))
            tensors = [made] if isinstance(made, tvm.runtime.Tensor) else list(made)
            results.extend(tensor.numpy().copy() for tensor in tensors)

    return nbytes, vm_bytes(machine, call), results


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    every = ",".join(workloads.NETWORKS)
    parser.add_argument("--networks", default=every, help="default: %(default)s")
    known = ",".join(planner_names())
    parser.add_argument("--planners", default=known, help="default: %(default)s")
    parser.add_argument("--target", default="llvm", help="default: %(default)s")
    parser.add_argument("--nodes", type=int, default=SEARCH_NODES, help="placements a search")
    parser.add_argument("--run", action="store_true", help="run small networks of dynamic shapes")
    arguments = parser.parse_args()
    if arguments.run:
        names = list(RUNTIME_SHAPES)
        run_all(names if arguments.networks == every else arguments.networks.split(","))
        return
    memories = []
    for name, memory in measured(arguments):
        print_one(name, memory)
        memories.append(memory)
    print_summary(memories)


if __name__ == "__main__":
    main()
