# SPDX-License-Identifier: Apache-2.0
"""Programs to compare and benchmark memory planning on.

`MODELS` are networks and layers; :func:`model` builds the Relax module of one. There are
kernels for the memories of an Ascend core, too, in sizes chosen for what they ask of them:
:func:`ascend_kernels` lists them, and :func:`ascend_kernel` builds one.
"""

from __future__ import annotations

import tvm

from .ascend import AscendKernel, ascend_kernel, ascend_kernels
from .models import LAYERS, Model
from .networks import NETWORKS

__all__ = [
    "MODELS",
    "MODEL_TARGETS",
    "NETWORKS",
    "AscendKernel",
    "Model",
    "ascend_kernel",
    "ascend_kernels",
    "model",
]

MODELS = {**NETWORKS, **LAYERS}
"""All networks and layers, by name."""

MODEL_TARGETS = ("llvm", "cuda")
"""What they are known to lower for, names of `tvm_ext.lowering.TARGETS`; the first by default."""


def model(name: str) -> tvm.IRModule:
    """Build the Relax module of a network, whose one function is ``forward``.

    Raises ValueError if there is no network of this name.
    """
    if name not in MODELS:
        raise ValueError(f"unknown model {name!r}; the models are {', '.join(MODELS)}")
    return MODELS[name].build()
