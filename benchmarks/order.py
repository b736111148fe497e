# SPDX-License-Identifier: Apache-2.0
"""Live bytes of networks in several orders of their operators, and what the search proves.

    python benchmarks/order.py [--networks nasnet_cifar,darts_cifar] [--nodes N] [--markdown]
    python benchmarks/order.py --large 10000
    python benchmarks/order.py --run

A line a network, with operators fused and not: the bytes that live at once between operators, as
the network is written; the ratios to it of reverse post-order, of the best of TVM's
`TopologicalSort` in its four ways, of a greedy order by freed bytes (what TorchInductor's
`reorder_for_peak_memory` does among others) and of ours; whether ours is proven, and the seconds
that `OrderForMemory` takes. The second form times the search on a random graph of branches.
The third builds and runs small networks on the CPU: as TVM plans them, and as we do in the written
and in the found order. It prints the bytes that are planned and those that the runtime's pool takes
from the device, and the medians of interleaved runs; results have to be equal bit for bit.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from statistics import median
from typing import Any

import numpy as np
import test_libraries  # noqa: F401 - lets the next ones be found
import tvm
from measured_memory import allocated_at, vm_bytes
from order_checks import branches, verify_order
from order_networks import NASNET, NETWORKS, cells_at_32, unet_plus_plus
from tvm import relax
from tvm.ir import GlobalVar
from tvm.ir.instrument import pass_instrument
from written_networks import WRITTEN

from passes.gmem.options import GMEMOptions
from passes.order.analysis.effects import runs_before
from passes.order.analysis.kept_bytes import blocks_of, read_function
from passes.order.function_order import FunctionOrder, order_function
from passes.order.planning.operator_graph import OrderProblem, peak_of
from passes.order.planning.order_search import find_order
from passes.order.transform import order_functions
from passes.planning import Budget
from tvm_ext.relax_passes import relax_pipeline, relax_stages

TARGET = tvm.target.Target("llvm")
WRITTEN_NETWORKS = ("llama_layer", "resnet18", "mobilenet_v2", "bert_base", "unet")


def reverse_post_order(problem: OrderProblem) -> list[int]:
    """Return the reverse of the order in which a depth first walk from the inputs leaves."""
    behind: list[list[int]] = [[] for _ in problem.before]
    for number, earlier in enumerate(problem.before):
        for other in earlier:
            behind[other].append(number)
    left: list[int] = []
    seen: set[int] = set()
    for root in range(len(behind)):
        stack = [(root, iter(behind[root]))] if root not in seen else []
        seen.add(root)
        while stack:
            number, others = stack[-1]
            other = next((one for one in others if one not in seen), None)
            if other is None:
                left.append(number)
                stack.pop()
            else:
                seen.add(other)
                stack.append((other, iter(behind[other])))
    return left[::-1]


def greedy(problem: OrderProblem) -> list[int]:
    """Return an order in which the operator is next that frees most, less what it makes."""
    touching: list[list[int]] = [[] for _ in problem.before]
    for index, tensor in enumerate(problem.tensors):
        for operator in tensor.touched_by:
            touching[operator].append(index)
    waiting = [len(earlier) for earlier in problem.before]
    behind: list[list[int]] = [[] for _ in problem.before]
    for number, earlier in enumerate(problem.before):
        for other in earlier:
            behind[other].append(number)
    left = [len(tensor.touched_by) for tensor in problem.tensors]
    begun = [tensor.begun for tensor in problem.tensors]
    ready = {number for number, count in enumerate(waiting) if not count}
    order = []

    def gain(operator: int) -> tuple[int, int]:
        total = 0
        for index in touching[operator]:
            tensor = problem.tensors[index]
            total -= 0 if begun[index] else tensor.size
            total += tensor.size if left[index] == 1 and not tensor.kept else 0
        return total, -operator

    while ready:
        operator = max(ready, key=gain)
        ready.remove(operator)
        order.append(operator)
        for index in touching[operator]:
            begun[index] = True
            left[index] -= 1
        for other in behind[operator]:
            waiting[other] -= 1
            if not waiting[other]:
                ready.add(other)
    return order


def stock_peaks(mod: tvm.IRModule, variable: GlobalVar) -> Iterator[int]:
    """Yield the live bytes of each way in which TVM sorts operators."""
    for order in ("depth-first", "breadth-first"):
        for direction in ("from-inputs", "from-outputs"):
            sort = relax.transform.TopologicalSort(order=order, direction=direction)
            alone = tvm.IRModule({variable: mod[variable]}, global_infos=mod.global_infos)
            sorted_too = mod.clone()
            sorted_too.update_func(variable, sort(alone)[variable])
            yield live_peak(sorted_too, variable)


def live_peak(mod: tvm.IRModule, variable: GlobalVar) -> int:
    """Return the most bytes of the main memory that live at once."""
    read = read_function(mod, variable, GMEMOptions().read)
    return max(read.live_bytes(read.memory.main.problem))


def measured(name: str, fuse: bool, budget: Budget | None) -> Iterator[tuple[str, ...]]:
    """Yield the cells of one network: of its function with the most operators."""
    mod = NETWORKS[name]() if name in NETWORKS else WRITTEN[name].build()
    stages = relax_stages(TARGET, fuse=fuse)
    with TARGET:
        written = tvm.transform.Sequential(stages.first)(mod)
        orders = order_functions(written, GMEMOptions(target=TARGET), Budget(0))
    largest = max(orders, key=lambda order: order.operators)
    variable = written.get_global_var(largest.name)
    begin = time.process_time()
    found: FunctionOrder = order_function(written, variable, GMEMOptions(target=TARGET), budget)
    seconds = time.process_time() - begin
    read = read_function(written, variable, GMEMOptions().read)
    block = max(blocks_of(written[variable]), key=lambda block: len(block.bindings))
    before = runs_before(written, block.bindings)
    problem = read.problem(block, before, read.memory.main.problem)
    others = (
        peak_of(problem, reverse_post_order(problem)),
        min(stock_peaks(written, variable)),
        peak_of(problem, greedy(problem)),
        found.found,
    )
    yield (
        f"{name}{'' if fuse else ', not fused'}",
        f"{found.operators}",
        f"{found.given:,}",
        *(f"{other / found.given:.3f}" for other in others),
        f"{found.found:,}",
        "yes" if found.optimal else f"no, {found.bound:,} at least",
        f"{seconds:.1f}",
    )


def run_in_orders(name: str, mod: tvm.IRModule, times: int = 101) -> None:
    """Print what a network plans, takes and needs to run, in each of three ways."""
    rng = np.random.default_rng(0)
    arguments = [
        tvm.runtime.tensor(
            rng.standard_normal([int(n) for n in param.ty.shape], dtype="float32") * 0.1
        )
        for param in mod["main"].params
    ]
    pipelines = {
        "stock": tvm.transform.Sequential(relax_stages(TARGET).all()),
        "ours, as written": relax_pipeline(TARGET),
        "ours, in the found order": relax_pipeline(TARGET, order=True),
    }
    machines, planned = {}, {}
    for label, pipeline in pipelines.items():
        recorder = Planned()
        with TARGET, tvm.transform.PassContext(instruments=[recorder]):
            built = tvm.compile(mod, TARGET, relax_pipeline=pipeline)
        machines[label], planned[label] = relax.VirtualMachine(built.jit(), tvm.cpu()), recorder
    taken = {
        label: vm_bytes(machine, lambda machine=machine: machine["main"](*arguments))
        for label, machine in machines.items()
    }
    results = [machine["main"](*arguments).numpy() for machine in machines.values()]
    assert all((result == results[0]).all() for result in results)
    seconds: dict[str, list[float]] = {label: [] for label in machines}
    for _ in range(times):
        for label, machine in machines.items():
            begin = time.perf_counter()
            machine["main"](*arguments)
            seconds[label].append(time.perf_counter() - begin)
    for label in machines:
        milliseconds = 1000 * median(seconds[label])
        print(
            f"{name}, {label}: {planned[label].nbytes:,} bytes planned, {taken[label]:,} taken, "
            f"{milliseconds:.2f} ms",
            flush=True,
        )


@pass_instrument
class Planned:
    """Notes the bytes that a build's plan of memory allocates, with the results.

    Attributes
    ----------
    nbytes : int
        The bytes.
    """

    def __init__(self) -> None:
        self.nbytes = 0

    def run_after_pass(self, mod: tvm.IRModule, info: Any) -> None:
        """Read the module behind the pass that plans."""
        if info.name in ("StaticPlanBlockMemory", "tvm_ext.GMEMAllocate"):
            self.nbytes = allocated_at(mod["main"], {})


HEADER = (
    "network",
    "operators",
    "as written",
    "reverse post-order",
    "TopologicalSort",
    "greedy",
    "ours",
    "bytes",
    "proven",
    "seconds",
)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", default=",".join((*NETWORKS, *WRITTEN_NETWORKS)))
    parser.add_argument("--nodes", type=int, help="steps; by default those of the pass")
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--large", type=int, metavar="OPERATORS")
    parser.add_argument("--run", action="store_true")
    arguments = parser.parse_args()
    budget = None if arguments.nodes is None else Budget(arguments.nodes)
    if arguments.run:
        run_in_orders("nasnet, 3 cells", cells_at_32(NASNET, 8, 1))
        run_in_orders("unet++", unet_plus_plus(4, 4, 64))
        return
    if arguments.large:
        problem = branches(arguments.large)
        begin = time.process_time()
        found = find_order(problem, budget)
        seconds = time.process_time() - begin
        assert not verify_order(problem, found)
        written = peak_of(problem, range(len(problem.before)))
        print(
            f"{len(problem.before)} operators: {written:,} to {found.peak:,} bytes, at least "
            f"{found.bound:,}, {seconds:.1f} s"
        )
        return
    mark = "| " if arguments.markdown else ""
    print(mark + (" | " if mark else "\t").join(HEADER) + (" |" if mark else ""))
    if mark:
        print("|---|" + "---:|" * (len(HEADER) - 1))
    for name in arguments.networks.split(","):
        for fuse in (True, False):
            for cells in measured(name, fuse, budget):
                line = (" | " if mark else "\t").join(cells)
                print(f"{mark}{line}{' |' if mark else ''}", flush=True)


if __name__ == "__main__":
    main()
