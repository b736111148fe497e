# SPDX-License-Identifier: Apache-2.0
"""What docs/gmem.md says is what comes out."""

from __future__ import annotations

from pathlib import Path

import pytest
from measured_memory import allocated_at
from relax_runs import lower, planned
from runtime_shapes import RUNTIME_SHAPES
from tvm import relax

import tvm_ext
from passes.gmem.planning.rec_tbl import trace
from passes.planning import Buffer, Problem, lower_bound, solve
from target_hw import MemoryScope
from tvm_ext import workloads
from tvm_ext.transform import GMEMAllocate

PAGE = Path(__file__).parents[2] / "docs" / "gmem.md"
KIB = 1024


def table(marker: str) -> list[list[str]]:
    """Give the cells of the page's table behind a comment, without the header."""
    lines = PAGE.read_text().split(f"<!-- {marker} -->\n")[1].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    end = next(i for i, line in enumerate(lines) if not line.startswith("|"))
    return rows[2:end]


NAME_OF = "a name of "
"""How the table says that a result has no memory of its own."""


def example() -> Problem:
    """Read the problem of the worked example off its table: positions are its rows."""
    rows = table("example: small_net")
    root: dict[str, str] = {}
    end: dict[str, int] = {}
    for position, (_, reads, result, _, decision, *_) in enumerate(rows):
        for operand in reads.split(", "):
            if operand in root:
                end[root[operand]] = position + 1
        root[result] = root[decision.removeprefix(NAME_OF)] if NAME_OF in decision else result
        end[root[result]] = position + 1
    end["j"] = len(rows) + 1  # The last operator reads it.
    buffers = [
        Buffer(result, int(size) * KIB, ((position, end[result]),))
        for position, (_, _, result, size, *_) in enumerate(rows)
        if root[result] == result
    ]
    return Problem(tuple(buffers), MemoryScope("global", alignment=4 * KIB))


def test_the_worked_example_is_what_the_strategy_does():
    rows = table("example: small_net")
    steps = {step.position: step for step in trace(example())}
    offset_of: dict[str, str] = {}
    held_before = ""
    for position, (_, _, result, _, decision, offset, held) in enumerate(rows):
        if NAME_OF in decision:
            assert offset == offset_of[decision.removeprefix(NAME_OF)]
            assert held == held_before
        else:
            step = steps[position]
            assert decision == f"{step.decision} {step.source or ''}".strip()
            assert (result, int(offset) * KIB) == (step.buffer, step.offset)
            assert held == ", ".join(step.held)
        offset_of[result], held_before = offset, held
    assert len(rows) == 10
    problem = example()
    assert solve(problem, "rec_tbl").peak == 160 * KIB
    assert solve(problem, "best").peak == lower_bound(problem) == 96 * KIB


MEASURED = tuple(dict.fromkeys(row[0] for row in table("measured: activation memory")))
"""The networks of the page's table."""


@pytest.mark.parametrize(
    "network",
    [n if n == "squeezenet" else pytest.param(n, marks=pytest.mark.slow) for n in MEASURED],
)
def test_measured_numbers(network: str) -> None:
    rows = [row for row in table("measured: activation memory") if row[0] == network]
    assert [row[1] for row in rows] == ["yes", "no"]
    mod = workloads.model(network)
    for row in rows:
        (memory,) = tvm_ext.activation_memory(
            mod, fuse=row[1] == "yes", names=["best", "first_fit", "rec_tbl", "skyline"]
        )
        stock, best = memory.stock.nbytes, memory.bytes_of("best")
        assert best == memory.lower_bound
        assert memory.bytes_of("first_fit") == memory.bytes_of("skyline") == best
        numbers = (memory.no_reuse, stock, memory.bytes_of("rec_tbl"), best)
        saved = f"{stock - best:,} ({(stock - best) / stock:.1%})"
        assert row[2:] == [*(f"{number:,}" for number in numbers), saved]


@pytest.mark.parametrize(
    "row",
    [
        row if at % 5 == 0 else pytest.param(row, marks=pytest.mark.slow)
        for at, row in enumerate(table("measured: runtime"))
    ],
    ids=lambda row: row[0],
)
def test_measured_runtime_shapes(row: list[str]):
    name, *numbers = row
    network = RUNTIME_SHAPES[name]
    lowered = lower(network.build())
    plans = [relax.transform.StaticPlanBlockMemory(), GMEMAllocate()]
    plans += [GMEMAllocate(upper_bounds=network.sizes)] if network.sizes else []
    for plan, said in zip(plans, numbers, strict=False):
        mod = planned(lowered, plan)
        nbytes = sum(allocated_at(mod[function], network.sizes) for function in network.calls)
        assert f"{nbytes:,}" == said
    taken = [int(number.replace(",", "")) for number in numbers[3:] if number]
    assert max(taken[1:]) < taken[0]


def test_the_page_runs_every_network_of_dynamic_shapes():
    assert [row[0] for row in table("measured: runtime")] == list(RUNTIME_SHAPES)
