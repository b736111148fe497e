# SPDX-License-Identifier: Apache-2.0
"""Programs to compare and benchmark memory planning on.

`NETWORKS` are exports of torchvision and transformers; :func:`model` reads the Relax module of
one. There are kernels for the memories of an Ascend core, too, in sizes chosen for what they ask
of the planner: :func:`ascend_kernels` lists them, and :func:`ascend_kernel` builds one.
"""

from __future__ import annotations

import tvm

from .ascend import AscendKernel, ascend_kernel, ascend_kernels
from .networks import NETWORKS, ExportedNetwork

__all__ = [
    "NETWORKS",
    "NETWORK_TARGETS",
    "AscendKernel",
    "ExportedNetwork",
    "ascend_kernel",
    "ascend_kernels",
    "model",
]

NETWORK_TARGETS = ("llvm", "cuda")
"""What the networks are known to lower for, names of `tvm_ext.lowering.TARGETS`."""


def model(name: str) -> tvm.IRModule:
    """Read the Relax module of a network, whose one function is ``main``.

    Raises ValueError if there is no network of this name.
    """
    if name not in NETWORKS:
        raise ValueError(f"unknown network {name!r}; the networks are {', '.join(NETWORKS)}")
    return NETWORKS[name].build()
