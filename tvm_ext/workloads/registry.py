# SPDX-License-Identifier: Apache-2.0
"""The table of named workloads."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import tvm
from tvm import te, tirx

#: Options of the pass context.
Config: TypeAlias = Mapping[str, Any]


class UnknownWorkloadError(ValueError):
    """There is no workload of this name."""


@dataclass(frozen=True)
class Workload:
    """A program, or a family of small ones, that can be built by name."""

    name: str  # What it is found by
    description: str  # One line for people
    # A Relax network; operators as a library describes them, scheduled by the stock rules where the
    # target is a GPU; or functions that say their loops and memory themselves.
    kind: Literal["model", "operator", "kernel"]
    # The targets that it is known to lower for, names of :data:`~tvm_ext.lowering.TARGETS`; the
    # first is the default.
    targets: tuple[str, ...]
    # Make the module to lower for a target.
    build: Callable[[tvm.target.Target], tvm.IRModule] = field(repr=False)
    # Pass context options to lower it with, each a variant; the first is the default.
    configs: tuple[Config, ...] = ({},)


WORKLOADS: dict[str, Workload] = {}


def register(workload: Workload) -> None:
    """Add a workload to the table; its name must be new."""
    if workload.name in WORKLOADS:
        raise ValueError(f"register: there is already a workload named {workload.name!r}")
    WORKLOADS[workload.name] = workload


def find(name: str) -> Workload:
    """Look a workload up by its name.

    Raises `UnknownWorkloadError` if there is none; the message lists names that are close.
    """
    if name in WORKLOADS:
        return WORKLOADS[name]
    close = difflib.get_close_matches(name, WORKLOADS, n=3)
    hint = f"did you mean {' or '.join(map(repr, close))}? " if close else ""
    raise UnknownWorkloadError(
        f"unknown workload {name!r}: {hint}tvm_ext.workloads.names() lists all {len(WORKLOADS)}"
    )


def tensor(shape: tuple[Any, ...], dtype: str = "float32", name: str = "x") -> te.Tensor:
    """Declare an input of a tensor expression."""
    return te.placeholder(shape, dtype, name)


def prim(inputs: Iterable[te.Tensor], outputs: te.Tensor | Iterable[te.Tensor]) -> tirx.PrimFunc:
    """Make a function of a tensor expression: first its inputs, then its outputs."""
    results = [outputs] if isinstance(outputs, te.Tensor) else list(outputs)
    return te.create_prim_func([*inputs, *results])
