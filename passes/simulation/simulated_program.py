# SPDX-License-Identifier: Apache-2.0
"""A kernel as the pipelines see it: statements in program order, with loops and branches around.

Plain data; buffers are known by the names that they have in the kernel's problems.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True)
class Statement:
    """One instruction of one pipeline."""

    name: str  # For people
    pipe: str  # MTE1, MTE2, MTE3, FIX, V, M or S
    # Planned buffers that the statement reads and writes, on the chip or in the workspace. A buffer
    # that is read and written is in both.
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    # Bytes that it moves (MTE1, MTE2, MTE3, FIX), elements that it computes (V, S), or multiply-
    # adds (M).
    work: int
    element_bits: int = 8  # Of the elements that it computes on; for M, of those that it multiplies


@dataclass(frozen=True)
class Loop:
    """A body that runs `extent` times in a row."""

    number: int  # The loop's number in `PipelineUse.loop`
    extent: int  # How many iterations there are
    body: tuple[Step, ...]  # What one iteration does


@dataclass(frozen=True)
class Alternative:
    """One of two bodies runs; which is not known. The longer one is simulated."""

    then: tuple[Step, ...]
    otherwise: tuple[Step, ...] = ()


Step: TypeAlias = "Statement | Loop | Alternative"


def statements_of(steps: Sequence[Step]) -> Iterator[Statement]:
    """Yield the statements in program order, those of both sides of a branch."""
    for step in steps:
        if isinstance(step, Loop):
            yield from statements_of(step.body)
        elif isinstance(step, Alternative):
            yield from statements_of((*step.then, *step.otherwise))
        else:
            yield step
