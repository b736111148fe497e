"""What planning saves on whole networks: the table in README.md, measured and rewritten.

    python benchmarks/saved.py [--check | --write] [NETWORK ...]

A row a network of `tvm_ext.workloads`: the bytes of the tensors between its operators as TVM's own
plan (`StaticPlanBlockMemory`) places them and as `best` does, with operators fused as TVM's Relax
pipeline for accelerators fuses them, and not fused as for a CPU. A network whose sizes only the
running program knows is named below the table. ``--write`` puts the table into the page, between
the two comments that begin with ``saved:``; ``--check`` fails if it would change.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from tvm_ext import ActivationMemory, activation_memory, workloads

PAGE = Path(__file__).parents[1] / "README.md"
BEGIN, END = "<!-- saved: begin -->", "<!-- saved: end -->"
HEADER = (
    "| network | fused: TVM's plan | ours | saved | not fused: TVM's plan | ours | saved |",
    "|---|---:|---:|---:|---:|---:|---:|",
)


def networks() -> list[str]:
    return [name for name in workloads.names() if workloads.find(name).kind == "model"]


def measured(name: str) -> list[ActivationMemory]:
    """Return what a network's one function takes, fused and not; nothing if sizes are unknown."""
    mod = workloads.model(name)
    return [
        memory
        for fuse in (True, False)
        for memory in activation_memory(mod, "llvm", fuse=fuse, names=["best"])
    ]


def row(name: str, memories: Iterable[ActivationMemory]) -> str:
    cells = [name]
    for memory in memories:
        (best,) = memory.plans
        saved = 1 - best.nbytes / memory.stock.nbytes
        mark = "" if best.optimal else " (not proven lowest)"
        cells += [f"{memory.stock.nbytes:,}", f"{best.nbytes:,}{mark}", f"{saved:.1%}"]
    return f"| {' | '.join(cells)} |"


def table(names: Iterable[str]) -> Iterator[str]:
    yield from HEADER
    unknown = []
    for name in names:
        memories = measured(name)
        if len(memories) == 2 and not any(memory.stock.symbolic for memory in memories):
            yield row(name, memories)
        else:
            unknown.append(name)
    if unknown:
        yield ""
        yield f"Not in the table, because sizes are known at run time only: {', '.join(unknown)}."


def with_table(page: str, lines: Iterable[str]) -> str:
    """Return a page with other lines between the comments; ValueError if they are not there."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no {BEGIN} with {END} after it")
    return before + begin + "\n\n" + "\n".join(lines) + "\n\n" + end + after


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("networks", nargs="*", metavar="NETWORK", help="by default all")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--write", action="store_true", help="put the table into README.md")
    what.add_argument("--check", action="store_true", help="fail if README.md has another one")
    arguments = parser.parse_args()
    if arguments.networks and (arguments.write or arguments.check):
        parser.error("--write and --check are for the whole table")
    lines = list(table(arguments.networks or networks()))
    print("\n".join(lines))
    before = PAGE.read_text(encoding="utf-8")
    after = with_table(before, lines)
    if arguments.write:
        PAGE.write_text(after, encoding="utf-8")
    return int(arguments.check and before != after)


if __name__ == "__main__":
    sys.exit(main())
