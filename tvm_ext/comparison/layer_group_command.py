# SPDX-License-Identifier: Apache-2.0
"""``tvm-ext compare --layer-group``: what running layers together saves, as a table."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace

import tvm

from passes.gmem import GMEMOptions, plan_gmem
from passes.layer_group import (
    HALOS,
    SEARCHES,
    LayerGroupOptions,
    PlannedBlock,
    Progress,
    plan_groups,
    silent,
    with_groups,
)
from tvm_ext.commands.command_options import progress_line, sizes_of, write_json
from tvm_ext.layer_group_report import (
    LayerGroupReport,
    check_local_memory,
    report_of,
)
from tvm_ext.lowering import DEFAULT_TARGET, capture_relax, known_target
from tvm_ext.reading.programs import read_network
from tvm_ext.text import Table, format_bytes

_DEFAULT_CHIP = "sophgo/bm1684x"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options to the parser of ``compare``."""
    parser.add_argument(
        "--layer-group",
        action="store_true",
        help="show instead what running layers of a Relax network together in the local memory of "
        f"the target saves; the target is by default {_DEFAULT_CHIP}",
    )
    parser.add_argument(
        "--search", choices=sorted(SEARCHES), help="with --layer-group: how groups are found"
    )
    parser.add_argument(
        "--halo",
        choices=HALOS,
        help="with --layer-group: what happens to rows that two slices need",
    )


@dataclass(frozen=True)
class Savings:
    """What groups save of a network on a chip."""

    report: LayerGroupReport  # The groups, and bytes between global and local memory
    # Bytes of global memory for activations, planned by ``best``.
    gmem_before: int
    gmem_after: int

    def table(self) -> Table:
        """Return the groups, and what they save."""
        sizes, table = format_bytes(self.gmem_before, self.gmem_after), self.report.table()
        line = f"global memory of activations: {sizes} without/with groups"
        return replace(table, notes=(line, *table.notes))


def run(arguments: argparse.Namespace) -> int:
    """Run the command; the exit status is 0.

    Raises ValueError on bad input.
    """
    mod = read_network(arguments.program, "--layer-group", sizes_of(arguments))
    # A file may have registered the target.
    target = known_target(arguments.target or _DEFAULT_CHIP)
    check_local_memory(target)
    options = LayerGroupOptions(
        target,
        arguments.search or LayerGroupOptions.search,
        arguments.halo or LayerGroupOptions.halo,
        form="arena",
    )
    with progress_line("layers") as progress:
        found = savings(mod, options, progress)
    write_json(arguments.json, plain(found))
    print("\n".join(found.table().text()))
    return 0


def savings(mod: tvm.IRModule, options: LayerGroupOptions, progress: Progress = silent) -> Savings:
    """Return what groups save of a network.

    Raises ValueError as `LayerGroup` and `GMEMAllocate` do.
    """
    # A chip without a code generator in TVM has the operators of a CPU.
    blocks: list[PlannedBlock] = []

    def grouped(kernels: tvm.IRModule) -> tvm.IRModule:
        blocks.extend(plan_groups(kernels, options, progress))
        return with_groups(kernels, kernels, blocks)

    sizes = []
    for between in (None, grouped):
        lowered = capture_relax(mod, DEFAULT_TARGET, between=between)
        plans = plan_gmem(lowered, "best", GMEMOptions(target=options.target))
        sizes.append(sum(planned.plan.peak for planned in plans))
    return Savings(report_of(blocks, options), *sizes)


def plain(found: Savings) -> dict[str, object]:
    """Return the data without the plans themselves."""
    groups = [{k: v for k, v in vars(g).items() if k != "planned"} for g in found.report.groups]
    left = [one._asdict() for one in found.report.left]
    gmem = {"gmem_before": found.gmem_before, "gmem_after": found.gmem_after}
    return {**vars(found.report), "groups": groups, "left": left, **gmem}
