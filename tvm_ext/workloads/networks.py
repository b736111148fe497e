# SPDX-License-Identifier: Apache-2.0
"""Networks that others defined: exports of torchvision and transformers, without weights.

``exported/`` holds a Relax module for each network, as `tvm.ir.save_json` writes it, and
``networks.json`` the table of them. ``benchmarks/export_networks.py`` writes both.
"""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from importlib.resources import files

import tvm

_FOLDER = "exported"
_INDEX = "networks.json"


@dataclass(frozen=True)
class ExportedNetwork:
    """A network that was exported, and where its definition comes from."""

    name: str
    description: str  # One line for people: the network and the sizes of its inputs
    source: str  # Package and version that define it
    licence: str  # Of that definition, an SPDX identifier

    def build(self) -> tvm.IRModule:
        """Read the Relax module: one function ``main``, whose inputs come before its weights."""
        path = files(__package__) / _FOLDER / f"{self.name}.json.gz"
        return tvm.ir.load_json(gzip.decompress(path.read_bytes()).decode())


def _networks() -> dict[str, ExportedNetwork]:
    text = (files(__package__) / _FOLDER / _INDEX).read_text(encoding="utf-8")
    return {row["name"]: ExportedNetwork(**row) for row in json.loads(text)}


NETWORKS = _networks()
"""The exported networks, by name."""
