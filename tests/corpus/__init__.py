# SPDX-License-Identifier: Apache-2.0
"""The functions that tests and benchmarks run storage planning on, as it meets them.

Importing this package adds families of operators and kernels to the table of
:mod:`tvm_ext.workloads`: operators of TVM's library, operator graphs, scheduled kernels, and
functions written in TVMScript. :func:`entries` lowers them, and the small networks of that table,
for each of their targets, and splits the result into single functions.
"""

from __future__ import annotations

from . import layers, arrays, graphs, kernels, scripts  # isort: skip # noqa: F401
from .entries import MODELS, Entry, entries, iterate

__all__ = ["MODELS", "Entry", "entries", "iterate"]
