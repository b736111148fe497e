# SPDX-License-Identifier: Apache-2.0
"""``tvm-ext compare --order``: bytes that another order of a network's operators saves."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

import tvm
from tvm import relax
from tvm.target import Target

from tvm_ext.commands.command_options import sizes_of
from tvm_ext.comparison import Report
from tvm_ext.comparison.memory_comparison import allocated_memory
from tvm_ext.lowering import DEFAULT_TARGET, known_target
from tvm_ext.planned.options import MapOptions
from tvm_ext.planned.relax_function import PlannedNetwork, plan_network
from tvm_ext.reading.programs import read_network
from tvm_ext.text import Table


@dataclass(frozen=True)
class OrderSavings:
    """Bytes of one function's activations, in the written order and in the order found."""

    function: str
    fused: bool
    operators: int  # Bindings of its dataflow blocks
    given: int  # The best plan of the written order
    found: int  # The best plan of the order that was found
    stock_given: int  # ``StaticPlanBlockMemory`` in the written order
    stock_found: int  # ``StaticPlanBlockMemory`` in the order that was found
    bound: int  # Lower bound of all orders; 0 where nothing was searched
    moved: tuple[str, ...]  # The fewest bindings without which the others are as written
    reason: str  # Why nothing moved, or which binding needs the bound by itself
    # Bytes saved by computing before the run what depends on weights alone; None where the module
    # does not say which parameters are weights
    folded: int | None
    not_counted: int  # Tensors of a size that only the running program knows

    @property
    def proven(self) -> bool:
        """Whether no plan of any order takes less."""
        return 0 < self.found <= self.bound

    @property
    def name(self) -> str:
        """The function, and whether operators were fused."""
        return f"{self.function}, {'fused' if self.fused else 'not fused'}"

    def notes(self) -> Iterator[str]:
        """Yield lines on the bytes saved, and on the reason for which it is no more."""
        if self.moved:
            less = self.given - self.found
            yield f"{self.name}: {less:,} bytes less ({100 * less / self.given:.1f}%)"
        if self.reason:
            yield f"{self.name}: {self.reason}"
        if self.not_counted:
            what = "not counted: tensors of a size known at run time only"
            yield f"{self.name}: {what}: {self.not_counted}"
        if self.folded:
            yield (
                f"{self.name}: folded before the run: {self.folded:,} bytes less; "
                "relax.transform.LiftTransformParams computes once what weights alone decide"
            )


def run(arguments: argparse.Namespace) -> Report:
    """Order a network's operators; raises ValueError on bad input."""
    # A file may register the target.
    mod = read_network(arguments.program, "--order", sizes_of(arguments))
    target = known_target(arguments.target or DEFAULT_TARGET)
    found = [row for fuse in (True, False) for row in order_savings(mod, target, fuse=fuse)]
    nothing = "no function has tensors of a size that is known before the run"
    lines = _table(found).text() if found else [nothing]
    return Report([{**asdict(row), "proven": row.proven} for row in found], lines)


def order_savings(
    mod: tvm.IRModule,
    target: Target,
    *,
    fuse: bool = True,
    upper_bounds: Mapping[str, int] | None = None,
) -> tuple[OrderSavings, ...]:
    """Return what other orders save of each Relax function with something to plan.

    Raises ValueError as `OrderForMemory` and `GMEMAllocate` do.
    """

    def plans(mod: tvm.IRModule, order: bool) -> dict[str, PlannedNetwork]:
        options = MapOptions(order=order)
        networks = plan_network(
            mod, target, options, fuse=fuse, upper_bounds=upper_bounds, for_table=True
        )
        return {network.name: network for network in networks}

    lifted = _lifted(mod)
    by_given, by_found = plans(mod, False), plans(mod, True)
    by_folded = {} if lifted is None else plans(lifted, True)
    rows = []
    for name, network in by_found.items():
        (given, stock_given), (found, stock_found) = map(_bytes, (by_given[name], network))
        order, groups = network.order, network.found.memory.groups
        if order is not None and network.found.problem.buffers:
            rows.append(
                OrderSavings(
                    name,
                    fuse,
                    order.operators,
                    given,
                    found,
                    stock_given,
                    stock_found,
                    min(order.bound, found),  # A plan does not pad its last tensor.
                    order.moved,
                    order.reason or order.needs,
                    found - _bytes(by_folded[name])[0] if by_folded else None,
                    sum(len(g.problem.buffers) for g in groups if g.unit is not None),
                )
            )
    return tuple(rows)


def _bytes(network: PlannedNetwork) -> tuple[int, int]:
    """Return what the tensors of constant size take by the best plan, and by the stock pass."""
    assert network.stock is not None, "It is asked for above."
    return network.tensors[0].placements[0].plan.peak, allocated_memory(network.stock).nbytes


def _lifted(mod: tvm.IRModule) -> tvm.IRModule | None:
    """Return a module in which what weights alone decide is computed by a function of its own."""
    functions = [func for func in mod.functions.values() if isinstance(func, relax.Function)]
    if not any(func.attrs and "num_input" in func.attrs for func in functions):
        return None
    try:
        return relax.transform.LiftTransformParams()(mod)
    except Exception:  # any of TVM's passes may raise anything: then there is nothing to compare
        return None


def _table(found: Sequence[OrderSavings]) -> Table:
    """Return what orders save, and below it why no more."""
    rows = [("function", "order", "operators", "moved", "stock", "best", "bound", "proven")]
    for one in found:
        proven = "lowest of any order" if one.proven else "no"
        stock, given = f"{one.stock_given:,}", f"{one.given:,}"
        rows.append((one.name, "as written", f"{one.operators:,}", "", stock, given, "", ""))
        stock, best = f"{one.stock_found:,}", f"{one.found:,}"
        rows.append(("", "found", "", f"{len(one.moved):,}", stock, best, f"{one.bound:,}", proven))
    notes = [note for one in found for note in one.notes()]
    return Table("bytes of activations", rows, notes, left=(0, 1, 7))
