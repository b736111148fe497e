# SPDX-License-Identifier: Apache-2.0
"""Times our StorageRewrite against the stock pass, interleaved, in one process.

    python benchmarks/storage_rewrite.py [--repeat N]

Chains are functions of 10 to 16,000 statements, each the loop of one operator whose
result the next one reads. A ratio is the time of our pass over the time of the stock pass on the
same module. `compile_time.py` has the corpus of the tests.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Callable

import tvm
import tvm_ffi
from tvm import tirx

from tvm_ext import transform

CHAIN_LENGTHS = (10, 100, 1000, 4000, 16000)


def chain(length: int, extent: int = 64) -> tvm.IRModule:
    """Return a function of `length` loops, each reading what the one before it wrote."""
    source = first = tirx.decl_buffer((extent,), "float32", "source")
    result = tirx.decl_buffer((extent,), "float32", "result")
    stmts: list[tirx.Stmt] = []
    for step in range(length):
        target = result
        if step < length - 1:
            target = tirx.decl_buffer((extent,), "float32", f"buffer_{step}")
            stmts.append(tirx.AllocBuffer(target))
        i = tirx.Var("i", "int32")
        value = tirx.BufferLoad(source, [i]) + tirx.const(1, "float32")
        store = tirx.BufferStore(target, value, [i])
        stmts.append(tirx.For(i, 0, extent, tirx.ForKind.SERIAL, store))
        source = target
    return tvm.IRModule({"main": tirx.PrimFunc([first, result], tirx.SeqStmt(stmts))})


def measure(
    mod: tvm.IRModule, stock: Callable[..., object], ours: Callable[..., object], repeat: int
) -> tuple[float, float]:
    """Return the median time of both passes in seconds, run in turns."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(repeat):
        for pass_, taken in zip((stock, ours), times, strict=True):
            start = time.process_time()
            pass_(mod)
            taken.append(time.process_time() - start)
    return statistics.median(times[0]), statistics.median(times[1])


def bench_chains(repeat: int) -> None:
    """Print time and growth over chains."""
    stock, ours = tirx.transform.StorageRewrite(), transform.StorageRewrite()
    print(f"{'statements':>10} {'stock ms':>10} {'ours ms':>10} {'ratio':>7}   growth stock / ours")
    previous: tuple[float, float] | None = None
    for length in CHAIN_LENGTHS:
        mod = chain(length)
        assert tvm_ffi.structural_equal(stock(mod), ours(mod), map_free_vars=True)
        times = measure(mod, stock, ours, repeat)
        growth = ""
        if previous is not None:
            growth = f"{times[0] / previous[0]:8.1f} / {times[1] / previous[1]:.1f}"
        print(
            f"{length:>10} {times[0] * 1e3:>10.2f} {times[1] * 1e3:>10.2f} "
            f"{times[1] / times[0]:>7.2f}   {growth}"
        )
        previous = times


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeat", type=int, default=7, help="runs of each pass (7)")
    args = parser.parse_args()
    gc.collect()
    bench_chains(args.repeat)


if __name__ == "__main__":
    main()
