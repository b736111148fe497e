"""``python -m tvm_ext map``: the memory of a program as a page, a picture or a trace."""

from __future__ import annotations

import argparse
from pathlib import Path

from passes.planning import Budget, planner_names
from tvm_ext.byte_sizes import format_bytes, parse_bytes
from tvm_ext.map.model import MemoryMap
from tvm_ext.map.source import MapOptions, memory_map_of
from tvm_ext.map.write import known_suffix, write_map

FITS, DOES_NOT_FIT = 0, 1
UNLIMITED_NODES = 1 << 60


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
        help="a workload or kernel that 'compare --list' names, a TVMScript file (.py), a module "
        "saved with tvm.ir.save_json (.json), or a table of buffers (.csv)",
    )
    parser.add_argument(
        "-o",
        "--output",
        required=True,
        metavar="OUT",
        help="what to write, by its ending: .html a page for a browser; .svg, .png or .pdf a "
        "picture; .pickle a snapshot for PyTorch's memory visualiser; .json a trace for Perfetto",
    )
    parser.add_argument("--target", metavar="T", help="lower the program for this target")
    for option, what, example in (
        ("planner", "planners to show side by side", _planners()),
        ("scope", "show these memories only", "such as local.UB"),
        ("function", "show these functions only", "by default the Relax functions, if any"),
    ):
        parser.add_argument(
            f"--{option}",
            action="append",
            default=[],
            metavar="NAME[,NAME...]",
            help=f"{what}; {example}",
        )
    parser.add_argument(
        "--layer-group",
        action="store_true",
        help="of a network: show the local memory of its groups of layers; needs a target with one",
    )
    parser.add_argument(
        "--capacity", type=_bytes, metavar="BYTES", help="of the memory for a table of buffers"
    )
    parser.add_argument(
        "--alignment",
        type=_bytes,
        default=1,
        metavar="BYTES",
        help="of the offsets of a table's buffers (default: 1)",
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
        target=args.target,
        capacity=args.capacity,
        alignment=args.alignment,
        options=MapOptions(
            _listed(args.planner),
            _listed(args.scope),
            _listed(args.function),
            args.layer_group,
            budget,
        ),
    )
    write_map(shown, args.output)
    for line in _report(shown):
        print(line)
    fits = all(placement.plan.fits for scope in shown.scopes for placement in scope.placements)
    return FITS if fits else DOES_NOT_FIT


def _planners() -> str:
    return (
        f"there are: {', '.join(planner_names())}; 'stock' for TVM's own plan, 'all' for those "
        "that are made for such buffers, "
        "module:function for one of your own. By default best, and for Ascend kernels three_level"
    )


def _bytes(text: str) -> int:
    try:
        return parse_bytes(text)
    except ValueError as error:
        # With this type, argparse shows the message and not only the text that it is about.
        raise argparse.ArgumentTypeError(str(error)) from error


def _listed(options: list[str]) -> tuple[str, ...]:
    names = [name.strip() for option in options for name in option.split(",")]
    return tuple(dict.fromkeys(name for name in names if name))


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
            lines += [f"  {line}" for line in scope.explain(placement).splitlines()]
    for run in shown.runs:
        lines.append(f"{run.function}: {run.planner} takes {run.simulation.makespan:,} cycles")
    return lines
