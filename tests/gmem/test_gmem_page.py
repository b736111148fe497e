# SPDX-License-Identifier: Apache-2.0
"""What docs/gmem.md says is what comes out."""

from __future__ import annotations

from pathlib import Path

import pytest
from measured_memory import allocated_at
from relax_runs import lower, planned
from runtime_shapes import RUNTIME_SHAPES
from sweeps import sample
from tvm import relax

import tvm_ext
from tvm_ext import workloads
from tvm_ext.report.tables import bytes_without_reuse
from tvm_ext.transform import GMEMAllocate

PAGE = Path(__file__).parents[2] / "docs" / "gmem.md"


def table(marker: str) -> list[list[str]]:
    """Give the cells of the page's table behind a comment, without the header."""
    lines = PAGE.read_text().split(f"<!-- {marker} -->\n")[1].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    end = next(i for i, line in enumerate(lines) if not line.startswith("|"))
    return rows[2:end]


MEASURED = tuple(dict.fromkeys(row[0] for row in table("measured: activation memory")))
"""The networks of the page's table."""


@pytest.mark.parametrize("network", sample(MEASURED, "squeezenet"))
def test_measured_numbers(network: str) -> None:
    rows = [row for row in table("measured: activation memory") if row[0] == network]
    assert [row[1] for row in rows] == ["yes", "no"]
    mod = workloads.model(network)
    compared = tvm_ext.compare(mod, ["best", "first_fit", "rec_tbl"])
    for row in rows:
        memory = compared.memories[row[1] == "no"]
        bytes_of = {one.planner: one.plan.peak for one in memory.plans}
        stock, best = bytes_of["stock"], bytes_of["best"]
        assert best == memory.bound <= bytes_of["first_fit"]
        numbers = (bytes_without_reuse([memory]), stock, bytes_of["rec_tbl"], best)
        saved = f"{stock - best:,} ({(stock - best) / stock:.1%})"
        assert row[2:] == [*(f"{number:,}" for number in numbers), saved]


SHAPES = table("measured: runtime")


@pytest.mark.parametrize("row", sample(SHAPES, *SHAPES[::5]), ids=lambda row: row[0])
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
    assert max(taken[1:]) <= taken[0]


def test_the_page_runs_every_network_of_dynamic_shapes():
    assert [row[0] for row in table("measured: runtime")] == list(RUNTIME_SHAPES)
