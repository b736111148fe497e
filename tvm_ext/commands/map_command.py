# SPDX-License-Identifier: Apache-2.0
"""``tvm-ext map``: the memory of a program as a page or a picture."""

from __future__ import annotations

import argparse

from passes.planning import Budget
from tvm_ext.commands import command_options as common
from tvm_ext.reading.programs import problems_of
from tvm_ext.report import Report, check_suffix, memory_map, report_of
from tvm_ext.report.readers.spread import SECONDS, spread
from tvm_ext.report.report import Finding


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's description and arguments to a parser or subparser."""
    parser.description = (
        "Plan the memories of a program and show them: as a page with the map beside the program's "
        "lines, as a picture, as data or as a trace."
    )
    parser.epilog = (
        "Exit status: 0 when every plan fits, 1 when one does not, 2 on bad input. A .py file is "
        "run, as Python runs it: give only files that you trust."
    )
    common.add_program(parser, "or a table of buffers (.csv)")
    common.add_view(parser)
    parser.add_argument(
        "-o",
        "--output",
        required=True,
        metavar="OUT",
        help="what to write, by its ending: .html a page for a browser; .svg a picture; "
        ".json data; .trace a trace for Perfetto or chrome://tracing",
    )
    parser.add_argument("--target", metavar="T", help=f"lower the program for {common.TARGET}")
    common.add_planners(
        parser,
        "show the plans of these side by side, 'stock' being TVM's own; by default best, and for "
        "Ascend kernels three_level",
    )
    for option, what in (
        ("scopes", "show these memories only, such as local.UB"),
        ("functions", "show these functions only; by default the Relax functions, if any"),
    ):
        parser.add_argument(f"--{option}", default="", metavar="NAME[,NAME...]", help=what)
    common.add_sizes(parser)
    common.add_json(parser)
    common.add_memories(parser)
    common.add_limits(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command; return 0 if every plan fits, 1 if one does not."""
    common.check_memories(args)
    check_suffix(args.output)
    common.check_writable(args.program, args.output, args.json)
    report = _report(args)
    print(report.text(common.columns()))
    if report.memories:
        with common.naming(args.output):
            report.save(args.output)
        print(f"\n{report.title}: written to {args.output}")
    common.write_json(args.json, report.data)
    is_right = all(one.plan.fits for view in report.memories for one in view.plans)
    return 0 if is_right and report.is_right else 1


def _report(args: argparse.Namespace) -> Report:
    sizes, budget = common.sizes_of(args), common.budget_of(args)
    if args.memories is not None:
        memories = common.read_memories(args.memories)
        limit = Budget(1 << 60, SECONDS) if budget is None else budget
        found: list[Finding] = []
        for problem in problems_of(args.program, memories, args.target, sizes):
            found += spread(problem, [*memories], limit, args.moves)[1]
        return report_of(args.program, found)
    with common.progress_line("layers") as progress:
        return memory_map(
            args.program,
            args.planners or (),
            view=args.view or "",
            target=args.target,
            scopes=args.scopes,
            functions=args.functions,
            budget=budget,
            sizes=sizes,
            capacity=args.capacity,
            alignment=args.alignment,
            progress=progress,
        )
