"""Activation memory of whole networks: all planners side by side, fused and not.

    python benchmarks/gmem.py [--networks resnet18,unet] [--planners a,b] [--target T] [--nodes N]

A line a network, way of lowering and planner: the peak in bytes, its ratio to what the stock
StaticPlanBlockMemory allocates and to the lower bound, the seconds that the planner took, and
whether the plan is proven optimal. A line for no reuse, the stock pass and the weights' region
stands before them. A summary follows, with the geometric means of the ratios and the bytes that
each planner saves against the stock pass, over all networks.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator
from statistics import geometric_mean

from passes.planning import Budget, planner_names
from tvm_ext import workloads
from tvm_ext.memory_comparison import SEARCH_NODES, ActivationMemory, activation_memory


def measured(arguments: argparse.Namespace) -> Iterator[tuple[str, ActivationMemory]]:
    """Yield what each network takes, fused first."""
    for network in arguments.networks.split(","):
        mod = workloads.model(network)
        for fuse in (True, False):
            for memory in activation_memory(
                mod,
                workloads.resolve_target(arguments.target),
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
            f"{'  optimal' if plan.optimal else ''}",
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


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    every = ",".join(workloads.NETWORKS)
    parser.add_argument("--networks", default=every, help="default: %(default)s")
    known = ",".join(planner_names())
    parser.add_argument("--planners", default=known, help="default: %(default)s")
    parser.add_argument("--target", default="llvm", help="default: %(default)s")
    parser.add_argument("--nodes", type=int, default=SEARCH_NODES, help="placements a search")
    memories = []
    for name, memory in measured(parser.parse_args()):
        print_one(name, memory)
        memories.append(memory)
    print_summary(memories)


if __name__ == "__main__":
    main()
