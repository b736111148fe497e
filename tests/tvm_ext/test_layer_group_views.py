# SPDX-License-Identifier: Apache-2.0
"""Layer groups as a report and as a map, whose lines are the time steps."""

from __future__ import annotations

import json
import re

import pytest
import tvm
from network_builder import Network, module_of, tensor
from saved_json import saved_json
from tvm import relax
from written_networks import Model, inverted_residual

import tvm_ext
from tvm_ext.report.readers.groups import layer_groups

CHIP = "sophgo/bm1684x-llvm"


def blocks(net: Network, image):
    """A few blocks of MobileNetV2, more convolutions, and at the end what no group takes."""
    x = net.emit(relax.op.nn.relu6(net.conv_norm(image, 16, 3, 2)))
    for stride in (2, 1):
        x = inverted_residual(net, x, 24, stride, 6)
    for channels, stride in ((512, 4), (512, 1), (512, 1), (16, 1)):
        x = net.relu(net.conv_norm(x, channels, 3, stride))
    return net.emit(relax.op.sort(x))


@pytest.fixture(scope="module")
def network() -> tvm.IRModule:
    return Model(blocks, (), (1, 3, 112, 112)).build()


@pytest.fixture(scope="module")
def shown(network):
    return tvm_ext.memory_map(network, target=CHIP, view="groups")


@pytest.fixture(scope="module")
def planned(network):
    told = []
    return layer_groups(network, CHIP, progress=lambda *done: told.append(done)), told


@pytest.fixture(scope="module")
def report(planned):
    return planned[0]


def test_groups_save_memory_and_transfers(report):
    assert report.moved_least <= report.moved_after < report.moved_before
    assert report.makespan_after < report.makespan_before


def test_the_table_names_every_layer(report):
    text = "\n".join(report.table().text())
    for group in report.groups:
        assert all(layer in text for layer in group.layers)
        assert f"{group.lmem_peak:,}" in text
    for left in report.left:
        assert f"{left.layer} ({left.result}) is left: {left.reason}" in text


def test_what_layers_make_is_told_with_its_layout(report):
    results = {made for group in report.groups for made in group.results}
    assert "1x512x7x7 nchw, 32 bits" in results
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


def test_progress_reaches_the_last_layer_that_can_be_grouped(planned):
    report, told = planned
    grouped = sum(len(group.layers) for group in report.groups)
    assert max(told)[0] >= grouped
    assert {whole for _, whole in told} == {grouped + len(report.left)}
    assert len({done for done, _ in told}) > 1


def test_an_estimate_is_said_once(caplog):
    scope = tvm_ext.MemoryScope("local.LMEM", 4096, 16, facts=(("eu_bytes", 16), ("lanes", 4)))
    # No other test of this process has a target of this key, of which it might have been said.
    host = tvm.target.Target({"kind": "llvm", "keys": ["said_once", "cpu"]})
    target = tvm_ext.with_memory(host, tvm_ext.MemoryHierarchy((scope,)))
    x = relax.Var("x", relax.TensorType((1, 4, 8, 8), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(relax.op.nn.relu(x)))
    for _ in range(2):
        tvm_ext.layer_groups(builder.get(), target)
    assert sum("describes no pipes" in message for message in caplog.messages) == 1


def test_the_command(network, write, run, tmp_path):
    path, file = tmp_path / "groups.json", write("network.json", saved_json(network))
    status, out, _ = run(*("compare", file, "groups", "--target", CHIP, "--json", str(path)))
    assert status == 0
    assert "between global and local memory" in out
    assert "as built" in out
    assert re.search(r"share one in \d+ of \d+ time steps", out)
    assert json.loads(path.read_text())["memories"]


# ------------------------------------------------------------------------------------ the map


def test_groups_have_the_plans_of_the_pass(shown, report):
    assert len(shown.memories) == len(report.groups) > 0
    for scope, group in zip(shown.memories, report.groups, strict=True):
        own, built = scope.plans
        assert built.plan == group.planned.plan
        # A planner's row says what its own plan takes, and not what is spread over the banks.
        assert own.plan.peak <= min(built.plan.peak, sum(b.size for b in scope.problem.buffers))
        assert scope.problem.capacity == group.lmem_capacity
        assert scope.scope == "local.LMEM"


def test_each_step_is_a_line_that_names_what_it_touches(shown, report):
    for scope, group in zip(shown.memories, report.groups, strict=True):
        lines, rows = scope.axis.lines, group.planned.steps.rows
        assert len(lines) == 1 + len(rows)
        assert scope.axis.name == scope.owner
        assert lines[0].startswith(f"for slice in range({group.planned.cut.steps}):")
        for number, row in enumerate(rows):
            text = lines[scope.axis.line_of[number]]
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
        tvm_ext.memory_map("ascend:gelu", view="groups")
    kernel = tvm.tirx.PrimFunc([], tvm.tirx.Evaluate(0))
    with pytest.raises(ValueError, match="module: is no network, so it has no layers to group"):
        tvm_ext.memory_map(kernel, target=CHIP, view="groups")


def test_a_chip_shows_the_groups_of_its_twin():
    """Groups stand before what TVM cannot lower for a chip."""

    body = lambda net, x: net.feed_forward(x, 16)  # noqa: E731
    mod = module_of(body, {"x": tensor(4, 8)}, "forward")
    chip, twin = (
        tvm_ext.memory_map(mod, view="groups", target=target)
        for target in (CHIP.removesuffix("-llvm"), CHIP)
    )
    assert chip.memories
    assert [one.plans for one in chip.memories] == [one.plans for one in twin.memories]
    assert tvm_ext.memory_map(mod, target=CHIP.removesuffix("-llvm")).memories
