# SPDX-License-Identifier: Apache-2.0
"""The numbers of one memory of a report."""

from __future__ import annotations

from tvm_ext.report import MemoryView
from tvm_ext.report.tables import bytes_without_reuse, stock_bytes


def numbers(view: MemoryView) -> tuple[int, int | None, int]:
    """Bytes without reuse, of TVM's own plan, and the lower bound."""
    return bytes_without_reuse([view]), stock_bytes([view]), view.bound


def ours(view: MemoryView) -> list:
    """The plans of our planners."""
    return [one for one in view.plans if one.planner != "stock"]
