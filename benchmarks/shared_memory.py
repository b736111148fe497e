# SPDX-License-Identifier: Apache-2.0
"""Bytes of shared memory that GPU kernels take, by TVM's two settings and by ours.

    python benchmarks/shared_memory.py [--dlight]

The kernels are those of TVM's KV cache, and with ``--dlight`` operators that dlight schedules. Of
each way there are the bytes of the kernel that takes most, and its barriers. Where the merge of
TVM fails, its column says so. ``blocks`` is how many blocks fit in the shared memory of one
multiprocessor by TVM's default, and by ours with more barriers; 0 if one block may not have so
much. A time is that of the passes that place buffers, TVM's and ours, in milliseconds:
`StorageRewrite` and the last one.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import test_libraries  # noqa: F401 - lets the next ones be found
import tvm
from opencl_runs import shared_bytes
from test_operators import RULES
from tvm import te, tirx, topi
from tvm.ir.instrument import pass_instrument
from tvm.relax.frontend.nn.llm import kv_cache
from tvm.relax.frontend.nn.llm.tree_attn import tree_attn, tree_attn_with_paged_kv_cache
from tvm.s_tir import dlight
from tvm.target import Target

import tvm_ext

Way = tuple[Mapping[str, Any], Callable[[], AbstractContextManager[None]]]

WAYS: dict[str, Way] = {
    "sum": ({"tirx.disable_storage_rewrite": True}, nullcontext),
    "default": ({}, nullcontext),
    "merged": ({"tirx.merge_static_smem": True}, nullcontext),
    "ours": ({}, partial(tvm_ext.use, "PlanSharedMemory")),
    "insert": ({}, lambda: tvm_ext.use("PlanSharedMemory", barriers="insert")),
}
"""Settings of TVM's passes, and what stands in the place of TVM's pass."""


class Chip(NamedTuple):
    """The shared memory of one multiprocessor, in bytes."""

    all: int
    block: int  # What one block may ask for
    system: int = 0  # What each block takes beyond what it asks for


CHIPS = {
    "sm_80": Chip(167_936, 166_912, 1024),
    "sm_90": Chip(233_472, 232_448, 1024),
    "gfx90a": Chip(65_536, 65_536),
    "Adreno": Chip(32_768, 32_768),
    "Apple": Chip(61_440, 32_768),
}
"""Sources: the CUDA C++ programming guide, table "Technical Specifications per Compute Capability";
AMD's CDNA 2 ISA guide (64 KB of LDS a compute unit); for Adreno 6xx and 7xx the tables of devices
in Mesa's freedreno (``cs_shared_mem_size``); for Apple the Metal feature set tables say what a
threadgroup may have, and Philip Turner's metal-benchmarks what was measured of a core of M1 and M2.
"""

TARGET = {
    "kind": "cuda",
    "arch": "sm_61",
    "max_num_threads": 1024,
    "max_threads_per_block": 1024,
    "max_shared_memory_per_block": 49152,
    "thread_warp_size": 32,
}

PLACING = ("StorageRewrite", "MergeSharedMemoryAllocations", "PlanSharedMemory")
"""How the names of the passes end whose time is taken."""

Kernels = Iterator[tuple[str, tirx.PrimFunc]]


class Lowered(NamedTuple):
    """What became of a function by one way; None where TVM's passes fail."""

    bytes: int | None
    barriers: int
    seconds: float  # Of the passes that place buffers


@pass_instrument
class Placing:
    """Sums up the time of the passes that place buffers."""

    def __init__(self) -> None:
        self.seconds, self.inside, self.begun = 0.0, 0, 0.0

    def run_before_pass(self, _mod: tvm.IRModule, info: Any) -> None:
        """Begin, unless such a pass has another run."""
        if info.name.endswith(PLACING):
            self.begun = self.begun if self.inside else time.perf_counter()
            self.inside += 1

    def run_after_pass(self, _mod: tvm.IRModule, info: Any) -> None:
        """End."""
        if info.name.endswith(PLACING):
            self.inside -= 1
            self.seconds += 0 if self.inside else time.perf_counter() - self.begun


