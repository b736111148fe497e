# SPDX-License-Identifier: Apache-2.0
"""Layer groups as maps: the lines are the time steps, and the plans those of the pass."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
import tvm
from tvm.relax.frontend import nn
from written_layers import ConvNorm, InvertedResidual

from tvm_ext.layer_group_report import layer_groups
from tvm_ext.map import MapOptions, map_of_module, memory_map_of

CHIP = "sophgo/bm1684x-llvm"


class Blocks(nn.Module):
    """A few blocks of MobileNetV2, more convolutions, and at the end what no group takes."""

    def __init__(self) -> None:
        self.stem = ConvNorm(3, 16, 3, stride=2)
        self.blocks = nn.ModuleList(
            [InvertedResidual(16, 24, 2, 6), InvertedResidual(24, 24, 1, 6)]
        )
        channels = (512, 512, 512, 16)
        self.last = nn.ModuleList(
            [ConvNorm(24, 512, 3, 4), *(ConvNorm(a, b, 3) for a, b in pairwise(channels))]
        )

    def forward(self, image):
        x = nn.op.relu6(self.stem(image))
        for block in self.blocks:
            x = block(x)
        for layer in self.last:
            x = nn.op.relu(layer(x))
        return nn.op.sort(x)


@pytest.fixture(scope="module")
def network() -> tvm.IRModule:
    spec = {"forward": {"image": nn.spec.Tensor((1, 3, 112, 112), "float32")}}
    mod, _ = Blocks().export_tvm(spec)
    return mod


@pytest.fixture(scope="module")
def shown(network):
    return map_of_module(network, target=CHIP, options=MapOptions(layer_group=True))


@pytest.fixture(scope="module")
def report(network):
    return layer_groups(network, CHIP)


def test_groups_have_the_plans_of_the_pass(shown, report):
    assert len(shown.scopes) == len(report.groups) > 0
    for scope, group in zip(shown.scopes, report.groups, strict=True):
        (placement,) = scope.placements
        assert placement.plan == group.planned.plan
        assert scope.capacity == group.lmem_capacity
        assert scope.scope == "local.LMEM"
    # Layers in no group are counted by the model alone.
    cycles = sum(group.cycles for group in report.groups)
    assert sum(run.simulation.makespan for run in shown.runs) < 1.2 * cycles


def test_each_step_is_a_line_that_names_what_it_touches(shown, report):
    for scope, group in zip(shown.scopes, report.groups, strict=True):
        lines, rows = scope.listing.lines, group.planned.steps.rows
        assert len(lines) == 1 + len(rows)
        assert scope.listing.name == scope.function
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
    assert len(shown.left) == len(report.left) > 0


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
    assert map_of_module(mod, target=CHIP.removesuffix("-llvm")).scopes
