# SPDX-License-Identifier: Apache-2.0
"""``tvm-ext compare --storage-rewrite``: TVM's pass and its mirror, function by function."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time

from passes.addresses import has_tiles
from tvm_ext.command_options import progress_line, sizes_of, write_json
from tvm_ext.comparison.storage_rewrite import Comparison, FunctionComparison, compare_function
from tvm_ext.programs import Program, load_program
from tvm_ext.text import counted, format_seconds

_MOST_NAMED = 3
"""So many functions whose IR differs are named."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options to the parser of ``compare``."""
    parser.add_argument(
        "--storage-rewrite",
        action="store_true",
        help="show instead what TVM's StorageRewrite and ours allocate in each function, whether "
        "the IR is equal, and the time of both; exit status 1 when a function differs",
    )
    parser.add_argument(
        "--fail-on-difference",
        action="store_true",
        help="with --storage-rewrite: stop at the first function that differs and print the "
        "difference in full",
    )


def run(args: argparse.Namespace) -> int:
    """Run the command; return 0 if all functions are equal, 1 if one is not."""
    begin = time.perf_counter()
    program = load_program(args.program, args.target, sizes_of(args))
    seconds = time.perf_counter() - begin if program.target is not None else None
    comparison = compared(program, stop=args.fail_on_difference)
    write_json(args.json, json.loads(comparison.to_json()))
    # A file or a pipe has room for whole names.
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    if program.assumed:
        print(f"{program.title}\n")
    print("\n".join(comparison.table(seconds).text(width)))
    if args.fail_on_difference and not comparison.equal:
        last = comparison.functions[-1]
        print(f"\nthe first function that differs: {last.name}\n{last.difference}")
    return 0 if comparison.equal else 1


def compared(program: Program, *, stop: bool = False, repeats: int = 5) -> Comparison:
    """Run both passes on each function; with `stop`, up to the first that differs.

    Functions with tiles of a Trainium core are left out: no pipeline of TVM runs the pass on them.

    Raises ValueError, which names the program and the function, when a pass fails.
    """
    rows: list[FunctionComparison] = []
    functions = {name: f for name, f in program.functions.items() if not has_tiles(f)}
    try:
        with progress_line("functions") as show:
            for function in functions.items():
                rows.append(compare_function(*function, repeats=repeats))
                show(len(rows), len(functions))
                if stop and not rows[-1].equal:
                    break
    except ValueError as error:
        raise ValueError(f"{program.name}: {error}") from error
    return Comparison(tuple(rows))


def in_one_line(comparison: Comparison) -> str:
    """Say whether our pass gives the IR of TVM's, and how long both take."""
    totals = comparison.totals
    other = [row.name for row in comparison.functions if not row.equal]
    functions = counted(totals.functions, "function")
    equal = f"the same IR as TVM's in {'all of ' if totals.functions > 1 else ''}{functions}"
    if other:
        more = f" and {len(other) - _MOST_NAMED} more" if len(other) > _MOST_NAMED else ""
        named = ", ".join(other[:_MOST_NAMED])
        equal = f"other IR than TVM's in {len(other)} of {functions} ({named}{more})"
    times = format_seconds(totals.stock_seconds, totals.ours_seconds)
    return f"StorageRewrite: {equal}; TVM's/ours take {times}; --storage-rewrite shows each"
