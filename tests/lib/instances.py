# SPDX-License-Identifier: Apache-2.0
"""Public instances for planners, in a data folder: `TVM_EXT_DATA` or ``../shared/data``.

Its READMEs name their sources. `growth_problem` makes tables of any size.
"""

from __future__ import annotations

import gzip
import json
import os
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from passes.planning import Buffer, Penalty, Problem
from passes.planning.files import read_problem
from target_hw.memory import MemoryScope

DATA = os.environ.get("TVM_EXT_DATA", str(Path(__file__).parents[2] / ".." / "shared" / "data"))


@dataclass(frozen=True)
class Case:
    """A memory of an NPU kernel, with the kernel's name."""

    problem: Problem
    kernel: str


def read_table(path: Path, capacity: int | None = None) -> Problem:
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8", newline="") as stream:
        return read_problem(stream, path.name, MemoryScope("global", capacity))


def ascend(data: Path) -> Iterator[Case]:
    return kernel_cases(data / "ascend_kernels" / "soft.jsonl.gz")


def penalties(data: Path) -> Iterator[Case]:
    """Yield MiniMalloc's instances with thousands of penalties, in first fit's capacity."""
    return kernel_cases(data / "reuse_penalties" / "minimalloc.jsonl.gz")


def kernel_cases(path: Path) -> Iterator[Case]:
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        for line in stream:
            kernel = json.loads(line)
            for problem in kernel_problems(kernel):
                yield Case(problem, kernel["name"])


def kernel_problems(kernel: Mapping[str, Any]) -> list[Problem]:
    """Return one problem for each memory of a captured NPU kernel; all is in bytes.

    A kernel has ``name``, ``pools`` (scope to ``capacity`` and ``reserved`` ranges,
    ``{"begin": b, "end": e}``), ``buffers`` (``id``, ``scope``, ``size``, ``alignment`` and half-
    open ``live`` ranges), ``separations`` (pairs of ids) and ``penalties`` (id, id, cost). Pairs
    of buffers in different memories say nothing and are left out.
    """
    return [_problem(kernel, scope, pool) for scope, pool in kernel["pools"].items()]


def _problem(kernel: Mapping[str, Any], scope: str, pool: Mapping[str, Any]) -> Problem:
    rows = [row for row in kernel["buffers"] if row["scope"] == scope]
    here = {row["id"] for row in rows}
    return Problem(
        tuple(
            Buffer(
                str(row["id"]),
                row["size"],
                tuple((begin, end) for begin, end in row["live"]),
                row["alignment"],
            )
            for row in rows
        ),
        MemoryScope(
            scope,
            pool["capacity"],
            reserved=tuple((entry["begin"], entry["end"]) for entry in pool["reserved"]),
        ),
        separations=tuple((str(a), str(b)) for a, b in kernel["separations"] if {a, b} <= here),
        penalties=tuple(
            Penalty(str(a), str(b), cost) for a, b, cost in kernel["penalties"] if {a, b} <= here
        ),
        name=f"{kernel['name']} {scope}",
    )


def growth_problem(count: int, share: float, seed: int = 0) -> Problem:
    """Return random buffers of 16 B to 64 KiB of which about a share is live at once."""
    rng = random.Random(f"{count} {share} {seed}")
    positions = 10 * count
    buffers = []
    for index in range(count):
        begin, life = rng.randrange(positions), rng.expovariate(1 / (share * positions))
        size = int(2 ** rng.uniform(4, 16))
        end = begin + 1 + min(positions, int(life))
        buffers.append(Buffer(str(index), size, ((begin, end),)))
    return Problem(tuple(buffers), name=f"{count:,} buffers, {share:.0%} live at once")
