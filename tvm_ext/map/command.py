# SPDX-License-Identifier: Apache-2.0
"""``tvm-ext map``: the memory of a program as a page, a picture or a trace."""

from __future__ import annotations

import argparse

from tvm_ext.command_options import (
    PROGRAM,
    TARGET,
    add_limits,
    add_planners,
    budget_of,
    check_writable,
)
from tvm_ext.map.memory_map import MemoryMap
from tvm_ext.map.options import MapOptions
from tvm_ext.map.source import memory_map_of
from tvm_ext.map.write import known_suffix, write_map
from tvm_ext.planned_memory import verdict
from tvm_ext.text import format_bytes

FITS, DOES_NOT_FIT = 0, 1

_MOST_LEFT = 5
"""So many buffers are named that are not planned."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's description and arguments to a parser or subparser."""
    parser.description = (
        "Plan the memories of a program and show them: as a page with the map beside the program's "
        "lines, as a picture, or for viewers of snapshots and traces."
    )
    parser.epilog = (
        "Exit status: 0 when every plan fits, 1 when one does not, 2 on bad input. A .py file is "
        "run, as Python runs it: give only files that you trust."
    )
    parser.add_argument(
        "program",
        metavar="WORKLOAD | ascend:KERNEL[:SIZE] | FILE",
        help=f"{PROGRAM}, or a table of buffers (.csv)",
    )
    parser.add_argument(
        "-o",
        "--output",
        required=True,
        metavar="OUT",
        help="what to write, by its ending: .html a page for a browser; .svg, .png or .pdf a "
        "picture; .pickle a snapshot for PyTorch's memory visualiser; .json a trace for Perfetto",
    )
    parser.add_argument("--target", metavar="T", help=f"lower the program for {TARGET}")
    add_planners(
        parser,
        "show the plans of these side by side, 'stock' being TVM's own; by default best, and for "
        "Ascend kernels three_level",
    )
    for option, what, example in (
        ("scopes", "show these memories only", "such as local.UB"),
        ("functions", "show these functions only", "by default the Relax functions, if any"),
    ):
        parser.add_argument(
            f"--{option}", default="", metavar="NAME[,NAME...]", help=f"{what}; {example}"
        )
    parser.add_argument(
        "--layer-group",
        action="store_true",
        help="of a network: show the local memory of its groups of layers; needs a target with one",
    )
    parser.add_argument(
        "--order",
        action="store_true",
        help="of a network: show it in the order in which the least memory is live",
    )
    parser.add_argument(
        "--shared-memory",
        action="store_true",
        help="of GPU kernels: show the shared memory of each, epoch by epoch between its barriers",
    )
    add_limits(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command; return 0 if every plan fits, 1 if one does not."""
    known_suffix(args.output)
    check_writable(args.program, args.output)
    planners = () if args.planners is None else args.planners
    shown = memory_map_of(
        args.program,
        target=args.target,
        capacity=args.capacity,
        alignment=args.alignment,
        options=MapOptions(
            planners,
            args.scopes,
            args.functions,
            args.layer_group,
            budget_of(args),
            args.order,
            args.shared_memory,
        ),
    )
    write_map(shown, args.output)
    for line in _report(shown):
        print(line)
    print(f"{shown.title}: written to {args.output}")
    fits = all(placement.plan.fits for scope in shown.scopes for placement in scope.placements)
    return FITS if fits else DOES_NOT_FIT


def _report(shown: MemoryMap) -> list[str]:
    lines = []
    for scope in shown.scopes:
        bound, capacity = scope.bound(), scope.capacity
        there = "" if capacity is None else f" of {format_bytes(capacity)}"
        for placement in scope.placements:
            plan = placement.plan
            lines.append(
                f"{scope.function} {scope.name}: {placement.label} needs "
                f"{format_bytes(plan.peak)}{there}, lower bound {format_bytes(bound)}, "
                f"{verdict(placement.problem, plan)}"
            )
            lines += [f"  {line}" for line in scope.explain(placement).splitlines()]
        lines += [f"  {scope.form}"] if scope.form else []
    for line in shown.left[:_MOST_LEFT]:
        lines.append(f"not planned: {line}")
    if len(shown.left) > _MOST_LEFT:
        lines.append(f"not planned: {len(shown.left) - _MOST_LEFT} more")
    for run in shown.runs:
        lines.append(f"{run.function}: {run.planner} takes {run.simulation.makespan:,} cycles")
    return lines
