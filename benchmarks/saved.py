# SPDX-License-Identifier: Apache-2.0
"""What planning saves on whole networks: the table in README.md, measured and rewritten.

    python benchmarks/saved.py [--check | --write] [NETWORK ...]

A row a network of `tvm_ext.workloads`: the bytes of the tensors between its operators as TVM's own
plan (`StaticPlanBlockMemory`) places them and as `best` does, with operators fused and not; and as
`best` does with the fused operators in the order that `OrderForMemory` finds.
Symbolic dimensions have the same upper bounds on both sides; a network whose sizes only the
running program knows is named below the table. ``--write`` puts the table into the page, between
the two comments that begin with ``saved:``; ``--check`` fails if it would change.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import tvm
from marked_lines import with_lines
from runtime_shapes import RUNTIME_SHAPES

from tvm_ext import activation_memory, workloads
from tvm_ext.comparison.order_command import order_savings

PAGE = Path(__file__).parents[1] / "README.md"
NAME = "saved"
"""Of the table, in the comments around it."""
HEADER = (
    "| network | fused: TVM's plan | ours | saved | reordered "
    "| not fused: TVM's plan | ours | saved |",
    "|---|---:|---:|---:|---:|---:|---:|---:|",
)


@dataclass(frozen=True)
class Network:
    """A network, and the most that its symbolic dimensions can be."""

    build: Callable[[], tvm.IRModule]
    bounds: Mapping[str, int] = field(default_factory=dict)


def networks() -> dict[str, Network]:
    """Return those of the workloads, and those that are built for one run, by name."""
    found = {name: Network(model.build) for name, model in workloads.MODELS.items()}
    for name, network in RUNTIME_SHAPES.items():
        found[name] = Network(network.build, network.sizes)
    return found


def measured(network: Network, fuse: bool) -> tuple[int, int, bool] | None:
    """Return bytes of the stock plan and of ours, and whether no plan takes less.

    None where the size of something is known at run time only.
    """
    rows = activation_memory(
        network.build(), "llvm", fuse=fuse, names=["best"], upper_bounds=network.bounds
    )
    if not rows or any(row.stock.symbolic for row in rows):
        return None
    return (
        sum(row.stock.nbytes for row in rows),
        sum(row.bytes_of("best") for row in rows),
        all(plan.proven for row in rows for plan in row.plans),
    )


def reordered(network: Network) -> int:
    """Return the bytes of our plan of the fused network in the order that is found for it."""
    rows = order_savings(network.build(), tvm.target.Target("llvm"), upper_bounds=network.bounds)
    return sum(row.found for row in rows)


def row(name: str, plans: Iterable[tuple[int, int, bool]], found: int) -> str:
    """Return a row: plans with operators fused and not, and the fused one in another order."""
    cells = [name]
    for number, (stock, ours, proven) in enumerate(plans):
        cells += [f"{stock:,}", f"{ours:,}" if proven else f"{ours:,} (not proven lowest)"]
        cells.append(f"{1 - ours / stock:.1%}")
        if number == 0:
            cells.append(f"{found:,}")
    return f"| {' | '.join(cells)} |"


def table(names: Iterable[str]) -> Iterator[str]:
    yield from HEADER
    unknown, shares = [], []
    every = networks()
    for name in names or every:
        found = [measured(every[name], fuse) for fuse in (True, False)]
        plans = [plan for plan in found if plan is not None]
        if len(plans) < len(found):
            unknown.append(name)
        else:
            yield row(name, plans, reordered(every[name]))
            shares += [1 - ours / stock for stock, ours, _ in plans]
    if shares:
        yield ""
        yield (
            f"Saved: {min(shares):.1%} to {max(shares):.1%}, "
            f"{statistics.median(shares):.1%} in the median."
        )
    if unknown:
        yield ""
        yield f"Not in the table, because sizes are known at run time only: {', '.join(unknown)}."


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("networks", nargs="*", metavar="NETWORK", help="by default all")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--write", action="store_true", help="put the table into README.md")
    what.add_argument("--check", action="store_true", help="fail if README.md has another one")
    arguments = parser.parse_args()
    if arguments.networks and (arguments.write or arguments.check):
        parser.error("--write and --check are for the whole table")
    lines = list(table(arguments.networks))
    print("\n".join(lines))
    before = PAGE.read_text(encoding="utf-8")
    after = with_lines(before, NAME, lines)
    if arguments.write:
        PAGE.write_text(after, encoding="utf-8")
    return int(arguments.check and before != after)


if __name__ == "__main__":
    sys.exit(main())
