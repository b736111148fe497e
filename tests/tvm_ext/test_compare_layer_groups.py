# SPDX-License-Identifier: Apache-2.0
"""The command that shows what groups of layers save."""

from __future__ import annotations

import json
import sys

import pytest
import tvm
from tvm import relax
from tvm.relax.frontend import nn

import tvm_ext
from tvm_ext.__main__ import main
from tvm_ext.commands.command_options import progress_line

CHIP = "sophgo/bm1684x"


class Convolutions(nn.Module):
    """Images of 56x56 with 64 channels through four layers."""

    def __init__(self) -> None:
        self.layers = nn.ModuleList([nn.Conv2D(64, 64, 3, padding=1) for _ in range(2)])

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        """Convolve and rectify, twice."""
        for layer in self.layers:
            x = nn.op.relu(layer(x))
        return x


def convolutions() -> tvm.IRModule:
    spec = {"forward": {"x": nn.spec.Tensor([1, 64, 56, 56], "float32")}}
    return Convolutions().export_tvm(spec=spec)[0]


@pytest.fixture(scope="module")
def planned():
    mod = convolutions()
    told = []
    return tvm_ext.layer_groups(mod, CHIP, progress=lambda *done: told.append(done)), told


def test_groups_save_memory_and_transfers(planned):
    report, _ = planned
    assert report.moved_least <= report.moved_after < report.moved_before
    assert report.makespan_after < report.makespan_before


def test_the_table_names_every_layer(planned):
    report, _ = planned
    text = "\n".join(report.table().text())
    for group in report.groups:
        assert all(layer in text for layer in group.layers)
        assert f"{group.lmem_peak:,}" in text
    for left in report.left:
        assert f"{left.layer} ({left.result}) is left: {left.reason}" in text


def test_what_layers_make_is_told_with_its_layout(planned):
    report, _ = planned
    results = {made for group in report.groups for made in group.results}
    assert "1x64x56x56 nchw, 32 bits" in results
    assert all(len(group.results) == len(group.layers) for group in report.groups)


def test_no_bytes_are_made_up_for_a_size_that_is_not_known():
    mod = tvm.script.from_source("""
@R.function
def main(x: R.Tensor(("n", 16), "float32")) -> R.Tensor(("n", 16), "float32"):
    with R.dataflow():
        y = R.nn.relu(x)
        z = R.nn.softmax(y)
        R.output(z)
    return z
""")
    report = tvm_ext.layer_groups(tvm.IRModule.from_expr(mod), CHIP)
    assert (report.moved_before, report.moved_after, report.moved_least) == (0, 0, 0)
    assert {one.result for one in report.left} == {"a size known at run time only"}
    assert "not counted: tensors of a size known at run time only" in report.table().notes


def test_progress_reaches_the_last_layer(planned):
    report, told = planned
    layers = sum(len(group.layers) for group in report.groups) + len(report.left)
    assert max(told)[0] == max(told)[1] >= layers
    assert len({done for done, _ in told}) > 1


def test_an_estimate_is_said_once(caplog):
    scope = tvm_ext.MemoryScope("local.LMEM", 4096, 16, facts=(("eu_bytes", 16), ("lanes", 4)))
    target = tvm_ext.with_memory("llvm", tvm_ext.MemoryHierarchy((scope,)))
    x = relax.Var("x", relax.TensorType((1, 4, 8, 8), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(relax.op.nn.relu(x)))
    for _ in range(2):
        tvm_ext.layer_groups(builder.get(), target)
    assert sum("describes no pipes" in message for message in caplog.messages) == 1


def test_the_command(capsys, tmp_path):
    path, network = tmp_path / "groups.json", tmp_path / "network.json"
    network.write_text(tvm.ir.save_json(convolutions()))
    arguments = ["compare", str(network), "--target", CHIP, "--layer-group", "--json", str(path)]
    assert main(arguments) == 0
    assert "between global and local memory" in capsys.readouterr().out
    assert json.loads(path.read_text())["groups"]


@pytest.mark.parametrize("terminal", [False, True])
def test_progress_is_for_terminals_alone(terminal, capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    with progress_line("layers") as progress:
        progress(3, 7)
    out, err = capsys.readouterr()
    assert out == ""
    assert ("3 of 7 layers" in err) == terminal
