"""``python -m tvm_ext map``: the memory of a program as a page, a picture or a trace."""

from __future__ import annotations

import argparse
from pathlib import Path

from passes.planning import Budget, planners
from tvm_ext.drawing import format_bytes
from tvm_ext.map.model import MemoryMap
from tvm_ext.map.source import memory_map_of
from tvm_ext.map.write import known_suffix, write_map

UNLIMITED_NODES = 1 << 60
FITS, DOES_NOT_FIT = 0, 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to a parser or subparser."""
    parser.add_argument(
        "program",
        metavar="WORKLOAD | ascend:KERNEL[:SIZE] | FILE",
        help="a workload or network that 'compare --list' names, a kernel for an Ascend core, a "
        "TVMScript file (.py), a module saved with tvm.ir.save_json (.json), or a table of buffers "
        "(.csv)",
    )
    parser.add_argument(
        "-o",
        "--output",
        required=True,
        metavar="OUT",
        help="what to write, by its ending: .html a page for a browser; .svg, .png or .pdf a "
        "picture; .pickle a snapshot for PyTorch's memory visualiser; .json a trace for Perfetto",
    )
    parser.add_argument(
        "--planner",
        action="append",
        default=[],
        metavar="NAME[,NAME...]",
        help="planners to show side by side; by default 'best', and for Ascend kernels "
        f"'three_level'. There are: {', '.join(planner.name for planner in planners())}",
    )
    parser.add_argument("--target", metavar="T", help="lower the program for this target")
    parser.add_argument(
        "--scope",
        action="append",
        default=[],
        metavar="NAME[,NAME...]",
        help="show these memories only, such as local.UB",
    )
    parser.add_argument(
        "--capacity", type=int, metavar="BYTES", help="of the memory for a table of buffers"
    )
    parser.add_argument(
        "--alignment",
        type=int,
        default=1,
        metavar="BYTES",
        help="of a table's offsets (default: 1)",
    )
    parser.add_argument(
        "--time-limit", type=float, metavar="SECONDS", help="for each planner and memory"
    )


def run(args: argparse.Namespace) -> int:
    """Run the command; return 0 if every plan fits, 1 if one does not.

    Raises
    ------
    ValueError
        On bad input.
    """
    known_suffix(args.output)
    if not Path(args.output).parent.is_dir():
        raise ValueError(f"cannot write {args.output}: there is no such directory")
    budget = None if args.time_limit is None else Budget(UNLIMITED_NODES, args.time_limit)
    shown = memory_map_of(
        args.program,
        names=_listed(args.planner),
        target=args.target,
        scopes=_listed(args.scope),
        capacity=args.capacity,
        alignment=args.alignment,
        budget=budget,
    )
    try:
        write_map(shown, args.output)
    except ImportError as error:
        raise ValueError(str(error)) from error
    for line in _report(shown):
        print(line)
    fits = all(placement.plan.fits for scope in shown.scopes for placement in scope.placements)
    return FITS if fits else DOES_NOT_FIT


def _listed(options: list[str]) -> list[str]:
    names = [name.strip() for option in options for name in option.split(",")]
    return list(dict.fromkeys(name for name in names if name))


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
                f"{plan.status.value}"
            )
    for run in shown.runs:
        lines.append(f"{run.function}: {run.planner} takes {run.simulation.makespan:,} cycles")
    return lines
