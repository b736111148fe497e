# SPDX-License-Identifier: Apache-2.0
"""The targets that kernels are built for, as far as this TVM goes, and how far that is."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi
from llvm_level import at_level
from tvm import tirx
from tvm.target import Target

BuildFor = Callable[[tvm.IRModule, Any, str | None], Any]
"""Builds a module for a target by a pipeline of a name."""


def _built_by_llvm(mod: tvm.IRModule, target: Any, pipeline: str | None) -> Any:
    return tirx.build(mod, target=at_level(target), pipeline=pipeline)


def _built_by_cc(mod: tvm.IRModule, target: Any, pipeline: str | None) -> Any:
    built = tirx.build(mod, target=Target(target), pipeline=pipeline)
    headers = [Path(tvm.__file__).parent / "include", tvm_ffi.libinfo.find_include_path()]
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "kernel.c"), Path(folder, "kernel.so")
        source.write_text(built.inspect_source())
        # Names that are missing are an error at once, and no end of the process at the call.
        options = ["-shared", "-fPIC", "-w", "-Wl,-z,now", *(f"-I{header}" for header in headers)]
        made = subprocess.run(
            ["cc", *options, "-o", library, source], capture_output=True, text=True, check=False
        )
        if made.returncode:
            raise RuntimeError(next(line for line in made.stderr.splitlines() if "error" in line))
        return tvm.runtime.load_module(str(library))


def _written(mod: tvm.IRModule, target: Any, pipeline: str | None) -> None:
    """Build for a GPU up to the code of its kernels; up to the last passes where TVM makes none."""
    chip = Target(target, host="llvm")
    mod = tirx.transform.BindTarget(chip)(mod)
    lower, _, finalize_device = tirx.get_tir_pipeline(pipeline or "default")
    with chip:
        mod = lower(mod)
    kernels = {
        str(var.name_hint): func
        for var, func in mod.functions.items()
        if func.attrs and Target(func.attrs["target"]).kind.name == chip.kind.name
    }
    assert kernels, "the function has no kernel"
    mod = finalize_device()(tvm.IRModule(kernels))
    generate = tvm.get_global_func(f"target.build.{chip.kind.name}", allow_missing=True)
    if generate is not None:
        assert generate(mod, chip).inspect_source()


@dataclass(frozen=True)
class Place:
    """Where kernels are built for."""

    target: Any
    build: BuildFor
    runs: bool = False  # Whether what is built runs on this machine
    is_gpu: bool = False


TARGETS: dict[str, Place] = {
    "llvm": Place("llvm", _built_by_llvm, runs=True),
    "c": Place("c", _built_by_cc, runs=True),
    "hexagon": Place("qcom/hexagon-v68", _built_by_llvm),
    "cuda": Place({"kind": "cuda", "arch": "sm_61"}, _written, is_gpu=True),
    "opencl": Place({"kind": "opencl", "max_num_threads": 256}, _written, is_gpu=True),
    "metal": Place({"kind": "metal", "max_num_threads": 256}, _written, is_gpu=True),
    "vulkan": Place(
        {
            "kind": "vulkan",
            "supports_float16": True,
            "supports_int8": True,
            "supports_16bit_buffer": True,
            "supports_8bit_buffer": True,
            "supports_int64": True,
        },
        _written,
        is_gpu=True,
    ),
}
