# SPDX-License-Identifier: Apache-2.0
"""How a family of small functions becomes a workload, and the table of all workloads."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Literal, TypeAlias

import tvm
from tvm import te, tirx
from tvm.s_tir import dlight
from tvm.target import Target
from written_networks import WRITTEN

from tvm_ext import workloads

#: One function of a family: a label, unique in the family, and the function.
Case: TypeAlias = tuple[str, tirx.PrimFunc]
Cases: TypeAlias = Callable[[], Iterable[Case]]

#: Options of the pass context.
Config: TypeAlias = Mapping[str, Any]

CPU = ("llvm",)
CPU_CUDA = ("llvm", "cuda")
DEVICES = ("llvm", "cuda", "vulkan", "webgpu")

#: The networks of the corpus. One of many equal layers adds little but the time to lower it.
MODELS = ("resnet18", "mobilenet_v2", "bert", "llama", "llama_layer_dynamic")


@dataclass(frozen=True)
class Workload:
    """A program, or a family of small ones, that can be built by name."""

    name: str
    # A network; operators as a library describes them, scheduled by the stock rules where the
    # target is a GPU; or functions that say their loops and memory themselves.
    kind: Literal["model", "operator", "kernel"]
    # The names of the targets that it is known to lower for.
    targets: tuple[str, ...]
    # Make the module to lower for a target, of each function of a family or of one in so many.
    build: Callable[[Target, int], tvm.IRModule]
    # Pass context options to lower it with, each a variant; the first is the default.
    configs: tuple[Config, ...] = ({},)


def _model(name: str) -> Workload:
    def build(_target: Target, _step: int) -> tvm.IRModule:
        return workloads.model(name) if name in workloads.NETWORKS else WRITTEN[name].build()

    return Workload(name, "model", workloads.NETWORK_TARGETS, build)


WORKLOADS: dict[str, Workload] = {name: _model(name) for name in MODELS}
"""The workloads of the corpus, by name."""


def tensor(shape: tuple[Any, ...], dtype: str = "float32", name: str = "x") -> te.Tensor:
    """Declare an input of a tensor expression."""
    return te.placeholder(shape, dtype, name)


def prim(inputs: Iterable[te.Tensor], outputs: te.Tensor | Iterable[te.Tensor]) -> tirx.PrimFunc:
    """Make a function of a tensor expression: first its inputs, then its outputs."""
    results = [outputs] if isinstance(outputs, te.Tensor) else list(outputs)
    return te.create_prim_func([*inputs, *results])


def family(
    kind: Literal["operator", "kernel"],
    targets: tuple[str, ...] = CPU,
    configs: tuple[Config, ...] = ({},),
) -> Callable[[Cases], Cases]:
    """Register a generator of functions as a workload named after it."""

    def add(cases: Cases) -> Cases:
        def build(target: Target, step: int) -> tvm.IRModule:
            functions: dict[str, tirx.PrimFunc] = {}
            with target:
                for label, function in islice(cases(), 0, None, step):
                    name = re.sub(r"\W+", "_", label)
                    assert name not in functions, f"{cases.__name__}: {label!r} twice"
                    functions[name] = function.with_attr("global_symbol", name)
                mod = tvm.IRModule(functions)
                on_gpu = kind == "operator" and "gpu" in target.keys
                return _gpu_schedule(mod) if on_gpu else mod

        assert cases.__name__ not in WORKLOADS, cases.__name__
        WORKLOADS[cases.__name__] = Workload(cases.__name__, kind, targets, build, configs)
        return cases

    return add


operator = partial(family, "operator")
kernel = partial(family, "kernel")


def _gpu_schedule(mod: tvm.IRModule) -> tvm.IRModule:
    return dlight.ApplyDefaultSchedule(
        dlight.gpu.Matmul(),
        dlight.gpu.GEMV(),
        dlight.gpu.Reduction(),
        dlight.gpu.GeneralReduction(),
        dlight.gpu.Fallback(),
    )(mod)


def label(*parts: object) -> str:
    """Join what tells a case from its siblings: ``label((2, 3), "float16")`` is ``2x3_float16``."""
    return "_".join("x".join(map(str, p)) if isinstance(p, tuple) else str(p) for p in parts)
