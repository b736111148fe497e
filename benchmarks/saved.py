# SPDX-License-Identifier: Apache-2.0
"""What planning saves on whole networks: the table in docs/savings.md, measured and rewritten.

    python benchmarks/saved.py [--check | --write] [NETWORK ...]

A row a network of `tvm_ext.workloads`: the bytes of the tensors between its operators, lowered for
``llvm`` with operators fused, as TVM's own plan (`StaticPlanBlockMemory`) places them and as a
build with `best` does: at offsets, as CPUs and CUDA take them, and in whole slots, as OpenCL,
Vulkan, Metal and WebGPU need them. These are the figures of ``tvm-ext compare``.
The last column is for operators that are not fused, at offsets. Symbolic
dimensions have the upper bounds that the network states; what depends on weights alone is computed
before the call, as where weights are bound. The sentence below leaves out the small networks.
``--write`` puts the table into the page, between the two comments that begin with ``saved:``, and
some rows of it into README.md; ``--check`` fails if either would change.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import test_libraries  # noqa: F401 - lets the next ones be found
from allocated import allocated_memory
from marked_lines import with_lines
from tvm import IRModule, relax

from tvm_ext import lowering, workloads
from tvm_ext.named_planners import STOCK
from tvm_ext.report.ask import Ask
from tvm_ext.report.memory_view import MemoryView
from tvm_ext.report.readers.tensor_memories import network
from tvm_ext.transform import GMEMAllocate

ROOT = Path(__file__).parents[1]
PAGE, README = ROOT / "docs" / "savings.md", ROOT / "README.md"
NAME = "saved"
"""Of the table, in the comments around it."""
SMALL = "small "
"""How the descriptions of networks begin that have few layers of few features, for tests."""
HEADER = (
    "| network | what it is | TVM's plan | ours, at offsets | saved "
    "| ours, in whole slots | saved | not fused: saved |",
    "|---|---|---:|---:|---:|---:|---:|---:|",
)
SHORT = (
    "| network | TVM's plan | ours, at offsets | saved | ours, in whole slots | saved |",
    "|---|---:|---:|---:|---:|---:|",
)
"""The header of the table in README.md: all columns but the second and the last one."""
CHOSEN = (
    *("resnet50", "mobilenet_v2", "densenet121", "inception_v3", "convnext_tiny", "swin_t"),
    *("vit_b_16", "bert_base", "gpt2", "segformer"),
)
"""The networks in README.md: each family of full size, the largest and the smallest saving too."""
SLOTS = "opencl"
"""A target whose kernels take memory as whole slots."""


@dataclass(frozen=True)
class Row:
    """Bytes of the tensors of a network under each plan."""

    stock: int
    offsets: int
    slots: int
    plain_stock: int  # Without fusion
    plain_offsets: int
    proven: bool  # Whether no plan at offsets takes less than the two of ours

    @property
    def shares(self) -> tuple[float, float, float]:
        """What is saved of the stock plan: at offsets, in whole slots, and without fusion.

        Rounded as the table shows it, where nothing saved is no negative number.
        """
        pairs = (
            (self.offsets, self.stock),
            (self.slots, self.stock),
            (self.plain_offsets, self.plain_stock),
        )
        one, two, three = (round(1 - ours / stock, 3) + 0 for ours, stock in pairs)
        return one, two, three


def views(mod: IRModule) -> Iterator[MemoryView]:
    """Yield the memories of a network as `compare` shows them: fused, and not fused."""
    ask = Ask(("stock", "best"), everything=True)
    for found in network(mod, lowering.known_target("llvm"), ask):
        if isinstance(found, MemoryView):
            yield found


def slot_bytes(mod: IRModule) -> int:
    """Return what the operators that are lowered for llvm take in whole slots."""
    planned = GMEMAllocate(target=lowering.known_target(SLOTS))(lowering.capture_relax(mod, "llvm"))
    functions = (f for f in planned.functions.values() if isinstance(f, relax.Function))
    return sum(allocated_memory(func).nbytes for func in functions)


def built_bytes(view: MemoryView) -> tuple[int, bool]:
    """Return what a build takes, and whether no plan takes less."""
    ours = view.plans[-1]  # The plan of a build, where that is above the planner's
    return ours.plan.peak, bool(ours.proven)


def measured(name: str) -> Row:
    """Measure a network."""
    mod = workloads.model(name)
    fused, plain = views(mod)
    (offsets, proven), (plain_offsets, plain_proven) = built_bytes(fused), built_bytes(plain)
    return Row(
        fused.plan_of(STOCK).plan.peak,
        offsets,
        slot_bytes(mod),
        plain.plan_of(STOCK).plan.peak,
        plain_offsets,
        proven and plain_proven,
    )


def line(name: str, row: Row) -> str:
    """Return the line of the table for a network."""
    offsets, slots, plain = row.shares
    unproven = "" if row.proven else " (not proven lowest)"
    cells = (
        name,
        workloads.NETWORKS[name].description,
        f"{row.stock:,}",
        f"{row.offsets:,}{unproven}",
        f"{offsets:.1%}",
        f"{row.slots:,}",
        f"{slots:.1%}",
        f"{plain:.1%}",
    )
    return f"| {' | '.join(cells)} |"


def summary(rows: Sequence[Row]) -> str:
    """Return a sentence on the rows of networks of full size."""
    said = []
    for what, shares in zip(
        ("at offsets", "in whole slots", "at offsets without fusion"),
        zip(*(row.shares for row in rows), strict=True),
        strict=True,
    ):
        said.append(
            f"{what} {min(shares):.1%} to {max(shares):.1%}, {statistics.median(shares):.1%} "
            "in the median"
        )
    return f"Saved on the {len(rows)} networks of full size: {'; '.join(said)}."


def table(names: Iterable[str]) -> Iterator[str]:
    """Yield the lines of the table, each as soon as it is measured."""
    yield from HEADER
    rows = []
    for name in names or workloads.NETWORKS:
        row = measured(name)
        yield line(name, row)
        if not workloads.NETWORKS[name].description.startswith(SMALL):
            rows.append(row)
    if rows:
        yield ""
        yield summary(rows)


def shortened(lines: Sequence[str]) -> Iterator[str]:
    """Yield the table of README.md from the lines of the whole one."""
    yield from SHORT
    for each in lines[len(HEADER) :]:
        cells = [cell.strip() for cell in each.strip("|").split("|")]
        if cells[0] in CHOSEN:
            yield f"| {' | '.join((cells[0], *cells[2:7]))} |"
    yield from lines[-2:]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("networks", nargs="*", metavar="NETWORK", help="by default all")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--write", action="store_true", help="put the table into the pages")
    what.add_argument("--check", action="store_true", help="fail if a page has another one")
    arguments = parser.parse_args()
    if arguments.networks and (arguments.write or arguments.check):
        parser.error("--write and --check are for the whole table")
    logging.getLogger("tvm_ext").setLevel(logging.ERROR)
    lines = []
    for made in table(arguments.networks):
        print(made, flush=True)
        lines.append(made)
    differs = False
    for page, shown in ((PAGE, lines), (README, list(shortened(lines)))):
        before = page.read_text(encoding="utf-8")
        after = with_lines(before, NAME, shown)
        differs |= before != after
        if arguments.write:
            page.write_text(after, encoding="utf-8")
    return int(arguments.check and differs)


if __name__ == "__main__":
    sys.exit(main())
