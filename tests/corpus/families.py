# SPDX-License-Identifier: Apache-2.0
"""How a family of small functions becomes a workload."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import TypeAlias

import tvm
from tvm import tirx
from tvm.s_tir import dlight

from tvm_ext.workloads.registry import Config, Workload, prim, register, tensor

__all__ = ["CPU", "CPU_CUDA", "DEVICES", "Case", "kernel", "label", "operator", "prim", "tensor"]

#: One function of a family: a label, unique in the family, and the function.
Case: TypeAlias = tuple[str, tirx.PrimFunc]
Cases: TypeAlias = Callable[[], Iterable[Case]]

CPU = ("llvm",)
CPU_CUDA = ("llvm", "cuda")
DEVICES = ("llvm", "cuda", "vulkan", "webgpu")


def operator(
    targets: tuple[str, ...] = CPU, configs: tuple[Config, ...] = ({},)
) -> Callable[[Cases], Cases]:
    """Register a generator of unscheduled functions as a workload named after it.

    Its docstring's first line is the description. For a GPU the functions are scheduled by the
    rules that the stock GPU pipelines use.
    """

    def add(cases: Cases) -> Cases:
        def build(target: tvm.target.Target) -> tvm.IRModule:
            with target:
                mod = family_module(cases)
                return _gpu_schedule(mod) if "gpu" in target.keys else mod

        register(Workload(cases.__name__, _summary(cases), "operator", targets, build, configs))
        return cases

    return add


def kernel(
    targets: tuple[str, ...] = CPU, configs: tuple[Config, ...] = ({},)
) -> Callable[[Cases], Cases]:
    """Register a generator of functions that are lowered as they are; see :func:`operator`."""

    def add(cases: Cases) -> Cases:
        def build(target: tvm.target.Target) -> tvm.IRModule:
            with target:
                return family_module(cases)

        register(Workload(cases.__name__, _summary(cases), "kernel", targets, build, configs))
        return cases

    return add


def family_module(cases: Cases) -> tvm.IRModule:
    """Put the functions of a family in one module, each under its label.

    Raises
    ------
    ValueError
        If two labels come to the same function name.
    """
    functions: dict[str, tirx.PrimFunc] = {}
    for label, function in cases():
        name = re.sub(r"\W+", "_", label)
        if name in functions:
            raise ValueError(f"{cases.__name__}: two functions are labelled {label!r}")
        functions[name] = function.with_attr("global_symbol", name)
    return tvm.IRModule(functions)


def _gpu_schedule(mod: tvm.IRModule) -> tvm.IRModule:
    return dlight.ApplyDefaultSchedule(
        dlight.gpu.Matmul(),
        dlight.gpu.GEMV(),
        dlight.gpu.Reduction(),
        dlight.gpu.GeneralReduction(),
        dlight.gpu.Fallback(),
    )(mod)


def _summary(cases: Cases) -> str:
    return (cases.__doc__ or "").strip().splitlines()[0].rstrip(".")


def label(*parts: object) -> str:
    """Join what tells a case from its siblings: ``label((2, 3), "float16")`` is ``2x3_float16``."""
    return "_".join("x".join(map(str, p)) if isinstance(p, tuple) else str(p) for p in parts)
