"""The table of named workloads and how a family of functions becomes an entry of it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import tvm
from tvm import te, tirx
from tvm.s_tir import dlight

#: One function of a family: a label, unique in the family, and the function.
Case: TypeAlias = tuple[str, tirx.PrimFunc]
Cases: TypeAlias = Callable[[], Iterable[Case]]

#: Options of the pass context.
Config: TypeAlias = Mapping[str, Any]

CPU = ("llvm",)
CPU_CUDA = ("llvm", "cuda")
DEVICES = ("llvm", "cuda", "vulkan", "webgpu")


class UnknownWorkloadError(ValueError):
    """There is no workload of this name."""


@dataclass(frozen=True)
class Workload:
    """A program, or a family of small ones, that can be built by name.

    Attributes
    ----------
    name : str
        What it is found by.
    description : str
        One line for people.
    kind : {"model", "operator", "kernel"}
        A Relax network; operators as a library describes them, scheduled by the stock rules where
        the target is a GPU; or functions that say their loops and memory themselves.
    targets : tuple of str
        The targets that it is known to lower for, names of
        :data:`~tvm_ext.workloads.capture.TARGETS`; the first is the default.
    configs : tuple of mapping
        Pass context options to lower it with, each a variant; the first is the default.
    build : callable
        Make the module to lower for a target.
    in_corpus : bool
        Whether its functions belong to the corpus. A network of many equal layers adds to it
        little but the time to lower it.
    """

    name: str
    description: str
    kind: Literal["model", "operator", "kernel"]
    targets: tuple[str, ...]
    build: Callable[[tvm.target.Target], tvm.IRModule] = field(repr=False)
    configs: tuple[Config, ...] = ({},)
    in_corpus: bool = True


WORKLOADS: dict[str, Workload] = {}


def register(workload: Workload) -> None:
    """Add a workload to the table; its name must be new."""
    if workload.name in WORKLOADS:
        raise ValueError(f"register: there is already a workload named {workload.name!r}")
    WORKLOADS[workload.name] = workload


def find(name: str) -> Workload:
    """Look a workload up by its name.

    Raises
    ------
    UnknownWorkloadError
        If there is none; the message lists names that are close.
    """
    if name in WORKLOADS:
        return WORKLOADS[name]
    close = difflib.get_close_matches(name, WORKLOADS, n=3)
    hint = f"did you mean {' or '.join(map(repr, close))}? " if close else ""
    raise UnknownWorkloadError(
        f"unknown workload {name!r}: {hint}tvm_ext.workloads.names() lists all {len(WORKLOADS)}"
    )


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


def tensor(shape: tuple[Any, ...], dtype: str = "float32", name: str = "x") -> te.Tensor:
    """Declare an input of a tensor expression."""
    return te.placeholder(shape, dtype, name)


def prim(inputs: Iterable[te.Tensor], outputs: te.Tensor | Iterable[te.Tensor]) -> tirx.PrimFunc:
    """Make a function of a tensor expression: first its inputs, then its outputs."""
    results = [outputs] if isinstance(outputs, te.Tensor) else list(outputs)
    return te.create_prim_func([*inputs, *results])
