"""What docs/gmem.md says is what comes out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import tvm_ext
from passes.planning import lower_bound, solve
from passes.planning.sophgo.op_sequence import Op, OpSequence, Value, to_problem
from passes.planning.sophgo.rec_tbl import Decision, trace
from passes.planning.sophgo.regions import place_weights
from target_hw import MemoryScope
from tvm_ext import workloads

PAGE = Path(__file__).parents[2] / "docs" / "gmem.md"
KIB = 1024


def table(marker: str) -> list[list[str]]:
    """Give the cells of the page's table behind a comment, without the header."""
    lines = PAGE.read_text().split(f"<!-- {marker} -->\n")[1].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    end = next(i for i, line in enumerate(lines) if not line.startswith("|"))
    return rows[2:end]


def example() -> OpSequence:
    """Read the graph of the worked example off its table."""
    ops = [Op("forward", "func", (), (Value("image", 12 * KIB),))]
    for name, reads, result, size, decision, *_ in table("example: small_net"):
        kind = "reshape" if decision.startswith("share") else "compute"
        operands = tuple(reads.split(", "))
        ops.append(Op(name, kind, operands, (Value(result, int(size) * KIB),)))
    ops.append(Op("out", "compute", ("j",)))
    return OpSequence(tuple(ops), "small_net")


def test_the_worked_example_is_what_the_strategy_does():
    rows = table("example: small_net")
    steps = [step for step in trace(example(), alignment=4 * KIB) if step.result is not None]
    assert len(steps) == len(rows) == 10
    for (op, _, result, _, decision, offset, held), step in zip(rows, steps, strict=True):
        said = "new" if step.decision is Decision.NEW else f"{step.decision.value} {step.source}"
        assert (op, result, decision) == (step.op, step.result, said)
        assert (int(offset) * KIB, held) == (step.offset, ", ".join(step.held))


def test_the_worked_example_takes_what_the_page_says():
    text = PAGE.read_text()
    problem = to_problem(example(), MemoryScope("global", alignment=4 * KIB))
    assert solve(problem, "rec_tbl").peak == 160 * KIB
    assert "That makes 160 KiB." in text
    best = solve(problem, "best")
    assert best.peak == lower_bound(problem) == 96 * KIB
    assert "no plan does with less than 96 KiB" in text
    assert best.offsets["j"] == (0,)
    assert "it puts `j` at 0" in text


def test_the_worked_example_s_weights():
    words = PAGE.read_text().split("The network's weights come first.")[1].split("\n\n")[0]
    said, begins = words.split("so they begin at")
    sizes = [int(size) for size in re.findall(r"\d+", said)]
    addresses = [int(at, 16) for at in re.findall(r"0x\w+", begins)]
    weights = place_weights([Value(str(i), size) for i, size in enumerate(sizes)], alignment=4096)
    assert [*weights.addresses.values(), weights.end] == addresses
    assert f"The region has {weights.size:,} bytes" in words


def check_measured(network: str) -> None:
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
    regions = PAGE.read_text().split("The weights' regions take")[1].split("\n\n")[0]
    assert re.search(rf"\b{memory.weight_bytes:,}\s+(bytes\s+)?\({network}\)", regions)


@pytest.mark.parametrize("network", ["resnet18", "unet"])
def test_measured_numbers(network: str):
    check_measured(network)


@pytest.mark.slow
@pytest.mark.parametrize("network", workloads.NETWORKS)
def test_all_measured_numbers(network: str):
    check_measured(network)


def test_the_page_measures_every_network():
    rows = table("measured: activation memory")
    assert list(dict.fromkeys(row[0] for row in rows)) == list(workloads.NETWORKS)
    above = [row for row in rows if int(row[4].replace(",", "")) > int(row[3].replace(",", ""))]
    assert len(above) == len(rows) - 1
    assert "above the stock pass in all rows but one" in PAGE.read_text()
