# SPDX-License-Identifier: Apache-2.0
"""Shared memory as a map and as a table: epochs are rows, and the plans those of the pass."""

from __future__ import annotations

import json
import re
import textwrap
from pathlib import Path

import pytest
import tvm
from program_text import program_source
from tvm import tirx
from tvm.target import Target

import tvm_ext
from passes.planning.buffer import live_together
from passes.shared_memory.analysis.stock_bytes import allocated_bytes
from tvm_ext.__main__ import main
from tvm_ext.report.readers import shared_memory

SCRIPT = program_source("""
def phases(x: 128, o: 64):
    T.launch_thread("blockIdx.x", 1)
    tx = T.launch_thread("threadIdx.x", 64)
    kept: shared 128
    other: shared.dyn 64
    kept[tx] = x[tx]
    kept[tx + 64] = x[tx + 64]
    for k in range(4):
        now, then: shared 64
        now[tx] = kept[127 - tx]
        then[tx] = now[63 - tx]
        other[tx] = then[63 - tx]
    late: shared 64
    late[tx] = other[63 - tx]
    o[tx] = late[63 - tx]
""")


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "kernel.py"
    path.write_text(f"from tvm.script import tirx as T\n{SCRIPT}")
    return path


@pytest.fixture(scope="module")
def func():
    return tvm.script.from_source(SCRIPT)


@pytest.fixture(scope="module")
def lowered(func):
    target = Target("opencl", host="llvm")
    mod = tirx.transform.BindTarget(target)(tvm.IRModule({"phases": func}))
    pipeline, _, _ = tirx.get_tir_pipeline("default")
    with target, tvm_ext.use("PlanSharedMemory"):
        return pipeline(mod)["phases_kernel"]


@pytest.fixture(scope="module")
def shown(func):
    mod = tvm.IRModule({"phases": func})
    return tvm_ext.memory_map(mod, ("best", "bump"), view="shared", target="opencl")


def test_plans_are_those_of_the_pass(shown, lowered):
    assert [scope.scope for scope in shown.memories] == ["shared", "shared.dyn"]
    for scope in shown.memories:
        best, bump = scope.plans
        assert best.plan.peak == allocated_bytes(lowered, scope.scope)[0]
        assert bump.plan.peak == sum(buffer.size for buffer in scope.problem.buffers)
        assert tvm_ext.verify(best.problem, best.plan) == ()


def test_a_rule_stands_for_each_barrier(shown, lowered):
    for scope in shown.memories:
        lines, rules = scope.axis.lines, scope.axis.rules
        assert len(rules) == lowered.script().count("tvm_storage_sync")
        heads = [at for at, line in enumerate(lines) if line.startswith("epoch ")]
        assert set(heads) >= {0, *rules}
        assert all("tvm_storage_sync" in lines[at] for at in rules)


def test_a_buffer_stands_in_whole_epochs_where_it_is_used(shown):
    shared = shown.memories[0]
    lines = shared.axis.lines
    edges = {at for at, line in enumerate(lines) if line.startswith("epoch ")} | {len(lines)}
    for buffer in shared.problem.buffers:
        assert edges.issuperset(edge for pair in buffer.live for edge in pair)
        note = shared.notes[buffer.name]
        assert note.writes
        assert note.reads
        for line in (*note.reads, *note.writes):
            assert f"{buffer.name}[" in lines[line]
            assert any(begin <= line < end for begin, end in buffer.live)
    live = {buffer.name: buffer.live for buffer in shared.problem.buffers}
    assert not live_together(live["kept"], live["late"])
    assert live_together(live["now"], live["then"])


def test_barriers_are_in_a_picture(shown):
    upright = re.findall(r'd="M([\d.]+) [\d.]+L\1 ', shown.picture().svg)
    assert len(upright) == sum(len(view.axis.rules) * len(view.plans) for view in shown.memories)


def test_the_command_shows_it(program: Path, tmp_path: Path):
    out = tmp_path / "kernel.html"
    command = ["map", str(program), "shared", "--target", "opencl", "-o", str(out)]
    assert main([*command, "--scopes", "shared"]) == 0
    assert out.read_text().count('"rules":[') == 1
    assert main([*command, "--planners", "stock"]) == 2
    assert main([*command, "order"]) == 2


def test_a_barrier_is_drawn_across_the_page(shown, open_page):
    page = open_page(shown)
    assert page.read(".row.rule", "Number(e.dataset.line)") == list(shown.memories[0].axis.rules)
    assert page.complaints() == []


# ------------------------------------------------------------------------------- as a table


IN_TURNS = program_source("""
def phases(a: 64, o: 64):
    T.launch_thread("blockIdx.x", 1)
    tx = T.launch_thread("threadIdx.x", 64)
    s0, s1, s2: shared 64
    s0[tx] = a[tx]
    s1[tx] = s0[63 - tx]
    s2[tx] = s1[(tx + 7) % 64]
    o[tx] = s2[(tx * 3) % 64]
""")


@pytest.mark.parametrize("default", ["default", "merged"])
def test_each_way_is_told_and_the_status_says_that_ours_takes_more(
    default: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path, told = tmp_path / "kernel.py", tmp_path / "told.json"
    path.write_text(f"from tvm.script import tirx as T\n{IN_TURNS}")
    monkeypatch.setattr(
        shared_memory, "_WAYS", {**shared_memory._WAYS, "default": shared_memory._WAYS[default]}
    )
    command = ["compare", str(path), "shared", "--target", "opencl", "--json", str(told)]
    assert main(command) == (default == "merged")
    (table,) = json.loads(told.read_text())["facts"]
    taken = {"default": "512", "merged": "256", "ours": "512", "insert": "512"}
    row = dict(zip(table["rows"][0], table["rows"][1], strict=True))
    assert row == {**taken, "default": taken[default], "function": "phases"}


def test_a_kernel_that_is_not_lowered_is_refused(
    program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    launch = 'tx = T.launch_thread("threadIdx.x", 64)'
    before, behind = program.read_text().split(f"    {launch}\n")
    loop = '    for tx in T.thread_binding(64, thread="threadIdx.x"):\n'
    program.write_text(before + loop + textwrap.indent(behind, "    "))
    for command in (["compare"], ["map", "-o", str(tmp_path / "map.html")]):
        assert main([command[0], str(program), "shared", *command[1:]]) == 2
        assert "loop 'tx' is bound to a thread; name a target" in capsys.readouterr().err
    assert main(["compare", str(program), "shared", "--target", "opencl"]) == 0