def lower(func: tirx.PrimFunc, target: Target, way: str) -> Lowered:
    """Lower a function for a target, one way."""
    config, within = WAYS[way]
    with_host = Target(target, host="llvm")
    mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    mod = tirx.transform.BindTarget(with_host)(mod)
    pipeline, _, _ = tirx.get_tir_pipeline("default")
    placing = Placing()
    context = tvm.transform.PassContext(config=dict(config), instruments=[placing])
    with with_host, context, within():
        try:
            mod = pipeline(mod)
        except tvm.error.InternalError:
            return Lowered(None, 0, 0)
    kernels = [f for f in mod.functions.values() if "tirx.kernel_launch_params" in (f.attrs or {})]
    most = max(kernels, key=shared_bytes)
    return Lowered(shared_bytes(most), most.script().count("tvm_storage_sync"), placing.seconds)


def attention(target: Target) -> Kernels:
    """Yield the attention kernels of TVM's KV cache, for 32 heads of 128 elements."""
    for dtype in ("float16", "float32"):
        sizes = 8, 32, 128, dtype
        made = {
            "decode": kv_cache._attention_decode(*sizes, False, {}, target),
            "prefill": kv_cache._attention_prefill(*sizes, False, {}, target),
            "prefill ragged": kv_cache._attention_prefill_ragged(
                8, 32, 128, 128, dtype, {}, target
            ),
            "prefill sequence": kv_cache._attention_sequence_prefill(*sizes, target),
            "prefill mla": kv_cache._attention_prefill_mla(16, 512, 64, dtype, False, target),
            "tree": tree_attn(*sizes, {}, target),
            "tree paged": tree_attn_with_paged_kv_cache(*sizes, {}, target),
        }
        yield from ((f"{name} {dtype}", func) for name, func in made.items())


def scheduled(target: Target) -> Kernels:
    """Yield operators as dlight schedules them."""
    rules = [rule() for rule in RULES]
    for name, tensors in operators():
        func = te.create_prim_func(tensors).with_attr("global_symbol", "main")
        with target:
            yield name, dlight.ApplyDefaultSchedule(*rules)(tvm.IRModule({"main": func}))["main"]


def operators() -> Iterator[tuple[str, list[te.Tensor]]]:
    """Yield operators, as their tensors."""
    for dtype in ("float32", "float16"):
        for m, n, k in ((512, 512, 512), (8, 1024, 4096), (128, 128, 2048), (1, 4096, 4096)):
            a = te.placeholder((m, k), dtype, "a")
            for transposed in (False, True):
                b = te.placeholder((n, k) if transposed else (k, n), dtype, "b")
                name = f"matmul{' nt' if transposed else ''} {m}x{n}x{k} {dtype}"
                yield name, [a, b, topi.matmul(a, b, False, transposed)]
        x, weight, bias = (te.placeholder(shape, dtype) for shape in ((64, 2048), (2048,), (2048,)))
        yield f"softmax {dtype}", [x, topi.nn.softmax(x)]
        yield f"sum {dtype}", [x, topi.sum(x, 1)]
        yield f"argmax {dtype}", [x, topi.argmax(x, 1)]
        yield f"layer norm {dtype}", [x, weight, bias, topi.nn.layer_norm(x, weight, bias, [1])]
        yield f"rms norm {dtype}", [x, weight, topi.nn.rms_norm(x, weight, [1])]
        yield f"transpose {dtype}", [x, topi.transpose(x)]


def blocks(size: int | None) -> str:
    """Return how many blocks fit, on each chip."""
    if not size:
        return "-"
    fitting = (
        chip.all // (size + chip.system) if size <= chip.block else 0 for chip in CHIPS.values()
    )
    return " ".join(map(str, fitting))


def main() -> None:
    """Print the table, as Markdown."""
    parser = argparse.ArgumentParser(description="Bytes of shared memory of GPU kernels.")
    parser.add_argument(
        "--dlight", action="store_true", help="also operators that dlight schedules"
    )
    options = parser.parse_args()
    target = Target(TARGET)
    chips = ", ".join(CHIPS)
    header = ["kernel", *WAYS, f"blocks ({chips})", "with insert", "default ms", "ours ms"]
    print("| " + " | ".join(header) + " |")
    print("|---|" + "---:|" * (len(header) - 1))
    sources = [attention(target), *([scheduled(target)] if options.dlight else [])]
    for name, func in (pair for source in sources for pair in source):
        made = {way: lower(func, target, way) for way in WAYS}
        cells = [
            "fails" if one.bytes is None else f"{one.bytes:,} ({one.barriers})"
            for one in made.values()
        ]
        cells += [blocks(made["default"].bytes), blocks(made["insert"].bytes)]
        cells += [f"{1000 * made[way].seconds:.0f}" for way in ("default", "ours")]
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
