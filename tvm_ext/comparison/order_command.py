# SPDX-License-Identifier: Apache-2.0
"""``tvm-ext compare --order``: what another order of a network's operators saves, as a table."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass

import tvm
from tvm import relax
from tvm.target import Target

from passes.gmem import FunctionPlan, GMEMOptions, plan_gmem
from passes.planning import solve
from tvm_ext.commands.command_options import sizes_of, write_json
from tvm_ext.comparison.memory_comparison import allocated_memory
from tvm_ext.lowering import DEFAULT_TARGET, Reordered, capture_relax, known_target
from tvm_ext.reading.programs import read_network
from tvm_ext.text import Table


@dataclass(frozen=True)
class OrderSavings:
    """What another order saves of one function: bytes of its activations."""

    function: str
    fused: bool
    operators: int  # Bindings of its dataflow blocks
    given: int  # What `GMEMAllocate` plans for the order as it is written
    found: int  # The same for the order that was found
    stock_given: int  # What ``StaticPlanBlockMemory`` allocates for them
    stock_found: int
    bound: int  # Bytes that no order has less than; 0 where nothing was searched
    moved: tuple[str, ...]  # The fewest bindings without which the others are as written
    reason: str  # Why nothing moved, where nothing did; else what needs the bound by itself
    # What the plan takes less where all that is computed from weights alone is computed before;
    # None where the module does not say which parameters are weights.
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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the option to the parser of ``compare``."""
    parser.add_argument(
        "--order",
        action="store_true",
        help="show instead what another order of the operators of a Relax network saves; the "
        f"target is by default {DEFAULT_TARGET}",
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the command; the exit status is 0. Raises ValueError on bad input."""
    # A file may register the target.
    mod = read_network(arguments.program, "--order", sizes_of(arguments))
    target = known_target(arguments.target or DEFAULT_TARGET)
    found = [row for fuse in (True, False) for row in order_savings(mod, target, fuse=fuse)]
    write_json(arguments.json, [{**asdict(row), "proven": row.proven} for row in found])
    nothing = "no function has tensors of a size that is known before the run"
    print("\n".join(_table(found).text()) if found else nothing)
    return 0


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
    options = GMEMOptions(target=target, upper_bounds=upper_bounds or {})
    ordered = Reordered(options)
    plans = [
        _planned(capture_relax(mod, target, fuse=fuse, between=between), options)
        for between in (None, ordered)
    ]
    folded = _lifted(mod)
    if folded is not None:
        between = Reordered(options)
        plans.append(_planned(capture_relax(folded, target, fuse=fuse, between=between), options))
    rows = []
    for order in ordered.orders:
        (given, stock_given), (found, stock_found), *rest = (plan[order.name] for plan in plans)
        if given.problem.buffers:
            least = _peak(found) - _peak(rest[0][0]) if rest else None
            rows.append(
                OrderSavings(
                    order.name,
                    fuse,
                    order.operators,
                    _peak(given),
                    _peak(found),
                    stock_given,
                    stock_found,
                    min(order.bound, _peak(found)),  # A plan does not pad its last tensor.
                    order.moved,
                    order.reason or order.needs,
                    least,
                    sum(len(g.problem.buffers) for g in given.memory.groups if g.unit is not None),
                )
            )
    return tuple(rows)


def _planned(lowered: tvm.IRModule, options: GMEMOptions) -> dict[str, tuple[FunctionPlan, int]]:
    """Return for each function its plan, and the bytes that the stock pass allocates."""
    stock = relax.transform.StaticPlanBlockMemory()(lowered)
    plans = {plan.memory.name: plan for plan in plan_gmem(lowered, options=options)}
    return {name: (plan, allocated_memory(stock[name]).nbytes) for name, plan in plans.items()}


def _peak(found: FunctionPlan) -> int:
    """Return the bytes of the best plan, before storages are made for the run time's pool."""
    return solve(found.problem).peak if found.form.offsets else found.plan.peak


def _lifted(mod: tvm.IRModule) -> tvm.IRModule | None:
    """Return a module in which what weights alone decide is computed by a function of its own."""
    functions = [func for func in mod.functions.values() if isinstance(func, relax.Function)]
    if not any(func.attrs and "num_input" in func.attrs for func in functions):
        return None
    try:
        return relax.transform.LiftTransformParams()(mod)
    except Exception:  # any of TVM's passes may raise anything: then there is nothing to compare
        return None


def _table(found: list[OrderSavings]) -> Table:
    """Return what orders save, and below it why no more."""
    rows = [("function", "order", "operators", "moved", "stock", "best", "bound", "proven")]
    for one in found:
        proven = "lowest of any order" if one.proven else "no"
        stock, given = f"{one.stock_given:,}", f"{one.given:,}"
        rows.append((one.name, "as written", f"{one.operators:,}", "", stock, given, "", ""))
        stock, best = f"{one.stock_found:,}", f"{one.found:,}"
        rows.append(("", "found", "", f"{len(one.moved):,}", stock, best, f"{one.bound:,}", proven))
    return Table("bytes of activations", rows, [*_notes(found)], left=(0, 1, 7))


def _notes(found: list[OrderSavings]) -> Iterator[str]:
    for one in found:
        if one.moved:
            share = 100 * (one.given - one.found) / one.given
            yield f"{one.name}: {one.given - one.found:,} bytes less ({share:.1f}%)"
        if one.reason:
            yield f"{one.name}: {one.reason}"
        if one.not_counted:
            yield (
                f"{one.name}: not counted: tensors of a size known at run time only: "
                f"{one.not_counted}"
            )
        if one.folded:
            yield (
                f"{one.name}: folded before the run: {one.folded:,} bytes less; "
                "relax.transform.LiftTransformParams computes once what weights alone decide"
            )
