# SPDX-License-Identifier: Apache-2.0
"""CPU time of our passes beside TVM's, in turns, in one run.

    python benchmarks/compile_time.py [--every N] [--rounds N] [--networks NAME ...]

`tvm.compile` with `relax_pipeline`, and with ``tir_pipeline="tvm_ext"`` besides, beside TVM's own
pipelines, on exported networks for a CPU. The mirrored `StorageRewrite` beside the stock pass,
function by function, on the corpus of the tests and on the functions of TVM's own tests where
`../shared/data` has them. Each way runs once a round on the same module; the order changes from
round to round, and the least of the rounds counts. Printed are the medians of the ratios, and of
functions the ratio of the sums and those that take the most of ours.

All pipelines hand LLVM the same kernels, and what it takes for them varies by a tenth from one
build to the next. So what the pass that plans takes is printed too, and its share of TVM's build.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import test_libraries  # noqa: F401 - lets the corpus find what it reads
import tvm
from tvm import relax, tirx
from tvm.ir.instrument import pass_instrument

import tvm_ext
from tvm_ext.workloads import model

TARGET = "llvm"
NETWORKS = ("resnet18", "mobilenet_v2", "bert", "vit_b_16", "swin_t", "densenet121")
TESTS = Path(__file__).parents[1] / "tests"


def in_turns(mod: tvm.IRModule, ways: Sequence[Callable[..., object]], rounds: int) -> list[float]:
    """Return the least CPU time of each way in seconds, run in turns on the same module."""
    taken: list[list[float]] = [[] for _ in ways]
    for number in range(rounds):
        for at in range(len(ways))[:: -1 if number % 2 else 1]:
            begin = time.process_time_ns()
            ways[at](mod)
            taken[at].append((time.process_time_ns() - begin) / 1e9)
    return [min(each) for each in taken]


def corpus(every: int) -> Iterator[tuple[str, tvm.IRModule, dict[str, object]]]:
    """Yield each `every`-th function of the corpus with its name and pass configuration."""
    sys.path.insert(0, str(TESTS))
    from corpus import iterate

    for number, entry in enumerate(iterate()):
        if number % every == 0:
            yield entry.name, entry.mod, dict(entry.config)


def storage_rewrite(every: int, rounds: int) -> None:
    """Print how long the mirrored `StorageRewrite` takes beside the stock pass."""
    stock, ours = tirx.transform.StorageRewrite(), tvm_ext.transform.StorageRewrite()
    found: list[tuple[float, float, str]] = []
    for name, mod, config in corpus(every):
        with tvm.transform.PassContext(config=config):
            stock_time, our_time = in_turns(mod, (stock, ours), rounds)
            found.append((stock_time, our_time, name))
    sums = sum(row[0] for row in found), sum(row[1] for row in found)
    median = statistics.median(row[1] / row[0] for row in found)
    print(f"StorageRewrite: {len(found)} functions, median ratio {median:.2f}")
    print(f"  sums: stock {sums[0]:.3f} s, ours {sums[1]:.3f} s, ratio {sums[1] / sums[0]:.2f}")
    for stock_time, our_time, name in sorted(found, key=lambda row: -row[1])[:5]:
        print(f"  {1e3 * stock_time:8.2f} ms {1e3 * our_time:8.2f} ms  {name}")


@pass_instrument
class Planning:
    """The least CPU time of our pass that plans tensors, in seconds."""

    def __init__(self) -> None:
        self.begin, self.least = 0.0, float("inf")

    def run_before_pass(self, _mod: tvm.IRModule, info: tvm.transform.PassInfo) -> None:
        """Note when the pass that plans begins."""
        if info.name == "tvm_ext.GMEMAllocate":
            self.begin = time.process_time()

    def run_after_pass(self, _mod: tvm.IRModule, info: tvm.transform.PassInfo) -> None:
        """Keep the time that the pass took, if it is the least so far."""
        if info.name == "tvm_ext.GMEMAllocate":
            self.least = min(self.least, time.process_time() - self.begin)


def relax_pipeline(networks: Sequence[str], rounds: int) -> None:
    """Print how long builds of networks take with our Relax pipeline beside TVM's own.

    TVM's own is the target's: what `tvm.compile` takes by default for a CPU fuses no operators.
    """
    target = tvm.target.Target(TARGET)
    stock_passes, our_passes = relax.get_default_pipeline(target), tvm_ext.relax_pipeline(target)
    ways = [
        lambda mod: tvm.compile(mod, target, relax_pipeline=stock_passes),
        lambda mod: tvm.compile(mod, target, relax_pipeline=our_passes),
        lambda mod: tvm.compile(mod, target, relax_pipeline=our_passes, tir_pipeline="tvm_ext"),
    ]
    print(
        f"tvm.compile for {TARGET} with TVM's pipelines, our Relax pipeline, and our TIR pipeline"
    )
    print("     TVM s  Relax s          +TIR s           planning   of TVM")
    ratios = []
    for name in networks:
        planning = Planning()
        with tvm.transform.PassContext(instruments=[planning]):
            stock, *ours = in_turns(model(name), ways, rounds)
        ratios.append([seconds / stock for seconds in ours])
        times = "  ".join(f"{s:8.2f} {s / stock:6.3f}" for s in ours)
        alone = f"{1e3 * planning.least:6.1f} ms  {planning.least / stock:6.1%}"
        print(f"  {stock:8.2f} {times}  {alone}  {name}", flush=True)
    for way, of_way in zip(("Relax", "+TIR"), zip(*ratios, strict=True), strict=True):
        print(f"  {way}: median ratio {statistics.median(of_way):.3f}, largest {max(of_way):.3f}")


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--every", type=int, default=1, help="one function in so many (1)")
    parser.add_argument("--rounds", type=int, default=5, help="pairs of runs (5)")
    parser.add_argument("--networks", nargs="*", default=NETWORKS, help="those to build")
    args = parser.parse_args()
    if args.networks:
        relax_pipeline(args.networks, args.rounds)
    gc.collect()
    gc.disable()
    storage_rewrite(args.every, args.rounds)


if __name__ == "__main__":
    main()
