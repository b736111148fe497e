# SPDX-License-Identifier: Apache-2.0
"""Networks of many families, each gone through once: planned, built, run, grouped.

    python benchmarks/export_networks.py --folder FOLDER mnasnet regnet_y googlenet ...
    python benchmarks/families.py [--folder FOLDER] [--build] [--layer-group CHIP] [NETWORK ...]

By default of `tvm_ext.workloads`; else those of a folder. Of each network: bytes of its tensors
under TVM's plan and ours, lowered for ``llvm`` with operators fused, whether ours is no more and at
the lower bound. With ``--build`` it is built with both plans and run on the same random arguments,
and results are to be equal bit for bit. With ``--layer-group`` it is built for the twin of a chip
without groups and with them, and run. What fails is told, with the first line of the message, and
makes the exit status 1.
"""

from __future__ import annotations

import argparse
import gzip
import logging
import math
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir.transform import Sequential

import tvm_ext
from passes.gmem.relax_functions import plan_gmem
from passes.planning import lower_bound
from tvm_ext import workloads
from tvm_ext.comparison.memory_comparison import allocated_memory
from tvm_ext.lowering import capture_relax
from tvm_ext.relax_passes import in_stages, relax_passes
from tvm_ext.transform import GMEMAllocate

STOCK = relax.transform.StaticPlanBlockMemory()


def arguments_of(mod: tvm.IRModule, seed: int = 0) -> list[Any]:
    """Return random arguments of ``main``: weights scaled by fan-in, token numbers below 2."""
    rng = np.random.default_rng(seed)
    made = []
    for param in mod["main"].params:
        shape, dtype = [int(extent) for extent in param.ty.shape], str(param.ty.dtype)
        if not dtype.startswith("float"):
            data = rng.integers(2, size=shape).astype(dtype)
        elif math.prod(shape[1:]) == 1:  # a bias, a scale, or a variance: above 0
            data = rng.uniform(0.25, 1.0, shape).astype(dtype)
        else:
            data = rng.standard_normal(shape) * math.sqrt(2 / math.prod(shape[1:]))
        made.append(tvm.runtime.tensor(np.asarray(data, dtype)))
    return made


def results(executable: Any, arguments: list[Any]) -> list[Any]:
    """Run ``main`` twice, the second time in the memory of the first; return what it made."""
    machine = relax.VirtualMachine(executable, tvm.cpu())
    machine["main"](*arguments)
    made = machine["main"](*arguments)
    return [made.numpy()] if isinstance(made, tvm.runtime.Tensor) else [t.numpy() for t in made]


def same(one: list[Any], other: list[Any]) -> str:
    """Return whether two lists of arrays are equal bit for bit."""
    equal = all(
        np.array_equal(a, b, equal_nan=True) and a.shape == b.shape
        for a, b in zip(one, other, strict=True)
    )
    finite = all(np.isfinite(a).all() for a in one)
    return ("equal" if equal else "NOT equal") + ("" if finite else ", not finite")


def planned(mod: tvm.IRModule) -> tuple[tvm.IRModule, str]:
    """Return the lowered network, and what planning saves."""
    lowered = capture_relax(mod, "llvm")
    stock = sum(
        allocated_memory(f).nbytes
        for f in STOCK(lowered).functions.values()
        if isinstance(f, relax.Function)
    )
    plans = plan_gmem(lowered)
    ours = sum(found.plan.peak for found in plans)
    bound = sum(lower_bound(found.problem) for found in plans)
    said = f"{stock:,} to {ours:,} ({ours / stock:.3f})"
    if ours > stock:
        said += ", MORE than stock"
    if ours > bound:
        said += f", bound {bound:,}"
    return lowered, said


def built(lowered: tvm.IRModule, plan: tvm.transform.Pass) -> Any:
    """Plan a lowered network and build it."""
    behind = in_stages(relax_passes("llvm")).behind
    with tvm.target.Target("llvm"):
        mod = plan(lowered)
    return tvm.compile(mod, "llvm", relax_pipeline=Sequential(behind))


def steps(mod: tvm.IRModule, build: bool, chip: str) -> Iterator[str]:
    """Yield a sentence on each thing that is tried, with its CPU seconds."""
    start = time.process_time()

    def said(text: str) -> str:
        nonlocal start
        start, before = time.process_time(), start
        return f"{text} [{start - before:.1f} s]"

    lowered, saved = planned(mod)
    yield said(saved)
    dynamic = any(relax.analysis.tir_vars_in_type(p.ty) for p in mod["main"].params)
    if dynamic:
        yield "sizes are open: not run"
        return
    arguments = arguments_of(mod)
    if build:
        stock, ours = (results(built(lowered, plan), arguments) for plan in (STOCK, GMEMAllocate()))
        yield said(f"run: {same(stock, ours)}")
    if chip:
        plain, grouped = (
            results(
                tvm.compile(
                    mod,
                    chip,
                    relax_pipeline=tvm_ext.relax_pipeline(chip, layer_group=layer_group),
                ),
                arguments,
            )
            for layer_group in (False, True)
        )
        yield said(f"in groups for {chip}: {same(plain, grouped)}")


def modules(folder: Path | None, names: list[str]) -> Iterator[tuple[str, tvm.IRModule]]:
    """Yield the networks of a folder, or those of the package, by name."""
    if folder is None:
        for name in names or workloads.NETWORKS:
            yield name, workloads.model(name)
        return
    for path in sorted(folder.glob("*.json.gz")):
        name = path.name.removesuffix(".json.gz")
        if not names or name in names:
            yield name, tvm.ir.load_json(gzip.decompress(path.read_bytes()).decode())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("networks", nargs="*", metavar="NETWORK", help="by default all")
    parser.add_argument("--folder", type=Path, help="of exported networks")
    parser.add_argument("--build", action="store_true", help="build with both plans, and run")
    parser.add_argument("--layer-group", default="", metavar="TARGET", help="sophgo/bm1684x-llvm")
    arguments = parser.parse_args()
    logging.getLogger("tvm_ext").setLevel(logging.ERROR)
    failed = 0
    for name, mod in modules(arguments.folder, arguments.networks):
        print(name, end="", flush=True)
        try:
            for said in steps(mod, arguments.build, arguments.layer_group):
                print(f"; {said}", end="", flush=True)
                failed += "NOT" in said or "MORE" in said
            print()
        except Exception as error:  # one network that fails does not hide the others
            failed += 1
            print(f"; FAILED: {type(error).__name__}: {str(error).strip().splitlines()[0]}")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
