# SPDX-License-Identifier: Apache-2.0
"""Layer groups as maps: the lines are the time steps, and the plans those of the pass."""

from __future__ import annotations

import re

import pytest
import tvm
from tvm.relax.frontend import nn

from tvm_ext.layer_group_report import layer_groups
from tvm_ext.map import MapOptions, map_of_module, memory_map_of
from tvm_ext.workloads import model

CHIP = "sophgo/bm1684x-llvm"


@pytest.fixture(scope="module")
def shown():
    return memory_map_of("mobilenet_v2", target=CHIP, options=MapOptions(layer_group=True))


@pytest.fixture(scope="module")
def report():
    return layer_groups(model("mobilenet_v2"), CHIP)


def test_groups_have_the_plans_of_the_pass(shown, report):
    assert len(shown.scopes) == len(report.groups)
    for scope, group in zip(shown.scopes, report.groups, strict=True):
        (placement,) = scope.placements
        assert placement.plan == group.planned.plan
        assert scope.capacity == group.lmem_capacity
        assert scope.scope == "local.LMEM"
    assert sum(run.simulation.makespan for run in shown.runs) <= report.makespan_after


def test_each_step_is_a_line_that_names_what_it_touches(shown, report):
    for scope, group in zip(shown.scopes, report.groups, strict=True):
        lines, rows = scope.listing.lines, group.planned.steps.rows
        assert len(lines) == 1 + len(rows)
        assert lines[0].startswith(f"for slice in range({group.planned.cut.steps}):")
        for number, row in enumerate(rows):
            text = lines[scope.listing.line_of[number]]
            assert text.strip().startswith(f"step {number}:")
            for transfer in row.transfers:
                assert f"{transfer.kind} {transfer.tensor}" in text
        for buffer in scope.problem.buffers:
            note = scope.notes[buffer.name]
            live = list(scope.lines_of(buffer.name))
            for line in (*note.reads, *note.writes):
                assert any(first <= line <= last for first, last in live)
                if "working memory" not in note.what:
                    assert re.search(rf"(?<![\w.]){re.escape(buffer.name)}(?![\w])", lines[line])


def test_layers_in_no_group_are_listed(shown, report):
    assert len(shown.left) == len(report.left)


def test_only_networks_have_groups():
    with pytest.raises(ValueError, match="no network"):
        memory_map_of("ascend:gelu", options=MapOptions(layer_group=True))
    kernel = tvm.tirx.PrimFunc([], tvm.tirx.Evaluate(0))
    with pytest.raises(ValueError, match="module: is no network, so it has no layers to group"):
        map_of_module(kernel, target=CHIP, options=MapOptions(layer_group=True))


def test_a_chip_shows_the_groups_of_its_twin():
    """Groups stand before what TVM cannot lower for a chip."""

    class Net(nn.Module):
        def __init__(self) -> None:
            self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

        def forward(self, x):
            return self.down(nn.op.gelu(self.up(x)))

    mod, _ = Net().export_tvm({"forward": {"x": nn.spec.Tensor((4, 8), "float32")}})
    options = MapOptions(layer_group=True)
    chip, twin = (
        map_of_module(mod, target=target, options=options)
        for target in (CHIP.removesuffix("-llvm"), CHIP)
    )
    assert chip.scopes
    assert [one.placements for one in chip.scopes] == [one.placements for one in twin.scopes]
    with pytest.raises(ValueError, match="such as 'sophgo/bm1684x-llvm'") as caught:
        map_of_module(mod, target=CHIP.removesuffix("-llvm"))
    assert len(str(caught.value)) < 250
