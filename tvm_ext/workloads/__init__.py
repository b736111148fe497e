# SPDX-License-Identifier: Apache-2.0
"""Programs to compare and benchmark memory planning on.

`NETWORKS` are exports of torchvision and transformers, without weights, which
``benchmarks/export_networks.py`` writes into ``exported/``. `ascend_kernels` lists kernels for the
memories of an Ascend core, in sizes chosen for what they ask of the planner.
"""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from importlib.resources import files

import tvm

from passes.ir import IRModule
from tvm_ext.weights import as_built

from .ascend import AscendKernel, ascend_kernel, ascend_kernels

__all__ = [
    "NETWORKS",
    "NETWORK_TARGETS",
    "AscendKernel",
    "ExportedNetwork",
    "ascend_kernel",
    "ascend_kernels",
    "model",
]

_EXPORTED = files(__package__) / "exported"


@dataclass(frozen=True)
class ExportedNetwork:
    """A network that was exported, and where its definition comes from."""

    name: str
    description: str  # One line for people: the network and the sizes of its inputs
    source: str  # Package and version that define it
    licence: str  # Of that definition, an SPDX identifier

    def build(self) -> IRModule:
        """Read the Relax module: one function ``main``, whose inputs come before its weights.

        The weights are the author's parameters; `model` has them as they are in a build.
        """
        packed = (_EXPORTED / f"{self.name}.json.gz").read_bytes()
        return tvm.ir.load_json(gzip.decompress(packed).decode())


_ROWS = json.loads((_EXPORTED / "networks.json").read_text(encoding="utf-8"))

NETWORKS = {row["name"]: ExportedNetwork(**row) for row in _ROWS}
"""The exported networks, by name."""

NETWORK_TARGETS = ("llvm", "cuda")
"""The targets that the networks are known to lower for."""


def model(name: str) -> IRModule:
    """Read the Relax module of a network, whose one function is ``main``; ValueError if none.

    A result of weights alone is a weight (`tvm_ext.weights.as_built`).
    """
    if name not in NETWORKS:
        raise ValueError(f"unknown network {name!r}; the networks are {', '.join(NETWORKS)}")
    return as_built(NETWORKS[name].build())
