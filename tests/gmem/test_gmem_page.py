# SPDX-License-Identifier: Apache-2.0
"""What docs/gmem.md says is what comes out."""

from __future__ import annotations

from pathlib import Path

import pytest
from graph_oracles import Graph, NaiveTable, Op, Value, problem_of
from measured_memory import allocated_at
from relax_runs import lower, planned
from runtime_shapes import RUNTIME_SHAPES
from sweeps import sample
from tvm import relax

import tvm_ext
from passes.planning import lower_bound, solve
from target_hw import MemoryScope
from tvm_ext import workloads
from tvm_ext.report.tables import bytes_without_reuse
from tvm_ext.transform import GMEMAllocate

PAGE = Path(__file__).parents[2] / "docs" / "gmem.md"
KIB = 1024


def table(marker: str) -> list[list[str]]:
    """Give the cells of the page's table behind a comment, without the header."""
    lines = PAGE.read_text().split(f"<!-- {marker} -->\n")[1].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    end = next(i for i, line in enumerate(lines) if not line.startswith("|"))
    return rows[2:end]


SMALL_NET = """
stem; image; a; 32; new; 0; a
conv1; a; b; 32; new; 32; a, b
conv2; b; c; 32; new; 64; a, c
add; a, c; d; 32; reuse b; 32; d
pool; d; e; 8; reuse a; 0; e
rows; e; f; 8; a name of e; 0; e
gate; f; g; 8; reuse b; 32; e, g
scale; f, g; h; 8; reuse c; 64; h
image; h; i; 8; a name of h; 64; h
up; i; j; 64; new; 96; j
"""
"""The tutorial's network: operator; reads; result; KiB; decision; offset; held afterwards."""

NAME_OF = "a name of "
"""How the example says that a result has no memory of its own."""


def steps() -> list[list[str]]:
    return [line.split("; ") for line in SMALL_NET.strip().splitlines()]


def example() -> Graph:
    """Make the worked example; the last operator, which is not in it, reads `j`."""
    ops = []
    for name, reads, result, size, decision, *_ in steps():
        kind = "reshape" if NAME_OF in decision else "op"
        operands = () if reads == "image" else tuple(reads.split(", "))
        ops.append(Op(name, kind, operands, (Value(result, int(size) * KIB),)))
    return Graph((*ops, Op("last", "op", ("j",), ())))


def test_the_worked_example_is_what_the_strategy_does():
    graph = example()
    strategy = NaiveTable(graph, 0, 4 * KIB, by_value=False).run()
    rows = steps()
    for row, step in zip(rows, strategy.steps, strict=True):
        _, _, result, _, decision, offset, held = row
        name, how, source, holds, _ = step
        how = "a name of" if how == "share" else how
        assert (result, decision) == (name, f"{how} {source or ''}".strip())
        assert int(offset) * KIB == strategy.address[name]
        # The example names memory by its first name.
        assert held.replace("i", "h") == ", ".join(dict.fromkeys(graph.root[one] for one in holds))
    assert len(rows) == 10
    problem = problem_of(graph, MemoryScope("global", alignment=4 * KIB))
    plan = solve(problem, "rec_tbl")
    assert {name: at for name, (at,) in plan.offsets.items()} == {
        name: at for name, at in strategy.address.items() if graph.root[name] == name
    }
    assert plan.peak == 160 * KIB
    assert solve(problem, "best").peak == lower_bound(problem) == 96 * KIB


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
