# SPDX-License-Identifier: Apache-2.0
"""Programs to compare and benchmark memory planning on.

:func:`names` lists the workloads. :func:`load` lowers one by the stock pipeline up to storage
planning; :func:`model` builds the Relax module of a network.

Apart from these, :func:`ascend_kernels` lists kernels for the memories of an Ascend core, in sizes
chosen for what they ask of them; :func:`ascend_kernel` builds one.
"""

from __future__ import annotations

import tvm
from tvm.target import Target

from . import models, networks  # isort: skip # noqa: F401
from tvm_ext.lowering import TARGETS, capture, capture_relax, resolve_target

from .ascend import AscendKernel, ascend_kernel, ascend_kernels
from .models import MODELS, Model
from .networks import NETWORKS
from .registry import WORKLOADS, UnknownWorkloadError, Workload, find

__all__ = [
    "MODELS",
    "NETWORKS",
    "TARGETS",
    "AscendKernel",
    "Model",
    "UnknownWorkloadError",
    "Workload",
    "ascend_kernel",
    "ascend_kernels",
    "capture",
    "capture_relax",
    "find",
    "load",
    "model",
    "names",
    "resolve_target",
]


def names() -> list[str]:
    """List the names of all workloads, in the order in which they were registered."""
    return list(WORKLOADS)


def load(name: str, target: str | Target | None = None) -> tvm.IRModule:
    """Lower a workload and give its whole module as it stands right before ``StorageRewrite``.

    By default it is lowered for the first of its targets. Raises `UnknownWorkloadError` if there is
    no workload of this name.
    """
    workload = find(name)
    resolved = resolve_target(workload.targets[0] if target is None else target)
    return capture(workload.build(resolved), resolved, config=workload.configs[0])[-1]


def model(name: str) -> tvm.IRModule:
    """Build the Relax module of a network, whose one function is ``forward``.

    Raises `UnknownWorkloadError` if there is no network of this name.
    """
    if find(name).kind != "model":
        raise UnknownWorkloadError(
            f"workload {name!r} is not a model; the models are {', '.join(MODELS)}"
        )
    return MODELS[name].build()
