# SPDX-License-Identifier: Apache-2.0
"""``tvm-ext compare --layer-group``: what running layers together saves, as a table."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace

import tvm

from passes.gmem import GMEMOptions, plan_gmem
from passes.layer_group import (
    LayerGroupOptions,
    PlannedBlock,
    Progress,
    plan_groups,
    silent,
    with_groups,
)
from tvm_ext.commands.command_options import progress_line, sizes_of
from tvm_ext.comparison import Report
from tvm_ext.layer_group_report import LayerGroupReport, check_local_memory, report_of
from tvm_ext.lowering import DEFAULT_TARGET, capture_relax, known_target
from tvm_ext.reading.programs import read_network
from tvm_ext.text import Table, format_bytes

DEFAULT_CHIP = "sophgo/bm1684x"


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

    def plain(self) -> dict[str, object]:
        """Return the data without the plans themselves."""
        groups = [{k: v for k, v in vars(g).items() if k != "planned"} for g in self.report.groups]
        left = [one._asdict() for one in self.report.left]
        gmem = {"gmem_before": self.gmem_before, "gmem_after": self.gmem_after}
        return {**vars(self.report), "groups": groups, "left": left, **gmem}


def run(arguments: argparse.Namespace) -> Report:
    """Group a network's layers; raises ValueError on bad input."""
    mod = read_network(arguments.program, "--layer-group", sizes_of(arguments))
    # A file may have registered the target.
    target = known_target(arguments.target or DEFAULT_CHIP)
    check_local_memory(target)
    with progress_line("layers") as progress:
        found = savings(mod, LayerGroupOptions(target, form="arena"), progress)
    return Report(found.plain(), found.table().text())


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
