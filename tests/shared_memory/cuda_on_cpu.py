# SPDX-License-Identifier: Apache-2.0
"""CUDA sources without a GPU: run by threads of the CPU, and compiled by NVIDIA's own compiler."""

from __future__ import annotations

import ctypes
import re
import subprocess
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

SHIM = r"""
#include <math.h>
#include <pthread.h>
#include <stdint.h>
struct dim3 { int x, y, z; };
static thread_local dim3 threadIdx, blockIdx;
static pthread_barrier_t gate;
#define __global__
#define __launch_bounds__(...)
#define alignas(n) __attribute__((aligned(n)))
#define __align__(n) alignas(n)
#define __shared__ static
#define __restrict__
#define __syncthreads() pthread_barrier_wait(&gate)
#define uint unsigned int
#define uchar unsigned char
template <class T> T max(T a, T b) { return a < b ? b : a; }
template <class T> T min(T a, T b) { return b < a ? b : a; }
"""
LAUNCH = r"""
static void** given;
static const int *grid, *block;
static void* run(void* own) {
  const int t = (int)(intptr_t)own;
  threadIdx = {t % block[0], t / block[0] % block[1], t / block[0] / block[1]};
  for (int n = 0; n < grid[0] * grid[1] * grid[2]; ++n) {
    blockIdx = {n % grid[0], n / grid[0] % grid[1], n / grid[0] / grid[1]};
    main_kernel(ARGUMENTS);
    __syncthreads();  // The next block has the same shared memory.
  }
  return nullptr;
}
extern "C" void launch(void** arguments, const int* blocks, const int* threads) {
  given = arguments, grid = blocks, block = threads;
  const int count = block[0] * block[1] * block[2];
  pthread_barrier_init(&gate, nullptr, count);
  pthread_t started[1024];
  for (int t = 0; t < count; ++t) pthread_create(&started[t], nullptr, run, (void*)(intptr_t)t);
  for (int t = 0; t < count; ++t) pthread_join(started[t], nullptr);
}
"""
UNKNOWN = re.compile(r"__shfl\w*|\bhalf\d?\b|\basm\b|float[248]\b|int[248]\b")
HEAD = 'extern "C" __global__'
DYNAMIC = re.compile(r"extern (__shared__[^;]*)\[\];")


class Threads:
    """Runs a kernel of `gpu_sources_run` block after block, each by as many threads as it has."""

    name = "threads of a CPU"

    def __init__(self, runner: ModuleType) -> None:
        self.runner = runner

    def run(self, kernel: Any, way: str, text: str, data: Any) -> list[Any]:
        """Run a source once, and return its arguments as they are then."""
        body = text[text.index(HEAD) :]
        if found := UNKNOWN.search(body):
            raise self.runner.MissingError(f"there is no {found.group()}")
        one = kernel["ways"][way]
        body = DYNAMIC.sub(rf"\1[{-(-one['dynamic'] // 4)}];", body)  # Of `uint`
        head = body[body.index("main_kernel(") :].partition("(")[2].partition(");")[0]
        types = [re.sub(r"__restrict__|\w+$", "", part.strip()).strip() for part in head.split(",")]
        passed = ", ".join(
            f"({one})given[{n}]" if one.endswith("*") else f"*({one}*)given[{n}]"
            for n, one in enumerate(types)
        )
        given = self.runner.arguments_of(kernel, way, data)
        boxed = [np.atleast_1d(value) for value in given]
        pointers = (ctypes.c_void_p * len(boxed))(*(value.ctypes.data for value in boxed))
        sizes = [(ctypes.c_int * 3)(*one[key]) for key in ("grid", "block")]
        _built(SHIM + body + LAUNCH.replace("ARGUMENTS", passed)).launch(pointers, *sizes)
        return boxed


def _built(text: str) -> ctypes.CDLL:
    with tempfile.TemporaryDirectory() as folder:
        file, library = Path(folder, "kernel.cpp"), Path(folder, "kernel.so")
        file.write_text(text)
        flags = ["-std=c++17", "-O1", "-fPIC", "-shared", "-pthread", "-w", "-ffp-contract=off"]
        subprocess.run(["g++", *flags, str(file), "-o", str(library)], check=True)
        return ctypes.CDLL(str(library))


class Nvrtc:
    """NVIDIA's compiler from the wheels of CUDA; it needs no GPU."""

    def __init__(self) -> None:
        wheel = pytest.importorskip("nvidia.cuda_nvrtc", reason="no nvidia-cuda-nvrtc-cu12")
        root = Path(next(iter(wheel.__path__)))
        self.library = ctypes.CDLL(str(next(root.glob("lib/libnvrtc.so.*"))))
        folders = [root.parent / name / "include" for name in ("cuda_runtime", "cuda_cccl")]
        if not all(folder.is_dir() for folder in folders):
            pytest.skip("no nvidia-cuda-runtime-cu12 and nvidia-cuda-cccl-cu12")
        options = ["-std=c++17", "--gpu-architecture=compute_70", *(f"-I{f}" for f in folders)]
        self.options = (ctypes.c_char_p * len(options))(*map(str.encode, options))

    def complaint(self, text: str) -> str:
        """Return what the compiler says of a source that it refuses; else nothing."""
        program, size, source = ctypes.c_void_p(), ctypes.c_size_t(), text.encode()
        made = self.library.nvrtcCreateProgram(
            ctypes.byref(program), source, b"main.cu", 0, None, None
        )
        assert made == 0
        failed = self.library.nvrtcCompileProgram(program, len(self.options), self.options)
        self.library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        self.library.nvrtcGetProgramLog(program, log)
        self.library.nvrtcDestroyProgram(ctypes.byref(program))
        return (log.value.decode() or "it fails") if failed else ""
