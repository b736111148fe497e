# SPDX-License-Identifier: Apache-2.0
"""CUDA sources of kernels under TVM's plan of shared memory and ours, to be run where a GPU is.

    python benchmarks/gpu_sources.py FOLDER

Writes, without a GPU: a source for each kernel and way, ``kernels.json`` with launch sizes and
arguments, ``data.npz`` with inputs and what numpy computes from them, and ``run.py``
(`gpu_sources_run.py`), which runs it all on a machine that has cupy and no TVM. Kernels are
operators as dlight schedules them, the attention of TVM's KV cache, kernels of several phases
written by hand, and random ones, of which a replay that shares no byte says what they compute.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np
import test_libraries  # noqa: F401 - lets the next ones be found
import tvm
from attention import KERNELS as ATTENTION
from block_replay import replay
from kernels import CASES
from opencl_runs import extents, lowered, shared_bytes, source_of
from tagged_bytes import FaultError
from test_operators import OPERATORS, RULES
from test_random_kernels import drawn
from tvm import te, tirx, topi
from tvm.s_tir import dlight
from tvm.target import Target

import tvm_ext

MOST_BYTES = 20 << 20
RANDOM = 30
SIZES = {"max_num_threads": 1024, "max_threads_per_block": 1024}
TARGET = Target(
    {
        "kind": "cuda",
        "arch": "sm_70",
        **SIZES,
        "max_shared_memory_per_block": 49152,
        "thread_warp_size": 32,
    },
    host="llvm",
)
WAYS: dict[str, Callable[[], Any]] = {
    "stock": nullcontext,
    "ours": partial(tvm_ext.use, "PlanSharedMemory"),
}
Array = np.ndarray


@dataclass(frozen=True)
class Kernel:
    """A function of one kernel, its arguments by name, and what is to be in some of them."""

    func: tirx.PrimFunc
    arguments: dict[str, Any]  # Arrays, with room for results, and numbers
    expected: dict[str, Array]
    tolerance: float  # Relative and absolute; 0 for equal bits
    grid: tuple[int, ...] = ()  # Blocks, where the kernel's launch does not say them


def operators() -> Iterator[tuple[str, list[tuple[int, ...]], Any, Any]]:
    """Yield operators: a name, the shapes of inputs, and what TVM and numpy compute."""
    for shape in ((4, 128), (7, 100), (16, 512), (2, 2048), (33, 65), (64, 256)):
        for name, (inputs, compute, numpy) in OPERATORS.items():
            if "x" in inputs:
                shapes = [shape, *[shape[1:]] * (len(inputs) - 1)]
                yield f"{name} {shape[0]}x{shape[1]}", shapes, compute, numpy
    products = {
        "matmul": lambda a, b: topi.matmul(a, b, False, True),
        "relu of matmul": lambda a, b: topi.nn.relu(topi.matmul(a, b, False, True)),
    }
    for m, n, k in ((32, 32, 32), (128, 64, 64), (1, 128, 256), (8, 96, 128), (65, 33, 48)):
        shapes, size = [(m, k), (n, k)], f"{m}x{n}x{k}"
        yield f"matmul {size}", [(m, k), (k, n)], topi.matmul, np.matmul
        yield f"matmul nt {size}", shapes, products["matmul"], lambda a, b: a @ b.T
        least = lambda a, b: np.maximum(a @ b.T, 0)  # noqa: E731
        yield f"relu of matmul {size}", shapes, products["relu of matmul"], least


def kernels() -> Iterator[tuple[str, Callable[[], Kernel]]]:
    """Yield the name of each kernel, and what makes it."""
    for name in CASES:
        if name not in ("counts", "by address"):  # They call functions that OpenCL has.
            yield f"phases {name}", partial(by_hand, name)
    for name in ATTENTION:
        yield f"attention {name}", partial(attention, name)
    drawn_ones = ((seed, drawn(random.Random(seed).randint)) for seed in count())
    for seed, func in islice(filter(runs_on_cuda, drawn_ones), RANDOM):
        yield f"random {seed}", partial(at_random, seed, func)
    for name, *made in operators():
        for dtype in ("float32", "float16"):
            yield f"{name} {dtype}", partial(scheduled, *made, dtype)


def runs_on_cuda(one: tuple[int, tirx.PrimFunc]) -> bool:
    """Return whether a random kernel writes results, and makes no copies as older CUDA did."""
    text = one[1].script()
    return "o[" in text and "cp_async" not in text


def by_hand(name: str) -> Kernel:
    """Return a kernel of several phases."""
    given, expected = CASES[name].arguments()
    return Kernel(CASES[name].func, given, {"o": expected}, 1e-5)


def attention(name: str) -> Kernel:
    """Return a kernel of TVM's KV cache."""
    one = ATTENTION[name]()
    return Kernel(one.func, one.arguments, {"output": one.expected}, 1e-4, one.grid)


