# SPDX-License-Identifier: Apache-2.0
"""Public instances for planners, in a data folder: `TVM_EXT_DATA` or ``../shared/data``.

Its READMEs name their sources. `growth_problem` makes tables of any size.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from passes.planning import Buffer, Problem
from passes.planning.files import read_problem
from target_hw.memory import MemoryScope

DATA = os.environ.get("TVM_EXT_DATA", str(Path(__file__).parents[2] / ".." / "shared" / "data"))
TESTS = Path(__file__).parents[1]


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
    sys.path.insert(0, str(TESTS))
    from kernel_format import kernel_problems

    with gzip.open(path, "rt", encoding="utf-8") as stream:
        for line in stream:
            kernel = json.loads(line)
            for problem in kernel_problems(kernel):
                yield Case(problem, kernel["name"])


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
