# SPDX-License-Identifier: Apache-2.0
"""The order of a network's operators: its memory in the order in which the least is live."""

from __future__ import annotations

from collections.abc import Iterator

from tvm.ir import IRModule
from tvm.target import Target

from passes.gmem import GMEMOptions
from passes.order import FunctionOrder
from tvm_ext.lowering import Reordered, capture_relax
from tvm_ext.report.ask import Ask
from tvm_ext.report.readers.tensor_memories import network
from tvm_ext.report.report import Finding
from tvm_ext.text import Table


def orders(mod: IRModule, target: Target, ask: Ask) -> Iterator[Finding]:
    """Yield the memories of a reordered network, and what the order saves."""
    yield from network(mod, target, ask, order=True)
    rows = [("function", "operators", "moved", "as written", "found", "bound", "proven")]
    for fuse in (True, False) if ask.everything else ():
        for one in _orders(mod, target, fuse):
            name = f"{one.name}, {'fused' if fuse else 'not fused'}"
            proven, numbers = "lowest of any order" if one.optimal else "no", ("", "", "")
            if one.given:  # Bytes that live at once
                numbers = (f"{one.given:,}", f"{one.found:,}", f"{one.bound:,}")
            rows.append((name, f"{one.operators:,}", f"{len(one.moved):,}", *numbers, proven))
            if one.moved:
                less = one.given - one.found
                yield f"{name}: {less:,} bytes less ({less / one.given:.1%})"
            if reason := one.reason or one.needs:
                yield f"{name}: {reason}"
    if rows[1:]:
        yield Table("bytes of activations that are live at once", rows, left=(0, 6))


def _orders(mod: IRModule, target: Target, fuse: bool) -> tuple[FunctionOrder, ...]:
    """Return the orders that `OrderForMemory` finds of the Relax functions of a module."""
    reordered = Reordered(GMEMOptions(target=target))
    capture_relax(mod, target, fuse=fuse, between=reordered)
    return reordered.orders
