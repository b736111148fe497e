# SPDX-License-Identifier: Apache-2.0
"""The functions that tests run storage planning on, as it meets them.

`WORKLOADS` are small networks and families of operators and kernels: operators of TVM's library,
graphs of operators, scheduled kernels, and functions written in TVMScript. :func:`entries` lowers
them for each of their targets, and splits the result into single functions.
"""

from __future__ import annotations

from . import operators, kernels, written  # isort: skip
from .entries import Entry, entries, load
from .families import MODELS, WORKLOADS

__all__ = ["MODELS", "WORKLOADS", "Entry", "entries", "load"]