def at_random(seed: int, func: tirx.PrimFunc) -> Kernel:
    """Return a random kernel, with what a replay computes that shares nothing."""
    x = np.random.default_rng(seed).standard_normal(8).astype("float32")
    given = {"x": x, "n": np.array([1 + seed % 2], "int32")}
    out = np.zeros(int(func.params[2].ty.shape[0]), "float32")
    room = np.zeros_like(out)
    plain = lowered(func, target=TARGET, config={"tirx.disable_storage_rewrite": True})
    replay(plain, {**given, "o": out}, (1,), "random")
    return Kernel(func, {**given, "o": room}, {"o": out}, 1e-5)


def scheduled(shapes: list[tuple[int, ...]], compute: Any, numpy: Any, dtype: str) -> Kernel:
    """Return an operator as dlight schedules it."""
    tensors = [te.placeholder(shape, dtype, f"in{n}") for n, shape in enumerate(shapes)]
    made = compute(*tensors)
    func = te.create_prim_func([*tensors, made]).with_attr("global_symbol", "main")
    with TARGET:
        rules = (rule() for rule in RULES)
        func = dlight.ApplyDefaultSchedule(*rules)(tvm.IRModule({"main": func}))["main"]
    chosen = np.random.default_rng(0)
    inputs = [chosen.standard_normal(shape).astype(dtype) for shape in shapes]
    result = numpy(*(one.astype("float32") for one in inputs)).astype(str(made.dtype)).ravel()
    output = str(func.params[-1].name)
    given = {f"in{n}": one.ravel() for n, one in enumerate(inputs)}
    tolerance = 0.0 if result.dtype.kind == "i" else 1e-4 if dtype == "float32" else 2e-2
    return Kernel(func, {**given, output: np.zeros_like(result)}, {output: result}, tolerance)


def written(
    name: str, one: Kernel, key: str, folder: Path, arrays: dict[str, Array]
) -> dict[str, Any]:
    """Write the sources of a kernel, add its data, and return its entry in the list."""
    ways = {}
    for way, within in WAYS.items():
        kernel = lowered(one.func, within, target=TARGET)
        file = f"{key}.{way}.cu"
        (folder / file).write_text(source_of(kernel, TARGET))
        launch = extents(kernel)
        tags = [tag for tag in launch if tag.startswith("blockIdx")]
        launch |= dict(zip(tags, one.grid, strict=True)) if one.grid else {}
        ways[way] = {
            "file": file,
            "arguments": [str(p.name).removesuffix("_ptr") for p in kernel.params],
            "grid": [int(launch.get(f"blockIdx.{axis}", 1)) for axis in "xyz"],
            "block": [int(launch.get(f"threadIdx.{axis}", 1)) for axis in "xyz"],
            "static": shared_bytes(kernel, ["shared"]),
            "dynamic": shared_bytes(kernel, ["shared.dyn"]),
        }
    asked = {name for way in ways.values() for name in way["arguments"]}
    numbers: dict[str, list[Any]] = {}
    for argument in sorted(asked):
        value = one.arguments[argument]
        if isinstance(value, np.ndarray):
            arrays[f"{key}/{argument}"] = value
        else:
            numbers[argument] = [str(value.dtype), value.item()]
    arrays.update({f"{key}/{result}/expected": what for result, what in one.expected.items()})
    head = {"name": name, "key": key, "tolerance": one.tolerance, "numbers": numbers}
    return {**head, "results": sorted(one.expected), "ways": ways}


def write(folder: Path, only: Sequence[str] = ("",)) -> None:
    """Write the folder, of the kernels whose names begin with one of some texts."""
    folder.mkdir(parents=True, exist_ok=True)
    listed: list[dict[str, Any]] = []
    arrays: dict[str, Array] = {}
    for name, make in kernels():
        if name.startswith(tuple(only)):
            try:
                one = make()
            except FaultError as error:
                print(f"{name}: left out, threads meet without a plan: {error}")
                continue
            listed.append(written(name, one, f"k{len(listed):03}", folder, arrays))
    np.savez_compressed(folder / "data.npz", **arrays)
    (folder / "kernels.json").write_text(json.dumps(listed, indent=1) + "\n")
    shutil.copy(Path(__file__).with_name("gpu_sources_run.py"), folder / "run.py")
    size = sum(file.stat().st_size for file in folder.iterdir())
    print(f"{len(listed)} kernels, {size:,} bytes in {folder}")
    if size > MOST_BYTES:
        raise SystemExit(f"that is above {MOST_BYTES:,} bytes")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path)
    write(parser.parse_args().folder)
